"""Collaborative multi-head attention for neural machine translation with fairseq.

`fairseq-train --user-dir "$(collab user-dir)"` imports this package and then every file of `models/`. Importing it
alone pulls in neither torch nor fairseq, so that `collab --help` is quick and fairseq decides when it is loaded.
"""

__version__ = "0.1.0"

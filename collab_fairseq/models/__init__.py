"""What ``--user-dir`` imports: registers ``transformer_collab`` and its presets with fairseq.

fairseq imports every file here by itself; whoever uses the model without ``--user-dir`` imports this package.
"""

from . import presets  # noqa: F401  (registers the model, then the presets)

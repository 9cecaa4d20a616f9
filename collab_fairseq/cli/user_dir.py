"""Print the path for fairseq's --user-dir, for example:

fairseq-train DATA --user-dir "$(collab user-dir)" --arch transformer_collab ...
"""

import argparse
import os
import sys

import collab_fairseq

HELP = "print the path for fairseq's --user-dir"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    sys.stdout.write(os.path.dirname(os.path.abspath(collab_fairseq.__file__)) + "\n")
    return 0

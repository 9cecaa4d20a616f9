#!/usr/bin/env python3
"""Check design B of convergence.md: blocks.py RUN ...

RUN is the folder of a run. In its averaged.pt, all entries of the mixing matrices outside the blocks must be exactly 0.
Prints the name of the run, the number of mixing matrices and the SHA-256 checksum of averaged.pt.
"""

import argparse
import sys
from pathlib import Path

from collab_fairseq import checkpoints
from collab_fairseq.attention import initial_mixing
from collab_fairseq.cli.main import guarded
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256


def check(file: Path) -> str:
    """The line about an averaged checkpoint.

    Raises:
        UserError: it has no mixing matrix, or one with an entry outside the blocks.
    """
    parameters = checkpoints.load(file)["model"]
    matrices = {name: values for name, values in parameters.items() if name.endswith(".mixing")}
    if not matrices:
        raise UserError(f"{file} must have mixing matrices; got none")
    for name, values in matrices.items():
        outside = values[initial_mixing("blocks", *values.shape) == 0]
        if outside.count_nonzero():
            raise UserError(f"{file}: {name} must be 0 outside the blocks; got {outside.abs().max():.3g}")
    return f"{file.parent.name}: 0 outside the blocks of {len(matrices)} mixing matrices, SHA-256 {sha256(file)}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    for folder in parser.parse_args().runs:
        sys.stdout.write(check(folder / "averaged.pt"))


if __name__ == "__main__":
    sys.exit(guarded("blocks.py", main))

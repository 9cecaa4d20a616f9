"""Prepare a data set for fairseq: python -m data_prep NAME [OPTIONS], or data_prep/NAME.sh [OPTIONS].

NAME is one of the files NAME.yaml in data_prep, or a program: micro_wmt_corpus, miniature. `NAME --help` describes it.
"""

import importlib
import sys
from pathlib import Path

from data_prep import interpreter

HERE = Path(__file__).resolve().parent
PROGRAMS = ("micro_wmt_corpus", "miniature")


def main() -> int:
    """Call the program NAME, with its name and options in `sys.argv`."""
    interpreter.pass_on()
    argv = sys.argv[1:]
    sets = sorted(path.stem for path in HERE.glob("*.yaml"))
    if not argv or argv[0] in ("-h", "--help"):
        sys.stdout.write(f"{__doc__}\ndata sets: {' '.join(sets)}\n")
        return 0
    name = argv[0]
    if name not in (*sets, *PROGRAMS):
        sys.stderr.write(f"data_prep: error: NAME must be one of {', '.join((*sets, *PROGRAMS))}; got '{name}'\n")
        return 2
    title = f"data_prep/{name}.sh" if name in sets else f"python -m data_prep {name}"
    from collab_fairseq.cli.main import guarded

    sys.argv = [title, *argv[1:]]
    return guarded(title, importlib.import_module(f"data_prep.{'prepare' if name in sets else name}").main)


if __name__ == "__main__":
    sys.exit(main())

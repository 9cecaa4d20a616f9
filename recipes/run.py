#!/usr/bin/env python3
"""What run.sh and its like of every recipe hand their arguments to: run.py SCRIPT [ARGUMENTS]

A script with a program of its own name beside it (demo/run.sh, demo/run.py) has that one run, which finds the package
`runner`; the others are steps of a recipe, named for what they do: run, train, average, evaluate, sweep.
"""

import runpy
import sys
from pathlib import Path

try:
    from runner import cli

    from collab_fairseq.cli.main import guarded
except ImportError as missing:
    sys.exit(
        f"{sys.argv[1]}: error: '{sys.executable}' has no {missing.name}; install the project first (README.md) or "
        "name another --python"
    )

if __name__ == "__main__":
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    name = str(script.relative_to(cli.ROOT))
    if script.with_suffix(".py").is_file():
        sys.argv[0] = name
        runpy.run_path(str(script.with_suffix(".py")), run_name="__main__")
    else:
        sys.exit(guarded(name, lambda: cli.main(script, sys.argv[1:])))

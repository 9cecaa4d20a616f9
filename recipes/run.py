#!/usr/bin/env python3
"""What the scripts of recipes and data_prep hand their arguments to: run.py SCRIPT [ARGUMENTS]

A script with a program of its own name beside it (demo/run.sh, demo/run.py) has the function `main` of that one called,
one of data_prep that of prepare.py; the others are steps of a recipe, named for what they do: run, train, average,
evaluate, sweep.
"""

import importlib
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
    script = Path(sys.argv[1]).resolve()  # a checkout may be reached through a link
    name = str(script.relative_to(cli.ROOT))
    sys.argv = [name, *sys.argv[2:]]
    programs = [path for path in (script.with_name("prepare.py"), script.with_suffix(".py")) if path.is_file()]
    if programs:
        sys.path.insert(0, str(script.parent))
        sys.exit(guarded(name, importlib.import_module(programs[0].stem).main))
    sys.exit(guarded(name, lambda: cli.main(script, sys.argv[1:])))

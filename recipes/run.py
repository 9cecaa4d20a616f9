#!/usr/bin/env python3
"""Python entry point of the shell scripts in recipes and data_prep: run.py SCRIPT [ARGUMENTS]

If there is a program of the same name next to the script (demo/run.sh, demo/run.py), or prepare.py (data_prep), its
`main` is called. Otherwise the script is a step of a recipe, given by its name: run, train, average, evaluate, sweep.
"""

import importlib
import sys
from pathlib import Path

try:
    from runner import cli

    from collab_fairseq.cli.main import guarded
except ImportError as error:
    sys.exit(
        f"{sys.argv[1]}: error: '{sys.executable}' has no {error.name}; install the project first (README.md) or "
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

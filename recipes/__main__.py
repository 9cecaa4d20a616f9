"""Run a recipe: python -m recipes NAME [STEP] [OPTIONS] [SECTION.NAME=VALUE ...]

or, from any folder, recipes/NAME/run.sh [STEP] [OPTIONS] ... `NAME --help` describes a recipe. The STEP of a training
recipe is train, average, evaluate, sweep (several runs and their table), or by default: train, average and evaluate.
"""

import importlib
import sys
from pathlib import Path
from typing import Dict, List, Optional

from data_prep import interpreter

HERE = Path(__file__).resolve().parent


def program_of(folder: Path, argv: List[str]) -> Optional[str]:
    """The program of a step (wmt14_en_de/rehearse.py) or a recipe (run.py), as a module; None: the runner does it."""
    for name in (*argv[:1], "run"):
        if name.isidentifier() and (folder / f"{name}.py").is_file():
            return name
    return None


def recipes() -> Dict[str, str]:
    """The names of all recipes, and the first comments of their scripts."""
    scripts = {path.parent.name: path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*/run.sh"))}
    return {name: text.splitlines()[1].removeprefix("# ").partition(" See --help")[0] for name, text in scripts.items()}


def main() -> int:
    """Call the program or the runner, with the options in `sys.argv`."""
    interpreter.pass_on()
    argv = sys.argv[1:]
    names = recipes()
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, names))
        lines = "\n".join(f"  {name:<{width}}  {about}" for name, about in names.items())
        sys.stdout.write(f"{__doc__}\nNAME:\n{lines}\n")
        return 0
    name, argv = argv[0], argv[1:]
    if name not in names:
        sys.stderr.write(f"recipes: error: NAME must be one of {', '.join(names)}; got '{name}'\n")
        return 2
    from collab_fairseq.cli.main import guarded

    title, program = f"recipes/{name}/run.sh", program_of(HERE / name, argv)
    if not program:
        from recipes.runner import cli

        return guarded(title, lambda: cli.main(name, argv))
    if argv[:1] == [program]:
        title, argv = f"{title} {program}", argv[1:]
    sys.argv = [title, *argv]
    module = importlib.import_module(f"recipes.{name}.{program}")
    # a program prints the table of a page, or does more
    return guarded(title, getattr(module, "main", lambda: sys.stdout.write(module.markdown(argv)) and 0))


if __name__ == "__main__":
    sys.exit(main())

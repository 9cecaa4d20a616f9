#!/usr/bin/env python3
"""The results of the demo from its records: a table, a figure and some translations side by side.

Prints them and writes FOLDER/summary.md and FOLDER/validation.svg; files whose content would not change are left alone.
"""

import argparse
import sys
from pathlib import Path
from typing import List

from collab_fairseq.cli.main import guarded
from collab_fairseq.records import figures, table
from collab_fairseq.records.files import write_text
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.generate_log import read_generate_log

COLUMNS = (
    "heads", "key_dim", "parameters", "valid_loss", "compound_split", "sacrebleu", "words_per_second", "wall_time",
)  # fmt: skip
_EXAMPLES = 4


def examples(folder: Path, names: List[str]) -> str:
    """Sentences of the test set, with the reference and every model's translation; such where the models differ."""
    texts = folder / "data" / "raw"
    shown = {
        side: (texts / f"test.{lang}").read_text(encoding="utf-8").split("\n")
        for side, lang in (("source", "en"), ("reference", "de"))
    }
    shown.update({name: read_generate_log([folder / name / "test.generate.log"]).hypotheses for name in names})
    numbers = range(len(shown[names[0]]))
    differing = [i for i in numbers if len({shown[name][i] for name in names}) > 1] or list(numbers)
    chosen = [differing[len(differing) * n // _EXAMPLES] for n in range(min(_EXAMPLES, len(differing)))]
    width = max(map(len, shown))
    return "\n\n".join("\n".join(f"    {name:<{width}}  {shown[name][i]}" for name in shown) for i in chosen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the demo, with one folder per model in it")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    args = parser.parse_args()
    folder, runs = args.folder, [load_run(args.folder / name / "record.json") for name in args.models]
    text = f"""{table.markdown_table(runs, columns=COLUMNS, folder=str(folder))}
Translations of the test set:

{examples(folder, args.models)}
"""
    page, drawing = folder / "summary.md", folder / "validation.svg"
    if not (page.is_file() and page.read_text(encoding="utf-8") == text and drawing.is_file()):
        figures.draw(runs, drawing, "updates", "valid_loss", ("heads", "key_dim"))
        write_text(text, page)
    sys.stdout.write(f"\n{text}\nThis text: {page}\nFigure: {drawing}\n")


if __name__ == "__main__":
    sys.exit(guarded("recipes/demo/summary.py", main))

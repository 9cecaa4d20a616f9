#!/usr/bin/env python3
"""The results of the demo from its records: a table, a figure and some translations side by side.

Prints them and writes FOLDER/summary.md and FOLDER/validation.svg; files whose content would not change are left alone.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq.records import figures, pages
from collab_fairseq.records.drawing import PlotError
from collab_fairseq.records.files import write_text
from collab_fairseq.records.record import RecordError
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.generate_log import read_generate_log

HEADER = ["model", "key dim", "parameters", "validation loss", "compound-split BLEU", "sacreBLEU", "words/s", "time"]
_EXAMPLES = 4


def row(record: Dict[str, Any]) -> List[str]:
    """One model's line of the table; words/s and time are of the training, and missing where it was killed."""
    scores = {score["metric"]: score["score"] for score in record["scores"]["test"]["scores"]}
    minutes, seconds = divmod(round(record["training"]["wall_seconds"] or 0), 60)
    model, speed = record["config"]["model"], record["training"]["words_per_second"]
    return [
        "standard" if model["collaborative_heads"] == "none" else "collaborative",
        str(model["key_dim"]),
        f"{record['parameters']:,}",
        f"{record['curves']['valid'][-1]['loss']:.3f}",
        f"{scores['compound-split BLEU']:.1f}",
        f"{scores['sacreBLEU']:.1f}",
        f"{speed:,.0f}" if speed else "-",
        f"{minutes}:{seconds:02d}" if minutes or seconds else "-",
    ]


def draw(runs: List[Dict[str, Any]], path: Path) -> str:
    """Draw the validation losses but those of the first tenth, which are far higher; returns where, or why not."""
    last = max(run["curves"]["valid"][-1]["updates"] for run in runs)
    shown = [[point for point in run["curves"]["valid"] if point["updates"] >= last / 10] for run in runs]
    late = [{**run, "curves": {"valid": points}} for run, points in zip(runs, shown, strict=True)]
    try:
        figures.draw(late, path, "updates", "valid_loss", ("heads", "key_dim"))
    except (PlotError, RecordError) as error:
        return f"no figure: {error}"
    return f"Figure: {path}"


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the demo, with one folder per model in it")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    args = parser.parse_args()
    folder, records = args.folder, {name: load_run(args.folder / name / "record.json") for name in args.models}
    first = records[args.models[0]]
    signature = next(s["signature"] for s in first["scores"]["test"]["scores"] if s["metric"] == "sacreBLEU")
    where = f"{first['hardware']['device'].upper()}, {first['hardware']['threads']} thread each"
    text = f"""{pages.table([HEADER, *map(row, records.values())], numbers=True)}

sacreBLEU signature: {signature}
Validation loss after {first["training"]["updates"]} updates; BLEU of the last {len(first["averaged_from"])} \
checkpoints averaged; all models trained at the same time ({where}). Compound-split BLEU flatters German: compare it \
with its like only.

Translations of the test set:

{examples(folder, args.models)}
"""
    page, drawing = folder / "summary.md", folder / "validation.svg"
    told = f"Figure: {drawing}"
    if not (page.is_file() and page.read_text(encoding="utf-8") == text and drawing.is_file()):
        write_text(text, page)
        told = draw(list(records.values()), drawing)
    sys.stdout.write(f"\n{text}\nThis text: {page}\n{told}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

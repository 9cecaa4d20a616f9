#!/usr/bin/env python3
"""The results of the demo from its records: a table, a figure and some translations side by side.

Prints them and writes FOLDER/summary.md and FOLDER/validation.svg; files whose content would not change are left alone.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, Dict, List

from collab_fairseq.records.files import write_text
from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.generate_log import read_generate_log

HEADER = ("model", "key dim", "parameters", "validation loss", "compound-split BLEU", "sacreBLEU", "words/s", "time")
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_EXAMPLES = 4


def row(name: str, record: Dict[str, Any]) -> List[str]:
    """One model's line of the table; words/s and time are of the training."""
    scores = {score["metric"]: score["score"] for score in record["scores"]["test"]["scores"]}
    training = record["training"]
    # a training that was killed leaves no time
    minutes, seconds = divmod(round(training["wall_seconds"] or 0), 60)
    speed = training["words_per_second"]
    return [
        name.rpartition("-")[0],
        str(record["config"]["model"]["key_dim"]),
        f"{record['parameters']:,}",
        f"{record['curves']['valid'][-1]['loss']:.3f}",
        f"{scores['compound-split BLEU']:.1f}",
        f"{scores['sacreBLEU']:.1f}",
        f"{speed:,.0f}" if speed else "-",
        f"{minutes}:{seconds:02d}" if training["wall_seconds"] else "-",
    ]


def table(rows: List[List[str]]) -> str:
    """Markdown, with columns of even width."""
    lines = [list(HEADER), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    # the first column is text, the others are numbers
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    even = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in [lines[0], rule, *lines[1:]]]
    return "\n".join(f"| {' | '.join(line)} |" for line in even)


def signature(record: Dict[str, Any]) -> str:
    return next(s["signature"] for s in record["scores"]["test"]["scores"] if s["metric"] == "sacreBLEU")


def figure(curves: Dict[str, List[Dict[str, float]]]) -> str:
    """Validation loss over updates as SVG, without the first tenth of the training, where the loss is far higher."""
    width, height, left, top, right, bottom = 640, 400, 60, 20, 160, 50
    last = max(points[-1]["updates"] for points in curves.values())
    shown = {name: [p for p in points if p["updates"] >= last / 10] for name, points in curves.items()}
    values = [point["loss"] for points in shown.values() for point in points]
    low, high = min(values), max(values)
    high = high if high > low else low + 1
    across, up = (width - left - right) / last, (height - top - bottom) / (high - low)

    def place(updates: float, loss: float) -> str:
        return f"{left + updates * across:.1f},{top + (high - loss) * up:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for step in range(5):
        loss, updates = low + (high - low) * step / 4, last * step / 4
        y, x = top + (high - loss) * up, left + updates * across
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        parts.append(f'<text x="{x:.1f}" y="{height - bottom + 18}" text-anchor="middle">{updates:.0f}</text>')
    for number, (name, points) in enumerate(shown.items()):
        colour, y = _COLOURS[number % len(_COLOURS)], top + 16 + 20 * number
        line = " ".join(place(point["updates"], point["loss"]) for point in points)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{line}"/>')
        parts.append(f'<line x1="{width - right + 10}" x2="{width - right + 30}" y1="{y}" y2="{y}" stroke="{colour}" '
                     'stroke-width="2"/>')  # fmt: skip
        parts.append(f'<text x="{width - right + 36}" y="{y + 4}">{name}</text>')
    middle = left + last * across / 2
    parts.append(f'<text x="{middle:.1f}" y="{height - 12}" text-anchor="middle">updates</text>')
    parts.append(f'<text x="{left}" y="{top - 6}">validation loss</text></svg>')
    return "\n".join(parts) + "\n"


def examples(folder: Path, names: List[str]) -> str:
    """Sentences of the test set, with the reference and every model's translation; such where the models differ."""
    texts = folder / "data" / "raw"
    raw = {lang: (texts / f"test.{lang}").read_text(encoding="utf-8").split("\n") for lang in ("en", "de")}
    outputs = {name: read_generate_log([folder / name / "test.generate.log"]).hypotheses for name in names}
    total = len(outputs[names[0]])
    differing = [i for i in range(total) if len({outputs[name][i] for name in names}) > 1] or list(range(total))
    chosen = [differing[len(differing) * n // _EXAMPLES] for n in range(min(_EXAMPLES, len(differing)))]
    width = max(len(name) for name in [*names, "reference"])
    blocks = []
    for index in chosen:
        lines = [("source", raw["en"][index]), ("reference", raw["de"][index])]
        lines += [(name, outputs[name][index]) for name in names]
        blocks.append("\n".join(f"    {name:<{width}}  {text}" for name, text in lines))
    return "\n\n".join(blocks)


def write_if_new(text: str, path: Path) -> None:
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(text, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the demo, with one folder per model in it")
    parser.add_argument("models", nargs="+", metavar="MODEL")
    args = parser.parse_args()
    folder, names = args.folder, args.models
    records = {name: load_run(folder / name / "record.json") for name in names}
    first = records[names[0]]
    where = f"{first['hardware']['device'].upper()}, {first['hardware']['threads']} thread each"
    lines = [
        table([row(name, record) for name, record in records.items()]),
        "",
        f"sacreBLEU signature: {signature(first)}",
        f"Validation loss after {first['training']['updates']} updates; BLEU of the last "
        f"{len(first['averaged_from'])} checkpoints averaged; all models trained at the same time ({where}). "
        "Compound-split BLEU flatters German: compare it with its like only.",
        "",
        "Translations of the test set:",
        "",
        examples(folder, names),
        "",
    ]
    text = "\n".join(lines)
    page, drawing = folder / "summary.md", folder / "validation.svg"
    write_if_new(text, page)
    write_if_new(figure({name: record["curves"]["valid"] for name, record in records.items()}), drawing)
    sys.stdout.write(f"\n{text}\nThis text: {page}\nFigure: {drawing}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

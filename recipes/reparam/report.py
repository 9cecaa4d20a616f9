"""Print tables and draw figures from the records of run.sh.

    python -m recipes reparam report RECORD... [--time FILE.svg] [--quality FILE.svg]

RECORD is NAME.json of run.sh, for one model or several. --time plots CPU time of the decomposition against the rank
(Figure 4 of the paper), --quality validation loss against the rank, with and without fine-tuning (Figure 5).
"""

import argparse
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict, Optional, Sequence

import pandas

from collab_fairseq.files import PathLike
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import (
    COLOURS,
    WIDTH,
    FigureFile,
    add_width_flag,
    drawing,
    legend_columns,
    other_look,
    points,
    rows_of,
)
from collab_fairseq.records.record import load
from collab_fairseq.records.table import mean_and_deviation
from collab_fairseq.scoring.significance import Interval

METHODS = {
    "source": "source",
    "authors": "paper's method, scale of its code",
    "paper": "paper's method, source's scale",
    "plain": "ours, plain",
    "calibrated": "ours, calibrated",
    "allocated": "ours, calibrated, rank allocated (mean)",
    "distilled": "ours, … and distilled",
}


def results(record: Dict[str, Any]) -> pandas.DataFrame:
    """A row for each model of a study, in the order of its table.

    Columns: kind (source, conversion or finetuned), method, part (fraction of the key dimension), loss, increase (over
    the source, or the fine-tuned source), seconds, and BLEU on each test split.
    """
    rows = []
    for name, result in record["parts"].items():
        kind, _, model = name.partition("/")
        if kind not in ("source", "conversion", "finetuned"):
            continue
        method = result.get("method", "source")
        part = Fraction(result.get("part", 1))
        if kind == "finetuned" and not model.endswith("-full"):  # such as tiny-calibrated-3of4
            _, method, suffix = model.rsplit("-", 2)
            part = Fraction(suffix.replace("of", "/"))
        row = {
            "kind": kind,
            "method": method,
            "part": part,
            "loss": result["valid"]["loss"],
            "seconds": result.get("cpu_seconds"),
        }
        row.update({split: scored["score"] for split, scored in result.get("bleu", {}).items()})
        rows.append(row)
    frame = pandas.DataFrame(rows)
    before = frame[frame["method"] == "source"].groupby("kind")["loss"].first()
    frame["increase"] = frame["loss"] - frame["kind"].replace("conversion", "source").map(before)
    order = {
        "kind": ["source", "conversion", "finetuned"].index,
        "method": list(METHODS).index,
        "part": lambda part: -part,
    }
    return frame.sort_values(["kind", "part", "method"], key=lambda column: column.map(order[column.name]))


def tables(studies: Sequence[Dict[str, Any]]) -> str:
    """Text and table of each model in Markdown."""
    return "".join(map(study, studies))


def study(record: Dict[str, Any]) -> str:
    """Text and table of one model in Markdown."""
    settings, source = record["settings"], record["parts"]["source"]
    model, full, splits = settings["model"], source["full"], list(source["bleu"])
    sizes = model["sizes"]
    columns = {"loss": 4, "increase": 4, "seconds": 1, **dict.fromkeys(splits, 2)}
    bleu = [f"sacreBLEU {split}" for split in splits]
    rows = [["model", "key dimension", "validation loss", "increase", "CPU seconds", *bleu]]
    for (kind, part, method), runs in results(record).groupby(["kind", "part", "method"], sort=False):
        cells = [mean_and_deviation(runs[column], digits) for column, digits in columns.items()]
        rows.append([METHODS[method] + ", fine-tuned" * (kind == "finetuned"), f"R = {part}", *cells])
    updates = [part["updates"] for name, part in record["parts"].items() if name.startswith("finetuned/")]
    signature = next(iter(source["bleu"].values()))["signature"] if splits else ""
    bleu_gaps = [abs(full["bleu"][split]["score"] - source["bleu"][split]["score"]) for split in splits]
    loss_gap = abs(full["valid"]["loss"] - source["valid"]["loss"])
    number = len(settings["seeds"])
    spread = f"Mean and standard deviation over {number} seeds of the decomposition."
    about = [
        f"{model['updates']:,} updates; calibrated on {settings['sentences']} sentences.",
        spread if number > 1 else "One seed.",
        "CPU seconds are those of the whole model, without calibration, allocation and sampling of unlabelled text.",
    ]
    if any("/distilled-" in name for name in record["parts"]):
        about.append(
            f"Distilled in {settings['distill']:,} steps, without labels, on {settings['unlabelled']:,} source "
            "sentences of the training text."
        )
    if updates:
        about.append(f"Fine-tuned models: {updates[0]} updates; their increase is relative to the fine-tuned source.")
    differences = f"the loss differs by {loss_gap:.0e} and BLEU by {max(bleu_gaps, default=0):.2f}"
    at_full = f"sacreBLEU: `{signature}`. At full rank {differences}."
    layers = f"{sizes['encoder_layers']}+{sizes['decoder_layers']} layers"
    heads = f"d_model {sizes['encoder_embed_dim']}, {sizes['encoder_attention_heads']} heads"
    title = f"### {record['name']}: {layers}, {heads}"
    return "\n\n".join([title, " ".join(about), pages.table(rows, numbers=True), at_full]) + "\n\n"


def draw(path: PathLike, studies: Sequence[Dict[str, Any]], column: str) -> None:
    """Figure 5 of the paper (``column`` is loss) or Figure 4 (seconds), with one panel for each model."""
    quantity = "Validation loss" if column == "loss" else "CPU seconds of the conversion"
    description = "Mean and standard deviation over the seeds of the decomposition. Lower is better."
    rows = rows_of(path, len(studies))
    title = f"{quantity} against the key dimension after conversion"
    with drawing(path, 0.6 + 3.3 * rows, title, description) as figure:
        axes = figure.subplots(rows, len(studies) // rows, squeeze=False).flatten()
        for axis, record in zip(axes, studies, strict=True):
            frame = results(record)
            shown = frame[~frame["method"].isin(["source", "authors"])].dropna(subset=column)
            for number, ((kind, method), of_method) in enumerate(shown.groupby(["kind", "method"], sort=False)):
                values = of_method.groupby("part")[column]
                label = METHODS[method] + ", fine-tuned" * (kind == "finetuned")
                pairs = zip(values.mean(), values.std(), strict=True)
                intervals = [Interval(mean, mean - deviation, mean + deviation) for mean, deviation in pairs]
                points(axis, list(map(float, values.groups)), intervals, label=label, **other_look(number))
            if column == "loss":
                axis.axhline(frame["loss"].iloc[0], color=COLOURS["reference"], linestyle=":", label="source")
            else:
                axis.set_yscale("log")
            ranks = sorted(set(shown["part"]))
            axis.set_xticks([float(part) for part in ranks], [str(part) for part in ranks])
            axis.set_title(record["name"])
            axis.set_xlabel("key dimension, as a part of the source's")
            axis.set_ylabel("validation loss" if column == "loss" else "CPU seconds, whole model")
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=legend_columns(path, 2, narrow=1))


def draw_figures(
    studies: Sequence[Dict[str, Any]], time: Optional[Path], quality: Optional[Path], width: float = WIDTH
) -> None:
    """Draw the figures whose files are given; ``width``: in inches."""
    for path, column in ((time, "seconds"), (quality, "loss")):
        if path:
            draw(FigureFile(path, width), studies, column)


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """The tables; also draws the figures whose files are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    parser.add_argument("--time", type=Path, metavar="FILE", help="CPU time against the rank: a .png or .svg file")
    parser.add_argument("--quality", type=Path, metavar="FILE", help="loss against the rank: a .png or .svg file")
    add_width_flag(parser)
    args = parser.parse_args(arguments)
    studies = [load(path, "study") for path in args.records]
    draw_figures(studies, args.time, args.quality, args.width or WIDTH)
    return tables(studies)

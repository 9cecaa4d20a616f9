#!/usr/bin/env python3
"""Tables and figures from the records of run.sh: the same records give the same files.

    report.py RECORD... [--table FILE [--marker NAME]] [--time FILE.svg] [--quality FILE.svg]

Records are NAME.json of study.py, of one model or several. --time draws the CPU time of the decomposition against the
rank (Figure 4 of the paper), --quality the validation loss against the rank with and without fine-tuning (Figure 5).
Without files the table is printed; with --marker it takes the place of what stands between <!-- NAME --> and
<!-- /NAME --> in its file.
"""

import argparse
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pandas

from collab_fairseq.cli.main import guarded
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, MARKS, drawing
from collab_fairseq.records.record import load

METHODS = {
    "authors": "paper's method, scale of its code",
    "paper": "paper's method, source's scale",
    "plain": "ours, plain",
    "calibrated": "ours, calibrated",
    "allocated": "ours, calibrated, rank allocated (mean)",
    "distilled": "ours, … and distilled",
}
Record = Dict[str, Any]


def conversions(record: Record) -> pandas.DataFrame:
    """A row for each conversion of a study: method, part (of the key dim), seed, loss, increase, cpu_seconds, BLEU."""
    before = record["parts"]["source"]["valid"]["loss"]
    rows = []
    for name, found in record["parts"].items():
        if name.startswith("conversion/"):
            bleu = {split: scored["score"] for split, scored in found.get("bleu", {}).items()}
            loss, part = found["valid"]["loss"], Fraction(found["part"])
            about = {key: found[key] for key in ("method", "seed", "cpu_seconds")}
            rows.append({**about, "part": part, "loss": loss, "increase": loss - before, **bleu})
    return pandas.DataFrame(rows)


def spread(values: pandas.Series, digits: int) -> str:
    """Mean and standard deviation over the seeds, where they make a difference."""
    mean = f"{values.mean():.{digits}f}"
    return mean if values.nunique() < 2 else f"{mean} ± {values.std():.{digits}f}"


def grid(frame: pandas.DataFrame, value: str, digits: int) -> str:
    """A row for each method, a column for each rank."""
    cells = frame.groupby(["method", "part"])[value].agg(lambda values: spread(values, digits)).unstack("part")
    cells = cells.reindex([method for method in METHODS if method in cells.index]).fillna("–")
    ranks = sorted(cells, reverse=True)
    rows = [[METHODS[method], *row] for method, row in zip(cells.index, cells[ranks].values.tolist(), strict=True)]
    return pages.table([["method", *(f"R = {part}" for part in ranks)], *rows], numbers=True) + "\n\n"


def study(record: Record) -> str:
    """The tables of one model."""
    settings, source, frame = record["settings"], record["parts"]["source"], conversions(record)
    model, sizes = settings["model"], settings["model"]["sizes"]
    text = (
        f"### {record['name']}: {sizes['encoder_layers']}+{sizes['decoder_layers']} layers, width "
        f"{sizes['encoder_embed_dim']}, {sizes['encoder_attention_heads']} heads\n\n"
        f"{model['updates']:,} updates, validation loss {source['valid']['loss']:.4f}. Increase of the loss by "
        f"conversion, calibrated on {settings['sentences']} sentences: mean and standard deviation over the seeds "
        f"{', '.join(map(str, settings['seeds']))} of the decomposition, where they make a difference.\n\n"
    )
    text += grid(frame, "increase", 4)
    if "distilled" in set(frame["method"]):
        text += (
            f"Distilled in {settings['distill']:,} steps, without labels, on the first {settings['unlabelled']:,} "
            "source sentences of the training text.\n\n"
        )
    text += "CPU seconds for the whole model, calibration and allocation not counted:\n\n"
    text += grid(frame[frame["method"] != "authors"], "cpu_seconds", 1)
    parts, splits = settings["bleu_ranks"], list(source["bleu"])
    rows = [["model", *splits], ["source", *(f"{source['bleu'][split]['score']:.2f}" for split in splits)]]
    for part in parts:
        chosen = frame[frame["part"] == Fraction(part)]
        for method in (method for method in METHODS if method in set(chosen["method"])):
            own = chosen[chosen["method"] == method]
            rows.append([f"{METHODS[method]}, R = {part}", *(spread(own[split], 2) for split in splits)])
    signature = next(iter(source["bleu"].values()))["signature"] if splits else ""
    text += f"sacreBLEU without labels (`{signature}`):\n\n"
    text += pages.table(rows, numbers=True) + "\n\n"
    runs = tuned_runs(record)
    if runs:
        rows = [["model", "validation loss", "increase", *splits]]
        for method, rank, run in runs:
            label, loss = f"{method}, R = {rank}" if rank else "unchanged", run["valid"]["loss"]
            increase = f"{loss - runs[0][2]['valid']['loss']:+.4f}" if rank else "–"
            rows.append([label, f"{loss:.4f}", increase, *(f"{run['bleu'][s]['score']:.2f}" for s in splits)])
        text += f"After fine-tuning for {runs[0][2]['updates']} updates:\n\n{pages.table(rows, numbers=True)}\n\n"
    full = source["full"]
    gaps = [abs(full["bleu"][split]["score"] - source["bleu"][split]["score"]) for split in splits]
    return text + (
        f"At full rank the largest relative error is {max(full['errors'].values()):.0e}, the loss differs by "
        f"{abs(full['valid']['loss'] - source['valid']['loss']):.0e} and BLEU by {max(gaps, default=0):.2f}.\n\n"
    )


def tuned_runs(record: Record) -> List[Tuple[str, Optional[Fraction], Record]]:
    """Method, rank (None: unchanged) and scores of the fine-tuned models, the unchanged one first, then large ranks."""
    found = []
    for name, run in record["parts"].items():
        if name.startswith("finetuned/"):
            _, method, last = f"-{name}".rsplit("-", 2)  # of finetuned/tiny-full, finetuned/tiny-calibrated-3of4
            found.append((method, None if last == "full" else Fraction(last.replace("of", "/")), run))
    return sorted(found, key=lambda entry: -(entry[1] or Fraction(2)))


def draw(path: Path, studies: List[Record], quality: bool) -> None:
    """Figure 5 of the paper, or 4: one panel for each model."""
    shown = ("paper", "plain", "calibrated", *(("allocated", "distilled") if quality else ()))
    with drawing(path, (4.2 * len(studies), 3.6)) as figure:
        for axis, record in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, strict=True):
            frame = conversions(record)
            for method, colour, mark in zip(shown, COLOURS, MARKS, strict=False):
                own = frame[frame["method"] == method].groupby("part")["loss" if quality else "cpu_seconds"]
                if len(own):
                    axis.errorbar(
                        [float(part) for part in own.groups], own.mean(), yerr=own.std().fillna(0.0),
                        label=METHODS[method], color=colour, marker=mark,
                    )  # fmt: skip
            if quality:
                runs = tuned_runs(record)
                after = [(float(rank), run["valid"]["loss"]) for _, rank, run in runs if rank]
                if after:
                    label = f"{runs[-1][0]}, fine-tuned"
                    axis.plot(*zip(*after, strict=True), label=label, color="black", marker="x")
                loss = record["parts"]["source"]["valid"]["loss"]
                axis.axhline(loss, color="#777777", linestyle=":", label="source")
            else:
                axis.set_yscale("log")
                for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                    formatter("{x:g}")
            ranks = sorted(set(frame["part"]))
            axis.set_xticks([float(part) for part in ranks], [str(part) for part in ranks])
            axis.set_title(record["name"], fontsize="medium")
            axis.set_xlabel("key dim, as a part of the source's")
            axis.set_ylabel("validation loss" if quality else "CPU seconds, whole model")
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=len(studies), fontsize="small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORD")
    for name in ("table", "time", "quality"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument("--marker", metavar="NAME", help="only the part of the page --table between these is written")
    args = parser.parse_args()
    studies = [load(path, "study") for path in args.records]
    if not all("source" in record["parts"] for record in studies):
        parser.error("expected records of study.py, got another study's")
    text = "".join(map(study, studies))
    if args.table:
        pages.publish(text, str(args.table), args.marker)
    for path, quality in ((args.time, False), (args.quality, True)):
        if path:
            draw(path, studies, quality)
    if not (args.table or args.time or args.quality):
        sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(guarded("report.py", main))

#!/usr/bin/env python3
"""Tables and figures from the records of run.sh: the same records give the same files.

    report.py RECORD... [--table FILE] [--time FILE.svg] [--quality FILE.svg]
    report.py --collect FOLDER --name NAME --updates N --output FILE    one record of the fine-tuned models

Records are NAME.json of study.py, NAME.finetuned.json, and that of benchmark.py; several models may be given. --time
draws the CPU time of the decomposition against the rank (Figure 4 of the paper), --quality the validation loss against
the rank with and without fine-tuning (Figure 5). Without files the table is printed.
"""

import argparse
import json
import shlex
import statistics
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, MARKS, drawing
from collab_fairseq.records.files import write_json, write_text
from collab_fairseq.records.record import Record as Envelope
from collab_fairseq.records.record import load as load_record

METHODS = {
    "authors": "paper's method, scale of its code",
    "paper": "paper's method, source's scale",
    "plain": "ours, plain",
    "calibrated": "ours, calibrated",
    "allocated": "ours, calibrated, rank allocated (mean)",
    "distilled": "ours, … and distilled",
}
Record = Dict[str, Any]


def load(paths: List[Path]) -> Tuple[List[Record], Dict[str, Record], List[Record]]:
    """Records of studies in order, of fine-tuned models by name, of benchmarks."""
    studies, tuned, benchmarks = [], {}, []
    for path in paths:
        record = load_record(path, "study")
        record = {**record, **record["parts"]}
        if "finetuned" in record:
            tuned[record["name"]] = record
        elif "race" in record:
            benchmarks.append(record)
        else:
            results = [part for name, part in record["parts"].items() if name.startswith("conversion/")]
            studies.append({**record, "results": results})
    return studies, tuned, benchmarks


def parts(record: Record) -> List[str]:
    return sorted({result["part"] for result in record["results"]}, key=Fraction, reverse=True)


def chosen(record: Record, method: str, part: str) -> List[Record]:
    return [r for r in record["results"] if r["method"] == method and r["part"] == part]


def increases(record: Record, method: str, part: str) -> List[float]:
    """Of the validation loss, one for each seed."""
    before = record["source"]["valid"]["loss"]
    return [result["valid"]["loss"] - before for result in chosen(record, method, part)]


def spread(values: List[float], digits: int) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.{digits}f}"
    return mean if len(values) < 2 or max(values) == min(values) else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def exactness(record: Record) -> str:
    """What a decomposition of full rank changed, in a sentence."""
    full = record["source"]["full"]
    gap = abs(full["valid"]["loss"] - record["source"]["valid"]["loss"])
    same = all(full["bleu"][s]["translations"] == b["translations"] for s, b in record["source"]["bleu"].items())
    error = max(full["errors"].values())
    return (
        f"At full rank the largest relative error is {error:.0e}, the loss differs by {gap:.0e} and the translations "
        f"{'are equal' if same else 'differ'}."
    )


def solver(record: Record) -> str:
    """What benchmark.py measured, as a table."""
    settings, sweeps, layers = record["settings"], record["sweeps"], record["layers"]
    size = f"{settings['heads']}×{settings['width']}×{settings['width']}"
    rows = [[f"CPU per sweep, {size}, R = {sweeps['key_dim']}", f"{sweeps['ratio_of_medians']:.1f} times less"]]
    for kind in sorted({race["heads"] for race in record["race"]}):
        races = [race for race in record["race"] if race["heads"] == kind]
        least, reached = min(race["ratio"] for race in races), all(r["ours_to_that_error"]["reached"] for r in races)
        rows.append([
            f"time to TensorLy's error after {settings['iterations']} iterations, {size}, R = {races[0]['key_dim']}, "
            f"{kind} heads",
            f"at least {least:.0f} times less in {len(races)} runs" if reached else "not reached",
        ])  # fmt: skip
    below = [entry["ours"] <= entry["tensorly"] + 1e-5 for entry in record["errors"]]
    rows.append(["error at every tested R not above TensorLy's", f"in {sum(below)} of {len(below)}"])
    rows.append([
        f"{layers['layers']} layers of {size} at R = {layers['key_dim']}",
        f"{layers['cpu_seconds']:.1f} CPU s, {layers['peak_memory_bytes'] / 1e6:.0f} MB",
    ])  # fmt: skip
    rows.append(["error at full rank", f"{record['full_rank_error']:.0e}"])
    return pages.table([["what", "measured"], *rows], numbers=True) + "\n\n"


def page(studies: List[Record], tuned: Dict[str, Record], benchmarks: List[Record]) -> str:
    """All tables, in Markdown."""
    text = ""
    for record in benchmarks:
        text += f"### The solver\n\nAgainst TensorLy {record['settings']['tensorly']}, one CPU thread, generated heads"
        text += f" and those of {record['settings']['checkpoint']}" if record["settings"]["checkpoint"] else ""
        text += ".\n\n" + solver(record)
    for record in studies:
        model, source, ranks = record["settings"]["model"], record["source"], parts(record)
        sizes = model["sizes"]
        text += (
            f"### {record['name']}: {sizes['encoder_layers']}+{sizes['decoder_layers']} layers, width "
            f"{sizes['encoder_embed_dim']}, {sizes['encoder_attention_heads']} heads\n\n"
            f"{model['updates']:,} updates, validation loss {source['valid']['loss']:.4f}. Increase of the loss by "
            f"conversion, calibrated on {record['settings']['sentences']} sentences: mean and standard deviation over "
            f"the seeds {', '.join(map(str, record['settings']['seeds']))} of the decomposition, where they make a "
            "difference.\n\n"
        )
        there = {result["method"] for result in record["results"]}
        methods = {method: label for method, label in METHODS.items() if method in there}
        rows = [[label, *(spread(increases(record, m, part), 4) for part in ranks)] for m, label in methods.items()]
        text += pages.table([["method", *(f"R = {part}" for part in ranks)], *rows], numbers=True) + "\n\n"
        rows = [
            [label, *(spread([r["cpu_seconds"] for r in chosen(record, m, part)], 1) for part in ranks)]
            for m, label in methods.items() if m != "authors"
        ]  # fmt: skip
        text += "CPU seconds for the whole model, calibration and allocation not counted:\n\n"
        text += pages.table([["method", *(f"R = {part}" for part in ranks)], *rows], numbers=True) + "\n\n"
        part, splits = record["settings"]["bleu_rank"], list(source["bleu"])
        rows = [["source", *(f"{source['bleu'][split]['score']:.2f}" for split in splits)]]
        for method, label in methods.items():
            found = [r["bleu"] for r in chosen(record, method, part) if "bleu" in r]
            if found:
                rows.append([label, *(spread([bleu[split]["score"] for bleu in found], 2) for split in splits)])
        signature = next(iter(source["bleu"].values()))["signature"] if splits else ""
        text += f"sacreBLEU at R = {part}, without any training (`{signature}`):\n\n"
        text += pages.table([["model", *splits], *rows], numbers=True) + "\n\n"
        if record["name"] in tuned:
            text += f"After fine-tuning for {tuned[record['name']]['settings']['updates']} updates:\n\n"
            rows = [
                [label, f"{run['valid']['loss']:.4f}", *(f"{run['bleu'][split]['score']:.2f}" for split in splits)]
                for label, run in tuned_runs(tuned[record["name"]])
            ]
            text += pages.table([["model", "validation loss", *splits], *rows], numbers=True) + "\n\n"
            resumed = tuned[record["name"]]["resumed"]
            text += (
                "Interrupted half-way and continued, the first of them ended "
                f"{'the same, bit for bit' if not resumed['different'] else 'differently'}.\n\n"
            )
        text += exactness(record) + "\n\n"
    return text


def tuned_runs(record: Record) -> List[Tuple[str, Record]]:
    """Label and scores of every fine-tuned model, the unchanged one first."""
    runs = record["finetuned"].items()
    ordered = sorted(runs, key=lambda item: -(rank_of(item[0]) or Fraction(2)))
    return [("unchanged" if rank_of(n) is None else f"calibrated, R = {rank_of(n)}", run) for n, run in ordered]


def rank_of(name: str) -> Optional[Fraction]:
    """3/4 of ``tiny-calibrated-3of4``; None of ``tiny-full``."""
    last = name.rsplit("-", 1)[-1]
    return None if last == "full" else Fraction(last.replace("of", "/"))


def draw(path: Path, studies: List[Record], tuned: Dict[str, Record], quality: bool) -> None:
    """Figure 5 of the paper, or 4: one panel for each model."""
    with drawing(path, (4.2 * len(studies), 3.6)) as figure:
        for axis, record in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, strict=True):
            ranks = parts(record)
            shown = ("paper", "plain", "calibrated", "allocated", "distilled")
            for number, method in enumerate(shown):
                points = [(Fraction(part), [r["valid"]["loss"] if quality else r["cpu_seconds"]
                                            for r in chosen(record, method, part)]) for part in ranks]  # fmt: skip
                points = [(part, values) for part, values in points if values]
                if points and (quality or method in ("paper", "plain", "calibrated")):
                    axis.errorbar(
                        [float(part) for part, _ in points], [statistics.mean(values) for _, values in points],
                        yerr=[statistics.stdev(v) if len(v) > 1 else 0.0 for _, v in points],
                        label=METHODS[method], color=COLOURS[number], marker=MARKS[number],
                    )  # fmt: skip
            if quality:
                runs = tuned.get(record["name"], {}).get("finetuned", {})
                after = sorted((rank_of(name), run["valid"]["loss"]) for name, run in runs.items() if rank_of(name))
                if after:
                    axis.plot(*zip(*after, strict=True), label="calibrated, fine-tuned", color="black", marker="x")
                axis.axhline(record["source"]["valid"]["loss"], color="#777777", linestyle=":", label="source")
            else:
                axis.set_yscale("log")
                for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
                    formatter("{x:g}")
            axis.set_xticks([float(Fraction(part)) for part in ranks], ranks)
            axis.set_title(record["name"], fontsize="medium")
            axis.set_xlabel("key dim, as a part of the source's")
            axis.set_ylabel("validation loss" if quality else "CPU seconds, whole model")
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside upper center", ncols=len(studies), fontsize="small")


def collect(folder: Path, name: str, updates: int) -> Record:
    command = shlex.join(["recipes/reparam/report.py", *sys.argv[1:]])
    record = Envelope("study", name, command, {"updates": updates}, repository=Path(__file__).parent)
    files = sorted(folder.glob("*.json"))
    record.parts["finetuned"] = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
    record.parts["resumed"] = json.loads((folder / "resumed" / "equal.json").read_text(encoding="utf-8"))
    return record.content


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", type=Path, metavar="RECORD")
    for name in ("table", "time", "quality", "output"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE")
    parser.add_argument("--collect", type=Path, metavar="FOLDER")
    parser.add_argument("--name")
    parser.add_argument("--updates", type=int)
    args = parser.parse_args()
    if args.collect:
        if not (args.name and args.updates and args.output):
            parser.error("--collect needs --name, --updates and --output")
        write_json(collect(args.collect, args.name, args.updates), args.output)
        return 0
    studies, tuned, benchmarks = load(args.records)
    if not (studies or benchmarks):
        parser.error("no record of a study or benchmark was given")
    if (args.time or args.quality) and not studies:
        parser.error("--time and --quality need the record of a study")
    for path in (args.time, args.quality):
        if path and path.suffix != ".svg":
            parser.error(f"figures are SVG files, got {path}")
    if args.table:
        write_text(page(studies, tuned, benchmarks), args.table)
    if args.time:
        draw(args.time, studies, tuned, quality=False)
    if args.quality:
        draw(args.quality, studies, tuned, quality=True)
    if not (args.table or args.time or args.quality):
        sys.stdout.write(page(studies, tuned, benchmarks))
    return 0


if __name__ == "__main__":
    sys.exit(main())

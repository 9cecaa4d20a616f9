"""Time and error of the decomposition against the key dimension, for a Hugging Face encoder: Figure 4 of the paper.

    python -m recipes reparam decomposition RECORD.json --model data/all-MiniLM-L6-v2 \\
        --calibration sentences.txt --evaluate data/glue/stsb
    python -m recipes reparam decomposition RECORD.json --figure figure.svg

With --model, everything that the record lacks is measured: the same command resumes an interrupted run. Seconds need a
quiet core; they are those of all layers, without calibration, evaluation and conversion of the model. Methods:

    calibrated   our solver, weighted by the covariances of the inputs of the layers
    plain        our solver, unweighted
    paper        TensorLy's parafac on the dense tensor, random start, tolerance 1e-6, at most 100 iterations
    authors      the same factors with the scale of the authors' code, (key dimension / heads)^-1/2

Errors: of the tensor, ‖T − T'‖ / ‖T‖, mean over the layers; and of the embeddings, their mean cosine with those of the
source, and 100 × Spearman's correlation of the cosines of pairs with the labels of the task folder.
"""

import argparse
import functools
import importlib.metadata
import itertools
import logging
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence

import torch

from collab_fairseq.attention.factors import HeadFactors, relative_error
from collab_fairseq.checkpoints import file_setting
from collab_fairseq.cli.options import command, numbers
from collab_fairseq.files import PathLike
from collab_fairseq.huggingface import score_weights
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import (
    add_figure_flags,
    drawing,
    figure_file,
    legend_columns,
    legend_height,
    other_look,
    points,
    rows_of,
)
from collab_fairseq.records.record import Record, load
from collab_fairseq.reparam import fit_layers
from collab_fairseq.reparam.folders import Source, divergence, metrics, read_evaluation, read_texts
from collab_fairseq.reparam.huggingface import calibrate, with_scores
from collab_fairseq.scoring.significance import Interval
from fairseq_modern.errors import UserError
from recipes.reparam.study import authors_scale, paper_fit, parafac

logger = logging.getLogger("decomposition")

NAME = "decomposition"
LABELS = {
    "calibrated": "ours, calibrated",
    "plain": "ours, unweighted",
    "paper": "parafac, scale of the source",
    "authors": "parafac, scale of the authors' code",
}
KEY_DIMS, SEEDS = "384,288,192,128,96,64,32", "1,2,3"
SPEARMAN, COSINE = "100 × Spearman", "cosine"


class Decompositions:
    """Fits all layers of a model by all methods, and measures time and errors."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(args.threads)
        self.source = Source.load(args.model, "cpu")
        if not self.source.is_encoder:
            raise UserError(f"{args.model} must be an encoder without a classifier")
        self.origin = {name: scores.to(torch.float32) for name, scores in score_weights(self.source.model)}
        texts, self.examples = read_evaluation(args.evaluate, self.source)
        self.batches = self.source.batches(texts)
        self.calibration = args.calibration
        task = Path(args.evaluate) / "validation.jsonl"
        settings = {
            "model": file_setting(args.model),
            "calibration": file_setting(args.calibration),
            "evaluate": file_setting(task if task.is_file() else args.evaluate),
            "threads": args.threads,
            "tensorly": importlib.metadata.version("tensorly"),
        }
        line = command("python -m recipes reparam decomposition")
        options: Dict[str, Any] = {"threads": args.threads, "fixed": ("hardware",)}
        self.record = Record("study", NAME, line, settings, args.record, **options)
        self.parafac = functools.lru_cache(maxsize=1)(self._parafac)  # paper and authors share the factors

    @functools.cached_property
    def expected(self) -> torch.Tensor:
        """Embeddings of the source, (texts, E)."""
        return self.source.outputs(self.source.model, self.batches)

    @functools.cached_property
    def calibrations(self) -> Any:
        return calibrate(self.source.model, self.source.batches(read_texts(self.calibration, "the calibration text")))

    def run(self, methods: Sequence[str], key_dims: Sequence[int], seeds: Sequence[int]) -> None:
        """Measure what the record lacks."""
        source = self.record.part("source", lambda: self.measured(self.source.model))
        wanted = list(itertools.product(key_dims, seeds, methods))
        for number, (key_dim, seed, method) in enumerate(wanted, 1):
            measure = functools.partial(self.measure, method, key_dim, seed)
            part = self.record.part(f"{method}/{key_dim}/{seed}", measure)
            position = f"{number} of {len(wanted)}: {method}, key dimension {key_dim}, seed {seed}"
            change = f", Spearman {part[SPEARMAN] - source[SPEARMAN]:+.2f}" if SPEARMAN in part else ""
            error = statistics.mean(part["errors"].values())
            logger.info("%s: %.1f s, error %.4f, cosine %.4f%s", position, part["seconds"], error, part[COSINE], change)

    def measure(self, method: str, key_dim: int, seed: int) -> Dict[str, Any]:
        """The record's part for one decomposition."""
        if method in ("paper", "authors"):
            weights, times = self.parafac(key_dim, seed)
            if method == "authors":
                weights = {name: authors_scale(scores) for name, scores in weights.items()}
        else:
            calibrations = self.calibrations if method == "calibrated" else None
            began, cpu = time.perf_counter(), time.process_time()
            fits = fit_layers(self.origin, key_dim, calibrations, seed=seed, progress=lambda *_: None)
            times = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
            weights = {name: fit.weights for name, fit in fits.items()}
        errors = {name: relative_error(self.origin[name].heads, scores.heads) for name, scores in weights.items()}
        return {**times, "errors": errors, **self.measured(with_scores(self.source.model, weights))}

    def _parafac(self, key_dim: int, seed: int) -> Any:
        """Weights of all layers, with the scale of the source, and the time of the decompositions."""
        parafac(HeadFactors(torch.randn(8, 8), torch.randn(8, 8), torch.randn(2, 8)), 2, seed)  # imports TensorLy
        began, cpu = time.perf_counter(), time.process_time()
        weights = {name: paper_fit(scores, key_dim, seed) for name, scores in self.origin.items()}
        times = {"seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu}
        return weights, times

    def measured(self, model: Any) -> Dict[str, float]:
        """Cosine with the embeddings of the source and, in a task folder, correlation with the labels."""
        got = self.source.outputs(model, self.batches)
        cosine = 1 - float(divergence(self.expected, got, True).mean())
        return {COSINE: cosine, **(metrics(got, self.examples, True) if self.examples else {})}


def results(parts: Mapping[str, Any]) -> Dict[str, Dict[int, List[Dict[str, float]]]]:
    """Method → key dimension, in descending order → a result per seed: seconds, error, cosine and correlation."""
    rows: Dict[str, Dict[int, List[Dict[str, float]]]] = {method: {} for method in LABELS}
    for name, part in parts.items():
        if name != "source":
            method, key_dim, _ = name.split("/")
            error = statistics.mean(part["errors"].values())
            rows[method].setdefault(int(key_dim), []).append({**part, "error": error})
    return {method: dict(sorted(by_dim.items(), reverse=True)) for method, by_dim in rows.items() if by_dim}


def table(parts: Mapping[str, Any]) -> str:
    """Medians over the seeds, and the range of the seconds, in Markdown."""
    found = results(parts)
    with_labels = SPEARMAN in parts.get("source", {})
    most = max((len(of_seeds) for by_dim in found.values() for of_seeds in by_dim.values()), default=0)
    header = ["key dimension", "method", "seconds", "error", "cosine"]
    rows = [[*header, "STS-B", "difference"] if with_labels else header]
    for key_dim in sorted({dim for by_dim in found.values() for dim in by_dim}, reverse=True):
        for method, by_dim in found.items():
            of_seeds = by_dim.get(key_dim, [])
            if not of_seeds:
                continue
            middle = {name: statistics.median(each[name] for each in of_seeds) for name in ("seconds", "error", COSINE)}
            seconds = [each["seconds"] for each in of_seeds]
            extent = f" ({min(seconds):.1f}–{max(seconds):.1f})" if len(seconds) > 1 else ""
            extent += f", {len(seconds)} of {most} seeds" if len(seconds) < most else ""
            cells = [f"{middle['seconds']:.1f}{extent}", f"{middle['error']:.4f}", f"{middle[COSINE]:.4f}"]
            if with_labels:
                score = statistics.median(each[SPEARMAN] for each in of_seeds)
                cells += [f"{score:.2f}", f"{score - parts['source'][SPEARMAN]:+.2f}"]
            rows.append([str(key_dim), LABELS[method], *cells])
    if len(rows) == 1:
        return "This has not been measured yet.\n"
    note = (
        "Medians over the seeds of the decomposition; in brackets: range. Error: of the tensor, relative, mean over "
        "the layers; calibration minimises a weighted error instead. Cosine: with the embeddings of the source. Both "
        "scales of parafac share the factors."
    )
    return f"{pages.table(rows, numbers=True)}\n\n{note}\n"


def draw(record: Mapping[str, Any], path: PathLike) -> None:
    """Time, error of the tensor, and cosine against the key dimension."""
    found = results(record["parts"])
    model = record["settings"]["model"]["file"]
    seeds = max(len(of_seeds) for by_dim in found.values() for of_seeds in by_dim.values())
    threads = record["hardware"]["threads"]
    description = (
        f"All attention layers; CPU threads: {threads}. Points: median over the seeds of the decomposition ({seeds}); "
        "bars: range. Error: Frobenius norm, relative, mean over the layers. Cosine: of the embeddings with those of "
        "the source, mean over the sentences. Both scales of parafac share time and error. Lower is better on the left "
        "and in the middle, higher on the right."
    )
    panels = {"seconds": "seconds", "error": "error of the tensor", COSINE: "cosine with the source"}
    rows = rows_of(path, len(panels))
    columns = legend_columns(path, 2, narrow=1)
    height = 2.8 * rows + legend_height(len(found), columns)
    with drawing(path, height, f"Decomposition against the shared key dimension, {model}", description) as figure:
        axes = figure.subplots(rows, len(panels) // rows)
        dims = sorted({dim for by_dim in found.values() for dim in by_dim})
        for axis, (quantity, title) in zip(axes, panels.items(), strict=True):
            for number, (method, by_dim) in enumerate(found.items()):
                if method == "authors" and quantity != COSINE:
                    continue
                values = {dim: [each[quantity] for each in of_seeds] for dim, of_seeds in by_dim.items()}
                intervals = [Interval(statistics.median(v), min(v), max(v)) for v in values.values()]
                points(axis, list(values), intervals, label=LABELS[method], **other_look(number))
            axis.set_xscale("log", base=2)
            axis.set_xticks(dims[::2], [str(dim) for dim in dims[::2]])
            axis.minorticks_off()
            axis.set(title=title, xlabel="shared key dimension")
        axes[0].set_yscale("log")
        figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside upper center", ncols=columns)


def markdown(arguments: Sequence[str], folder: str = ".") -> str:
    """Measure what the record lacks, if there is a --model, and draw the figure; returns the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("record", type=Path, metavar="RECORD", help="the record, JSON")
    add("--model", type=Path, metavar="DIR", help="folder of an encoder")
    add("--calibration", type=Path, metavar="FILE", help="calibration text, a sentence per line")
    add("--evaluate", type=Path, metavar="DIR|FILE", help="task folder of pairs with labels, or a text file")
    add("--methods", type=lambda text: text.split(","), default=list(LABELS), metavar="NAME,…", help="methods")
    add("--key-dims", type=numbers, default=KEY_DIMS, metavar="N,…", help="default: %(default)s")
    add("--seeds", type=numbers, default=SEEDS, metavar="N,…", help="of the decomposition; default: %(default)s")
    add("--threads", type=int, default=1, metavar="N", help="CPU threads (default: %(default)s)")
    add_figure_flags(parser, "draw the figure")
    args = parser.parse_args(arguments)
    figure = figure_file(args)
    unknown = sorted({*args.methods} - {*LABELS})
    if unknown:
        raise UserError(f"--methods must be among {', '.join(LABELS)}; got {', '.join(unknown)}")
    if args.model:
        if not (args.calibration and args.evaluate):
            raise UserError("--model needs --calibration and --evaluate")
        logging.basicConfig(level=logging.INFO, format="decomposition: %(message)s", stream=sys.stderr, force=True)
        Decompositions(args).run(args.methods, args.key_dims, args.seeds)
    elif not args.record.exists():
        return table({})
    record = load(args.record, "study", NAME)
    if figure:
        draw(record, figure)
    return table(record["parts"])

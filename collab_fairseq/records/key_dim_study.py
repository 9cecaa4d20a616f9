"""The cost of reducing the key dimension of standard and collaborative heads (as in Cordonnier et al. 2020).

The loss of a run is its negative log-likelihood on all test sets, in bits per token. The cost of a row is its loss
minus that of standard heads at the full key dimension (the width of the model), paired by seed.
"""

import itertools
import math
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from collab_fairseq.records.columns import METRICS
from collab_fairseq.records.drawing import COLOURS, SMALL, drawing, look, points
from collab_fairseq.records.files import PathLike
from collab_fairseq.records.rows import TrainingRecord, frame, heads, is_collaborative, lookup
from collab_fairseq.records.scores import ALL, list_test_sets, over_runs, score
from collab_fairseq.scoring.significance import Interval
from fairseq_modern.errors import UserError

ATTENTION_TYPES = ("standard", "collaborative")
#: attention type and key dimension
Row = Tuple[str, int]
#: key dimension / width → its label
_SHARES = {1 / 16: "1/16", 1 / 8: "1/8", 1 / 4: "1/4", 1 / 2: "1/2", 1.0: "1"}
_OFFSET = 1.035
#: test set → its corpus, for figures
_CORPORA = {"test_2016_flickr": "Multi30k En–De", "newstest2014": "WMT14 En–De"}


class _Panel(NamedTuple):
    title: str
    label: str
    by_row: Dict[Row, Interval]
    width: int
    missing: str  # label of missing runs


def rows(runs: Sequence[TrainingRecord]) -> Dict[Row, Dict[Optional[int], TrainingRecord]]:
    """Row → seed → run.

    Raises:
        UserError: a run whose layers have different key dimensions, or runs of one row that have the same seed or
            different settings.
    """
    by_row: Dict[Row, Dict[Optional[int], TrainingRecord]] = {}
    if not runs:
        return by_row
    for _, group in frame(runs, ("heads", "key_dim")).groupby("row", sort=False):
        run, key_dim = group["run"].iloc[0], group["key_dim"].iloc[0]
        if not isinstance(key_dim, int):
            raise UserError(f"{run['name']} must have the same key dimension in all layers; got {key_dim}")
        row = (ATTENTION_TYPES[is_collaborative(run)], key_dim)
        if row in by_row:
            other = next(iter(by_row[row].values()))
            raise UserError(
                f"{row[0]} heads with key dimension {key_dim} must have the same settings; got {heads(other)} "
                f"({other['name']}) and {heads(run)} ({run['name']})"
            )
        by_row[row] = dict(zip(group["seed"], group["run"], strict=True))
    return by_row


def loss(run: TrainingRecord) -> float:
    """Bits per token over all test sets; raises UserError if the record has none."""
    bits = score(run, ALL, METRICS["nll"])
    if bits is None:
        raise UserError(f"{run['name']} has no loss on a test set")
    return bits


def costs(runs: Sequence[TrainingRecord]) -> Dict[Row, Interval]:
    """Row → its loss minus that of standard heads at the full key dimension, with a 95 % interval.

    Rows are compared by the seeds that both have.

    Raises:
        UserError: no runs of standard heads at the full key dimension, a row without their seeds, runs that `rows`
            rejects, a run without losses, different data, or different lengths of training or widths.
    """
    return {row: limits for row, (limits, _) in _intervals(_paired(runs)).items()}


def _intervals(pairs: Mapping[Row, Sequence[Sequence[TrainingRecord]]]) -> Dict[Row, Tuple[Interval, bool]]:
    """Row → its cost, and whether the interval is also over the sentences, from the result of `_paired`."""
    return {row: over_runs(*sides, test=ALL, metric=METRICS["nll"]) for row, sides in pairs.items()}


def _paired(runs: Sequence[TrainingRecord]) -> Dict[Row, List[List[TrainingRecord]]]:
    """Row → its runs, and those of standard heads at the full key dimension, by the seeds that both have."""
    for field in ("config.optimization.max_update", "config.model.encoder_embed_dim"):
        values = sorted({str(lookup(run, field)) for run in runs})
        if len(values) > 1:
            raise UserError(f"runs of different key dimensions must have the same {field}; got {', '.join(values)}")
    by_row = rows(runs)
    full = _baseline(by_row, _width(runs))
    pairs: Dict[Row, List[List[TrainingRecord]]] = {}
    for row, by_seed in by_row.items():
        seeds = [seed for seed in by_seed if seed in full]
        if not seeds:
            raise UserError(
                f"{row[0]} heads with key dimension {row[1]} must have a seed of the full key dimension "
                f"({', '.join(map(str, full))}); got {', '.join(map(str, by_seed))}"
            )
        pairs[row] = [[side[seed] for seed in seeds] for side in (by_seed, full)]
    return pairs


def equivalent_key_dim(losses: Mapping[int, float], value: float) -> str:
    """The smallest key dimension with at most this loss, interpolated in log2 between key dimensions → losses.

    Outside of their range it is `< ` the smallest or `> ` the largest key dimension.
    """
    dims = sorted(losses)
    if value > losses[dims[0]]:
        return f"< {dims[0]}"
    for low, high in itertools.pairwise(dims):
        if losses[high] <= value:
            share = (losses[low] - value) / (losses[low] - losses[high] or 1)
            return f"{low * (high / low) ** share:.0f}"
    return f"> {dims[-1]}"


def draw(runs: Sequence[TrainingRecord], path: PathLike) -> None:
    """Draw the difference from the full key dimension against key dimension / width, a line per attention type.

    Measured runs have a panel in NLL with intervals and an inverted axis, published runs a panel in BLEU.

    Args:
        runs: records of one model's training runs, those of `results/published`, or both.
        path: a .png or .svg file.
    """
    published = [run for run in runs if "published" in run]
    measured = [run for run in runs if "published" not in run]
    if not runs:
        raise UserError("nothing to draw: there is no record")
    notes = ["Differences from standard heads at the full key dimension (zero by definition).", "Up is better."]
    panels: List[_Panel] = []
    if measured:
        pairs = _paired(measured)
        intervals = _intervals(pairs)
        by_row = {row: limits for row, (limits, _) in intervals.items()}
        corpus = _corpus(measured)
        label = "difference in NLL, bits per token\n(inverted axis: up is better)"
        panels.append(_Panel(f"{corpus} (ours)", label, by_row, _width(measured), "not run"))
        rates = " or ".join(sorted({lookup(run, "config.optimization.lr") for run in measured}))
        with_sentences = all(complete for _, complete in intervals.values())
        meaning = f"mean and 95 % interval over seeds{' and sentences' if with_sentences else ''}"
        notes.append(f"{corpus}, learning rate {rates}: {meaning}; {_seeds(pairs)}.")
    if published:
        corpus, authors = _corpus(published), published[0]["published"].split(",")[0]
        label = "difference in compound-split BLEU\n(up is better)"
        title = f"{corpus} ({authors} et al.)"
        panels.append(_Panel(title, label, _published(published), _width(published), "not reported"))
        notes.append(f"{corpus}: one run each, as published.")
    with drawing(path, 3.1, "Cost of a smaller key dimension", " ".join(notes)) as figure:
        axes = figure.subplots(1, len(panels), squeeze=False, gridspec_kw={"wspace": 0.06})[0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
        if measured:
            axes[0].invert_yaxis()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)


def _draw_panel(axis: Any, panel: _Panel) -> None:
    for attention_type in ATTENTION_TYPES:
        by_share = {dim / panel.width: cost for (of, dim), cost in panel.by_row.items() if of == attention_type}
        # side by side, so that error bars do not overlap
        offset = 1 / _OFFSET if attention_type == ATTENTION_TYPES[0] else _OFFSET
        shares = sorted(by_share)
        style = {"label": f"{attention_type} heads", **look(attention_type)}
        points(axis, [share * offset for share in shares], [by_share[share] for share in shares], **style)
        side = "right" if offset < 1 else "left"
        text = {"rotation": 90, "ha": side, "va": "bottom", "fontsize": SMALL, "color": style["color"]}
        for share in _SHARES:
            if share not in by_share:
                axis.annotate(panel.missing, (share * offset**2, 0.02), xycoords=("data", "axes fraction"), **text)
    axis.axhline(0, color=COLOURS["reference"], linewidth=0.8, zorder=1)
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(_SHARES), [f"{panel.width * share:g}\n({name})" for share, name in _SHARES.items()])
    axis.set_xticks([], minor=True)
    axis.set_xlim(min(_SHARES) / 1.35, max(_SHARES) * 1.35)
    axis.set(xlabel=f"key dimension (share of the width {panel.width})", ylabel=panel.label, title=panel.title)


def _baseline(by_row: Mapping[Row, Any], width: int) -> Any:
    """The value of standard heads at the full key dimension."""
    row = (ATTENTION_TYPES[0], width)
    if row not in by_row:
        raise UserError(f"runs of standard heads at the full key dimension, {width}, are needed as the baseline")
    return by_row[row]


def _width(runs: Sequence[TrainingRecord]) -> int:
    return int(runs[0]["config"]["model"]["encoder_embed_dim"])


def _corpus(runs: Sequence[TrainingRecord]) -> str:
    """The corpus of the test sets, or their names."""
    tests = list_test_sets(runs)
    return next((_CORPORA[test] for test in tests if test in _CORPORA), ", ".join(tests))


def _seeds(pairs: Mapping[Row, Sequence[Sequence[TrainingRecord]]]) -> str:
    """The number of seeds by which each row is compared, in words."""
    numbers: Dict[int, List[str]] = {}
    for (attention_type, dim), (paired, _) in sorted(pairs.items(), reverse=True):
        numbers.setdefault(len(paired), []).append(f"{attention_type} {dim}")
    return "; ".join(
        f"{number} seed{'s' if number > 1 else ''}: {', '.join(named)}"
        for number, named in sorted(numbers.items(), reverse=True)
    )


def _published(runs: Sequence[TrainingRecord]) -> Dict[Row, Interval]:
    """Row → published BLEU minus that of standard heads at the full key dimension, without an interval."""
    metric = METRICS["compound_split"]
    (test,) = list_test_sets(runs, metric)
    bleu = {row: score(run, test, metric) for row, by_seed in rows(runs).items() for run in by_seed.values()}
    reported = {row: value for row, value in bleu.items() if value is not None}
    full = _baseline(reported, _width(runs))
    return {row: Interval(value - full, math.nan, math.nan) for row, value in reported.items()}

"""Allocation of a budget of shared dimensions to the layers of a model.

Some layers need far fewer dimensions than others. For each layer alone, at several key dimensions, calibration text
gives the divergence KL(p ‖ p') between the predictions p of the source and p' of the converted model. These
divergences are assumed to add up. Starting from the full key dimensions, the greedy algorithm removes the dimensions
that cost the least divergence each. On the lower convex hull of the divergences this is optimal (Fox 1966, "Discrete
optimization via marginal analysis", https://doi.org/10.1287/mnsc.13.3.210).
"""

import logging
import math
import os
import re
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch
from torch import Tensor

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.progress import Progress
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, batches, with_state
from fairseq_modern.errors import UserError

from .calibrate import Calibration
from .fairseq import converted_state, scores_by_layer
from .scores import fit_layers

logger = logging.getLogger(__name__)

#: fractions of a layer's key dimension at which its divergence is measured
GRID = (1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 5 / 8, 3 / 4)

#: key dimension → divergence
DivergenceByRank = Dict[int, float]


def parse_budget(text: str) -> float:
    """The mean key dimension per layer, from ``mean:85``."""
    match = re.fullmatch(r"mean:(\d+\.?\d*)", text)
    if match is None or float(match[1]) < 1:
        raise AttentionError(f"--budget must be mean:N with N at least 1, such as mean:128; got {text!r}")
    return float(match[1])


@torch.no_grad()
def divergences(
    trained: TrainedModel, variants: Mapping[Any, Mapping[str, torch.nn.Module]], split: str, **batching: Any
) -> Dict[Any, float]:
    """KL(p ‖ p') of each variant's predictions p' from the model's predictions p, in bits per target token.

    The decoder reads the reference.

    Args:
        variants: name of the variant → ``site.layer`` → replacement of that layer.
        split, batching: see :func:`collab_fairseq.translation.batches`.

    Raises:
        UserError: the model has an adaptive softmax.
    """
    trained.check_logits("a budget or distillation")
    totals = dict.fromkeys(variants, 0.0)
    tokens = 0
    pad = trained.task.target_dictionary.pad()
    model: Any = trained.model

    def predict(sample: Any, encoded: Any) -> Tensor:
        logits = model.decoder(sample["net_input"]["prev_output_tokens"], encoder_out=encoded)[0]  # (N, T, V)
        # without padding: (N, T, V) → (tokens, V)
        return torch.log_softmax(logits[sample["target"].ne(pad)].float(), dim=-1)

    for sample in batches(trained, split, **batching):
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        encoded = model.encoder(**source)
        expected = predict(sample, encoded)
        for name, layers in variants.items():
            with swapped(model, layers):
                changed = any(layer_id.startswith("encoder") for layer_id in layers)
                predicted = predict(sample, model.encoder(**source) if changed else encoded)
            # (tokens, V) → summed over both
            totals[name] += float((expected.exp() * (expected - predicted)).sum(dtype=torch.float64))
        tokens += len(expected)
    return {name: total / tokens / math.log(2) for name, total in totals.items()}


def measure_divergences(
    trained: TrainedModel,
    layer_ids: Sequence[str],
    split: str,
    calibrations: Optional[Mapping[str, Calibration]] = None,
    *,
    sentences: Optional[int] = 100,
    max_tokens: int = 4000,
    **options: Any,
) -> Dict[str, DivergenceByRank]:
    """For each layer, the divergence of the predictions when only that layer is converted, by its key dimension.

    Args:
        split, sentences, max_tokens: the text, see :func:`collab_fairseq.translation.batches`.
        calibrations, options: see :func:`by_rank`.
    """

    def measure(weights: Mapping[str, ScoreWeights]) -> Dict[str, float]:
        converted_layers = attention_layers(with_state(trained, converted_state(trained, weights)).model)
        variants = {layer_id: {layer_id: converted_layers[layer_id]} for layer_id in layer_ids}
        return divergences(trained, variants, split, sentences=sentences, max_tokens=max_tokens)

    return by_rank(scores_by_layer(trained, layer_ids), measure, calibrations, **options)


def by_rank(
    origin: Mapping[str, ScoreWeights],
    measure: Callable[[Mapping[str, ScoreWeights]], Mapping[str, float]],
    calibrations: Optional[Mapping[str, Calibration]] = None,
    *,
    grid: Sequence[float] = GRID,
    part: Callable[[str, Callable[[], Any]], Any] = lambda name, compute: compute(),
    **options: Any,
) -> Dict[str, DivergenceByRank]:
    """Layer → key dimension → divergence when only that layer is converted.

    Args:
        part: computes, or has from an interrupted call, the divergences at a fraction; as :meth:`.Record.part`.
        origin: layer → its scores.
        measure: new scores of all layers → layer → divergence when only that layer has its new scores.
        grid: fractions of a layer's key dimension.
        calibrations, options: see :func:`.fit_layers`.
    """
    ranks = {layer_id: scores.heads.rank for layer_id, scores in origin.items()}
    measured: Dict[str, DivergenceByRank] = {layer_id: {rank: 0.0} for layer_id, rank in ranks.items()}
    with Progress("divergences", len(grid) * len(ranks), "layers") as progress:

        def measure_at(key_dims: Mapping[str, int], note: str) -> Dict[str, float]:
            fits = fit_layers(origin, key_dims, calibrations, progress=lambda *_: progress.advance(1, note), **options)
            return dict(measure({layer_id: fit.weights for layer_id, fit in fits.items()}))

        for number, fraction in enumerate(sorted(grid), 1):
            key_dims = {layer_id: max(1, round(fraction * rank)) for layer_id, rank in ranks.items()}
            note, before = f"at {fraction:.3g} of the key dimension ({number} of {len(grid)})", progress.n
            for layer_id, value in part(f"{fraction:g}", partial(measure_at, key_dims, note)).items():
                measured[layer_id][key_dims[layer_id]] = value
            if progress.n == before:
                progress.skip(len(ranks))
    return measured


def announcement(layers: int, kept: Record) -> str:
    """What is measured, and where an interruption keeps it."""
    return (
        f"measuring divergences: {layers} layers at {len(GRID)} key dimensions each, kept in "
        f"{os.fspath(kept.path or '')} until the conversion is finished; after an interruption, the same command "
        "continues"
    )


def kept_divergences(output: PathLike, command: str, settings: Dict[str, Any], device: Any) -> Record:
    """The record next to the output in which an interrupted conversion keeps its divergences; empty if there is none.

    A damaged record, or one with other versions or ``settings`` (what the divergences depend on), will be replaced.
    """
    path = f"{os.fspath(output).rstrip(os.sep)}.divergences.json"
    try:
        record = Record("conversion", "divergences", command, settings, path, device=device, fixed=("versions",))
    except UserError:
        logger.warning("%s has divergences of another model, text or version: they are measured again", path)
        record = Record("conversion", "divergences", command, settings, device=device)
        record.path = path
    if record.parts:
        logger.info("continuing with the divergences in %s", path)
    return record


def lower_convex_hull(divergence_by_rank: DivergenceByRank) -> List[Tuple[int, float]]:
    """Lower convex hull, made non-increasing, from the smallest key dimension to the largest."""
    key_dims = sorted(divergence_by_rank)
    # measured divergences are noisy and can rise with the key dimension
    lowest = numpy.minimum.accumulate([divergence_by_rank[dim] for dim in key_dims]).tolist()
    hull: List[Tuple[int, float]] = []
    for dim, value in zip(key_dims, lowest, strict=True):
        while len(hull) > 1:
            (before, high), (middle, low) = hull[-2:]
            if (value - low) * (middle - before) > (low - high) * (dim - middle):
                break
            hull.pop()
        hull.append((dim, value))
    return hull


def allocate_ranks(divergences_by_layer: Mapping[str, DivergenceByRank], budget: float) -> Dict[str, int]:
    """Key dimension of each layer, with minimal total divergence and a mean within the budget.

    A step removes 1/32 of the largest key dimension, or the rest down to a layer's smallest.

    Args:
        divergences_by_layer: layer → key dimension → divergence; the largest key dimension is the layer's own.
        budget: mean key dimension.
    """
    hulls = {name: lower_convex_hull(divergence_by_rank) for name, divergence_by_rank in divergences_by_layer.items()}
    smallest = {name: hull[0][0] for name, hull in hulls.items()}
    key_dims = {name: hull[-1][0] for name, hull in hulls.items()}
    step = max(1, max(key_dims.values()) // 32)
    total = budget * len(hulls)
    if sum(smallest.values()) > total:
        least = sum(smallest.values()) / len(hulls)
        raise AttentionError(f"the budget is too small: it must be at least mean:{least:g}; got mean:{budget:g}")
    while sum(key_dims.values()) > total:
        options = []
        for name, hull in hulls.items():
            dim = key_dims[name]
            if dim == smallest[name]:
                continue
            lower = max(smallest[name], (dim - 1) // step * step)
            after, before = numpy.interp([lower, dim], [d for d, _ in hull], [v for _, v in hull])
            cost = float(after - before) / (dim - lower)
            options.append((cost, name, lower))
        _, name, lower = min(options)
        key_dims[name] = lower
    return key_dims


def check_size(ranks: Mapping[str, int], key_dim: Optional[int], budget: Optional[float]) -> None:
    """Raise an error, before anything is measured, if these key dimensions do not allow the new one or the budget."""
    least = min(ranks.values())
    if key_dim is not None and key_dim > least:
        raise AttentionError(f"the shared key dimension must be between 1 and {least}; got {key_dim}")
    if budget is None:
        return
    mean = sum(ranks.values()) / len(ranks)
    if budget > mean:
        raise AttentionError(f"the budget is too large: it must be at most mean:{mean:g}; got mean:{budget:g}")
    limits = {layer_id: {max(1, round(min(GRID) * rank)): 0.0, rank: 0.0} for layer_id, rank in ranks.items()}
    allocate_ranks(limits, budget)

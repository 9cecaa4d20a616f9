"""Allocation of a budget of shared dimensions to the layers.

Some layers can do with far fewer dimensions than others. For each layer alone and each key dim of a grid, the
divergence KL(p ‖ p') of the model's predictions p' from the source's p is measured on calibration text; these
divergences are taken to add up. From full size on, dimensions are taken away where that costs least divergence per
dimension saved. On the lower convex hull of every layer's curve this greedy way is the best one (Fox 1966, "Discrete
optimization via marginal analysis", https://doi.org/10.1287/mnsc.13.3.210).
"""

import logging
import math
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy
import torch
from torch import Tensor

from collab_fairseq.attention.factors import ReparamError
from collab_fairseq.modules.sites import attention_layers, swapped
from collab_fairseq.translation import TrainedModel, batches, with_state

from .calibrate import Calibration
from .fairseq import convert, sources

logger = logging.getLogger(__name__)

#: parts of a layer's key dim at which it is measured
GRID = (1 / 8, 3 / 16, 1 / 4, 5 / 16, 3 / 8, 1 / 2, 5 / 8, 3 / 4)

Curve = Dict[int, float]


def parse_budget(text: str) -> float:
    """The key dim, averaged over the layers, of ``mean:85``."""
    match = re.fullmatch(r"mean:(\d+\.?\d*)", text)
    if match is None or float(match[1]) < 1:
        raise ReparamError(f"the budget must be mean:KEY_DIM; got {text!r}")
    return float(match[1])


@torch.no_grad()
def divergences(
    trained: TrainedModel, variants: Mapping[Any, Mapping[str, torch.nn.Module]], split: str, **text: Any
) -> Dict[Any, float]:
    """KL(p ‖ p') per target token, in bits, of the model's predictions with other attention layers from its own.

    The decoder reads the reference.

    Args:
        variants: name of a variant → ``site.layer`` → the layer that takes the place there.
        split, text: of :func:`collab_fairseq.translation.batches`.
    """
    totals = dict.fromkeys(variants, 0.0)
    tokens = 0
    pad = trained.task.target_dictionary.pad()
    model: Any = trained.model

    def predict(sample: Any, encoded: Any) -> Tensor:
        logits = model.decoder(sample["net_input"]["prev_output_tokens"], encoder_out=encoded)[0]
        return torch.log_softmax(logits[sample["target"].ne(pad)].float(), dim=-1)

    for sample in batches(trained, split, **text):
        source = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
        encoded = model.encoder(**source)
        reference = predict(sample, encoded)
        for name, layers in variants.items():
            with swapped(model, layers):
                changed = any(layer_id.startswith("encoder") for layer_id in layers)
                other = predict(sample, model.encoder(**source) if changed else encoded)
            totals[name] += float((reference.exp() * (reference - other)).sum(dtype=torch.float64))
        tokens += len(reference)
    return {name: total / tokens / math.log(2) for name, total in totals.items()}


def measure_curves(
    trained: TrainedModel,
    names: Sequence[str],
    split: str,
    calibrations: Optional[Mapping[str, Calibration]] = None,
    *,
    grid: Sequence[float] = GRID,
    sentences: Optional[int] = 100,
    max_tokens: int = 4000,
    **options: Any,
) -> Dict[str, Curve]:
    """For each layer: key dim → divergence of the predictions where that layer alone has so many dimensions.

    Args:
        names: of the layers. split, sentences, max_tokens: the text.
        calibrations, options: of :func:`.fit_layers`. grid: parts of a layer's key dim.
    """
    origin = sources(trained, names)
    curves: Dict[str, Curve] = {name: {origin[name].heads.rank: 0.0} for name in names}
    for number, part in enumerate(sorted(grid)):
        dims = {name: max(1, round(part * origin[name].heads.rank)) for name in names}
        state, _ = convert(trained, dims, calibrations, progress=lambda *_: None, **options)
        model = with_state(trained, state).model
        variants = {name: {name: layer} for name, layer in attention_layers(model).items() if name in dims}
        measured = divergences(trained, variants, split, sentences=sentences, max_tokens=max_tokens)
        for name, value in measured.items():
            curves[name][dims[name]] = value
        logger.info("divergences at %.3g of the key dim (%d of %d)", part, number + 1, len(grid))
    return curves


def convex(curve: Curve) -> List[Tuple[int, float]]:
    """Lower convex hull of a curve, made to fall, from the smallest key dim to the largest."""
    dims = sorted(curve)
    # noise can make a larger key dim look worse
    lowest = numpy.minimum.accumulate([curve[dim] for dim in dims]).tolist()
    hull: List[Tuple[int, float]] = []
    for dim, value in zip(dims, lowest, strict=True):
        while len(hull) > 1:
            (before, high), (middle, low) = hull[-2:]
            if (value - low) * (middle - before) > (low - high) * (dim - middle):
                break
            hull.pop()
        hull.append((dim, value))
    return hull


def allocate_ranks(curves: Mapping[str, Curve], budget: float) -> Dict[str, int]:
    """Key dims of least total divergence whose mean is within the budget.

    Dimensions are taken away by 1/32 of the largest key dim at a time, but for a layer's last.

    Args:
        curves: layer → key dim → divergence; the largest key dim is where the layer starts.

    Raises:
        ReparamError: even the smallest key dims are too large.
    """
    hulls = {name: convex(curve) for name, curve in curves.items()}
    smallest = {name: hull[0][0] for name, hull in hulls.items()}
    dims = {name: hull[-1][0] for name, hull in hulls.items()}
    step = max(1, max(dims.values()) // 32)
    total = budget * len(hulls)
    if sum(smallest.values()) > total:
        least = sum(smallest.values()) / len(hulls)
        raise ReparamError(f"the budget is too small: a mean key dim of {least:g} is the least; got {budget:g}")
    while sum(dims.values()) > total:
        options = []
        for name, hull in hulls.items():
            dim = dims[name]
            if dim == smallest[name]:
                continue
            lower = max(smallest[name], (dim - 1) // step * step)
            after, before = numpy.interp([lower, dim], [d for d, _ in hull], [v for _, v in hull])
            cost = float(after - before) / (dim - lower)
            options.append((cost, name, lower))
        _, name, lower = min(options)
        dims[name] = lower
    return dims


def check_budget(trained: TrainedModel, names: Sequence[str], budget: float) -> None:
    """Reject a budget that is too small or too large before anything is measured.

    Raises:
        ReparamError: it does not allow the smallest key dims of :data:`GRID`, or more than the layers have.
    """
    ranks = {name: scores.heads.rank for name, scores in sources(trained, names).items()}
    mean = sum(ranks.values()) / len(ranks)
    if budget > mean:
        raise ReparamError(f"the budget is too large: the layers' mean key dim is {mean:g}; got {budget:g}")
    curves = {name: {max(1, round(min(GRID) * rank)): 0.0, rank: 0.0} for name, rank in ranks.items()}
    allocate_ranks(curves, budget)

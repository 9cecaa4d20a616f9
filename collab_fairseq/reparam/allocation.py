"""How many shared dimensions each layer gets out of a budget for all of them.

Some layers can do with far fewer dimensions than others. What counts is what their lack does in the end: for each layer
alone and each key dim of a grid the divergence KL(p ‖ p') of the model's predictions p' from the source's p is measured
on calibration text, and these divergences are taken to add up. From full size on, dimensions are taken away where that
costs least divergence per dimension saved. On the lower convex hull of every layer's curve this greedy way
is the best one (Fox 1966, "Discrete optimization via marginal analysis", https://doi.org/10.1287/mnsc.13.3.210).
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
    """The key dim, averaged over the layers, of ``mean:85``.

    Raises:
        ReparamError: anything else.
    """
    match = re.fullmatch(r"mean:(\d+\.?\d*)", text)
    if match is None or float(match[1]) < 1:
        raise ReparamError(f"the budget must be mean:KEY_DIM, but is {text!r}")
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
                changed = any(place.startswith("encoder") for place in layers)
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


def at_multiples(curve: Curve, multiple: int) -> Curve:
    """A curve at the multiples of a key dim that it spans, in straight lines between its points.

    Raises:
        ReparamError: it spans none.
    """
    known, most = sorted(curve), max(curve) // multiple * multiple
    if most == 0:
        raise ReparamError(
            f"key dims must be multiples of {multiple}, but a layer has only {known[-1]} (--multiple 1 allows any)"
        )
    dims = list(range(min(-(-known[0] // multiple) * multiple, most), most + 1, multiple))
    return dict(zip(dims, numpy.interp(dims, known, [curve[dim] for dim in known]).tolist(), strict=True))


def allocate(curves: Mapping[str, Curve], budget: float, step: int = 1) -> Dict[str, int]:
    """Key dims of least total divergence whose sum is within the budget.

    Args:
        curves: layer → key dim → divergence; the largest key dim is where the layer starts.
        step: key dims are multiples of it, but for the largest and smallest of a curve.

    Raises:
        ReparamError: even the smallest key dims are too large.
    """
    hulls = {name: convex(curve) for name, curve in curves.items()}
    dims = {name: hull[-1][0] for name, hull in hulls.items()}
    least, number = sum(hull[0][0] for hull in hulls.values()), len(hulls)
    if least > budget:
        raise ReparamError(
            f"the budget is too small: a mean key dim of {least / number:g} is the least, got {budget / number:g}"
        )
    while sum(dims.values()) > budget:
        options = []
        for name, hull in hulls.items():
            dim, smallest = dims[name], hull[0][0]
            if dim > smallest:
                lower = max(smallest, (dim - 1) // step * step)
                after, before = numpy.interp([lower, dim], [d for d, _ in hull], [v for _, v in hull])
                options.append((float(after - before) / (dim - lower), name, lower))
        _, name, lower = min(options)
        dims[name] = lower
    return dims


def spend(curves: Mapping[str, Curve], budget: float, *, multiple: int = 1) -> Dict[str, int]:
    """Key dims, all multiples of ``multiple``, of the layers whose curves were measured; ``budget`` is their mean.

    Dimensions are taken away by 1/32 of the largest key dim at a time, but for a layer's last.

    Raises:
        ReparamError: the budget is too small, or a layer for the multiple.
    """
    step = max(1, max(max(curve) for curve in curves.values()) // 32)
    if multiple > 1:
        curves = {name: at_multiples(curve, multiple) for name, curve in curves.items()}
        step = -(-step // multiple) * multiple
    return allocate(curves, budget * len(curves), step)


def check_budget(trained: TrainedModel, names: Sequence[str], budget: float, multiple: int) -> None:
    """Refuse a budget that is too small or too large before anything is measured.

    Raises:
        ReparamError: it does not allow the smallest key dims of :data:`GRID`, in multiples of ``multiple``, or more
            than the layers have.
    """
    ranks = {name: scores.heads.rank for name, scores in sources(trained, names).items()}
    mean = sum(ranks.values()) / len(ranks)
    if budget > mean:
        raise ReparamError(f"the budget is too large: the layers' mean key dim is {mean:g}, got {budget:g}")
    curves = {name: {max(1, round(min(GRID) * rank)): 0.0, rank: 0.0} for name, rank in ranks.items()}
    spend(curves, budget, multiple=multiple)

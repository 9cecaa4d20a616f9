"""Fit of collaborative heads to the attention scores of a trained layer."""

import logging
import numbers
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Union

import torch
from torch import Tensor

from collab_fairseq.attention import AttentionError, AttentionLayer, CollaborativeAttention
from collab_fairseq.attention.factors import HeadFactors, ScoreWeights, check_plain, relative_error

from .calibrate import Calibration, Weighting
from .solver import Decomposition, decompose

logger = logging.getLogger(__name__)


class ScoreFit(NamedTuple):
    """Result of :func:`fit_scores`.

    Attributes:
        weights: weights of the collaborative heads, with the dtype and device of the source.
        error: relative error ‖T − T'‖ / ‖T‖ of ``weights``, over all heads.
        weighted_error: relative error of the heads weighted by the calibration; None without calibration.
        decomposition: decomposition of the (weighted) heads.
    """

    weights: ScoreWeights
    error: float
    weighted_error: Optional[float]
    decomposition: Decomposition


@torch.no_grad()
def fit_scores(
    source: ScoreWeights, key_dim: int, calibration: Optional[Calibration] = None, **options: Any
) -> ScoreFit:
    """Fit collaborative heads with ``key_dim`` shared dimensions to the scores of a layer.

    Without calibration, all entries of the heads' matrices have equal weight, as in the paper. With calibration, the
    covariances of the layer's inputs weight the fit (:mod:`.calibrate`), and the content biases absorb the residual at
    the mean query μ exactly::

        v_i' = v_i + (b ⊙ w_i) Qᵀ + μ (T_i − T_i')

    Query biases always become content biases (b: query bias; w_i, Q: factors of the source). At the key dimension of
    the source, its weights are returned unchanged.

    Args:
        key_dim: number of shared dimensions, at most the source's.
        calibration: statistics of the layer's inputs.
        options: see :func:`.decompose`, also for errors.
    """
    heads, weighting = source.heads, None
    if calibration is not None:
        for name in ("query", "key"):
            width = getattr(heads, name).size(1)
            calibrated_width = getattr(calibration, f"{name}_covariance").size(0)
            if calibrated_width != width:
                raise AttentionError(f"the calibration's {name} inputs must have width {width}; got {calibrated_width}")
        calibration = Calibration(calibration.queries, *(t.to(heads.query.device) for t in calibration[1:]))
        weighting = Weighting.of(calibration)
    decomposition = decompose(weighting.apply(heads) if weighting else heads, key_dim, **options)
    weights = source
    if key_dim < heads.rank:
        fit = decomposition.heads
        if weighting:
            fit = weighting.undo(fit).balanced()
        fit = fit.to(heads.query.dtype)
        weights = ScoreWeights(fit, source.scale, None, _content_bias(source, fit, calibration))
    weighted_error = decomposition.error if weighting else None
    return ScoreFit(weights, relative_error(heads, weights.heads), weighted_error, decomposition)


def _content_bias(source: ScoreWeights, fit: HeadFactors, calibration: Optional[Calibration]) -> Optional[Tensor]:
    """v', (H, Dk), for the factors after rounding; None if the source has no biases and there is no calibration."""
    wide = source.to(torch.float64)
    heads, rounded = wide.heads, fit.to(torch.float64)
    parts = [] if wide.content_bias is None else [wide.content_bias]
    if wide.query_bias is not None:
        parts.append(heads.content(wide.query_bias))
    if calibration is not None:
        mean = calibration.query_mean
        parts.append(heads.content(heads.query @ mean) - rounded.content(rounded.query @ mean))
    return torch.stack(parts).sum(0).to(fit.key.dtype) if parts else None


def fit_layers(
    sources: Mapping[str, ScoreWeights],
    key_dims: Union[int, Mapping[str, int]],
    calibrations: Optional[Mapping[str, Calibration]] = None,
    *,
    progress: Optional[Callable[[str, ScoreFit], None]] = None,
    **options: Any,
) -> Dict[str, ScoreFit]:
    """:func:`fit_scores` for every layer of a model, on a CPU one layer per core: products of these sizes scale badly.

    Args:
        sources: name of a layer → its scores.
        key_dims: key dimension of all layers, or name → key dimension.
        calibrations: name → statistics of that layer; None: no calibration.
        progress: called with name and fit after each layer, in any order; default: log the fit.
        options: see :func:`fit_scores`.

    Raises:
        AttentionError: a layer has no key dimension or calibration.
    """
    if not isinstance(key_dims, Mapping):
        key_dims = dict.fromkeys(sources, key_dims)
    for name, key_dim in key_dims.items():
        if not isinstance(key_dim, numbers.Integral):
            raise AttentionError(f"the key dimension of {name} must be an integer; got {key_dim!r}")
    for item, by_name in (("key dimension", key_dims), ("calibration", calibrations)):
        missing = [name for name in sources if by_name is not None and name not in by_name]
        if missing:
            raise AttentionError(f"every layer needs a {item}; there is none for {', '.join(missing)}")
    threads = torch.get_num_threads()
    on_cpu = all(source.heads.query.device.type == "cpu" for source in sources.values())
    pool = ThreadPoolExecutor(threads if on_cpu else 1, initializer=torch.set_num_threads, initargs=(1,))
    fits: Dict[str, ScoreFit] = {}
    try:
        running = {
            pool.submit(fit_scores, source, key_dims[name], (calibrations or {}).get(name), **options): name
            for name, source in sources.items()
        }
        for future in as_completed(running):
            name, fit = running[future], future.result()
            fits[name] = fit
            if progress is not None:
                progress(name, fit)
                continue
            position = f"{name} ({len(fits)} of {len(sources)})"
            ranks = (sources[name].heads.rank, key_dims[name])
            measured = (fit.error, fit.decomposition.seconds)
            logger.info("%s: key dimension %d to %d, relative error %.4f, %.1f s", position, *ranks, *measured)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
    return {name: fits[name] for name in sources}


def scores_of(layer: AttentionLayer) -> ScoreWeights:
    """The scores of a layer of :mod:`collab_fairseq.attention`."""
    if not isinstance(layer, AttentionLayer):
        raise AttentionError(f"the layer must be an AttentionLayer of this project; got {type(layer).__name__}")
    return layer.score_weights()


def collaborative_layer(layer: AttentionLayer, weights: ScoreWeights) -> CollaborativeAttention:
    """A collaborative layer with these scores, and the values, output projection and dropout of ``layer``."""
    check_plain(layer.v_proj, layer.out_proj)
    collaborative = CollaborativeAttention(
        layer.embed_dim,
        layer.num_heads,
        weights.heads.rank,
        kdim=layer.kdim,
        vdim=layer.vdim,
        head_dim=layer.head_dim,
        value_heads=layer.value_heads,
        dropout=layer.dropout,
        scale=weights.scale,
        query_bias=weights.query_bias is not None,
        key_bias=False,
        value_bias=layer.v_proj.bias is not None,
        out_bias=layer.out_proj.bias is not None,
        content_bias=weights.content_bias is not None,
        device=weights.heads.query.device,
        dtype=weights.heads.query.dtype,
    )
    kept = {name: tensor for name, tensor in layer.state_dict().items() if name.startswith(("v_proj.", "out_proj."))}
    collaborative.load_state_dict({**kept, **weights.parameters()})
    return collaborative.train(layer.training)

"""Attention scores of a trained layer from fewer shared dimensions: inputs and results of the fit."""

import logging
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Union

import torch
from torch import Tensor

from collab_fairseq.attention import AttentionLayer, CollaborativeAttention
from collab_fairseq.attention.factors import HeadFactors, ReparamError, ScoreWeights, relative_error

from .calibrate import Calibration, Weighting
from .solver import Decomposition, decompose

logger = logging.getLogger(__name__)


class ScoreFit(NamedTuple):
    """What :func:`fit_scores` found.

    Attributes:
        weights: of the collaborative heads, in the precision and on the device of the source.
        error: ‖T − T'‖ / ‖T‖ over all heads, of the weights as they are returned.
        weighted_error: the same where differences count as they matter on the calibration text; None without one.
        found: the decomposition, of weighted heads where there is a calibration.
    """

    weights: ScoreWeights
    error: float
    weighted_error: Optional[float]
    found: Decomposition


@torch.no_grad()
def fit_scores(
    source: ScoreWeights,
    key_dim: int,
    calibration: Optional[Calibration] = None,
    *,
    ridge: float = 1e-2,
    **options: Any,
) -> ScoreFit:
    """Fit collaborative heads with ``key_dim`` shared dimensions, at most the source's, to the scores of a layer.

    Without calibration all entries of the heads' matrices count alike, which is the paper's aim but not a good one:
    what matters is what they do to the layer's inputs. With calibration the fit is weighted by the covariances of the
    inputs where attention is spread (:mod:`.calibrate`), and the content biases take up what it leaves at their mean
    query μ, exactly::

        v_i' = v_i + (b ⊙ w_i) Qᵀ + μ (T_i − T_i')

    Query biases become content biases either way (w_i, Q: of the source). At the key dim of the source nothing is
    fitted and its weights are returned as they are.

    Args:
        calibration: of the layer's inputs.
        ridge: part of the mean variance that is added to the variance of every direction of the inputs.
        options: of :func:`.decompose`, which also says what it raises.
    """
    heads, weighting = source.heads, None
    if calibration is not None:
        for name in ("query", "key"):
            width = getattr(heads, name).size(1)
            calibrated_width = getattr(calibration, f"{name}_covariance").size(0)
            if calibrated_width != width:
                raise ReparamError(f"{name} inputs of the calibration must be {width} wide; got {calibrated_width}")
        calibration = Calibration(calibration.queries, *(t.to(heads.query.device) for t in calibration[1:]))
        weighting = Weighting.of(calibration, ridge)
    found = decompose(heads if weighting is None else weighting.apply(heads), key_dim, **options)
    weights = source
    if key_dim < heads.rank:
        fit = found.heads if weighting is None else weighting.undo(found.heads).balanced()
        fit = fit.to(heads.query.dtype)
        weights = ScoreWeights(fit, source.scale, None, _content_bias(source, fit, calibration))
    weighted_error = None if weighting is None else found.error
    return ScoreFit(weights, relative_error(heads, weights.heads), weighted_error, found)


def _content_bias(source: ScoreWeights, fit: HeadFactors, calibration: Optional[Calibration]) -> Optional[Tensor]:
    """v', (H, Dk), for the factors as they were rounded; None where there is nothing to add."""
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
    """:func:`fit_scores` for every layer of a model, by name, one after the other.

    Args:
        sources: name → scores of that layer.
        key_dims: of all layers, or name → key dim.
        calibrations: name → statistics of that layer; None: none for any layer.
        progress: called with name and fit after each layer; default: a line in the log.
        options: of :func:`fit_scores`.

    Raises:
        ReparamError: layers without a key dim or calibration.
    """
    if isinstance(key_dims, int):
        key_dims = dict.fromkeys(sources, key_dims)
    for what, by_name in (("a key dim", key_dims), ("calibration", calibrations)):
        missing = [name for name in sources if by_name is not None and name not in by_name]
        if missing:
            raise ReparamError(f"every layer needs {what}; there is none for {', '.join(missing)}")
    fits: Dict[str, ScoreFit] = {}
    for name, source in sources.items():
        calibration = calibrations[name] if calibrations else None
        fit = fit_scores(source, key_dims[name], calibration, **options)
        fits[name] = fit
        if progress is not None:
            progress(name, fit)
            continue
        logger.info(
            "%s (%d of %d): key dim %d to %d, relative error %.4f, %.1f s",
            name,
            len(fits),
            len(sources),
            source.heads.rank,
            key_dims[name],
            fit.error,
            fit.found.seconds,
        )
    return fits


def scores_of(layer: AttentionLayer) -> ScoreWeights:
    """The scores of a layer of :mod:`collab_fairseq.attention`; ReparamError: it cannot be converted."""
    if not isinstance(layer, AttentionLayer):
        raise ReparamError(f"{type(layer).__name__} cannot be converted; expected an AttentionLayer of this project")
    return layer.score_weights()


def collaborative_layer(layer: AttentionLayer, weights: ScoreWeights) -> CollaborativeAttention:
    """A collaborative layer with these scores and the values, output and dropout of ``layer``."""
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

"""Whole translation models of fairseq: calibrated, fitted and written as ordinary checkpoints.

What the layers have of their own (key dim, scale, biases) stands in the model's ``attention_shapes``, from which
fairseq-generate, -validate and -train build them.
"""

import math
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from collab_fairseq.attention.factors import ReparamError, ScoreWeights
from collab_fairseq.modules.settings import SITES, parse_sites
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.modules.stock import as_transformer_collab, model_config
from collab_fairseq.translation import TrainedModel, batches

from .calibrate import Calibration, Calibrator
from .scores import ScoreFit, fit_layers, scores_of

#: how the names of the parameters of the scores begin, within their layer
SCORE_PARAMETERS = ("q_proj.", "k_proj.", "mixing", "content_bias")


class Call(NamedTuple):
    """One call of an attention layer within a model. N: sentences, T, S: query and key positions.

    Attributes:
        query: (N, T, Dq). key, value: (N, S, Dk).
        key_padding_mask: (N, S), True for padding, or None. attn_mask: (T, S), additive or boolean, or None.
        query_padding_mask: (N, T), True for padding.
        output: (N, T, Dq).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Optional[Tensor]
    attn_mask: Optional[Tensor]
    query_padding_mask: Tensor
    output: Tensor


def places(trained: TrainedModel, sites: str = "_".join(SITES)) -> List[str]:
    """Names of the attention layers at ``sites`` (written as in ``--collaborative-heads``), such as ``cross.3``.

    Raises:
        ConfigurationError: not the name of a site.
        ReparamError: the model has no attention there.
    """
    wanted = parse_sites(sites, "--sites")
    found = [place for place in attention_layers(trained.model) if place.split(".")[0] in wanted]
    if not found:
        raise ReparamError(f"the model has no attention at {sites!r}")
    return found


def sources(trained: TrainedModel, names: Optional[Sequence[str]] = None) -> Dict[str, ScoreWeights]:
    """The scores of the model's attention layers, by name; all of them, or those that are named."""
    layers = attention_layers(trained.model)
    return {name: scores_of(layers[name]) for name in (layers if names is None else names)}


@torch.no_grad()
def calls(trained: TrainedModel, samples: Iterable[Any], names: Sequence[str]) -> Iterator[Dict[str, Call]]:
    """What the named layers are given and give, batch by batch, the decoder reading the reference (teacher forcing).

    Args:
        samples: of :func:`collab_fairseq.translation.batches`.

    Raises:
        ReparamError: text without a target side.
    """
    layers = attention_layers(trained.model)
    seen: Dict[str, Call] = {}
    padding: Dict[bool, Tensor] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Tuple[Tensor, Any]) -> None:
            given = {**dict(zip(("query", "key", "value", "key_padding_mask"), args, strict=False)), **kwargs}
            query, key, value, output = (
                tensor.transpose(0, 1) for tensor in (given["query"], given["key"], given["value"], result[0])
            )
            masks = given.get("key_padding_mask"), given.get("attn_mask")
            seen[name] = Call(query, key, value, *masks, padding[name.startswith("encoder")], output)

        return hook

    handles = [layers[name].register_forward_hook(watch(name), with_kwargs=True) for name in names]
    pad = trained.task.target_dictionary.pad()
    try:
        for sample in samples:
            inputs = sample["net_input"]
            if inputs.get("prev_output_tokens") is None:
                raise ReparamError("the text has no target side, but the decoder needs one")
            padding[True], padding[False] = inputs["src_tokens"].eq(pad), inputs["prev_output_tokens"].eq(pad)
            trained.model(**inputs)
            yield dict(seen)
    finally:
        for handle in handles:
            handle.remove()


def calibrate(
    trained: TrainedModel, split: str, names: Sequence[str], *, sentences: Optional[int] = None, max_tokens: int = 4000
) -> Dict[str, Calibration]:
    """Statistics of the inputs of the named layers on the text of a split; see :func:`calls`."""
    calibrators = {name: Calibrator(scores) for name, scores in sources(trained, names).items()}
    text = batches(trained, split, sentences=sentences, max_tokens=max_tokens)
    for batch in calls(trained, text, names):
        for name, call in batch.items():
            calibrators[name].update(
                call.query, call.key, call.key_padding_mask, call.attn_mask, query_padding_mask=call.query_padding_mask
            )
    return {name: calibrator.result() for name, calibrator in calibrators.items()}


def output_errors(
    trained: TrainedModel,
    converted: TrainedModel,
    split: str,
    names: Sequence[str],
    *,
    sentences: Optional[int] = None,
    max_tokens: int = 4000,
) -> Dict[str, float]:
    """‖O' − O‖ / ‖O‖ of each layer: its output O (padding left out) and that of the new layer for the same inputs."""
    layers = attention_layers(converted.model)
    sums = {name: [0.0, 0.0] for name in names}
    text = batches(trained, split, sentences=sentences, max_tokens=max_tokens)
    for batch in calls(trained, text, names):
        for name, call in batch.items():
            query, key = call.query.transpose(0, 1), call.key.transpose(0, 1)
            value = key if call.value is call.key else call.value.transpose(0, 1)
            with torch.no_grad():
                output = layers[name](
                    query, key, value, key_padding_mask=call.key_padding_mask, attn_mask=call.attn_mask
                )[0].transpose(0, 1)
            counted = ~call.query_padding_mask
            sums[name][0] += float((output - call.output)[counted].double().square().sum())
            sums[name][1] += float(call.output[counted].double().square().sum())
    return {name: math.sqrt(gap / whole) if whole > 0 else 0.0 for name, (gap, whole) in sums.items()}


def converted(trained: TrainedModel, weights: Mapping[str, ScoreWeights]) -> Dict[str, Any]:
    """A checkpoint with these scores as collaborative heads; all else is the source's, tensors shared, types kept.

    There is no optimizer state: it belongs to parameters that are gone. Epoch, best loss and meters begin anew, so that
    fairseq-train can start from the checkpoint, by ``--finetune-from-model`` as by ``--restore-file``.

    Args:
        trained: the source, not modified.
        weights: ``site.layer`` → scores.
    """
    state = as_transformer_collab(trained.state)
    model, config = state["model"], model_config(state)
    shapes = {place: dict(shape) for place, shape in (config.get("attention_shapes") or {}).items()}
    layers = attention_layers(trained.model)
    for place, scores in weights.items():
        prefix = parameter_prefix(place)
        dtype = model[f"{prefix}q_proj.weight"].dtype
        for name in [n for n in model if n.startswith(tuple(prefix + part for part in SCORE_PARAMETERS))]:
            del model[name]
        for name, tensor in scores.parameters().items():
            model[prefix + name] = tensor.detach().to(device="cpu", dtype=dtype, copy=True)
        shape = shapes.setdefault(place, {})
        shape.pop("kv_heads", None)
        if layers[place].value_heads < layers[place].num_heads:
            shape["value_heads"] = layers[place].value_heads
        shape.update(
            collaborative=True, key_dim=scores.heads.rank, scale=scores.scale, key_bias=False,
            query_bias=scores.query_bias is not None, content_bias=scores.content_bias is not None,
        )  # fmt: skip
    config["attention_shapes"] = shapes
    state["last_optimizer_state"] = None
    state["extra_state"] = {
        "train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
        "converted": {place: scores.heads.rank for place, scores in weights.items()},
    }
    return state


def convert(
    trained: TrainedModel,
    key_dims: Union[int, Mapping[str, int]],
    calibrations: Optional[Mapping[str, Calibration]] = None,
    *,
    sites: str = "_".join(SITES),
    progress: Optional[Callable[[str, ScoreFit], None]] = None,
    **options: Any,
) -> Tuple[Dict[str, Any], Dict[str, ScoreFit]]:
    """Fit collaborative heads to the attention of a model.

    Args:
        trained: the source, not modified.
        key_dims: of all layers at ``sites``, or ``site.layer`` → key dim of exactly those layers.
        calibrations: of :func:`calibrate`; None: a plain fit, which loses more.
        sites: as in ``--collaborative-heads``; without effect where ``key_dims`` names the layers.
        progress: called with name and fit after each layer.
        options: of :func:`.fit_layers`, such as ``seed``.

    Returns:
        The checkpoint (see :func:`converted`) and the fits, by ``site.layer``.

    Raises:
        ReparamError: a key dim that is larger than the source's, or as of :func:`.fit_layers`.
    """
    names = places(trained, sites) if isinstance(key_dims, int) else list(key_dims)
    fits = fit_layers(sources(trained, names), key_dims, calibrations, progress=progress, **options)
    return converted(trained, {name: fit.weights for name, fit in fits.items()}), fits

"""Whole translation models of fairseq: calibrated, fitted and written as ordinary checkpoints.

The model's ``attention_shapes`` hold what differs from layer to layer (key dim, scale, biases); fairseq-generate,
-validate and -train build the layers from them.
"""

import contextlib
import math
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor, nn

from collab_fairseq.attention.factors import ReparamError, ScoreWeights
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, drop_training_state, model_config
from collab_fairseq.modules.settings import SITES, parse_sites
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.translation import TrainedModel, batches

from .calibrate import Calibration, Calibrator
from .scores import ScoreFit, fit_layers, scores_of

#: one call of a layer: arguments by name, query positions that are no padding, output
Call = Tuple[Dict[str, Any], Tensor, Tensor]
#: how the names of the parameters of the scores begin, within their layer
SCORE_PARAMETERS = ("q_proj.", "k_proj.", "mixing", "content_bias")


def score_parameters(state: Mapping[str, Any], layer_id: str) -> int:
    """How many parameters the scores of ``site.layer`` have in a checkpoint."""
    prefixes = tuple(parameter_prefix(layer_id) + part for part in SCORE_PARAMETERS)
    return sum(tensor.numel() for name, tensor in state["model"].items() if name.startswith(prefixes))


def layer_ids(trained: TrainedModel, sites: str = "_".join(SITES)) -> List[str]:
    """Names of the attention layers at ``sites`` (written as in ``--collaborative-heads``), such as ``cross.3``.

    Raises:
        ConfigurationError: not the name of a site.
        ReparamError: the model has no attention there.
    """
    wanted = parse_sites(sites, "--sites")
    chosen = [layer_id for layer_id in attention_layers(trained.model) if layer_id.split(".")[0] in wanted]
    if not chosen:
        raise ReparamError(f"the model has no attention at {sites!r}")
    return chosen


def sources(trained: TrainedModel, names: Optional[Sequence[str]] = None) -> Dict[str, ScoreWeights]:
    """The scores of the model's attention layers, by name; all of them, or those that are named."""
    layers = attention_layers(trained.model)
    return {name: scores_of(layers[name]) for name in (layers if names is None else names)}


@torch.no_grad()
def calls(trained: TrainedModel, split: str, names: Sequence[str], **text: Any) -> Iterator[Dict[str, Call]]:
    """What the named layers are given and give, batch by batch, the decoder reading the reference (teacher forcing).

    Args:
        split, text: of :func:`collab_fairseq.translation.batches`.

    Yields:
        Name → arguments as fairseq's layers pass them on, query (T, N, Dq), key and value (S, N, Dk); which of the
        query positions (N, T) are no padding; output (N, T, Dq). N: sentences, T, S: query and key positions.
    """
    layers = attention_layers(trained.model)
    seen: Dict[str, Call] = {}
    words: Dict[str, Tensor] = {}

    def hook(name: str, layer: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any) -> None:
        positional = zip(("query", "key", "value", "key_padding_mask"), args, strict=False)
        side = "src_tokens" if name.startswith("encoder") else "prev_output_tokens"
        seen[name] = {**dict(positional), **kwargs}, words[side], result[0].transpose(0, 1)

    pad = trained.task.target_dictionary.pad()
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.callback(layers[name].register_forward_hook(partial(hook, name), with_kwargs=True).remove)
        for sample in batches(trained, split, **text):
            inputs = sample["net_input"]
            words.update({side: inputs[side].ne(pad) for side in ("src_tokens", "prev_output_tokens")})
            trained.model(**inputs)
            yield dict(seen)


def calibrate(trained: TrainedModel, split: str, names: Sequence[str], **text: Any) -> Dict[str, Calibration]:
    """Statistics of the inputs of the named layers on the text of a split; see :func:`calls`."""
    calibrators = {name: Calibrator(scores) for name, scores in sources(trained, names).items()}
    for batch in calls(trained, split, names, **text):
        for name, (arguments, counted, _) in batch.items():
            calibrators[name].update(
                arguments["query"].transpose(0, 1),
                arguments["key"].transpose(0, 1),
                arguments.get("key_padding_mask"),
                arguments.get("attn_mask"),
                query_padding_mask=~counted,
            )
    return {name: calibrator.result() for name, calibrator in calibrators.items()}


def output_errors(
    trained: TrainedModel, converted: TrainedModel, split: str, names: Sequence[str], **text: Any
) -> Dict[str, float]:
    """‖O' − O‖ / ‖O‖ of each layer: its output O (padding left out) and that of the new layer for the same inputs."""
    layers = attention_layers(converted.model)
    sums = {name: torch.zeros(2, dtype=torch.float64) for name in names}
    for batch in calls(trained, split, names, **text):
        for name, (arguments, counted, output) in batch.items():
            with torch.no_grad():
                new_output = layers[name](**arguments)[0].transpose(0, 1)
            for index, values in enumerate((new_output - output, output)):
                sums[name][index] += values[counted].double().square().sum().cpu()
    return {name: math.sqrt(gap / whole) if whole > 0 else 0.0 for name, (gap, whole) in sums.items()}


def converted(trained: TrainedModel, weights: Mapping[str, ScoreWeights]) -> Dict[str, Any]:
    """A checkpoint with these scores, by ``site.layer``, as collaborative heads; all else is the source's.

    Tensors are shared, types kept. fairseq-train starts at epoch 1 from it (:func:`.drop_training_state`).
    """
    state = as_transformer_collab(trained.state)
    model, config = state["model"], model_config(state)
    shapes = {layer_id: dict(shape) for layer_id, shape in (config.get("attention_shapes") or {}).items()}
    layers = attention_layers(trained.model)
    for layer_id, scores in weights.items():
        _replace_scores(model, parameter_prefix(layer_id), scores)
        layer, shape = layers[layer_id], shapes.setdefault(layer_id, {})
        for flag in layer.flags:  # settings of its former attention type
            shape.pop(flag.argument, None)
        if layer.value_heads != (config.get("value_heads") or layer.num_heads):
            shape["value_heads"] = layer.value_heads
        shape["collaborative"] = True
        shape["key_dim"] = scores.heads.rank
        shape["scale"] = scores.scale
        shape["key_bias"] = False
        shape["query_bias"] = scores.query_bias is not None
        shape["content_bias"] = scores.content_bias is not None
    config["attention_shapes"] = shapes
    drop_training_state(state, converted={layer_id: scores.heads.rank for layer_id, scores in weights.items()})
    return state


def _replace_scores(model: Dict[str, Tensor], prefix: str, scores: ScoreWeights) -> None:
    """Put the scores of a layer, whose parameters start with ``prefix``, into the parameters of a model."""
    dtype = model[f"{prefix}q_proj.weight"].dtype
    replaced = tuple(prefix + part for part in SCORE_PARAMETERS)
    for name in [name for name in model if name.startswith(replaced)]:
        del model[name]
    for name, tensor in scores.parameters().items():
        model[prefix + name] = tensor.detach().to(device="cpu", dtype=dtype, copy=True)


def convert(
    trained: TrainedModel,
    key_dims: Union[int, Mapping[str, int]],
    calibrations: Optional[Mapping[str, Calibration]] = None,
    **options: Any,
) -> Tuple[Dict[str, Any], Dict[str, ScoreFit]]:
    """Fit collaborative heads to the attention of a model.

    Args:
        key_dims: of all layers, or ``site.layer`` → key dim of exactly those layers.
        calibrations: of :func:`calibrate`; None: a plain fit, which loses more.
        options: of :func:`.fit_layers`, which also says what it raises.

    Returns:
        The checkpoint (see :func:`converted`) and the fits, by ``site.layer``.
    """
    names = None if isinstance(key_dims, int) else list(key_dims)
    fits = fit_layers(sources(trained, names), key_dims, calibrations, **options)
    return converted(trained, {name: fit.weights for name, fit in fits.items()}), fits

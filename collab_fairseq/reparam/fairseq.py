"""Calibration and conversion of fairseq's translation models, with ordinary checkpoints as results.

The model setting ``attention_shapes`` holds the key dimension, scale and biases of each layer. fairseq-generate,
-validate and -train build the layers from it.
"""

import contextlib
import math
from functools import partial
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.attention_types import SITES, parse_sites
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.checkpoints import model_settings
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, drop_training_state
from collab_fairseq.modules.sites import attention_layers, parameter_prefix
from collab_fairseq.progress import Progress
from collab_fairseq.translation import TrainedModel, batches
from collab_fairseq.translation.text import dataset

from .calibrate import Calibration, Calibrator
from .scores import scores_of

#: one call of a layer: arguments by name, mask of the query positions that are not padding, output
Call = Tuple[Dict[str, Any], Tensor, Tensor]
#: prefixes of the names of the score parameters within a layer
SCORE_PARAMETERS = ("q_proj.", "k_proj.", "mixing", "content_bias")


def score_parameters(state: Mapping[str, Any], layer_id: str) -> int:
    """Number of parameters of the scores of ``site.layer`` in a checkpoint."""
    prefixes = tuple(parameter_prefix(layer_id) + part for part in SCORE_PARAMETERS)
    return sum(tensor.numel() for name, tensor in state["model"].items() if name.startswith(prefixes))


def layer_ids(trained: TrainedModel, sites: str = "_".join(SITES)) -> List[str]:
    """The attention layers (``site.layer``) at ``sites``, which are joined by ``_``."""
    wanted = parse_sites(sites, "--sites")
    selected = [layer_id for layer_id in attention_layers(trained.model) if layer_id.split(".")[0] in wanted]
    if not selected:
        raise AttentionError(f"the model has no attention at {sites!r}")
    return selected


def scores_by_layer(trained: TrainedModel, layer_ids: Optional[Sequence[str]] = None) -> Dict[str, ScoreWeights]:
    """``site.layer`` → scores, for all or only the given attention layers."""
    layers = attention_layers(trained.model)
    return {layer_id: scores_of(layers[layer_id]) for layer_id in (layers if layer_ids is None else layer_ids)}


@torch.no_grad()
def calls(trained: TrainedModel, split: str, layer_ids: Sequence[str], **batching: Any) -> Iterator[Dict[str, Call]]:
    """Inputs and outputs of attention layers, batch by batch, with teacher forcing.

    Args:
        split, batching: see :func:`collab_fairseq.translation.batches`.

    Yields:
        ``site.layer`` → call. Among its arguments are query (T, N, Dq), key and value (S, N, Dk). The mask has shape
        (N, T), the output (N, T, Dq). N: sentences, T, S: query and key positions, Dq, Dk: widths.
    """
    layers = attention_layers(trained.model)
    batch: Dict[str, Call] = {}
    not_padding: Dict[str, Tensor] = {}

    def hook(layer_id: str, layer: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any], result: Any) -> None:
        positional = zip(("query", "key", "value", "key_padding_mask"), args, strict=False)
        side = "src_tokens" if layer_id.startswith("encoder") else "prev_output_tokens"
        output = result[0].transpose(0, 1)  # (T, N, Dq) → (N, T, Dq)
        batch[layer_id] = {**dict(positional), **kwargs}, not_padding[side], output

    pad = trained.task.target_dictionary.pad()
    with contextlib.ExitStack() as stack:
        for layer_id in layer_ids:
            handle = layers[layer_id].register_forward_hook(partial(hook, layer_id), with_kwargs=True)
            stack.callback(handle.remove)
        for sample in batches(trained, split, **batching):
            inputs = sample["net_input"]
            for side in ("src_tokens", "prev_output_tokens"):
                not_padding[side] = inputs[side].ne(pad)
            trained.model(**inputs)
            yield dict(batch)


def calibrate(trained: TrainedModel, split: str, layer_ids: Sequence[str], **batching: Any) -> Dict[str, Calibration]:
    """Statistics of the inputs of attention layers on the text of a split; see :func:`calls`."""
    calibrators = {layer_id: Calibrator(scores) for layer_id, scores in scores_by_layer(trained, layer_ids).items()}
    with Progress("calibration", batching.get("sentences") or len(dataset(trained, split)), "sentences") as progress:
        for batch in calls(trained, split, layer_ids, **batching):
            for layer_id, (arguments, not_padding, _) in batch.items():
                calibrators[layer_id].update(
                    arguments["query"].transpose(0, 1),  # (T, N, Dq) → (N, T, Dq)
                    arguments["key"].transpose(0, 1),  # (S, N, Dk) → (N, S, Dk)
                    arguments.get("key_padding_mask"),
                    arguments.get("attn_mask"),
                    query_padding_mask=~not_padding,
                )
            progress.advance(len(not_padding))
    return {layer_id: calibrator.result() for layer_id, calibrator in calibrators.items()}


def output_errors(
    trained: TrainedModel, converted: TrainedModel, split: str, layer_ids: Sequence[str], **batching: Any
) -> Dict[str, float]:
    """‖O' − O‖ / ‖O‖ of each layer, for the outputs O of the source and O' of the new layer for the same inputs."""
    layers = attention_layers(converted.model)
    squares = {layer_id: torch.zeros(2, dtype=torch.float64) for layer_id in layer_ids}
    for batch in calls(trained, split, layer_ids, **batching):
        for layer_id, (arguments, not_padding, output) in batch.items():
            with torch.no_grad():
                new_output = layers[layer_id](**arguments)[0].transpose(0, 1)  # (N, T, Dq)
            for index, values in enumerate((new_output - output, output)):
                squares[layer_id][index] += values[not_padding].double().square().sum().cpu()
    return {layer_id: math.sqrt(gap / total) if total > 0 else 0.0 for layer_id, (gap, total) in squares.items()}


def converted_state(trained: TrainedModel, weights: Mapping[str, ScoreWeights]) -> Dict[str, Any]:
    """A checkpoint of the source with these scores (``site.layer`` → scores) as collaborative heads.

    All other tensors are shared with the source. The dtype stays the same. fairseq-train starts from it at epoch 1
    (:func:`.drop_training_state`).
    """
    state = as_transformer_collab(trained.state)
    model, config = state["model"], model_settings(state)
    shapes = {layer_id: dict(shape) for layer_id, shape in (config.get("attention_shapes") or {}).items()}
    layers = attention_layers(trained.model)
    for layer_id, scores in weights.items():
        _replace_scores(model, parameter_prefix(layer_id), scores)
        layer, shape = layers[layer_id], shapes.setdefault(layer_id, {})
        for argument in layer.settings:  # of the source's attention type
            shape.pop(argument, None)
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
    """Replace the score parameters of the layer with this prefix."""
    dtype = model[f"{prefix}q_proj.weight"].dtype
    replaced = tuple(prefix + part for part in SCORE_PARAMETERS)
    for name in [name for name in model if name.startswith(replaced)]:
        del model[name]
    for name, tensor in scores.parameters().items():
        model[prefix + name] = tensor.detach().to(device="cpu", dtype=dtype, copy=True)

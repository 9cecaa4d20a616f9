"""Conversion of trained Hugging Face models to collaborative heads: BERT, DistilBERT, ALBERT and Marian.

After this module has been imported, ``AutoConfig`` and ``AutoModelFor…`` load converted models, too
(:mod:`collab_fairseq.huggingface`). It needs the extra ``huggingface``.
"""

import copy
import inspect
from functools import partial
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import ScoreWeights
from collab_fairseq.huggingface import (
    CollaborativeModel,
    Shape,
    attention_layers,
    check_convertible,
    collaborative_class,
    from_pretrained,
    score_weights,
)
from collab_fairseq.huggingface.layers import IMPLEMENTATIONS, names_of, torch_mask
from collab_fairseq.huggingface.models import base_prefix

from .calibrate import Calibration, Calibrator
from .scores import fit_layers

__all__ = ["calibrate", "check_convertible", "from_pretrained", "to_collaborative"]

Batches = Iterable[Mapping[str, Any]]


def _padding(model: PreTrainedModel, batch: Mapping[str, Any], decoder: bool) -> Optional[Tensor]:
    """Mask of the padding in a batch, (N, T), if the batch marks it. N: sentences, T: positions."""
    mask = batch.get("decoder_attention_mask" if decoder else "attention_mask")
    if isinstance(mask, Tensor):
        return mask.flatten(0, -2) == 0  # (N, choices, T) for multiple choice
    if decoder and isinstance(batch.get("decoder_input_ids"), Tensor):
        padding = batch["decoder_input_ids"] == model.config.pad_token_id
        padding[:, 0] = False  # Marian's decoder input starts with the padding token
        return padding
    if decoder and isinstance(batch.get("labels"), Tensor):
        return batch["labels"] == -100  # decoder inputs are the labels shifted by one position
    return None


def _supported(implementation: str) -> str:
    """The implementation of attention; `sdpa` instead of those whose masks our layers do not read."""
    return implementation if implementation in IMPLEMENTATIONS else "sdpa"


@torch.no_grad()
def calibrate(
    model: PreTrainedModel, batches: Batches, layers: Optional[Iterable[str]] = None
) -> Dict[str, Calibration]:
    """Statistics of the queries and keys of attention layers on some text, without padding.

    The model runs in evaluation mode. For layers that are applied repeatedly (ALBERT), all applications count.

    Args:
        batches: dictionaries of arguments of the model, as from a tokenizer or data collator, with ``attention_mask``
            and, if the model has a decoder, ``decoder_attention_mask``, or ``labels`` with -100 for padding.
        layers: names of layers; default: all.

    Raises:
        AttentionError: no batches, or a layer that is unknown or was not used.
    """
    sources = dict(score_weights(model))
    names = list(sources if layers is None else layers)
    _check_layers(names, sources)
    calibrators = {name: Calibrator(sources[name]) for name in names}
    wanted = {name: layer for name, layer in attention_layers(model) if name in calibrators}
    batch: Dict[str, Any] = {}

    def hook(name: str, layer: nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        arguments = inspect.signature(type(layer).forward).bind(layer, *args, **kwargs).arguments
        queries = arguments["hidden_states"]
        source = arguments.get("key_value_states", arguments.get("encoder_hidden_states"))
        keys = queries if source is None else source
        causal = model.config._attn_implementation != "eager" and bool(getattr(layer, "is_causal", False))
        mask = torch_mask(arguments.get("attention_mask"), causal, queries, keys.size(1))
        padding = _padding(model, batch, model.config.is_encoder_decoder and name.startswith("decoder."))
        calibrators[name].update(queries, keys, attn_mask=mask, query_padding_mask=padding)

    handles = [layer.register_forward_pre_hook(partial(hook, name), with_kwargs=True) for name, layer in wanted.items()]
    training, implementation = model.training, model.config._attn_implementation
    model.eval()
    model.config._attn_implementation = _supported(implementation)
    try:
        for inputs in batches:
            batch = {k: value.to(model.device) if isinstance(value, Tensor) else value for k, value in inputs.items()}
            model(**batch)
    finally:
        model.train(training)
        model.config._attn_implementation = implementation
        for handle in handles:
            handle.remove()
    return {name: calibrator.result() for name, calibrator in calibrators.items()}


def to_collaborative(
    model: PreTrainedModel,
    key_dim: Union[int, Mapping[str, int]],
    calibration: Union[Batches, Mapping[str, Calibration], None] = None,
    **options: Any,
) -> CollaborativeModel:
    """A new model with collaborative heads; ``model`` does not change.

    At the key dimension of the source, it computes the same function. Class, config, other weights, dtype, device and
    training mode are those of ``model``. Hooks are not copied.

    Args:
        model: BERT, DistilBERT, ALBERT or Marian with any task head, standard or already collaborative.
        key_dim: D̃k of all layers, or layer name (:func:`.attention_layers`) → D̃k; other layers stay as they are.
        calibration: batches for :func:`calibrate`, or its result. Default: an unweighted fit, which loses more quality.
        options: see :func:`.fit_layers`, such as ``seed``, ``sweeps``, ``progress``.

    Raises:
        AttentionError: the model cannot be converted, a layer is unknown, or see :func:`.fit_layers`.
    """
    sources = dict(score_weights(model))
    if isinstance(key_dim, Mapping):
        _check_layers(key_dim, sources)
        sources = {name: source for name, source in sources.items() if name in key_dim}
    if isinstance(calibration, Mapping):
        if not all(isinstance(value, Calibration) for value in calibration.values()):
            raise AttentionError("calibration must be a list of batches or the result of calibrate(); got one batch")
    elif calibration is not None:
        calibration = calibrate(model, calibration, list(sources))
    fits = fit_layers(sources, key_dim, calibration, **options)
    return with_scores(model, {name: fit.weights for name, fit in fits.items()})


def _check_layers(names: Iterable[str], sources: Mapping[str, Any]) -> None:
    unknown = [name for name in names if name not in sources]
    if unknown:
        raise AttentionError(f"layers must be among {', '.join(sources)}; got {', '.join(unknown)}")


def with_scores(model: PreTrainedModel, fitted: Mapping[str, ScoreWeights]) -> CollaborativeModel:
    """A new model with the weights of ``model``, and these scores in the fitted layers."""
    shapes = dict(getattr(model.config, "attention_shapes", None) or {})
    shapes.update({name: Shape.of(weights)._asdict() for name, weights in fitted.items()})
    model_class: Any = type(model)
    new_class = collaborative_class(model_class)
    config_class: Any = new_class.config_class
    settings = model.config.to_dict()
    for field in ("model_type", "architectures", "transformers_version"):
        settings.pop(field, None)
    config = config_class.from_dict({**settings, "attention_shapes": shapes})
    config._attn_implementation = _supported(model.config._attn_implementation)

    state = dict(model.state_dict())
    for name, weights in fitted.items():
        names: Any = names_of(model.base_model.get_submodule(name))
        prefix = f"{base_prefix(model)}{name}."
        replaced = tuple(prefix + part for part in names.of_scores)
        state = {key: tensor for key, tensor in state.items() if not key.startswith(replaced)}
        state.update({prefix + key: tensor for key, tensor in names.parameters(weights).items()})
    with torch.random.fork_rng(devices=[]), no_init_weights():
        collaborative = new_class(config)
    try:
        collaborative.load_state_dict({key: tensor.detach().clone() for key, tensor in state.items()}, assign=True)
    except RuntimeError as error:
        raise AttentionError(f"the {type(model).__name__} does not match its config: {error}") from error
    collaborative.tie_weights()
    collaborative.to(model.device)
    if getattr(model, "generation_config", None) is not None:
        collaborative.generation_config = copy.deepcopy(model.generation_config)
    return collaborative.train(model.training)

"""Models of ``transformers`` with collaborative heads: configs, model classes and loading.

A collaborative model has a separate ``model_type``, so that ``transformers`` without this package rejects it instead of
loading some of its weights. Its config is that of the architecture plus ``attention_shapes``: layer name →
:class:`.layers.Shape`. Layers that are missing there have standard heads.
"""

import functools
import sys
from typing import Any, Dict, Iterable, Iterator, Optional, Tuple, Type

import transformers
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AlbertConfig, AutoConfig, BertConfig, DistilBertConfig, MarianConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import HeadFactors, ScoreWeights, check_plain, is_replaced, standard_heads
from collab_fairseq.attention.masks import multiply_heads

from .layers import COLLABORATIVE, CollaborativeHeads, Shape, names_of

Shapes = Dict[str, Dict[str, Any]]


def _define(name: str, bases: Tuple[Any, ...], fields: Dict[str, Any]) -> Type[Any]:
    """A class of this module; pickle finds it by its name."""
    defined: Type[Any] = type(name, bases, {"__module__": __name__, **fields})
    setattr(sys.modules[__name__], name, defined)
    return defined


def _config_class(base: Type[Any]) -> Type[Any]:
    """``Collaborative…Config`` with the field ``attention_shapes``."""
    fields = {
        "__annotations__": {"attention_shapes": Optional[Shapes]},
        "attention_shapes": None,
        "model_type": f"collaborative_{base.model_type}",
    }
    return strict(_define(f"Collaborative{base.__name__}", (base,), fields))


#: config class of transformers → that of the collaborative model
CONFIGS: Dict[Type[Any], Type[Any]] = {
    base: _config_class(base) for base in (BertConfig, DistilBertConfig, AlbertConfig, MarianConfig)
}
#: arguments of ``from_pretrained`` that determine which files are read
_LOCATION = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def base_prefix(model: PreTrainedModel) -> str:
    """Prefix of the parameters of the base model: ``bert.``, or nothing in the base model itself."""
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def attention_layers(model: PreTrainedModel) -> Iterator[Tuple[str, nn.Module]]:
    """Name and module of every attention layer of BERT, DistilBERT, ALBERT or Marian, standard or collaborative.

    Names are relative to the base model (``encoder.layer.0.attention.self``), so that they are the same in
    ``BertModel`` and ``BertForSequenceClassification``. A layer that is used several times (ALBERT) appears once.
    """
    for name, module in model.base_model.named_modules():
        if names_of(module) is not None:
            yield name, module


class HeadOutputs:
    """The outputs of the H heads of an attention layer, with a multiplier as in the fairseq layers.

    Attributes:
        out_proj: projection of the concatenated head outputs, (N, T, H · dv).
        head_multiplier: multiplier of these outputs, (H), (N, H) or (N, T, H), or None.
    """

    def __init__(self, num_heads: int, out_proj: nn.Module) -> None:
        self.num_heads = num_heads
        self.out_proj = out_proj
        self._multiplier: Optional[Tensor] = None
        self._hook: Optional[RemovableHandle] = None

    @property
    def head_multiplier(self) -> Optional[Tensor]:
        return self._multiplier

    @head_multiplier.setter
    def head_multiplier(self, multiplier: Optional[Tensor]) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._multiplier = multiplier
        self._hook = None if multiplier is None else self.out_proj.register_forward_pre_hook(self._multiply)

    def _multiply(self, _: nn.Module, inputs: Tuple[Tensor, ...]) -> Tuple[Tensor, ...]:
        assert self._multiplier is not None
        outputs = inputs[0].unflatten(-1, (self.num_heads, -1))
        return (multiply_heads(outputs, self._multiplier).flatten(-2),)


def head_layers(model: PreTrainedModel) -> Dict[str, HeadOutputs]:
    """The layers of :func:`attention_layers` by layer_id: ``encoder.0``, ``cross.3``, ``decoder.1``, …

    A layer that is used several times (ALBERT) has one multiplier for all uses.
    """
    layers: Dict[str, HeadOutputs] = {}
    # not every config class has is_decoder
    only_site = "decoder" if getattr(model.config, "is_decoder", False) else "encoder"
    for name, layer in attention_layers(model):
        names: Any = names_of(layer)
        site = name.split(".")[0] if model.config.is_encoder_decoder else only_site
        if "crossattention" in name or "encoder_attn" in name:
            site = "cross"
        number = sum(layer_id.startswith(site) for layer_id in layers)
        if names.output:
            out_proj = layer.get_submodule(names.output)
        else:
            parent = model.base_model.get_submodule(name.rpartition(".")[0])
            out_proj = parent.get_submodule("output.dense")
        layers[f"{site}.{number}"] = HeadOutputs(getattr(layer, names.heads), out_proj)
    return layers


class CollaborativeModel(PreTrainedModel):
    """Mixin for a model class of transformers: makes the layers in ``config.attention_shapes`` collaborative."""

    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        layers = dict(attention_layers(self))
        for name, fields in (config.attention_shapes or {}).items():
            if name not in layers:
                raise AttentionError(f"attention_shapes must name layers among {', '.join(layers)}; got {name}")
            standard, shape = layers[name], Shape.read(name, fields)
            self.base_model.set_submodule(name, COLLABORATIVE[type(standard)](standard, shape))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As in transformers, but missing weights of collaborative layers raise an AttentionError."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        layers = [name for name, layer in attention_layers(model) if isinstance(layer, CollaborativeHeads)]
        prefixes = tuple(f"{base_prefix(model)}{name}." for name in layers)
        missing = [name for name in info["missing_keys"] if name.startswith(prefixes)]
        if missing:
            raise AttentionError(f"weights of collaborative heads are missing: {', '.join(sorted(missing))}")
        return (model, info) if output_loading_info else model


def check_convertible(model: Any) -> None:
    """Raise an AttentionError if the model is not of an architecture in :data:`CONFIGS`, or has adapters.

    Other architectures transform queries and keys between projections and scores, for example by rotary positions.
    Adapters that replace ``forward`` are not in the weights.
    """
    if not isinstance(model, PreTrainedModel):
        raise AttentionError(f"the model must be a PreTrainedModel of transformers; got {type(model).__name__}")
    if type(model.config) not in (*CONFIGS, *CONFIGS.values()):
        known = ", ".join(config.model_type for config in CONFIGS)
        raise AttentionError(f"the architecture must be one of {known}; got {model.config.model_type}")
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and is_replaced(module):
            raise AttentionError(f"{name} must have the forward of its class; it has been replaced: merge or unload it")


def score_weights(model: PreTrainedModel) -> Iterator[Tuple[str, ScoreWeights]]:
    """Name (as in :func:`attention_layers`) and score weights of every attention layer, standard or collaborative."""
    check_convertible(model)
    for name, layer in attention_layers(model):
        names: Any = names_of(layer)
        query, key = getattr(layer, names.query), getattr(layer, names.key)
        check_plain(query, key)
        content: Any = None
        if isinstance(layer, CollaborativeHeads):
            heads = HeadFactors(query.weight, key.weight, layer.mixing)
            content = layer.content_bias
        else:
            heads = standard_heads(query.weight, key.weight, getattr(layer, names.heads))
        yield name, ScoreWeights(heads, float(layer.scaling), query.bias, content)  # type: ignore[arg-type]


@functools.cache
def collaborative_class(model_class: Any) -> Type[CollaborativeModel]:
    """``Collaborative…``, the collaborative form of a model class for BERT, DistilBERT, ALBERT or Marian.

    The class may be your own. The constructor of the collaborative form takes a config of :data:`CONFIGS`.

    Raises:
        AttentionError: the config class is not one of :data:`CONFIGS`.
    """
    if issubclass(model_class, CollaborativeModel):
        return model_class
    config_class = model_class.config_class
    for base, collaborative_config in CONFIGS.items():
        if issubclass(config_class, base):
            bases = (CollaborativeModel, model_class)
            return _define(f"Collaborative{model_class.__name__}", bases, {"config_class": collaborative_config})
    raise AttentionError(
        f"the config class of {model_class.__name__} must be one of {', '.join(base.__name__ for base in CONFIGS)}; "
        f"got {getattr(config_class, '__name__', None)}"
    )


def register() -> None:
    """Register collaborative models with ``AutoConfig`` and every ``AutoModelFor…``."""
    for config in CONFIGS.values():
        AutoConfig.register(config.model_type, config, exist_ok=True)
    for auto in vars(modeling_auto).values():
        mapping: Any = getattr(auto, "_model_mapping", None) if isinstance(auto, type) else None
        if mapping is None:
            continue
        for base, config in CONFIGS.items():
            model_class = mapping.get(base, None)
            if isinstance(model_class, type):
                auto.register(config, collaborative_class(model_class), exist_ok=True)


def from_pretrained(name_or_path: Any, **kwargs: Any) -> PreTrainedModel:
    """Load a standard or collaborative model, in the class in which it was saved.

    Args:
        name_or_path: a folder or a repository.
        kwargs: of ``PreTrainedModel.from_pretrained``, such as ``attn_implementation``, ``dtype`` or ``device_map``.

    Raises:
        AttentionError: a class that transformers does not have, an architecture outside :data:`CONFIGS`, or missing
            weights.
    """
    location = {name: kwargs[name] for name in _LOCATION if name in kwargs}
    config = AutoConfig.from_pretrained(name_or_path, **location)
    saved = (config.architectures or [""])[0]
    base = getattr(transformers, saved.removeprefix("Collaborative"), None)
    if not isinstance(base, type) or not issubclass(base, PreTrainedModel):
        raise AttentionError(
            f"{name_or_path} must be of a model class of transformers; got {saved or 'no class'}; "
            "load your own classes with collaborative_class(YourClass).from_pretrained"
        )
    model_class: Any = collaborative_class(base) if type(config) in CONFIGS.values() else base
    model: PreTrainedModel
    model, info = model_class.from_pretrained(name_or_path, output_loading_info=True, **kwargs)
    check_loaded(name_or_path, saved, info["missing_keys"])
    check_convertible(model)
    return model


def check_loaded(name_or_path: Any, kind: str, missing: Iterable[str], prefix: str = "") -> None:
    """Raise an AttentionError if transformers gave random values to weights, which the file lacks.

    Base models may have been saved without their pooler.

    Args:
        kind: the model that must be complete, for the message.
        missing: names of missing weights.
        prefix: of the model's weights, if it is the base of another one.
    """
    names = sorted(name for name in missing if name.startswith(prefix) and not name.startswith(f"{prefix}pooler."))
    if names:
        raise AttentionError(f"{name_or_path} must have all weights of its {kind}; got none for {', '.join(names[:3])}")

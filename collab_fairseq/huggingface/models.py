"""Whole models of ``transformers`` with collaborative heads: their configs, their classes, and how they are loaded.

A collaborative model has a separate ``model_type``, so that a ``transformers`` without this package rejects it by
name instead of loading some of its weights. Its config is the architecture's, with ``attention_shapes``: layer name →
:class:`.layers.Shape`. Layers that are not named there keep standard heads.
"""

import functools
import sys
from typing import Any, Dict, Iterator, Optional, Tuple, Type

import transformers
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import AlbertConfig, AutoConfig, BertConfig, DistilBertConfig, MarianConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from collab_fairseq.attention.factors import HeadFactors, ReparamError, ScoreWeights, standard_heads
from collab_fairseq.attention.masks import multiply_heads

from .layers import COLLABORATIVE, CollaborativeHeads, Shape, names_of

Shapes = Dict[str, Dict[str, Any]]


def _with_shapes(base: Type[Any]) -> Type[Any]:
    """The config class ``Collaborative…`` of an architecture, with ``attention_shapes``."""
    fields = {
        "__module__": __name__,
        "__annotations__": {"attention_shapes": Optional[Shapes]},
        "attention_shapes": None,
        "model_type": f"collaborative_{base.model_type}",
    }
    made: Type[Any] = strict(type(f"Collaborative{base.__name__}", (base,), fields))
    setattr(sys.modules[__name__], made.__name__, made)  # where pickle looks for it
    return made


#: config class of transformers → that of the collaborative model
CONFIGS: Dict[Type[Any], Type[Any]] = {
    base: _with_shapes(base) for base in (BertConfig, DistilBertConfig, AlbertConfig, MarianConfig)
}


def base_prefix(model: PreTrainedModel) -> str:
    """What the names of the base model's parts begin with in this model: ``bert.``, or nothing in the base model."""
    return "" if model.base_model is model else f"{model.base_model_prefix}."


def attention_layers(model: PreTrainedModel) -> Iterator[Tuple[str, nn.Module]]:
    """Name and module of every attention layer of BERT, DistilBERT, ALBERT or Marian, standard or collaborative.

    Names are those within the base model, ``encoder.layer.0.attention.self``, so that they are the same for
    ``BertModel`` and ``BertForSequenceClassification``. A layer that is used several times (ALBERT) comes once.
    """
    for name, module in model.base_model.named_modules():
        if names_of(module) is not None:
            yield name, module


class HeadOutputs:
    """The outputs of the H heads of an attention layer, which can be multiplied as those of fairseq's layers here can.

    Attributes:
        out_proj: the projection that reads the heads' outputs, (N, T, H · dv).
        head_multiplier: factor on these outputs, (H), (N, H) or (N, T, H), or None.
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
    """The layers of :func:`attention_layers` by site and number: ``encoder.0``, ``cross.3``, ``decoder.1``, …

    A layer that is used several times (ALBERT) has one multiplier for all its uses.
    """
    layers: Dict[str, HeadOutputs] = {}
    # not every config class says whether the model is a decoder
    only_site = "decoder" if getattr(model.config, "is_decoder", False) else "encoder"
    for name, layer in attention_layers(model):
        names: Any = names_of(layer)
        site = name.split(".")[0] if model.config.is_encoder_decoder else only_site
        if "crossattention" in name or "encoder_attn" in name:
            site = "cross"
        number = sum(layer_id.startswith(site) for layer_id in layers)
        owner = layer if names.output else model.base_model.get_submodule(name.rpartition(".")[0])
        out_proj = owner.get_submodule(names.output or "output.dense")
        layers[f"{site}.{number}"] = HeadOutputs(getattr(layer, names.heads), out_proj)
    return layers


class CollaborativeModel(PreTrainedModel):
    """Base beside a model class of transformers: makes the layers of ``config.attention_shapes`` collaborative."""

    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        layers = dict(attention_layers(self))
        for name, fields in (config.attention_shapes or {}).items():
            if name not in layers:
                raise ReparamError(f"attention_shapes: expected one of {', '.join(layers)}, got {name}")
            standard, shape = layers[name], Shape.read(name, fields)
            self.base_model.set_submodule(name, COLLABORATIVE[type(standard)](standard, shape))

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As transformers', but weights of collaborative layers may not be missing.

        Raises:
            ReparamError: names those that are missing.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        layers = [f"{base_prefix(model)}{n}." for n, m in attention_layers(model) if isinstance(m, CollaborativeHeads)]
        missing = [name for name in info["missing_keys"] if name.startswith(tuple(layers))]
        if missing:
            raise ReparamError(f"weights of collaborative heads are missing: {', '.join(sorted(missing))}")
        return (model, info) if output_loading_info else model


def check_convertible(model: Any) -> None:
    """Refuse models whose heads cannot be made collaborative.

    Raises:
        ReparamError: no model of an architecture that is known here. Between their projections and their scores others
            have more, such as rotary positions.
    """
    if not isinstance(model, PreTrainedModel):
        raise ReparamError(f"expected a model of transformers, got {type(model).__name__}")
    if type(model.config) not in (*CONFIGS, *CONFIGS.values()):
        known = ", ".join(config.model_type for config in CONFIGS)
        raise ReparamError(f"the architecture must be one of {known}; got {model.config.model_type}")


def score_weights(model: PreTrainedModel) -> Iterator[Tuple[str, ScoreWeights]]:
    """Name and scores of every attention layer, standard or collaborative, by the names of :func:`attention_layers`.

    Raises:
        ReparamError: see :func:`check_convertible`; a layer whose projections are no plain linear layers, by name.
    """
    check_convertible(model)
    for name, layer in attention_layers(model):
        names: Any = names_of(layer)
        query, key = getattr(layer, names.query), getattr(layer, names.key)
        for part, projection in ((names.query, query), (names.key, key)):
            if type(projection) is not nn.Linear:
                wrong = f"must be a torch.nn.Linear; got {type(projection).__name__}: merge or unload it"
                raise ReparamError(f"{name}: {part} {wrong}")
        content: Any = None
        if isinstance(layer, CollaborativeHeads):
            heads = HeadFactors(query.weight, key.weight, layer.mixing)
            content = layer.content_bias
        else:
            heads = standard_heads(query.weight, key.weight, getattr(layer, names.heads))
        yield name, ScoreWeights(heads, float(layer.scaling), query.bias, content)  # type: ignore[arg-type]


@functools.cache
def collaborative_class(model_class: Any) -> Type[CollaborativeModel]:
    """The collaborative form of a model class over BERT, DistilBERT, ALBERT or Marian, your own classes included.

    Its name is ``Collaborative`` and the name of the class. Its constructor takes a config of :data:`CONFIGS`.
    """
    if issubclass(model_class, CollaborativeModel):
        return model_class
    bases = [base for base in CONFIGS if issubclass(model_class.config_class, base)]
    if not bases:
        raise ReparamError(
            f"a model class must be built on {', '.join(base.__name__ for base in CONFIGS)}, "
            f"but {model_class.__name__} is built on {getattr(model_class.config_class, '__name__', None)}"
        )
    name = f"Collaborative{model_class.__name__}"
    made = type(name, (CollaborativeModel, model_class), {"__module__": __name__, "config_class": CONFIGS[bases[0]]})
    setattr(sys.modules[__name__], name, made)  # where pickle looks for it
    return made


def register() -> None:
    """Let ``AutoConfig`` and every ``AutoModelFor…`` load collaborative models; done when this package is imported."""
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
    """Load a model, standard or collaborative, that ``save_pretrained`` has written, as what it was.

    Args:
        name_or_path: a folder or a repository.
        kwargs: of ``PreTrainedModel.from_pretrained``, such as ``attn_implementation``, ``dtype`` or ``device_map``.

    Raises:
        ReparamError: of a class that transformers does not have, or of an architecture that is not known here.
    """
    config = AutoConfig.from_pretrained(name_or_path)
    saved = (config.architectures or [""])[0]
    base = getattr(transformers, saved.removeprefix("Collaborative"), None)
    if not isinstance(base, type) or not issubclass(base, PreTrainedModel):
        raise ReparamError(
            f"{name_or_path} was saved as {saved or 'no class'}, which transformers does not have; "
            "load it by collaborative_class(YourClass).from_pretrained"
        )
    kind: Any = collaborative_class(base) if type(config) in CONFIGS.values() else base
    model: PreTrainedModel = kind.from_pretrained(name_or_path, **kwargs)
    check_convertible(model)
    return model

"""Checkpoints of fairseq's own transformer as checkpoints of ours: what it computes stays the same."""

import copy
import logging
import re
from argparse import Namespace
from typing import Any, Dict, MutableMapping, Union

from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from omegaconf import OmegaConf

from collab_fairseq.attention.attention_types import flags
from fairseq_modern.encoder_layer import SURPLUS

from .settings import ConfigurationError, check_type

_SURPLUS = re.compile(rf"encoder\.layers\.\d+\.({'|'.join(SURPLUS)})")

#: parts of fairseq's model config that Hydra nests
SUB_CONFIGS = ("encoder", "decoder", "quant_noise")
_STANDARD_HEADS: Dict[str, Any] = {
    "collaborative_heads": "none",
    "key_dim": None,
    "attention_kernel": "auto",
    "attention_shapes": {},
    **{name: flag.default for name, flag in flags().items()},
}


def model_config(state: Dict[str, Any]) -> MutableMapping[str, Any]:
    """The model's settings in a checkpoint, as a mapping whose changes are changes of the checkpoint."""
    model = state["cfg"]["model"]
    return vars(model) if isinstance(model, Namespace) else model


def as_transformer_collab(state: Dict[str, Any]) -> Dict[str, Any]:
    """The same model as ``transformer_collab``: standard heads stay standard heads, every output stays what it was.

    Args:
        state: a checkpoint of fairseq's ``transformer`` in any size, or of ``transformer_collab``; not modified.

    Returns:
        A checkpoint with settings of its own that shares the tensors of ``state``, as plain containers: ``cfg`` of the
        whole run, the model's part being flat; ``args``, where fairseq before 0.10 had that, is gone.

    Raises:
        ConfigurationError: another model, or settings that cannot be read.
    """
    made = dict(state)
    cfg = made.get("cfg")
    if cfg is None:
        if not isinstance(made.get("args"), Namespace):
            raise ConfigurationError("the checkpoint has neither cfg nor args, the settings that fairseq saves")
        log = logging.getLogger("fairseq.dataclass.utils")
        was_disabled, log.disabled = log.disabled, True  # it would print all settings before the error
        try:
            cfg = convert_namespace_to_omegaconf(made["args"])
        except Exception as error:  # of fairseq, Hydra, OmegaConf or Python
            raise ConfigurationError(f"the settings in args cannot be read: {error}") from error
        finally:
            log.disabled = was_disabled
    made["args"] = None
    made["cfg"] = OmegaConf.to_container(cfg) if OmegaConf.is_config(cfg) else copy.deepcopy(cfg)
    made["cfg"]["model"] = flat(made["cfg"].get("model"))
    model = model_config(made)
    arch = model.get("_name") or model.get("arch")
    kind = ARCH_MODEL_NAME_REGISTRY.get(arch, arch) if isinstance(arch, str) else arch
    if kind == "transformer":
        model.update(copy.deepcopy(_STANDARD_HEADS), _name="transformer_collab", arch="transformer_collab")
    elif kind != "transformer_collab":
        raise ConfigurationError(
            f"expected a checkpoint of fairseq's transformer or of transformer_collab, got one of {arch}"
        )
    parameters = type(made["model"])()  # an OrderedDict stays one
    parameters.update((name, tensor) for name, tensor in made["model"].items() if not _SURPLUS.fullmatch(name))
    made["model"] = parameters
    return made


def drop_training_state(state: Dict[str, Any], **notes: Any) -> None:
    """Take out of a checkpoint what belongs to other parameters: optimizer state, epoch, best loss and meters.

    fairseq-train can start from it, by ``--finetune-from-model`` or ``--restore-file``. ``notes``: kept in its place.
    """
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    state.update(last_optimizer_state=None, extra_state={"train_iterator": iterator, **notes})


def flat(model: Union[Namespace, Dict[str, Any], None]) -> Any:
    """Settings with ``encoder_layers`` in the place of Hydra's ``encoder: {layers: …}``.

    Raises:
        ConfigurationError: ``encoder``, … are not settings.
    """
    if isinstance(model, Namespace):
        return model
    flat = dict(model or {})
    for name in SUB_CONFIGS:
        nested = flat.pop(name, None) or {}
        check_type(f"model.{name}", Dict, nested)
        flat.update({f"{name}_{key}": value for key, value in nested.items()})
    return flat

"""Conversion of checkpoints of fairseq's ``transformer`` to ``transformer_collab``, with unchanged outputs."""

import copy
import logging
import re
from argparse import Namespace
from typing import Any, Dict

from fairseq import checkpoint_utils
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.modules import MultiheadAttention
from omegaconf import OmegaConf
from torch import Tensor

from collab_fairseq.checkpoints import model_settings
from fairseq_modern.encoder_layer import SURPLUS
from fairseq_modern.errors import UserError

from .settings import flat

_SURPLUS = re.compile(rf"encoder\.layers\.\d+\.({'|'.join(SURPLUS)})")


def as_transformer_collab(state: Dict[str, Any]) -> Dict[str, Any]:
    """Convert a checkpoint to ``transformer_collab``. Standard heads stay standard heads.

    Args:
        state: a checkpoint of fairseq's ``transformer`` in any size, or of ``transformer_collab``; not modified.

    Returns:
        A checkpoint that shares the tensors of ``state``. Its settings are copies in plain containers: ``cfg`` of the
        whole training run, with flat model settings. ``args`` (fairseq before 0.10) is None. Fused projections of
        attention (fairseq before 0.8) are split; a model renames other old parameters when it loads them.
    """
    converted = dict(state)
    cfg = state.get("cfg")
    if cfg is None:
        cfg = _cfg_from_args(state.get("args"))
    converted["args"] = None
    converted["cfg"] = OmegaConf.to_container(cfg) if OmegaConf.is_config(cfg) else copy.deepcopy(cfg)
    if not isinstance(converted["cfg"].get("model"), Namespace):
        converted["cfg"]["model"] = flat(converted["cfg"].get("model") or {})
    model = model_settings(converted)
    arch = model.get("_name") or model.get("arch")
    model_name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch) if isinstance(arch, str) else arch
    if model_name == "transformer":
        model.update(collaborative_heads="none", _name="transformer_collab", arch="transformer_collab")
    elif model_name != "transformer_collab":
        raise UserError(f"the checkpoint must be of transformer or transformer_collab; got {arch}")
    parameters = type(state["model"])()  # keeps an OrderedDict
    parameters.update((name, tensor) for name, tensor in state["model"].items() if not _SURPLUS.fullmatch(name))
    for name, tensor in parameters.items():
        # loading would round complex numbers to their real parts, and take quantised weights without their scale
        is_version = name.endswith(".version")  # an integer in adaptive softmax
        if isinstance(tensor, Tensor) and not tensor.is_floating_point() and not is_version:
            raise UserError(f"{name} must be floating-point; got {tensor.dtype}")
    _split_projections(parameters)
    converted["model"] = parameters
    return converted


def _split_projections(parameters: Dict[str, Any]) -> None:
    """Replace ``in_proj_weight`` and ``in_proj_bias`` by the projections of queries, keys and values, in place."""
    for name in [name for name in parameters if name.endswith(".in_proj_weight") and parameters[name].dim() == 2]:
        prefix = name.removesuffix(".in_proj_weight")
        fused = {key: parameters.pop(key) for key in (name, f"{prefix}.in_proj_bias") if key in parameters}
        MultiheadAttention.upgrade_state_dict_named(None, fused, prefix)  # fairseq's own, which needs no layer
        parameters.update((key, tensor.clone()) for key, tensor in fused.items())


def _cfg_from_args(args: Any) -> Any:
    """The settings of a checkpoint from fairseq before 0.10, as a config."""
    if not isinstance(args, Namespace):
        raise UserError("the checkpoint has neither cfg nor args, the settings that fairseq saves")
    # fairseq's own renaming of old settings needs the other parts of a checkpoint, too
    history = {"optimizer_name": "none", "lr_scheduler_state": {}, "num_updates": 0}
    old = {"args": copy.deepcopy(args), "optimizer_history": [history], "extra_state": {"train_iterator": None}}
    log = logging.getLogger("fairseq.dataclass.utils")
    was_disabled, log.disabled = log.disabled, True  # on an error, it logs all settings
    try:
        return checkpoint_utils._upgrade_state_dict(old)["cfg"]
    except Exception as error:  # from fairseq, Hydra, OmegaConf or Python
        raise UserError(f"the settings in args cannot be read: {error}") from error
    finally:
        log.disabled = was_disabled


def drop_training_state(state: Dict[str, Any], **notes: Any) -> None:
    """Remove the optimizer state, epoch, best loss and meters of a checkpoint whose parameters were changed, in place.

    fairseq-train can start from the result with ``--finetune-from-model`` or ``--restore-file``. ``notes`` are saved
    under ``extra_state``.
    """
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True}
    state.update(last_optimizer_state=None, extra_state={"train_iterator": iterator, **notes})

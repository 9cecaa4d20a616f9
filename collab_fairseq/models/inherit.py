"""``--attention-from``: training goes on from a converted or pruned checkpoint, whose attention no flags describe."""

from contextlib import nullcontext
from typing import Any

from omegaconf import OmegaConf, open_dict

from collab_fairseq import checkpoints
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.stock import as_transformer_collab, model_config

_INHERITED = (
    "collaborative_heads", "key_dim", "value_heads", "kv_heads", "kv_latent_dim", "mixing_lr_multiplier",
    "attention_content_bias", "attention_shapes",
)  # fmt: skip


def inherit_attention(args: Any) -> None:
    """Take over what a checkpoint's settings say of attention, in place; the new run's checkpoints then say it too.

    Args:
        args: settings of the model, a namespace or a Hydra config. Its ``attention_from`` is None afterwards, so that
            nothing is read again when a checkpoint of the run is loaded.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigurationError: a model of another kind.
    """
    path = getattr(args, "attention_from", None)
    if path is None:
        return
    state = checkpoints.load(path)
    if not isinstance(state.get("model"), dict):
        raise ConfigurationError(f"--attention-from {path} holds no model")
    try:
        config = model_config(as_transformer_collab(state))
    except ConfigurationError as error:
        raise ConfigurationError(f"--attention-from {path}: {error}") from error
    with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
        for name in _INHERITED:
            if name in config:
                setattr(args, name, config[name])
        args.attention_from = None

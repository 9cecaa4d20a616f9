"""Conversion of command lines, presets, Hydra configs and saved settings to :class:`.TransformerCollabConfig`."""

import copy
import logging
from argparse import Namespace
from typing import Any, List

from omegaconf import DictConfig, OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.attention.attention_types import KEY_DIM_SETTINGS, SITES, parse_sites, side_of
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.modules.settings import SUB_CONFIGS, flat, parse_shapes
from fairseq_modern.errors import UserError

from .checks import DEFAULT_IF_NONE, FIELD_TYPES, check_config, check_fields
from .config import OWN_DEFAULTS, TransformerCollabConfig

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"  # fairseq's default of --restore-file
#: settings that ``--attention-from`` takes from the checkpoint
_INHERITED = (
    "encoder_attention_heads",
    "decoder_attention_heads",
    "collaborative_heads",
    "key_dim",
    *KEY_DIM_SETTINGS.values(),
    *("value_heads", "mixing_lr_multiplier", "attention_content_bias", "kv_heads", "kv_latent_dim"),
    "attention_shapes",
)


def flatten(cfg: DictConfig, others: bool = False) -> None:
    """Give the nested settings of a Hydra model config fairseq's flat names, in place.

    ``encoder: {layers: 2}`` becomes ``encoder_layers: 2``, the form that presets and checkpoints use. ``others`` allows
    settings that ``transformer_collab`` does not have.
    """
    OmegaConf.resolve(cfg)
    settings = flat(OmegaConf.to_container(cfg))
    for name in settings:
        if not others and name not in FIELD_TYPES and name != "arch":
            raise UserError(f"model.{name} is not a setting of transformer_collab")
    for section in SUB_CONFIGS:
        cfg.pop(section, None)
    cfg.update(settings)


def resolve(args: Any) -> TransformerCollabConfig:
    """The checked config of a namespace (command line, checkpoint) or of a flattened Hydra config."""
    if isinstance(args, TransformerCollabConfig):
        return args
    mapping: Any = OmegaConf.to_container(args, resolve=True) if OmegaConf.is_config(args) else vars(args)
    settings = flat(mapping)
    check_fields(settings)
    settings = {name: value for name, value in settings.items() if value is not None or name not in DEFAULT_IF_NONE}
    for name in ("encoder_layers_to_keep", "decoder_layers_to_keep"):
        keep = settings.get(name)
        if isinstance(keep, (list, tuple)):  # the command line gives a list; fairseq's model expects "0,2,4"
            settings[name] = ",".join(map(str, keep))
    cfg: TransformerCollabConfig = TransformerCollabConfig.from_namespace(Namespace(**settings))
    keep_layers(cfg)
    check_config(cfg)
    return cfg


def keep_layers(cfg: TransformerCollabConfig) -> None:
    """Apply ``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep`` to a config, in place.

    fairseq renames parameters in the same way when it loads the checkpoint. A config that already describes the kept
    layers does not change.
    """
    stacks = {site: getattr(cfg, side_of(site)) for site in SITES}
    kept = {site: _kept(side_of(site), stack) for site, stack in stacks.items()}
    shapes = parse_shapes(cfg.attention_shapes)
    layer_ids = {f"{site}.{number}" for site, stack in stacks.items() for number in range(stack.layers)}
    for layer_id in shapes:
        if layer_id not in layer_ids:
            expected = ", ".join(f"{site}.0 to {site}.{stack.layers - 1}" for site, stack in stacks.items())
            raise UserError(f"keys of attention_shapes must be {expected}; got {layer_id!r}")
    cfg.attention_shapes = {
        f"{site}.{new}": cfg.attention_shapes[f"{site}.{old}"]
        for site in SITES
        for new, old in enumerate(kept[site])
        if f"{site}.{old}" in shapes
    }
    if cfg.encoder.layers_to_keep or cfg.decoder.layers_to_keep:
        # if one side is given, fairseq removes all layers of the other from a checkpoint
        for stack in (cfg.encoder, cfg.decoder):
            stack.layers_to_keep = stack.layers_to_keep or ",".join(map(str, range(stack.layers)))
    cfg.encoder.layers = len(kept["encoder"])
    cfg.decoder.layers = len(kept["decoder"])


def _kept(side: str, stack: Any) -> List[int]:
    """Sorted indices of the layers to keep."""
    layers = list(range(stack.layers))
    names = stack.layers_to_keep.split(",") if stack.layers_to_keep else []
    if len(names) in (0, len(layers)):  # as many as there are: all of them, or fairseq has removed the others before
        return layers
    if not set(names) <= set(map(str, layers)) or len(set(names)) < len(names):
        raise UserError(
            f"--{side}-layers-to-keep must be different layers from 0 to {stack.layers - 1}, joined by commas; "
            f"got {stack.layers_to_keep}"
        )
    return sorted(map(int, names))


def inherit_attention(args: Any) -> None:
    """Apply ``--attention-from``: take the attention settings of a checkpoint, in place.

    Args:
        args: namespace or Hydra config, before presets set the rest. ``attention_from`` becomes None, so that loading
            a checkpoint of the new run does not read this one again.
    """
    path = getattr(args, "attention_from", None)
    if path is None:
        return
    state = checkpoints.load(path)
    if not isinstance(state.get("model"), dict):
        raise UserError(f"--attention-from must be a checkpoint with model parameters; {path} has none")
    try:
        config = {**copy.deepcopy(OWN_DEFAULTS), **checkpoints.model_settings(as_transformer_collab(state))}
    except UserError as error:
        raise UserError(f"--attention-from {path}: {error}") from error
    for name in _INHERITED:
        if name not in config:
            continue
        inherited = config[name]
        value = getattr(args, name, inherited)
        differs = value != inherited
        if differs and name == "collaborative_heads":
            differs = parse_sites(value) != parse_sites(inherited)
        if differs:
            flag = "--" + name.replace("_", "-")
            raise UserError(f"{flag} is {value}, but {inherited} in --attention-from {path}; leave out {flag}")
        setattr(args, name, inherited)
    args.attention_from = None
    if OmegaConf.is_config(args):  # of the model only: whether the run loads weights is unknown here
        logger.info("model.attention_from takes shapes, not weights; checkpoint.finetune_from_model loads weights")
    elif getattr(args, "finetune_from_model", None) is None and getattr(args, "restore_file", LAST) == LAST:
        logger.warning(
            "--attention-from takes shapes, not weights; to start from these weights, also pass "
            "--finetune-from-model %s",
            path,
        )

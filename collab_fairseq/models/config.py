"""Configuration of ``transformer_collab``: fairseq's transformer config and flags of its own.

The model is registered *without* this dataclass: fairseq loses nested flags (``--encoder-layers``) of models registered
with one. Flags, presets and Hydra configs all become a flat namespace first (:func:`flatten`), then this config.
"""

import logging
import reprlib
from argparse import Namespace
from dataclasses import dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from typing import Any, Dict, List, Optional, Tuple

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer import TransformerConfig
from omegaconf import DictConfig, OmegaConf

from collab_fairseq import checkpoints
from collab_fairseq.attention.attention_type import Flag
from collab_fairseq.attention.attention_types import ATTENTION_TYPES, KEY_DIMS, SITES, flags, kernels, side_of
from collab_fairseq.attention.layer import INITS
from collab_fairseq.modules.fairseq_compat import SUB_CONFIGS, as_transformer_collab, flat, model_config
from collab_fairseq.modules.gates import OPEN
from collab_fairseq.modules.settings import ConfigurationError, check_type, parse_shapes, parse_sites

from .checks import check_config, check_fields, field_types

logger = logging.getLogger(__name__)

LAST = "checkpoint_last.pt"  # what --restore-file is unless it is given
#: what ``--attention-from`` takes over
_INHERITED = (
    "collaborative_heads", "key_dim", *KEY_DIMS.values(), *(name for name, flag in flags().items() if flag.persistent),
    "attention_shapes",
)  # fmt: skip


def _flag(default: Any, text: str) -> Any:
    """A field that is a command-line flag with this help."""
    return field(default=default, metadata={"help": text})


def _field(flag: Flag) -> Tuple[str, Any, Any]:
    """The field of a flag that an attention type declares."""
    kind = ChoiceEnum(list(flag.choices)) if flag.choices else flag.type
    return flag.name, kind if flag.default is not None else Optional[kind], _flag(flag.default, flag.help)


#: fairseq's config with the flags of all attention types
_OfKinds: Any = make_dataclass("_OfKinds", map(_field, flags().values()), bases=(TransformerConfig,))


@dataclass
class TransformerCollabConfig(_OfKinds):  # type: ignore[misc]
    """Settings of :class:`.TransformerCollabModel`; those of each attention type are declared by that type."""

    collaborative_heads: str = _flag(
        "encoder_cross_decoder",
        f"sites with collaborative heads: {', '.join(SITES)}, joined by '_' in any order, or none",
    )
    key_dim: Optional[int] = _flag(
        None,
        "width of the query and key projections of every attention: shared by all heads where they collaborate, "
        "divided among them where they do not (default: the embedding width)",
    )
    encoder_key_dim: Optional[int] = _flag(None, "--key-dim of the encoder's self-attention")
    cross_key_dim: Optional[int] = _flag(None, "--key-dim of encoder-decoder attention")
    decoder_key_dim: Optional[int] = _flag(None, "--key-dim of the decoder's self-attention")
    attention_init: ChoiceEnum(list(INITS)) = _flag(  # type: ignore[valid-type]  # noqa: RUF009
        "default",
        "initial query, key and value weights: Xavier with gain 1/sqrt(2), or, as in the authors' code (authors), with "
        "gain 1 wherever the key dim is not the width",
    )
    attention_kernel: ChoiceEnum(list(kernels(ATTENTION_TYPES))) = _flag(  # type: ignore[valid-type]  # noqa: RUF009
        "auto",
        "how attention is computed: bmm (plain), head_loop (heads one after the other, for CPUs), sdpa (torch's fused "
        "attention), or auto, the fastest for device, type and size; same results",
    )
    fast_dropout: bool = _flag(
        False, "draw dropout masks from fewer random bits, several times as fast on a CPU; other random numbers"
    )
    compile: bool = _flag(False, "train layers through torch.compile, for GPUs: the first batches take minutes")
    mask_heads: Optional[str] = _flag(
        None,
        "heads whose output is zero: E (encoder), A (encoder-decoder) or D (decoder), layer and heads, counted from 1; "
        "several separated by blanks, such as 'E:1:3,5 A:2:1'",
    )
    head_gates: str = _flag(
        "none",
        "sites whose heads have stochastic gates (for the criterion label_smoothed_cross_entropy_with_gates), as in "
        "--collaborative-heads",
    )
    head_gates_init: float = _flag(
        2.4, f"log alpha that the gates start from; from {OPEN:.2f} on a mean gate is exactly open"
    )
    head_gates_freeze_decoder: bool = _flag(
        False,
        "train no parameter of the decoder, nor embeddings that it shares, so that the encoder's gates are not made up "
        "for there",
    )
    attention_from: Optional[str] = _flag(
        None,
        "take the heads of all sites and of single layers (which collaborate, key dims, what they share, content bias, "
        "scale) from this checkpoint; to train on what `collab reparam` or `collab heads prune` has made",
    )
    # written by conversion and pruning, never typed by hand: {"cross.3": {"key_dim": 96, "scale": 0.125}, …}
    attention_shapes: Dict[str, Any] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        """As in fairseq, which keeps what begins with ``encoder_`` in ``encoder``, but for the key dims of sites."""
        if name in KEY_DIMS.values():
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def _get_all_attributes(self) -> List[str]:
        """Fields that become command-line flags."""
        return [name for name in super()._get_all_attributes() if name != "attention_shapes"]


#: what this config has beyond fairseq's
OWN_FIELDS = tuple(
    f.name for f in fields(TransformerCollabConfig) if f.name not in TransformerConfig.__dataclass_fields__
)


def flatten(cfg: DictConfig) -> None:
    """Turn the nested keys of a Hydra model config into fairseq's flat names, in place.

    ``encoder: {layers: 2}`` becomes ``encoder_layers: 2``, so that presets and checkpoints know one form.

    Raises:
        ConfigurationError: the same value is given in both forms, or a name is no field.
    """
    for name in SUB_CONFIGS:
        check_type(f"model.{name}", Dict, cfg.get(name) or {})
        nested = cfg.pop(name, None)
        for key, value in (nested or {}).items():
            flat = f"{name}_{key}"
            if flat in cfg:
                raise ConfigurationError(f"model.{name}.{key} and model.{flat} are the same; give one of them")
            cfg[flat] = value
    types = field_types(TransformerCollabConfig)
    for name in map(str, cfg):
        if name not in types and name != "arch":
            nearest = get_close_matches(name, types, n=1)
            meant = f"; did you mean model.{nearest[0]}?" if nearest else ""
            raise ConfigurationError(f"model.{name} is not a setting of transformer_collab{meant}")


def resolve(args: Any) -> TransformerCollabConfig:
    """The config of a namespace (command line, checkpoint) or of a flattened Hydra config, checked.

    Raises:
        ConfigurationError: values that cannot be, before anything is built.
    """
    if isinstance(args, TransformerCollabConfig):
        return args
    given: Any = OmegaConf.to_container(args, resolve=True) if OmegaConf.is_config(args) else vars(args)
    settings = flat(given)
    check_fields(settings, TransformerCollabConfig)
    args = Namespace(**settings)
    for name in ("encoder_layers_to_keep", "decoder_layers_to_keep"):
        keep = getattr(args, name, None)
        if isinstance(keep, (list, tuple)):  # the command line gives a list where fairseq's model wants "0,2,4"
            setattr(args, name, ",".join(map(str, keep)))
    cfg: TransformerCollabConfig = TransformerCollabConfig.from_namespace(args)
    keep_layers(cfg)
    check_config(cfg)
    return cfg


def check_checkpoint(state: Dict[str, Any]) -> None:
    """See that the settings of a checkpoint can be used, before anything is built.

    Values of task and criterion are compared with their dataclasses by fairseq itself.

    Args:
        state: of :func:`.as_transformer_collab`.

    Raises:
        ConfigurationError: a part is missing, a setting is of another type or out of its range, or there are more
            layers than the checkpoint has parameters of.
    """
    parts: Any = {name: state["cfg"].get(name) for name in ("task", "criterion", "dataset")}
    if isinstance(parts["criterion"], Namespace):  # of a criterion without a dataclass
        parts["criterion"] = vars(parts["criterion"])
    for name, settings in parts.items():
        check_type(f"cfg.{name}", Dict, settings)
    criterion = parts["criterion"].get("_name")
    if str(criterion) not in CRITERION_REGISTRY:
        raise ConfigurationError(f"criterion must be one that fairseq knows; got {reprlib.repr(criterion)}")
    multiple = "required_batch_size_multiple"
    check_type(f"dataset.{multiple}", int, parts["dataset"].get(multiple))
    model = model_config(state)
    check_fields(model, TransformerCollabConfig)
    for side in ("encoder", "decoder"):
        found = {name.split(".")[2] for name in state["model"] if name.startswith(f"{side}.layers.")}
        layers = model.get(f"{side}_layers", 0)
        if layers > len(found):
            raise ConfigurationError(
                f"model.{side}_layers must be {len(found)}, of which the checkpoint has parameters; got {layers}"
            )


def keep_layers(cfg: Any) -> None:
    """Follow ``--encoder-layers-to-keep`` and ``--decoder-layers-to-keep``, in ``attention_shapes`` too.

    fairseq renames parameters in the same way when it loads the checkpoint. Nothing changes in a config that is of the
    kept layers already.

    Args:
        cfg: a :class:`.TransformerCollabConfig`, changed in place.

    Raises:
        ConfigurationError: layers to keep, or with a shape of their own, that are not there.
    """
    numbers = {site: _kept(side_of(site), getattr(cfg, side_of(site))) for site in SITES}
    counts = {site: getattr(cfg, side_of(site)).layers for site in SITES}
    for name in parse_shapes(cfg.attention_shapes):
        site, _, number = name.partition(".")
        if number not in map(str, range(counts[site])):
            raise ConfigurationError(
                f"attention_shapes has {name!r}, but the layers are "
                + ", ".join(f"{site}.0 to {site}.{counts[site] - 1}" for site in SITES)
            )
    cfg.attention_shapes = {
        f"{site}.{new}": cfg.attention_shapes[f"{site}.{old}"]
        for site in SITES
        for new, old in enumerate(numbers[site])
        if f"{site}.{old}" in (cfg.attention_shapes or {})
    }
    cfg.encoder.layers, cfg.decoder.layers = len(numbers["encoder"]), len(numbers["decoder"])


def _kept(side: str, stack: Any) -> List[int]:
    """Numbers of the layers that are kept of a stack, in order."""
    layers = list(range(stack.layers))
    names = stack.layers_to_keep.split(",") if stack.layers_to_keep else []
    if len(names) in (0, len(layers)):  # as many as there are: all of them, or fairseq has taken the others out before
        return layers
    if not set(names) <= set(map(str, layers)) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"--{side}-layers-to-keep must be different layers from 0 to {stack.layers - 1}, joined by commas, "
            f"but is {stack.layers_to_keep}"
        )
    return sorted(map(int, names))


def inherit_attention(args: Any) -> None:
    """``--attention-from``: take over what a checkpoint says of attention, in place, as checkpoints of the run then do.

    Args:
        args: what the command line or the Hydra config gives, before presets fill in the rest. Its ``attention_from``
            is None afterwards, so that nothing is read again when a checkpoint of the run is loaded.

    Raises:
        CheckpointError: the file cannot be read.
        ConfigurationError: a model of another kind, or something given that contradicts it.
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
    for name in (name for name in _INHERITED if name in config):
        given, theirs = getattr(args, name, config[name]), config[name]
        if given != theirs and not (name == "collaborative_heads" and parse_sites(given) == parse_sites(theirs)):
            flag = "--" + name.replace("_", "-")
            raise ConfigurationError(f"{flag} is {given}, but {theirs} in --attention-from {path}; leave out {flag}")
        setattr(args, name, theirs)
    args.attention_from = None
    if getattr(args, "finetune_from_model", None) is None and getattr(args, "restore_file", LAST) == LAST:
        logger.warning(
            "--attention-from takes shapes, not weights: to start from these give --finetune-from-model %s, too", path
        )

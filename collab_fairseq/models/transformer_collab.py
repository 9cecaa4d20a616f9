"""``--arch transformer_collab``: fairseq's transformer with collaborative attention heads.

Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362. The layer is
:class:`collab_fairseq.attention.CollaborativeAttention`; :mod:`.presets` has the presets.
"""

import functools
import logging
from argparse import Namespace
from contextlib import nullcontext
from typing import Any, Dict, Mapping, Optional

import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from collab_fairseq.attention.cache import source_rows
from collab_fairseq.checkpoints import DICTIONARIES, model_settings
from collab_fairseq.modules.compiled import CompiledDecoderLayer, CompiledEncoderLayer
from collab_fairseq.modules.layers import CollabDecoderLayer, CollabEncoderLayer
from collab_fairseq.modules.sites import attention_layers, checkpoint_layers, parameter_prefix
from collab_fairseq.search.shortlist import ShortlistGenerator
from collab_fairseq.training.dropout import use_fast_dropout
from fairseq_modern.errors import UserError

from .arguments import inherit_attention, resolve
from .config import TransformerCollabConfig
from .dictionaries import check_dictionaries, dictionary_digests

logger = logging.getLogger(__name__)

#: optimizers whose step size does not depend on the scale of the gradient
SCALE_INVARIANT = ("adam", "fused_adam", "adamax", "adagrad", "cpu_adam")
#: settings that building a model changes
_WRITTEN_BACK = (
    "attention_shapes",
    "encoder_layers",
    "encoder_layers_to_keep",
    "decoder_layers",
    "decoder_layers_to_keep",
    "max_source_positions",
    "max_target_positions",
    *DICTIONARIES,
)
#: our modules → the names of fairseq's modules, for ``--retain-dropout-modules``
FAIRSEQ_NAMES = {
    "TransformerCollabEncoder": "TransformerEncoder",
    "TransformerCollabDecoder": "TransformerDecoder",
    "CollabEncoderLayer": "TransformerEncoderLayerBase",
    "CollabDecoderLayer": "TransformerDecoderLayerBase",
    "CompiledEncoderLayer": "TransformerEncoderLayerBase",
    "CompiledDecoderLayer": "TransformerDecoderLayerBase",
}


def _wrap(layer: nn.Module, cfg: TransformerCollabConfig) -> nn.Module:
    """Wrap a layer for activation checkpointing and parameter sharding, if the flags ask for them."""
    min_parameters = cfg.min_params_to_wrap
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        min_parameters = 0  # a checkpointed layer is always a separate shard
    wrapped = fsdp_wrap(layer, min_num_params=min_parameters)
    if cfg.compile and (cfg.checkpoint_activations or wrapped is not layer):
        raise UserError(
            "--compile is for plain layers: leave out --checkpoint-activations and --ddp-backend fully_sharded, "
            "or --compile"
        )
    return wrapped


class TransformerCollabEncoder(TransformerEncoderBase):
    """fairseq's encoder with :class:`.CollabEncoderLayer`."""

    _built = 0  # number of layers so far: fairseq does not pass the index of the layer

    def build_encoder_layer(self, cfg: TransformerCollabConfig) -> nn.Module:
        layer_class = CompiledEncoderLayer if cfg.compile else CollabEncoderLayer
        layer = layer_class(cfg, self._built, return_fc=self.return_fc)
        self._built += 1
        return _wrap(layer, cfg)

    def reorder_encoder_out(self, encoder_out: Dict[str, Any], new_order: Tensor) -> Dict[str, Any]:
        """Rows ``new_order`` (R', ) of an encoder output, as in fairseq, but unchanged outputs are not copied.

        Beam search first repeats every sentence, then reorders its hypotheses at every step. As long as hypotheses stay
        with their sentence, each row becomes a copy of itself. The entry ``beams`` of the output is the number of
        neighbouring rows per sentence.
        """
        rows, previous_rows = new_order.size(0), encoder_out["encoder_out"][0].size(1)
        beams = 1
        if "beams" in encoder_out:
            moved_rows = source_rows(new_order, encoder_out["beams"], previous_rows // encoder_out["beams"])
            if moved_rows is None:
                return encoder_out
            beams = moved_rows[1]
        elif previous_rows > 0 and rows > previous_rows and rows % previous_rows == 0:
            repeats = rows // previous_rows
            if torch.equal(torch.arange(previous_rows, device=new_order.device).repeat_interleave(repeats), new_order):
                beams = repeats
        reordered: Dict[str, Any] = super().reorder_encoder_out(encoder_out, new_order)
        return {**reordered, "beams": beams} if beams > 1 else reordered


class TransformerCollabDecoder(TransformerDecoderBase):
    """fairseq's decoder with :class:`.CollabDecoderLayer`."""

    _built = 0

    def build_decoder_layer(self, cfg: TransformerCollabConfig, no_encoder_attn: bool = False) -> nn.Module:
        layer_class = CompiledDecoderLayer if cfg.compile else CollabDecoderLayer
        layer = layer_class(cfg, self._built, no_encoder_attn)
        self._built += 1
        return _wrap(layer, cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, Any]],
        incremental_state: Optional[Dict[str, Any]] = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """As in fairseq; in decoding, cross-attention reads and caches each sentence once instead of once per beam."""
        if incremental_state is not None and encoder_out and "beams" in encoder_out and not self.cross_self_attention:
            beams = encoder_out["beams"]
            encoder_out = {
                "encoder_out": [x[:, ::beams] for x in encoder_out["encoder_out"]],
                "encoder_padding_mask": [x[::beams] for x in encoder_out["encoder_padding_mask"]],
            }
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state, *args, **kwargs)

    def reorder_incremental_state_scripting(self, incremental_state: Dict[str, Any], new_order: Tensor) -> None:
        """As in fairseq: hypothesis r becomes the old hypothesis ``new_order[r]``. Synchronises a GPU once."""
        find = functools.cache(source_rows)
        for number in range(len(self.layers)):  # with LayerDrop, iteration would draw random numbers
            layer = self.layers[number]
            for attention in (layer.self_attn, layer.encoder_attn):
                if attention is not None:
                    attention.reorder_incremental_state(incremental_state, new_order, find)


@register_model("transformer_collab")
class TransformerCollabModel(TransformerModelBase):
    """Transformer with collaborative or standard heads in encoder, cross and decoder attention.

    ``--collaborative-heads none`` at the default key dimension is fairseq's ``transformer``, parameter for parameter.

    A trained model translates text, given its checkpoint, the data-bin with its dictionaries (absolute paths), and the
    settings of its tokenizer (``bpe``, ``tokenizer``)::

        from collab_fairseq.models import TransformerCollabModel

        model = TransformerCollabModel.from_pretrained(
            "/runs/checkpoints", "averaged.pt", data_name_or_path="/data/DATA",
            bpe="sentencepiece", sentencepiece_model="/data/spm.model",
        )
        model.translate(["A red dog runs."], beam=4, lenpen=0.6)  # ["Ein roter Hund läuft."]
    """

    sequence_generator = ShortlistGenerator  # fairseq_modern passes it to fairseq's tasks

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """The flags of fairseq's transformer and those of :class:`.TransformerCollabConfig`."""
        gen_parser_from_dataclass(parser, TransformerCollabConfig(), delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "TransformerCollabModel":
        """Build a new model.

        Args:
            args: namespace of the command line or of a checkpoint, or a Hydra config, with presets applied. As in
                fairseq's transformer, settings that follow from others are written back to it.
            task: fairseq task with the dictionaries.

        Raises:
            UserError: invalid settings, or those of a model with other dictionaries.
        """
        with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
            inherit_attention(args)  # if the preset is a user's that does not call one of ours
        cfg = resolve(args)
        digests = dictionary_digests(task)
        check_dictionaries(vars(cfg), digests, "the model")
        for name, digest in digests.items():
            setattr(cfg, name, digest or getattr(cfg, name))
        model = super().build_model(cfg, task)
        model.args = cfg  # fairseq's name of the config
        with open_dict(args) if OmegaConf.is_config(args) else nullcontext():
            for name in _WRITTEN_BACK:
                setattr(args, name, getattr(cfg, name))
        for module in model.modules():
            if isinstance(module, FairseqDropout):
                module.module_name = FAIRSEQ_NAMES.get(module.module_name, module.module_name)
        if cfg.head_gates_freeze_decoder:
            model.decoder.requires_grad_(False)
        if cfg.fast_dropout:
            use_fast_dropout(model)
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerCollabConfig, src_dict: Any, embed_tokens: nn.Module
    ) -> TransformerCollabEncoder:
        return TransformerCollabEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerCollabConfig, tgt_dict: Any, embed_tokens: nn.Module
    ) -> TransformerCollabDecoder:
        return TransformerCollabDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """As in fairseq, except that ``--encoder-layers-to-keep`` does not apply to layers that are already kept.

        It applies before gates are added, whose names have the new numbers of layers, and to moving averages, which
        fairseq loads without settings.
        """
        layers = {".".join(name.split(".")[:3]) for name in state_dict if ".layers." in name}
        kept = {"encoder": self.encoder.layers, "decoder": self.decoder.layers}
        if layers != {f"{side}.layers.{n}" for side, stack in kept.items() for n in range(len(stack))}:
            names = {f"{side}_layers_to_keep": getattr(self.args, side).layers_to_keep for side in kept}
            own = Namespace(arch="transformer_collab", **names)
            state_dict = checkpoint_utils.prune_state_dict(state_dict, model_cfg or args or own)
        return super().load_state_dict(state_dict, strict)

    def check_training(self, trainer: Any) -> None:
        """Reject ``--mixing-lr-multiplier`` with an optimizer that it does not work with."""
        settings = trainer.cfg.optimizer
        optimizer = getattr(settings, "_name", None) or getattr(settings, "optimizer", None)
        multiplier = self.args.mixing_lr_multiplier
        if multiplier != 1.0 and optimizer not in SCALE_INVARIANT:
            raise UserError(
                f"--mixing-lr-multiplier {multiplier} needs an optimizer whose step size does not depend on the scale "
                f"of the gradient (--optimizer {', '.join(SCALE_INVARIANT)}); got {optimizer}"
            )

    def adapt_checkpoint(self, state: Dict[str, Any], filename: str, reset_optimizer: bool) -> None:
        """Let training continue from a checkpoint with other logit scales, without its optimizer state.

        The scales are added to the checkpoint. When the layers load them, they rescale their parameters, so that the
        function stays the same. A checkpoint of a model with other dictionaries is an error.
        """
        config, parameters = model_settings(state), state["model"]
        check_dictionaries(config, vars(self.args), filename)
        own_shapes = config.get("attention_shapes") or self.args.attention_shapes
        if not own_shapes and not any(name.endswith(".mixing") for name in parameters):
            return  # standard heads at the default scale
        layers = attention_layers(self)
        saved_layers = checkpoint_layers(state)
        if all(layers[layer_id].scale == layer.scale for layer_id, layer in saved_layers.items() if layer_id in layers):
            return
        previous, current = config.get("mixing_lr_multiplier", 1.0), self.args.mixing_lr_multiplier
        if state.get("last_optimizer_state") and not reset_optimizer:
            if previous == current:
                raise UserError(
                    f"the logit scales in {filename} differ from those of the model; give --attention-from {filename}"
                )
            raise UserError(
                f"--mixing-lr-multiplier must be {previous}, as in {filename}, whose optimizer state depends on it; "
                f"got {current} (or give --reset-optimizer)"
            )
        logger.info("%s: rescaling its parameters to the logit scales of the model", filename)
        extra_state = state.get("extra_state") or {}
        averages = extra_state.get("ema") or {}
        extra_state.pop("ema_fp32_params", None)  # with the former scales; fairseq then copies the rescaled averages
        for layer_id, layer in saved_layers.items():
            prefix = parameter_prefix(layer_id)
            for saved in (parameters, averages):
                if prefix + "q_proj.weight" in saved:
                    saved[prefix + "_extra_state"] = layer.get_extra_state()

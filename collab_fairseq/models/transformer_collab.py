"""``--arch transformer_collab``: fairseq's transformer whose attention heads collaborate.

Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362. The layer is
:class:`collab_fairseq.attention.CollaborativeAttention`; the presets are in :mod:`.presets`.
"""

import functools
import logging
from contextlib import nullcontext
from typing import Any, Dict, Optional

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model
from fairseq.models.transformer import TransformerDecoderBase, TransformerEncoderBase, TransformerModelBase
from fairseq.modules import FairseqDropout
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from omegaconf import OmegaConf, open_dict
from torch import Tensor, nn

from collab_fairseq.attention.cache import source_rows
from collab_fairseq.modules.compiled import CompiledDecoderLayer, CompiledEncoderLayer
from collab_fairseq.modules.fairseq_compat import model_config
from collab_fairseq.modules.layers import CollabDecoderLayer, CollabEncoderLayer
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers, checkpoint_layers, parameter_prefix
from collab_fairseq.search.shortlist import ShortlistGenerator
from collab_fairseq.training.dropout import use_fast_dropout

from .config import TransformerCollabConfig, resolve

logger = logging.getLogger(__name__)

#: optimizers whose steps do not depend on the size of gradients
SCALE_INVARIANT = ("adam", "fused_adam", "adamax", "adagrad", "cpu_adam")
_WRITTEN_BACK = (
    "attention_shapes",
    *(f"{side}_{name}" for side in ("encoder", "decoder") for name in ("layers", "layers_to_keep")),
    *(f"max_{side}_positions" for side in ("source", "target")),
)
#: what fairseq calls the modules that ours stand for, in ``--retain-dropout-modules``
FAIRSEQ_NAMES = {
    "TransformerCollabEncoder": "TransformerEncoder",
    "TransformerCollabDecoder": "TransformerDecoder",
    "CollabEncoderLayer": "TransformerEncoderLayerBase",
    "CollabDecoderLayer": "TransformerDecoderLayerBase",
    "CompiledEncoderLayer": "TransformerEncoderLayerBase",
    "CompiledDecoderLayer": "TransformerDecoderLayerBase",
}


def _wrap(layer: nn.Module, cfg: TransformerCollabConfig) -> nn.Module:
    """Activation checkpointing and parameter sharding, where the flags ask for them.

    Raises:
        ConfigurationError: ``--compile`` of a layer that is wrapped.
    """
    smallest = cfg.min_params_to_wrap
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        smallest = 0  # a checkpointed layer is always its own shard
    wrapped = fsdp_wrap(layer, min_num_params=smallest)
    if cfg.compile and (cfg.checkpoint_activations or wrapped is not layer):
        raise ConfigurationError(
            "--compile is for plain layers, but they are wrapped; "
            "leave out --checkpoint-activations and --ddp-backend fully_sharded, or --compile"
        )
    return wrapped


class TransformerCollabEncoder(TransformerEncoderBase):
    """fairseq's encoder, built of :class:`.CollabEncoderLayer`."""

    _built = 0  # fairseq does not tell build_encoder_layer which layer it is building

    def build_encoder_layer(self, cfg: TransformerCollabConfig) -> nn.Module:
        kind = CompiledEncoderLayer if cfg.compile else CollabEncoderLayer
        layer = kind(cfg, self._built, return_fc=self.return_fc)
        self._built += 1
        return _wrap(layer, cfg)

    def reorder_encoder_out(self, encoder_out: Dict[str, Any], new_order: Tensor) -> Dict[str, Any]:
        """Rows (R', ) of an encoder's output; as in fairseq, but nothing is copied where nothing changes.

        Beam search starts by repeating every sentence and reorders its hypotheses at every step. As long as these stay
        with their sentence, each row becomes a copy of itself. ``beams`` of the output tells how many rows side by side
        are of one sentence.
        """
        rows, before = new_order.size(0), encoder_out["encoder_out"][0].size(1)
        beams = 1
        if "beams" in encoder_out:
            found = source_rows(new_order, encoder_out["beams"], before // encoder_out["beams"])
            if found is None:
                return encoder_out
            beams = found[1]
        elif before > 0 and rows > before and rows % before == 0:
            own = torch.arange(before, device=new_order.device).repeat_interleave(rows // before)
            if torch.equal(own, new_order):
                beams = rows // before
        reordered: Dict[str, Any] = super().reorder_encoder_out(encoder_out, new_order)
        return {**reordered, "beams": beams} if beams > 1 else reordered


class TransformerCollabDecoder(TransformerDecoderBase):
    """fairseq's decoder, built of :class:`.CollabDecoderLayer`."""

    _built = 0

    def build_decoder_layer(self, cfg: TransformerCollabConfig, no_encoder_attn: bool = False) -> nn.Module:
        kind = CompiledDecoderLayer if cfg.compile else CollabDecoderLayer
        layer = kind(cfg, self._built, no_encoder_attn)
        self._built += 1
        return _wrap(layer, cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Optional[Dict[str, Any]],
        incremental_state: Optional[Dict[str, Any]] = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        """As in fairseq; in decoding, cross-attention is shown each sentence once and keeps one row of it."""
        if incremental_state is not None and encoder_out and "beams" in encoder_out and not self.cross_self_attention:
            beams = encoder_out["beams"]
            encoder_out = {
                "encoder_out": [x[:, ::beams] for x in encoder_out["encoder_out"]],
                "encoder_padding_mask": [x[::beams] for x in encoder_out["encoder_padding_mask"]],
            }
        return super().extract_features(prev_output_tokens, encoder_out, incremental_state, *more, **options)

    def reorder_incremental_state_scripting(self, incremental_state: Dict[str, Any], new_order: Tensor) -> None:
        """As in fairseq: hypothesis r becomes what ``new_order[r]`` was. The layers make a GPU wait once."""
        find = functools.cache(source_rows)
        for number in range(len(self.layers)):  # iterating would draw a random number for each layer
            layer = self.layers[number]
            for attention in (layer.self_attn, layer.encoder_attn):
                if attention is not None:
                    attention.reorder_incremental_state(incremental_state, new_order, find)


@register_model("transformer_collab")
class TransformerCollabModel(TransformerModelBase):
    """Transformer with collaborative or standard heads in encoder, cross and decoder attention.

    ``--collaborative-heads none`` at the default key dim is fairseq's ``transformer``, parameter for parameter.

    A trained model translates text, given its checkpoint and the data-bin with its dictionaries (absolute paths), and
    what turns text into its tokens (``bpe``, ``tokenizer`` and their settings)::

        from collab_fairseq.models import TransformerCollabModel

        model = TransformerCollabModel.from_pretrained(
            "/runs/checkpoints", "averaged.pt", data_name_or_path="/data/DATA",
            bpe="sentencepiece", sentencepiece_model="/data/spm.model",
        )
        model.translate(["A red dog runs."], beam=4, lenpen=0.6)  # ["Ein roter Hund läuft."]
    """

    sequence_generator = ShortlistGenerator  # fairseq_modern lets fairseq's tasks translate with it

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """The flags of fairseq's transformer and those of :class:`.TransformerCollabConfig`."""
        gen_parser_from_dataclass(parser, TransformerCollabConfig(), delete_default=True, with_prefix="")

    @classmethod
    def build_model(cls, args: Any, task: Any) -> "TransformerCollabModel":
        """A new model.

        Args:
            args: namespace of the command line or of a checkpoint, or a Hydra config, presets applied; what follows
                from other settings is written back to it, as fairseq's transformer does.
            task: knows the dictionaries.

        Raises:
            ConfigurationError: values that cannot be.
        """
        cfg = resolve(args)
        model = super().build_model(cfg, task)
        model.args = cfg  # under fairseq's name for it
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

    def check_training(self, trainer: Any) -> None:
        """Refuse an optimizer for which the mixing matrix would not learn ``--mixing-lr-multiplier`` times as fast."""
        settings = trainer.cfg.optimizer
        optimizer = getattr(settings, "_name", None) or getattr(settings, "optimizer", None)
        if self.args.mixing_lr_multiplier != 1.0 and optimizer not in SCALE_INVARIANT:
            raise ConfigurationError(
                f"--mixing-lr-multiplier {self.args.mixing_lr_multiplier} needs an optimizer whose steps do not depend "
                f"on the size of gradients (--optimizer {', '.join(SCALE_INVARIANT)}), but that is {optimizer}"
            )

    def adapt_checkpoint(self, state: Dict[str, Any], filename: str, reset_optimizer: bool) -> None:
        """Let a training take up a checkpoint of other scales: told of these, the layers compute what its layers did.

        Raises:
            ConfigurationError: other scales, which an optimizer's state that is taken up does not fit.
        """
        layers, parameters = attention_layers(self), state["model"]
        theirs = checkpoint_layers(state) if any(name.endswith(".mixing") for name in parameters) else {}
        scales = {name: layer.scale for name, layer in theirs.items()}
        others = [name for name, scale in scales.items() if name in layers and layers[name].scale != scale]
        was, now = model_config(state).get("mixing_lr_multiplier", 1.0), self.args.mixing_lr_multiplier
        if others and state.get("last_optimizer_state") and not reset_optimizer:
            if was == now:
                raise ConfigurationError(f"{filename} has other scales of scores; give --attention-from {filename}")
            raise ConfigurationError(
                f"--mixing-lr-multiplier is {now}, but {was} in {filename}, and the state of its optimizer fits no "
                f"other; give {was}, or --reset-optimizer to train on with {now}"
            )
        if others:
            logger.info("%s: mixing matrices of --mixing-lr-multiplier %s become those of %s", filename, was, now)
            told = {
                parameter_prefix(name) + "scale": torch.tensor(scale, dtype=torch.float64)
                for name, scale in scales.items()
            }
            for each in filter(None, (parameters, (state.get("extra_state") or {}).get("ema"))):
                each.update((name, scale) for name, scale in told.items() if name[:-5] + "mixing" in each)

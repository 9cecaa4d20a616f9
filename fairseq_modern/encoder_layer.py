"""Mends the Transformer's encoder layer (`TransformerEncoderLayerBase`).

As published, the layer calls a private function of torch in evaluation. Its signature has changed since, so that
generating and validating stop with "Mask Type should be defined". For that fast path the layer

- carries eight parameters that are never used in training and so never get a gradient, on which
  DistributedDataParallel stops at the second update ("Expected to have finished reduction"),
- takes the third part of torch's version for a number, which fails for versions such as 2.11.0a0, and
- requires an attention module to have query, key and value biases.

This layer has no fast path and none of these parameters. It computes the same, draws its initial parameters in the
same order, keeps the hooks that subclasses override, and loads checkpoints of either kind.
"""

from types import ModuleType
from typing import Any, Dict, Optional

import torch
from torch import Tensor, nn

# What checkpoints of fairseq as published hold in each encoder layer besides its parameters.
SURPLUS = (
    "in_proj_weight",
    "in_proj_bias",
    "out_proj_weight",
    "out_proj_bias",
    "fc1_weight",
    "fc1_bias",
    "fc2_weight",
    "fc2_bias",
)


def __init__(self: Any, cfg: Any, return_fc: bool = False) -> None:
    """Make the layer from a `TransformerConfig`; with `return_fc`, `forward` also returns what fc2 gave."""
    from fairseq import utils
    from fairseq.modules import LayerNorm
    from fairseq.modules.fairseq_dropout import FairseqDropout

    nn.Module.__init__(self)
    name = type(self).__name__
    encoder = cfg.encoder
    self.cfg = cfg
    self.return_fc = return_fc
    self.embed_dim = encoder.embed_dim
    self.num_heads = encoder.attention_heads
    self.normalize_before = encoder.normalize_before
    self.quant_noise = cfg.quant_noise.pq
    self.quant_noise_block_size = cfg.quant_noise.pq_block_size
    self.activation_fn = utils.get_activation_fn(activation=cfg.activation_fn)
    self.dropout_module = FairseqDropout(cfg.dropout, module_name=name)
    # old models call the dropout after the activation relu_dropout
    self.activation_dropout_module = FairseqDropout(
        float(cfg.activation_dropout or cfg.relu_dropout or 0), module_name=name
    )
    # The order of the next lines is that of the state dict and of the draws from the random generator.
    noise = (self.quant_noise, self.quant_noise_block_size)
    self.self_attn = self.build_self_attention(self.embed_dim, cfg)
    self.self_attn_layer_norm = LayerNorm(self.embed_dim, export=cfg.export)
    self.fc1 = self.build_fc1(self.embed_dim, encoder.ffn_embed_dim, *noise)
    self.fc2 = self.build_fc2(encoder.ffn_embed_dim, self.embed_dim, *noise)
    self.final_layer_norm = LayerNorm(self.embed_dim, export=cfg.export)


def forward(
    self,
    x: Tensor,
    encoder_padding_mask: Optional[Tensor],
    attn_mask: Optional[Tensor] = None,
):
    """Encode `x`.

    Args:
        x: (T, B, C) the input: time, sentence, channel.
        encoder_padding_mask: (B, T) true where a position is padding.
        attn_mask: (T, T) nonzero where the position of the row must not attend to that of the column.

    Returns:
        (T, B, C) the output; if the layer was made with `return_fc`, a pair of it and of what fc2 gave.
    """
    if attn_mask is not None:
        # Finite, because a row of -inf alone would be NaN after the softmax.
        attn_mask = attn_mask.masked_fill(attn_mask.to(torch.bool), -1e8 if x.dtype == torch.float32 else -1e4)

    attended = self.self_attn_layer_norm(x) if self.normalize_before else x
    attended, _ = self.self_attn(
        query=attended,
        key=attended,
        value=attended,
        key_padding_mask=encoder_padding_mask,
        need_weights=False,
        attn_mask=attn_mask,
    )
    x = self.residual_connection(self.dropout_module(attended), x)
    if not self.normalize_before:
        x = self.self_attn_layer_norm(x)

    inner = self.final_layer_norm(x) if self.normalize_before else x
    inner = self.activation_dropout_module(self.activation_fn(self.fc1(inner)))
    fc_result = self.fc2(inner)
    x = self.residual_connection(self.dropout_module(fc_result), x)
    if not self.normalize_before:
        x = self.final_layer_norm(x)

    if self.return_fc and not torch.jit.is_scripting():
        return x, fc_result
    return x


def _load_from_state_dict(self: Any, state_dict: Dict[str, Tensor], prefix: str, *rest: Any) -> None:
    """Load as any module does, without what only the layer as published has."""
    own = {name for name, _ in self.named_parameters(recurse=False)} | {name for name, _ in self.named_buffers()}
    for name in SURPLUS:
        if name not in own:
            state_dict.pop(prefix + name, None)
    nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)


def mend(module: ModuleType) -> None:
    """Replace the three methods that deal with the fast path."""
    layer = module.TransformerEncoderLayerBase
    layer.__init__ = __init__
    layer.forward = forward
    layer._load_from_state_dict = _load_from_state_dict

"""Mends the Transformer's encoder (`TransformerEncoderBase`).

As published, its forward pass asks each layer about a fast path that these layers no longer have (see
`encoder_layer`), packs sentences for it with private functions of torch, and takes torch's version apart in a way that
fails for versions such as 2.11.0a0. This one calls the layers in turn and returns the same.
"""

from types import ModuleType
from typing import Dict, List, Optional

import torch
from torch import Tensor


# TorchScript compiles this function under the name by which the encoder calls it.
def forward_scriptable(
    self,
    src_tokens: Tensor,
    src_lengths: Optional[Tensor] = None,
    return_all_hiddens: bool = False,
    token_embeddings: Optional[Tensor] = None,
):
    """Encode sentences.

    Args:
        src_tokens: (B, T) the source tokens, padded.
        src_lengths: (B) unused: the lengths follow from the tokens.
        return_all_hiddens: also return what each layer gives.
        token_embeddings: (B, T, C) used in place of the tokens' embeddings.

    Returns:
        Lists of one: `encoder_out` (T, B, C), `encoder_padding_mask` (B, T), `encoder_embedding` (B, T, C) and
        `src_lengths` (B, 1). Lists that are empty unless asked for: `encoder_states`, the input of the first layer and
        the output of each, and `fc_results`, what each layer's fc2 gave, or None. Always empty: `src_tokens`.
    """
    padding = src_tokens.eq(self.padding_idx)
    # On XLA the value would have to be fetched from the device, which is dearer than masking for nothing.
    has_padding = src_tokens.device.type == "xla" or bool(padding.any())

    x, embedding = self.forward_embedding(src_tokens, token_embeddings)
    layer_mask: Optional[Tensor] = None
    if has_padding:
        layer_mask = padding
        # multiplied rather than filled, as in fairseq: NaN in padding shows itself
        x = x * padding.logical_not().unsqueeze(-1).type_as(x)
    x = x.transpose(0, 1)  # (B, T, C) -> (T, B, C)

    states: List[Tensor] = []
    fc_results: List[Optional[Tensor]] = []
    if return_all_hiddens:
        states.append(x)
    for layer in self.layers:  # a LayerDropModuleList leaves layers out of the loop
        result = layer(x, encoder_padding_mask=layer_mask)
        fc_result: Optional[Tensor] = None
        if isinstance(result, tuple):
            x, fc_result = result
        else:
            x = result
        if return_all_hiddens and not torch.jit.is_scripting():
            states.append(x)
            fc_results.append(fc_result)
    if self.layer_norm is not None:
        x = self.layer_norm(x)

    lengths = src_tokens.ne(self.padding_idx).sum(dim=1, dtype=torch.int32).reshape(-1, 1).contiguous()
    no_tokens: List[Tensor] = []
    output: Dict[str, List[Tensor]] = {
        "encoder_out": [x],
        "encoder_padding_mask": [padding],
        "encoder_embedding": [embedding],
        "encoder_states": states,
        "fc_results": no_tokens,
        "src_tokens": no_tokens,
        "src_lengths": [lengths],
    }
    if not torch.jit.is_scripting():
        output["fc_results"] = fc_results  # type: ignore[assignment]
    return output


def mend(module: ModuleType) -> None:
    """Replace the encoder's forward pass."""
    module.TransformerEncoderBase.forward_scriptable = forward_scriptable

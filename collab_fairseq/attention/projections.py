"""Linear layers applied to inputs as these lie in memory, and to the same inputs in one product.

fairseq keeps activations as (T, N, E), the layers here see them as (N, T, E): a linear layer would copy such a view.
"""

from typing import List, Optional

import torch
from torch import Tensor, nn


def is_seq_first(inputs: Tensor) -> bool:
    """Whether (N, T, …) lies in memory as (T, N, …)."""
    return inputs.stride(0) < inputs.stride(1)


def linear(inputs: Tensor, *layers: nn.Linear) -> List[Tensor]:
    """What each of the layers makes of the same inputs, (N, T, ·) from (N, T, E), all in the inputs' memory order."""
    transposed = is_seq_first(inputs)
    flat = inputs.transpose(0, 1) if transposed else inputs
    outputs = fused_linear(flat, *layers) if worth_fusing(flat, *layers) else [layer(flat) for layer in layers]
    return [output.transpose(0, 1) for output in outputs] if transposed else outputs


def worth_fusing(inputs: Tensor, *layers: nn.Linear) -> bool:
    """Whether one product with the joined weights is faster than a product for each.

    In training the gradient of the inputs is then one product too; in decoding, joining the weights at every step would
    cost more than it saves. Layers with hooks (quantization noise) or of another class are called as they are.
    """
    if len(layers) < 2 or inputs.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    plain = [type(x) is nn.Linear and not x._forward_pre_hooks and not x._forward_hooks for x in layers]
    return all(plain)


def fused_linear(inputs: Tensor, *layers: nn.Linear) -> List[Tensor]:
    """The outputs of the layers as slices of one product."""
    weight = torch.cat([layer.weight for layer in layers])
    bias: Optional[Tensor] = None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat([x.weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in layers])
    outputs = nn.functional.linear(inputs, weight, bias)
    return list(torch.split(outputs, [layer.out_features for layer in layers], dim=-1))

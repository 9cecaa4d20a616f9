"""Linear projections that keep the memory order of their inputs and fuse projections of the same input.

fairseq stores activations as (T, N, E); the layers see them as (N, T, E). ``nn.Linear`` would copy the transposed view.
"""

from typing import List, Optional

import torch
from torch import Tensor, nn

from .transforms import is_tracing

#: classes of the parameters of a plain layer: also what ``torch.func`` and FSDP put in their place
_ORDINARY = {nn.Parameter, Tensor, type(None)}
_FORWARD = nn.Linear.forward
_any_global_hook = nn.modules.module._has_any_global_hook


def is_seq_first(inputs: Tensor) -> bool:
    """Whether (N, T, …) is stored as (T, N, …)."""
    return inputs.stride(0) < inputs.stride(1)


def uninitialised(inputs: int, outputs: int, bias: bool) -> nn.Linear:
    """A projection whose ``reset_parameters`` has yet to be called: drawing twice would change the random numbers."""
    layer = nn.Linear(inputs, outputs, bias=bias, device="meta")
    for name, parameter in list(layer.named_parameters()):
        layer.register_parameter(name, nn.Parameter(torch.empty(parameter.shape)))
    return layer


def linear(inputs: Tensor, *layers: nn.Linear) -> List[Tensor]:
    """Apply each layer to the inputs (N, T, E). The outputs (N, T, ·) have the memory order of the inputs."""
    transposed = is_seq_first(inputs)
    stored = inputs.transpose(0, 1) if transposed else inputs
    fuse = _worth_fusing(stored, *layers)
    outputs = _fused(stored, *layers) if fuse else [layer(stored) for layer in layers]
    return [output.transpose(0, 1) for output in outputs] if transposed else outputs


def are_plain(*layers: nn.Module) -> bool:
    """Whether calling the layers only computes ``nn.functional.linear``, so that their weights may be read instead.

    That is ``nn.Linear`` itself, with its own ``forward`` and ordinary parameters, if no hook would see the call.
    Adapters replace ``forward``, quantisation replaces the parameters by tensors of another class, and a
    parametrisation removes them.
    """
    for layer in layers:
        own = vars(layer)  # several times faster than attributes of a module
        parameters = own["_parameters"]
        if (
            type(layer) is not nn.Linear
            or "forward" in own
            or own["_forward_pre_hooks"]
            or own["_forward_hooks"]
            or own["_backward_pre_hooks"]
            or own["_backward_hooks"]
            or type(parameters.get("weight")) not in _ORDINARY
            or type(parameters.get("bias", "")) not in _ORDINARY
        ):
            return False
    return nn.Linear.forward is _FORWARD and not _any_global_hook()  # type: ignore[no-untyped-call]


def _worth_fusing(inputs: Tensor, *layers: nn.Linear) -> bool:
    """Whether one product with the concatenated weights is faster than one product per layer.

    Fusing also fuses the gradient of the inputs in training. In decoding, concatenating at every step would cost more
    than it saves. Changed layers are called, and so are all layers in tracing, which has its own rules for hooks.
    """
    if len(layers) < 2 or inputs.device.type != "cpu" or not torch.is_grad_enabled() or is_tracing():
        return False
    return are_plain(*layers)


def _fused(inputs: Tensor, *layers: nn.Linear) -> List[Tensor]:
    weight = torch.cat([layer.weight for layer in layers])
    bias: Optional[Tensor] = None
    if any(layer.bias is not None for layer in layers):
        bias = torch.cat([x.weight.new_zeros(x.out_features) if x.bias is None else x.bias for x in layers])
    outputs = nn.functional.linear(inputs, weight, bias)
    return list(torch.split(outputs, [layer.out_features for layer in layers], dim=-1))

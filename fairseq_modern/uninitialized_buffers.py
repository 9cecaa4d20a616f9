"""Defect: the buffers `_float_tensor` of fairseq's modules are uninitialised memory, and checkpoints contain them.

Check: `torch.FloatTensor` is called with sizes. If such memory is NaN, a checkpoint does not even equal itself.
"""

from typing import Any

import torch

from fairseq_modern.patching import StandIn


def float_tensor(*args: Any) -> torch.Tensor:
    """`torch.FloatTensor`, filled with zeros if only sizes are given."""
    tensor = torch.FloatTensor(*args)
    return tensor.zero_() if all(isinstance(size, int) for size in args) else tensor


def patch(module: Any) -> None:
    module.torch = StandIn(module.torch, FloatTensor=float_tensor)

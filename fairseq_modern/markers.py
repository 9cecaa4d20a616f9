"""Patches the buffers `_float_tensor` of fairseq's modules, which are memory that nothing initialises.

They tell a module its device and type, and are saved with every checkpoint: two copies of a model may differ in them,
and where the memory happens to hold NaN, not even one is equal to itself.
"""

from typing import Any

import torch

from fairseq_modern.patching import StandIn


def float_tensor(*given: Any) -> torch.Tensor:
    """As `torch.FloatTensor`; where only sizes are given, all zero."""
    made = torch.FloatTensor(*given)
    return made.zero_() if all(isinstance(each, int) for each in given) else made


def patch(module: Any) -> None:
    """Give the module its own `torch`."""
    module.torch = StandIn(module.torch, FloatTensor=float_tensor)

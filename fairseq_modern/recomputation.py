"""Defect: with --amp, --checkpoint-activations recomputes layers in fp32, so that gradients differ by a few percent.

Check: the function that recomputes does not mention autocast. Recomputation then has the autocast state of the forward
pass.
"""

import contextlib
import functools
from types import ModuleType
from typing import Any, Callable

import torch

from fairseq_modern.patching import names, wrap

DEVICES = ("cpu", "cuda")


def with_current_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which will run with the autocast state of this call."""
    states = [(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in DEVICES]

    @functools.wraps(function)
    def wrapper(*args: Any, **options: Any) -> Any:
        with contextlib.ExitStack() as stack:
            for device, dtype, is_enabled in states:
                # the cache would keep the half-precision copy of a layer's input, a leaf here, and sum its gradients
                autocast = torch.autocast(device, dtype=dtype, enabled=is_enabled, cache_enabled=False)
                stack.enter_context(autocast)
            return function(*args, **options)

    return wrapper


def patch(module: ModuleType) -> None:
    """Wrap `_checkpointed_forward` of `fairseq.modules.checkpoint_activations`, which gets the forward function."""
    if any("autocast" in name for name in names(module.CheckpointFunction.backward)):
        return

    @wrap(module)
    def _checkpointed_forward(original, original_forward, *args, **options):
        return original(with_current_autocast(original_forward), *args, **options)

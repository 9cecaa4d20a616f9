"""Whether torch is watching: tracing, compiling or transforming the computation instead of just running it."""

import torch


def is_tracing() -> bool:
    """Whether values may not be looked at, nor computed by an autograd function that torch cannot see into.

    True under ``torch.compile``, ``torch.export``, ``torch.jit.trace``, ``torch.func`` and in forward mode.
    """
    return bool(torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or is_transforming())


def is_transforming() -> bool:
    """Whether ``torch.func`` or forward mode is at work, for which torch's fused attention on GPUs has no rules."""
    if torch.compiler.is_compiling():
        return False
    return bool(
        torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0
    )

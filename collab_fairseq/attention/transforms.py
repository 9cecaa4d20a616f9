"""Detect tracing, compilation and functional transforms."""

import torch


def is_tracing() -> bool:
    """Whether torch is tracing or transforming the computation instead of only running it.

    True under ``torch.compile``, ``torch.export``, ``torch.jit.trace``, ``torch.func`` and forward-mode autograd. Code
    must then neither depend on the values of tensors nor use a custom autograd function.
    """
    return bool(torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None or is_transforming())


def is_transforming() -> bool:
    """Whether ``torch.func`` or forward-mode autograd is active; torch's fused attention supports neither on GPUs."""
    if torch.compiler.is_compiling():
        return False
    functional = torch._C._functorch.peek_interpreter_stack() is not None
    return functional or bool(torch.autograd.forward_ad._current_level >= 0)

"""Detect tracing, compilation and functional transforms, with functions bound here: every call of a layer asks."""

from torch._C import _get_dispatch_mode, _get_tracing_state, _TorchDispatchModeKey
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling


def is_tracing() -> bool:
    """Whether torch is tracing or transforming the computation instead of only running it.

    True under ``torch.compile``, ``torch.export``, ``torch.jit.trace``, ``make_fx``, ``torch.func`` and forward-mode
    autograd. Code must then neither depend on the values of tensors nor use a custom autograd function.
    """
    if is_compiling() or _get_tracing_state() is not None or is_transforming():
        return True
    return _get_dispatch_mode(_TorchDispatchModeKey.PROXY) is not None


def is_transforming() -> bool:
    """Whether ``torch.func`` or forward-mode autograd is active; torch's fused attention supports neither on GPUs."""
    return not is_compiling() and (peek_interpreter_stack() is not None or forward_ad._current_level >= 0)

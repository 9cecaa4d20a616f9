"""``--compile``: layers that train through ``torch.compile``, one by one, so that layers of a kind share their graphs.

A graph is compiled for what a call looks like: which masks there are, how tensors lie in memory, sizes that are one.
Here every call looks alike: there is always a padding mask, all is contiguous, and batches with a size of one run
as without the flag. That makes three graphs: encoder layers, decoder layers, and the last of these, which
returns attention weights. Only training is compiled; decoding and validation are not.
"""

import functools
import logging
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from .layers import CollabDecoderLayer, CollabEncoderLayer
from .settings import ConfigurationError

logger = logging.getLogger(__name__)

#: of ``torch.compile``
BACKEND: Any = "inductor"
#: graphs of one function before torch gives up; layers of different shapes (``attention_shapes``) have their own
GRAPHS = 64


class CompiledEncoderLayer(CollabEncoderLayer):
    """An encoder layer whose training calls are compiled, from the first batch on."""

    def __call__(
        self, x: Tensor, encoder_padding_mask: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None
    ) -> Any:
        """x (S, N, E); encoder_padding_mask (N, S), True for padding; as :meth:`forward`."""
        if attn_mask is not None or not _trains(self, x):
            return super().__call__(x, encoder_padding_mask, attn_mask)
        call = _compiled(x.device.type)
        return call(self, x.contiguous(), _padding(encoder_padding_mask, x))


class CompiledDecoderLayer(CollabDecoderLayer):
    """A decoder layer whose training calls are compiled, from the first batch on."""

    def __call__(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Any = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        **rest: Any,
    ) -> Any:
        """x (T, N, E), encoder_out (S, N, E); padding masks (N, S) and (N, T), True for padding; as :meth:`forward`."""
        tensors = (x,) if encoder_out is None else (x, encoder_out)
        if incremental_state is None and _trains(self, *tensors):
            if encoder_out is not None:
                encoder_out = encoder_out.contiguous()
                encoder_padding_mask = _padding(encoder_padding_mask, encoder_out)
            if self_attn_mask is not None:
                # torch treats a slice of fairseq's buffer differently from the whole buffer
                self_attn_mask = self_attn_mask.clone(memory_format=torch.contiguous_format)
            call = functools.partial(_compiled(x.device.type), self)
            x, self_attn_padding_mask = x.contiguous(), _padding(self_attn_padding_mask, x)
        else:
            call = super().__call__
        return call(
            x,
            encoder_out,
            encoder_padding_mask,
            incremental_state,
            self_attn_mask=self_attn_mask,
            self_attn_padding_mask=self_attn_padding_mask,
            **rest,
        )


def _trains(layer: nn.Module, *tensors: Tensor) -> bool:
    """Whether a call is to be compiled: not for translating, nor where hooks look at a layer, nor for sizes of one."""
    plain = not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)
    return layer.training and torch.is_grad_enabled() and plain and all(min(x.shape) > 1 for x in tensors)


def _padding(mask: Optional[Tensor], x: Tensor) -> Tensor:
    """(N, S) padding mask of x (S, N, E)."""
    return x.new_zeros((x.size(1), x.size(0)), dtype=torch.bool) if mask is None else mask.contiguous()


def _forward(layer: nn.Module, *tensors: Optional[Tensor], **rest: Any) -> Any:
    return layer.forward(*tensors, **rest)


def allow_graphs() -> None:
    """Configure torch for layers with separate graphs, and for sizes that are equal by chance in the first batch.

    Graphs stay whole where gradients of several processes are averaged: layers are too small to be split for that.
    """
    import torch._dynamo.config as dynamo  # late, since it takes a second
    import torch.fx.experimental._config as shapes

    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # until torch 2.6
    setattr(dynamo, limit, max(getattr(dynamo, limit), GRAPHS))
    dynamo.optimize_ddp = False
    shapes.use_duck_shape = False


@functools.cache
def _compiled(device: str) -> Callable[..., Any]:
    """The compiled call of a layer, one for all layers and models.

    Raises:
        ConfigurationError: the compiler does not work on the device.
    """
    _try(device)
    allow_graphs()
    compiled: Callable[..., Any] = torch.compile(_forward, dynamic=True, backend=BACKEND)
    return compiled


def _try(device: str) -> None:
    """Compile one addition: what a compiler lacks (Triton, C++, Python's headers) shows in seconds."""
    x = torch.ones(3, device=device)
    try:
        torch.compile(lambda x: torch.relu(x) + 1, backend=BACKEND)(x)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        needed = "a C++ compiler" if device == "cpu" else "Triton and a C compiler"
        raise ConfigurationError(
            f"--compile needs {needed} that torch.compile can use for {device} devices; a trial failed: {reason}"
        ) from error
    if device == "cpu" and BACKEND == "inductor":
        logger.warning("--compile brings nothing on a CPU, and compiling takes minutes: better leave it out there")

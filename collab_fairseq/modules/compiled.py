"""``--compile``: layers whose training steps run through ``torch.compile``.

Layers are compiled one by one, so that layers of the same class share their graphs. ``torch.compile`` recompiles for
each combination of masks, memory layouts and sizes of 1. To avoid this, every compiled call has a padding mask and
contiguous tensors, and batches with a size of 1 are not compiled. There are three graphs: encoder layers, decoder
layers, and the last decoder layer, which returns attention weights. Decoding and validation are not compiled.
"""

import functools
import logging
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from fairseq_modern.errors import UserError

from .layers import CollabDecoderLayer, CollabEncoderLayer

logger = logging.getLogger(__name__)

#: backend of ``torch.compile``
BACKEND: Any = "inductor"
#: graphs of one function before PyTorch gives up; layers of different shapes (``attention_shapes``) have separate ones
GRAPHS = 64


class CompiledEncoderLayer(CollabEncoderLayer):
    """Encoder layer whose training calls are compiled in the first batch."""

    def __call__(
        self, x: Tensor, encoder_padding_mask: Optional[Tensor] = None, attn_mask: Optional[Tensor] = None
    ) -> Any:
        """x (S, N, E); encoder_padding_mask (N, S), True for padding; as :meth:`forward`."""
        if attn_mask is not None or not _is_compiled(self, x):
            return super().__call__(x, encoder_padding_mask, attn_mask)
        call = _compiled(x.device.type)
        return call(self, x.contiguous(), _padding(encoder_padding_mask, x))


class CompiledDecoderLayer(CollabDecoderLayer):
    """Decoder layer whose training calls are compiled in the first batch."""

    def __call__(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Any = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        **options: Any,
    ) -> Any:
        """x (T, N, E), encoder_out (S, N, E); padding masks (N, S) and (N, T), True for padding; as :meth:`forward`."""
        tensors = (x,) if encoder_out is None else (x, encoder_out)
        if incremental_state is None and _is_compiled(self, *tensors):
            if encoder_out is not None:
                encoder_out = encoder_out.contiguous()
                encoder_padding_mask = _padding(encoder_padding_mask, encoder_out)
            if self_attn_mask is not None:
                # torch.compile distinguishes a slice of fairseq's mask buffer from the complete buffer
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
            **options,
        )


def _is_compiled(layer: nn.Module, *tensors: Tensor) -> bool:
    """Whether to compile a call: in training, of a layer without hooks, and with no size of 1."""
    has_hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    trains = layer.training and torch.is_grad_enabled()
    return trains and not has_hooks and all(min(x.shape) > 1 for x in tensors)


def _padding(mask: Optional[Tensor], x: Tensor) -> Tensor:
    """(N, S) padding mask of x (S, N, E)."""
    return x.new_zeros((x.size(1), x.size(0)), dtype=torch.bool) if mask is None else mask.contiguous()


def _forward(layer: nn.Module, *tensors: Optional[Tensor], **options: Any) -> Any:
    return layer.forward(*tensors, **options)


@functools.cache
def _compiled(device: str) -> Callable[..., Any]:
    """The compiled call of a layer, shared by all layers and models."""
    import torch._dynamo.config as dynamo  # slow to import
    import torch.fx.experimental._config as shapes

    _check_compiler(device)
    limit = "recompile_limit" if hasattr(dynamo, "recompile_limit") else "cache_size_limit"  # before PyTorch 2.7
    setattr(dynamo, limit, max(getattr(dynamo, limit), GRAPHS))
    dynamo.optimize_ddp = False  # DDP would split the graphs to overlap communication; these are too small for that
    dynamo.skip_nnmodule_hook_guards = False  # hooks of submodules may be added after the first batch
    shapes.use_duck_shape = False  # sizes that are equal in the first batch may differ later
    compiled: Callable[..., Any] = torch.compile(_forward, dynamic=True, backend=BACKEND)
    return compiled


def _check_compiler(device: str) -> None:
    """Raise UserError if a small function does not compile, for example without Triton or a C++ compiler."""
    x = torch.ones(3, device=device)
    try:
        torch.compile(lambda x: torch.relu(x) + 1, backend=BACKEND)(x)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        compiler = "a C++ compiler" if device == "cpu" else "Triton and a C compiler"
        raise UserError(
            f"--compile needs {compiler} that torch.compile can use for {device} devices; a trial failed: {reason}"
        ) from error
    if device == "cpu" and BACKEND == "inductor":
        logger.warning("--compile does not speed up training on a CPU, and compiling takes minutes; leave it out")

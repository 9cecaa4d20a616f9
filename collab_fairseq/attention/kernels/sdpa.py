"""Kernel ``sdpa``: torch's fused ``scaled_dot_product_attention``, for collaborative and standard heads.

    logits_h = Q_h Kᵀ + (c_h + mask)        O_h = dropout(softmax(logits_h)) V_h

Fused backends never store the attention weights. A shared key is passed as a view whose head axis has stride 0. Only
two of torch's backends accept queries and keys of a different width than the values, dropout, and a bias with a
gradient: the memory-efficient one (CUDA) and the unfused formula. Standard heads, the baseline, may use the same
backends. cuDNN's backend is excluded: it builds a plan for every new batch shape, and translation has thousands. The
fused backends have no second derivative; torch raises an error that says so.
"""

import math
from typing import Any, ContextManager, Optional

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ..cache import Attended, KeyValue, repeat_kv
from . import packed_bmm


class _WithoutCudnn:
    """Excludes cuDNN's backend, as ``sdpa_kernel`` can, but with far less Python code per call."""

    def __enter__(self) -> None:
        self._enabled = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
        torch.backends.cuda.enable_cudnn_sdp(False)

    def __exit__(self, *_: Any) -> None:
        torch.backends.cuda.enable_cudnn_sdp(self._enabled)


def _without_cudnn() -> ContextManager[Any]:
    if torch.compiler.is_compiling():  # the compiler only knows sdpa_kernel
        return sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return _WithoutCudnn()


def cast_mask(mask: Optional[Tensor], dtype: torch.dtype) -> Optional[Tensor]:
    """Cast an additive mask to the dtype of the logits, which torch requires. Large finite values stay finite."""
    if mask is None or mask.dtype == dtype:
        return mask
    hidden = mask == -math.inf
    return mask.clamp(min=torch.finfo(dtype).min).to(dtype).masked_fill(hidden, -math.inf)


def attend(query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, need_weights: bool) -> Attended:
    """See :func:`.packed_bmm.attend`, which also computes the weights if they are needed."""
    bias = cast_mask(mask, query.dtype)
    if entry.content is not None:
        content = entry.content.unsqueeze(2)
        bias = (content if bias is None else bias + content).contiguous()  # required by the memory-efficient backend
    key, value = entry.key, entry.value
    # on a CPU, fused attention supports heads that share keys and values; on CUDA, only backends without masks do
    grouped = query.device.type == "cpu" and key.size(1) == value.size(1) < query.size(1)
    if not grouped:
        key, value = repeat_kv(key, query.size(1)), repeat_kv(value, query.size(1))
    with _without_cudnn():
        outputs = scaled_dot_product_attention(query, key, value, bias, dropout, scale=1.0, enable_gqa=grouped)
    if not need_weights:
        return outputs, None
    return outputs, packed_bmm.attention_weights(query, entry.key, entry.content, mask)


def unsupported_reason(query: Tensor, entry: KeyValue) -> Optional[str]:
    """Why :func:`attend` cannot compute queries (…, d) efficiently, or None."""
    if not query.dtype == entry.key.dtype == entry.value.dtype:
        dtypes = f"{query.dtype}, {entry.key.dtype} and {entry.value.dtype}"
        return f"query, key and value must have one dtype with the kernel sdpa; got {dtypes}"
    return misaligned(query, entry.value)


def misaligned(query: Tensor, value: Tensor) -> Optional[str]:
    """Why a GPU would fall back to the slow unfused formula for these widths, or None.

    Args:
        query: (…, D̃k) or (…, dk).
        value: (…, dv).
    """
    if query.device.type != "cuda":
        return None
    multiple = 16 // query.element_size()  # rows are read 16 bytes at a time
    widths = (query.size(-1), value.size(-1))
    if not any(width % multiple for width in widths):
        return None
    return (
        f"key and value dimensions per head must be multiples of {multiple} with the kernel sdpa on a GPU in "
        f"{query.dtype}; got {widths[0]} and {widths[1]}"
    )

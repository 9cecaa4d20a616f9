"""The least time that the arithmetic and the memory traffic of a step allow on this device.

    limit = max( 2 · multiply–adds / matmul rate, bytes that must be moved / copy bandwidth )

Both rates are measured in the same process. The bytes are what no way of computing avoids: inputs, outputs, parameters
and their gradients, and the cache in decoding; attention weights are not among them.
"""

from dataclasses import dataclass

import torch

from collab_fairseq.attention.cost import AttentionShape, cache_bytes, multiply_adds, parameters

from .timing import Step, Stopwatch


@dataclass(frozen=True)
class Peaks:
    """copy: bytes read plus written per second; matmul: floating-point operations per second."""

    copy: float
    matmul: float

    def limit(self, multiply_adds: float, moved_bytes: float) -> float:
        """Least seconds."""
        return max(2 * multiply_adds / self.matmul, moved_bytes / self.copy)


def measure_peaks(stopwatch: Stopwatch, device: torch.device, dtype: torch.dtype, quick: bool = False) -> Peaks:
    """Best rates of a large copy and a large square matrix product in a type."""
    large = device.type == "cuda"
    side = 256 if quick else 8192 if large else 2048
    a = torch.randn(side, side, device=device, dtype=torch.float32).to(dtype)
    source = torch.zeros(2**20 if quick else 2**30 if large else 2**28, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = _best(stopwatch, lambda: target.copy_(source))
    matmul = _best(stopwatch, lambda: a @ a)
    return Peaks(copy=2 * source.numel() / copy, matmul=2 * side**3 / matmul)


def _best(stopwatch: Stopwatch, step: Step) -> float:
    step()
    return min(stopwatch(step) for _ in range(9))


def layer_limit(
    peaks: Peaks, shape: AttentionShape, rows: int, query_len: int, key_len: int, number_bytes: int, backward: bool
) -> float:
    """Least seconds of a layer, forward (query and key read, output written) or forward and backward.

    The backward pass has two products for each of the forward pass; it reads the output's gradient, the inputs and the
    parameters, and writes the gradients of inputs and parameters.
    """
    work = rows * multiply_adds(shape, query_len, key_len)
    inputs = rows * shape.embed_dim * (query_len if query_len == key_len else query_len + key_len)
    output = rows * shape.embed_dim * query_len
    weights = parameters(shape)
    numbers = inputs + output + weights
    if backward:
        work *= 3
        numbers += output + 2 * inputs + 2 * weights
    return peaks.limit(work, numbers * number_bytes)


def step_limit(
    peaks: Peaks, shape: AttentionShape, sentences: int, beams: int, key_len: int, number_bytes: int, cross: bool
) -> float:
    """Least seconds of a decoding step over a cache of ``key_len`` positions, per sentence in cross-attention.

    Self-attention also projects and appends the new position, and reorders the cache: reads and writes it once more.
    """
    width, key_dim = shape.embed_dim, shape.key_dim
    per_row = width * key_dim + width**2 + key_len * width
    per_row += shape.num_heads * key_dim * (1 + key_len) if shape.collaborative else key_dim * key_len
    rows = sentences * beams
    if cross:
        moved = sentences * cache_bytes(shape, key_len, number_bytes)
    else:
        per_row += width * key_dim + width**2
        moved = 3 * rows * cache_bytes(shape, key_len, number_bytes)
    moved += (parameters(shape) + 2 * rows * width) * number_bytes
    return peaks.limit(rows * per_row, moved)

"""Initial mixing matrices M (H, D̃k): row i weights the shared key dimensions for head i.

They follow Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362: standard heads are blocks of ones of
equal size, heads of different sizes are blocks of different sizes, collaborative heads are dense.
"""

from typing import Callable, Dict, Sequence

import torch
from torch import Tensor, nn


def block_mixing(sizes: Sequence[int]) -> Tensor:
    """Mixing matrix of heads that share nothing: head i uses ``sizes[i]`` dimensions alone.

    Returns:
        (H, D̃k) with H = len(sizes) and D̃k = sum(sizes); every column contains a single 1.

    Raises:
        ValueError: no sizes, or a size below 1.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"block sizes must be at least one positive number; got {list(sizes)}")
    owners = torch.tensor([head for head, size in enumerate(sizes) for _ in range(size)])
    return (torch.arange(len(sizes))[:, None] == owners).float()


def _blocks(num_heads: int, key_dim: int) -> Tensor:
    """Blocks whose sizes differ by at most one, larger ones first."""
    if key_dim < num_heads:
        raise ValueError(f"key_dim must be at least num_heads with blocks; got {key_dim} and {num_heads}")
    small, larger = divmod(key_dim, num_heads)
    return block_mixing([small + 1] * larger + [small] * (num_heads - larger))


#: name → function of (num_heads, key_dim)
INITIAL_MIXING: Dict[str, Callable[[int, int], Tensor]] = {
    "xavier": lambda heads, dim: nn.init.xavier_uniform_(torch.empty(heads, dim)),
    "blocks": _blocks,
    # the initial logits have the variance of standard heads: each row has the expected squared norm of a block
    "normal": lambda heads, dim: nn.init.normal_(torch.empty(heads, dim), std=heads**-0.5),
}


def initial_mixing(name: str, num_heads: int, key_dim: int) -> Tensor:
    """Create an initial mixing matrix (H, D̃k) in float32.

    Args:
        name: ``xavier`` (uniform, Glorot and Bengio 2010), ``blocks`` (standard heads, whose sizes differ by at most
            one if H does not divide D̃k; needs D̃k ≥ H) or ``normal`` (variance 1/H).
        num_heads, key_dim: H and D̃k.

    Raises:
        ValueError: an unknown name, or D̃k < H with ``blocks``.
    """
    if name not in INITIAL_MIXING:
        raise ValueError(f"mixing must be one of {', '.join(INITIAL_MIXING)}; got {name!r}")
    return INITIAL_MIXING[name](num_heads, key_dim)

"""Initial mixing matrices M (H, D̃k): row i says how head i weighs the shared key dimensions.

Figure 3 of Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, draws the patterns: standard heads are
blocks of ones of equal size, heads of different sizes are blocks of different sizes, collaborative heads are dense.
"""

from typing import Callable, Dict, Sequence

import torch
from torch import Tensor, nn


def block_mixing(sizes: Sequence[int]) -> Tensor:
    """Mixing matrix of heads that do not share: head i owns ``sizes[i]`` dimensions of its own.

    Returns:
        (H, D̃k) with H = len(sizes), D̃k = sum(sizes); every column has a single 1.

    Raises:
        ValueError: no head, or a head without a dimension.
    """
    if not sizes or min(sizes) < 1:
        raise ValueError(f"every head needs at least one key dimension, but the block sizes are {list(sizes)}")
    owners = torch.tensor([head for head, size in enumerate(sizes) for _ in range(size)])
    return (torch.arange(len(sizes))[:, None] == owners).float()


def _blocks(num_heads: int, key_dim: int) -> Tensor:
    """Blocks whose sizes differ by at most one, the larger first."""
    if key_dim < num_heads:
        raise ValueError(f"blocks need key_dim ≥ num_heads, but key_dim is {key_dim} and num_heads is {num_heads}")
    small, larger = divmod(key_dim, num_heads)
    return block_mixing([small + 1] * larger + [small] * (num_heads - larger))


#: name → function of (num_heads, key_dim)
INITIAL_MIXING: Dict[str, Callable[[int, int], Tensor]] = {
    "xavier": lambda heads, dim: nn.init.xavier_uniform_(torch.empty(heads, dim)),
    "blocks": _blocks,
    # as many expected "ones" as a block has: a head's scores start with the variance of a standard head's
    "normal": lambda heads, dim: nn.init.normal_(torch.empty(heads, dim), std=heads**-0.5),
}


def initial_mixing(name: str, num_heads: int, key_dim: int) -> Tensor:
    """The mixing matrix a layer starts from.

    Args:
        name: ``xavier`` (uniform, Glorot and Bengio 2010), ``blocks`` (standard heads, of sizes that differ by at most
            one where H does not divide D̃k) or ``normal`` (variance 1/H).

    Returns:
        (H, D̃k) in float32.

    Raises:
        ValueError: an unknown name; blocks with fewer dimensions than heads.
    """
    if name not in INITIAL_MIXING:
        raise ValueError(f"mixing must be one of {', '.join(INITIAL_MIXING)}, but is {name!r}")
    return INITIAL_MIXING[name](num_heads, key_dim)

"""Grouped-query and multi-query attention: groups of standard heads share keys and values.

Ainslie et al. (2023), https://arxiv.org/abs/2305.13245; with one group: Shazeer (2019),
https://arxiv.org/abs/1911.02150.
"""

from typing import Any, ClassVar, Mapping, Optional

from .layer import check_groups
from .standard import StandardAttention


class GroupedAttention(StandardAttention):
    """Standard heads in G groups of neighbours that share keys and values, g = ⌊i·G/H⌋::

        H_i = softmax( (X W_Q^(i)) (Y W_K^(g))ᵀ · scale ) Y W_V^(g)        output = [H_1 … H_H] W_O

    Decoding caches G·(dk + dv) numbers per position. With G = H this is :class:`.StandardAttention`.

    Args:
        kv_heads: G, a divisor of H; 1 is multi-query attention. For the other arguments see
            :class:`.StandardAttention`.

    Parameters: ``q_proj`` (H·dk, E), ``k_proj`` (G·dk, kdim), ``v_proj`` (G·dv, vdim), ``out_proj`` (E, H·dv).
    """

    type_name, chosen_by = "grouped", "kv_heads"
    settings: ClassVar[Mapping[str, str]] = {"kv_heads": "kv_heads"}

    def __init__(
        self, embed_dim: int, num_heads: int, key_dim: Optional[int] = None, *, kv_heads: int, **options: Any
    ) -> None:
        check_groups("kv_heads", kv_heads, num_heads)
        super().__init__(embed_dim, num_heads, key_dim, value_heads=kv_heads, key_heads=kv_heads, **options)

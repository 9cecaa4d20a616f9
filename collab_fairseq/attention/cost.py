"""Parameters, multiply–adds and cache of one attention layer, in closed form.

Equations and Table 1 of Cordonnier, Loukas, Jaggi (2020), section 3. With T queries, S keys, width E, H heads, key dim
Dk, value width H·dv = E and G groups of heads that share values (and keys, where heads are standard), or latents of
width L:

    standard       scores  T·E·Dk + S·E·Dk·G/H + T·S·Dk
    collaborative  scores  T·E·Dk + S·E·Dk + T·H·Dk + T·S·H·Dk
    both           values  S·E·E·G/H + T·S·E + T·E·E
    latent         scores and values  T·E·Dk + S·E·L + T·E·E, and the smaller of
                   keys and values expanded  S·L·(Dk + E) + T·S·(Dk + E)
                   queries and contexts absorbed  T·L·(Dk + E) + 2·T·S·H·L

The collaborative layer mixes queries only (T·H·Dk); the paper counts mixing for queries and keys (2·T·H·Dk).
"""

from typing import NamedTuple, Optional, Tuple


class AttentionSize(NamedTuple):
    """Sizes of one layer.

    Attributes:
        embed_dim: E. num_heads: H. key_dim: D̃k (collaborative) or H · dk (standard). collaborative: which of the two.
        bias: whether all four projections have a bias. content_bias: whether heads have content scores.
        value_heads: G of collaborative heads. kv_heads: G of standard heads. kv_latent_dim: L of latent heads.
    """

    embed_dim: int
    num_heads: int
    key_dim: int
    collaborative: bool
    bias: bool = False
    content_bias: bool = False
    value_heads: Optional[int] = None
    kv_heads: Optional[int] = None
    kv_latent_dim: Optional[int] = None

    def widths(self) -> Tuple[int, int]:
        """Of the projected keys and values of a position."""
        keys = self.key_dim * (self.kv_heads or self.num_heads) // self.num_heads
        return keys, self.embed_dim * (self.kv_heads or self.value_heads or self.num_heads) // self.num_heads


def parameters(size: AttentionSize) -> int:
    """Number of trainable parameters."""
    keys, values = size.widths()
    source = size.embed_dim if size.kv_latent_dim is None else size.kv_latent_dim
    count = size.embed_dim * (size.key_dim + size.embed_dim) + source * (keys + values)
    if size.kv_latent_dim is not None:
        count += size.embed_dim * size.kv_latent_dim
    if size.bias:
        count += size.key_dim + keys + values + size.embed_dim
    if size.collaborative:
        count += size.num_heads * size.key_dim
    if size.content_bias:
        count += size.num_heads * size.embed_dim
    return count


def multiply_adds(size: AttentionSize, query_len: int, key_len: int) -> int:
    """Multiply–adds of one sentence, ``query_len`` (T) queries over ``key_len`` (S) keys; no biases, no softmax."""
    width, key_dim, (keys, values) = size.embed_dim, size.key_dim, size.widths()
    once = query_len * width * (key_dim + width)
    pairs = query_len * key_len
    latent = size.kv_latent_dim
    if latent is not None:
        expanded, absorbed = (length * latent * (key_dim + width) for length in (key_len, query_len))
        expanded, absorbed = expanded + pairs * (key_dim + width), absorbed + 2 * pairs * size.num_heads * latent
        return once + key_len * width * latent + min(expanded, absorbed)
    once += key_len * width * (keys + values)
    if size.collaborative:
        once += query_len * size.num_heads * key_dim
        key_dim *= size.num_heads
    if size.content_bias:
        once += key_len * width * size.num_heads
    return once + pairs * (key_dim + width)


def cache_numbers(size: AttentionSize) -> int:
    """Numbers that decoding keeps for each position of a row: keys and values as they are shared, or one latent."""
    if size.kv_latent_dim is not None:
        return size.kv_latent_dim
    return sum(size.widths()) + (size.num_heads if size.content_bias else 0)

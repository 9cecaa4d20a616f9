"""Parameters, multiply–adds and cache bytes of one attention layer, in closed form.

Equations and Table 1 of Cordonnier, Loukas, Jaggi (2020), section 3. With T queries, S keys, width E, H heads, key dim
Dk and value width H·dv = E:

    standard       scores  T·E·Dk + S·E·Dk + T·S·Dk
    collaborative  scores  T·E·Dk + S·E·Dk + T·H·Dk + T·S·H·Dk
    both           values  S·E·E + T·S·E + T·E·E

The collaborative layer mixes queries only (T·H·Dk); the paper counts mixing for queries and keys (2·T·H·Dk).
"""

from typing import NamedTuple


class AttentionSize(NamedTuple):
    """Sizes of one layer.

    Attributes:
        embed_dim: E. num_heads: H. key_dim: D̃k (collaborative) or H · dk (standard). collaborative: which of the two.
        bias: whether all four projections have a bias. content_bias: whether heads have content scores.
    """

    embed_dim: int
    num_heads: int
    key_dim: int
    collaborative: bool
    bias: bool = False
    content_bias: bool = False


def parameters(size: AttentionSize) -> int:
    """Number of trainable parameters."""
    count = 2 * size.embed_dim * size.key_dim + 2 * size.embed_dim**2
    if size.bias:
        count += 2 * size.key_dim + 2 * size.embed_dim
    if size.collaborative:
        count += size.num_heads * size.key_dim
    if size.content_bias:
        count += size.num_heads * size.embed_dim
    return count


def multiply_adds(size: AttentionSize, query_len: int, key_len: int) -> int:
    """Multiply–adds of one sentence, ``query_len`` (T) queries over ``key_len`` (S) keys; no biases, no softmax."""
    width, key_dim = size.embed_dim, size.key_dim
    scores = (query_len + key_len) * width * key_dim
    if size.collaborative:
        scores += query_len * size.num_heads * key_dim + query_len * key_len * size.num_heads * key_dim
    else:
        scores += query_len * key_len * key_dim
    if size.content_bias:
        scores += key_len * width * size.num_heads
    values = key_len * width**2 + query_len * key_len * width + query_len * width**2
    return scores + values


def cache_bytes(size: AttentionSize, key_len: int, bytes_per_number: int) -> int:
    """Bytes that decoding keeps per row for ``key_len`` (S) positions: one key, whatever the heads, and all values."""
    numbers = size.key_dim + size.embed_dim + (size.num_heads if size.content_bias else 0)
    return key_len * numbers * bytes_per_number

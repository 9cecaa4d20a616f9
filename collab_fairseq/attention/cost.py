"""Parameters, multiply–adds and cache bytes of one attention layer, in closed form.

Equations and Table 1 of Cordonnier, Loukas, Jaggi (2020), section 3. With T queries, S keys, width E, H heads, key dim
Dk and value width H·dv = E:

    standard       scores  T·E·Dk + S·E·Dk + T·S·Dk
    collaborative  scores  T·E·Dk + S·E·Dk + T·H·Dk + T·S·H·Dk
    both           values  S·E·E + T·S·E + T·E·E

The collaborative layer mixes queries only (T·H·Dk); the paper counts mixing for queries and keys (2·T·H·Dk).
"""

from typing import NamedTuple


class AttentionShape(NamedTuple):
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


def parameters(shape: AttentionShape) -> int:
    """Number of trainable parameters."""
    count = 2 * shape.embed_dim * shape.key_dim + 2 * shape.embed_dim**2
    if shape.bias:
        count += 2 * shape.key_dim + 2 * shape.embed_dim
    if shape.collaborative:
        count += shape.num_heads * shape.key_dim
    if shape.content_bias:
        count += shape.num_heads * shape.embed_dim
    return count


def multiply_adds(shape: AttentionShape, query_len: int, key_len: int) -> int:
    """Multiply–adds of one sentence, ``query_len`` (T) queries over ``key_len`` (S) keys; no biases, no softmax."""
    width, key_dim = shape.embed_dim, shape.key_dim
    scores = (query_len + key_len) * width * key_dim
    if shape.collaborative:
        scores += query_len * shape.num_heads * key_dim + query_len * key_len * shape.num_heads * key_dim
    else:
        scores += query_len * key_len * key_dim
    if shape.content_bias:
        scores += key_len * width * shape.num_heads
    values = key_len * width**2 + query_len * key_len * width + query_len * width**2
    return scores + values


def cache_bytes(shape: AttentionShape, key_len: int, bytes_per_number: int) -> int:
    """Bytes that decoding keeps per row for ``key_len`` (S) positions: one key, whatever the heads, and all values."""
    numbers = shape.key_dim + shape.embed_dim + (shape.num_heads if shape.content_bias else 0)
    return key_len * numbers * bytes_per_number

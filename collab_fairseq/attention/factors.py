"""The scores of all heads of a layer as one CP decomposition: the form in which heads come and in which they leave.

Head i scores a query x (Dq) and a key y (Dk) by ``x T_i yᵀ`` with

    T_i = A diag(m_i) Bᵀ,    i = 1..H,        A (Dq, K), B (Dk, K), mixing matrix M (H, K) of rows m_i

Collaborative heads are that by definition, with K = D̃k (Cordonnier, Loukas, Jaggi 2020,
https://arxiv.org/abs/2006.16362, section 3). Standard heads are, too, with K = H · dk and a mixing matrix of blocks of
ones. The (H, Dq, Dk) tensor of the T_i is therefore never needed: inner products follow from the factors.
"""

import math
from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn

from .mixing import block_mixing


class ReparamError(ValueError):
    """Heads, sizes or statistics that cannot be used. The message is one sentence."""

    user_error = True  # as of fairseq_modern.errors.UserError


class HeadMaps(NamedTuple):
    """A layer as standard heads, with their biases behind the weights, for an input that is 1; float64.

    Attributes:
        query: (H, w, E + 1). key: (H, w, kdim + 1). value: (H, dv, vdim + 1). w: query and key dimensions of a head.
    """

    query: Tensor
    key: Tensor
    value: Tensor


def affine(projection: nn.Linear) -> Tensor:
    """(outputs, inputs + 1) in float64: the weight, and the bias behind it, for an input that is 1."""
    weight, bias = projection.weight.double(), projection.bias
    return torch.cat([weight, weight.new_zeros(len(weight), 1) if bias is None else bias.double()[:, None]], dim=1)


class HeadFactors(NamedTuple):
    """Heads in factored form, in the layout in which a layer stores its weights.

    Attributes:
        query: Aᵀ, (K, Dq), ``q_proj.weight``. K: components, Dq: width of the queries.
        key: Bᵀ, (K, Dk), ``k_proj.weight``. Dk: width of the keys.
        mixing: M, (H, K). H: heads.
    """

    query: Tensor
    key: Tensor
    mixing: Tensor

    @property
    def rank(self) -> int:
        """K."""
        return self.query.size(0)

    @property
    def num_heads(self) -> int:
        """H."""
        return self.mixing.size(0)

    def to(self, dtype: torch.dtype, device: Optional[torch.device] = None) -> "HeadFactors":
        """The same heads in another precision or on another device."""
        return HeadFactors(*(factor.detach().to(device=device, dtype=dtype) for factor in self))

    def balanced(self) -> "HeadFactors":
        """The same heads, the three vectors of every component being of one length.

        Factors of such a decomposition can be rounded to half precision without harm.
        """
        lengths = [self.query.norm(dim=1), self.key.norm(dim=1), self.mixing.norm(dim=0)]
        even = (lengths[0] * lengths[1] * lengths[2]) ** (1 / 3)
        # a component that is zero in one factor becomes zero in all three
        query, key, mixing = (torch.where(length > 0, even / length, 0.0) for length in lengths)
        return HeadFactors(self.query * query[:, None], self.key * key[:, None], self.mixing * mixing)

    def inner(self, other: "HeadFactors") -> float:
        """⟨T, T'⟩ over all entries of both tensors (H, Dq, Dk), in float64, in O(K · K' · D)."""
        mine, theirs = self.to(torch.float64), other.to(torch.float64)
        products = (mine.query @ theirs.query.T) * (mine.key @ theirs.key.T) * (mine.mixing.T @ theirs.mixing)
        return float(products.sum())

    def content(self, scores: Tensor) -> Tensor:
        """Content biases (H, Dk) that score keys as a query with these projected values (K) does: ``(m_i ⊙ s) Bᵀ``."""
        return (self.mixing * scores) @ self.key


class ScoreWeights(NamedTuple):
    """All that makes the scores of a layer, standard or collaborative::

        score_i(x, y) = scale · [ ((x A + b) ⊙ m_i) (y B)ᵀ + y v_iᵀ ]

    A key bias is missing on purpose: it adds the same to all keys of a query, which a softmax does not see.

    Attributes:
        heads: A, B, M, with K components, H heads, widths Dq and Dk.
        scale: factor on the scores. It is the source layer's at every key dim: to change it damages every head.
        query_bias: b, (K), or None.
        content_bias: v_i, (H, Dk), or None.
    """

    heads: HeadFactors
    scale: float
    query_bias: Optional[Tensor] = None
    content_bias: Optional[Tensor] = None

    def parameters(self) -> Dict[str, Tensor]:
        """By the names that they have in a :class:`~collab_fairseq.attention.CollaborativeAttention`."""
        named = {
            "q_proj.weight": self.heads.query,
            "k_proj.weight": self.heads.key,
            "mixing": self.heads.mixing,
            "q_proj.bias": self.query_bias,
            "content_bias": self.content_bias,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """score_i(x, y) of all queries and keys, (N, H, T, S), without masks.

        Args:
            query: (N, T, Dq). key: (N, S, Dk). N: sentences, T, S: query and key positions.
        """
        projected = query @ self.heads.query.T
        if self.query_bias is not None:
            projected = projected + self.query_bias
        mixed = projected[:, None] * self.heads.mixing[None, :, None]  # (N, H, T, K)
        scores = mixed @ (key @ self.heads.key.T)[:, None].transpose(2, 3)
        if self.content_bias is not None:
            scores = scores + (key @ self.content_bias.T).transpose(1, 2)[:, :, None]
        return scores * self.scale

    def to(self, dtype: torch.dtype) -> "ScoreWeights":
        """The same scores in another precision."""
        biases = (None if bias is None else bias.detach().to(dtype) for bias in (self.query_bias, self.content_bias))
        return ScoreWeights(self.heads.to(dtype), self.scale, *biases)


def standard_heads(query: Tensor, key: Tensor, num_heads: int) -> HeadFactors:
    """Standard heads of even size.

    Args:
        query: (H · dk, Dq), the weight of the query projection, the heads below one another; dk: key dim of one head.
        key: (H · dk, Dk), the weight of the key projection.
        num_heads: H.

    Raises:
        ReparamError: shapes that do not fit.
    """
    if num_heads < 1 or query.dim() != 2 or query.size(0) % num_heads != 0 or query.size(0) == 0:
        raise ReparamError(
            f"the query weight of {num_heads} standard heads must have shape ({num_heads} · dk, Dq), "
            f"but is {list(query.shape)}"
        )
    blocks = block_mixing([query.size(0) // num_heads] * num_heads)
    return checked(HeadFactors(query, key, blocks.to(query)), "standard heads")


def checked(heads: HeadFactors, name: str) -> HeadFactors:
    """Return the heads if their shapes fit and all numbers are finite.

    Raises:
        ReparamError: which factor of ``name`` is wrong, what it should be and what it is.
    """
    components = heads.query.size(0) if heads.query.dim() == 2 else "K"
    for field, factor, shape in (
        ("query", heads.query, f"({components}, Dq)"),
        ("key", heads.key, f"({components}, Dk)"),
        ("mixing", heads.mixing, f"(H, {components})"),
    ):
        own = factor.size(1 if field == "mixing" else 0) if factor.dim() == 2 else None
        if own != components or 0 in factor.shape:
            raise ReparamError(f"{name}: {field} must have shape {shape}, but is {list(factor.shape)}")
        if not factor.is_floating_point():
            raise ReparamError(f"{name}: {field} must hold floating-point numbers, but holds {factor.dtype}")
        if not bool(torch.isfinite(factor).all()):
            raise ReparamError(f"{name}: {field} must be finite, but holds NaN or infinity")
    return heads


def relative_error(source: HeadFactors, fit: HeadFactors) -> float:
    """‖T − T'‖ / ‖T‖ (Frobenius norms over all heads), in float64; rounding hides what is below about 1e-8.

    Zero for two heads that are both zero; infinite where only the source is.
    """
    square, fit_square = source.inner(source), fit.inner(fit)
    gap = math.sqrt(max(0.0, square - 2 * source.inner(fit) + fit_square))
    if square > 0:
        return gap / math.sqrt(square)
    return 0.0 if fit_square == 0 else math.inf

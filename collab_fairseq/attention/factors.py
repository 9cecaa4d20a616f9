"""The attention logits of a layer as a CP decomposition, the common form of collaborative and standard heads.

Head i has the logit ``x T_i yᵀ`` for a query x (Dq) and a key y (Dk), with

    T_i = A diag(m_i) Bᵀ,    i = 1..H,        A (Dq, K), B (Dk, K), mixing matrix M (H, K) with rows m_i

Collaborative heads have this form by definition, with K = D̃k (Cordonnier, Loukas, Jaggi 2020,
https://arxiv.org/abs/2006.16362, section 3). Standard heads have it with K = H · dk and a mixing matrix of blocks of
ones. The (H, Dq, Dk) tensor of all T_i is never built: inner products follow from the factors.
"""

import math
from typing import Dict, NamedTuple, Optional

import torch
from torch import Tensor, nn

from .errors import AttentionError
from .mixing import block_mixing


class HeadMaps(NamedTuple):
    """A layer as standard heads in float64. The bias is the last column of each map, for an input that is 1.

    Attributes:
        query: (H, w, E + 1), with w query and key dimensions per head.
        key: (H, w, kdim + 1).
        value: (H, dv, vdim + 1).
    """

    query: Tensor
    key: Tensor
    value: Tensor


def is_replaced(projection: nn.Module) -> bool:
    """Whether ``forward`` is not that of the class. accelerate, which moves inputs, replaces it and leaves its hook."""
    return "forward" in vars(projection) and not hasattr(projection, "_hf_hook")


def check_plain(*projections: nn.Module) -> None:
    """Raise AttentionError unless weight and bias determine what each projection computes; hooks aside."""
    for projection in projections:
        types = type(projection), type(getattr(projection, "weight", None))
        if types != (nn.Linear, nn.Parameter) or is_replaced(projection):
            raise AttentionError(
                "a projection must be a torch.nn.Linear with Parameter and the forward of its class; got "
                f"{' with '.join(each.__name__ for each in types)}: merge or unload adapters and quantisation"
            )


def affine(projection: nn.Linear) -> Tensor:
    """Weight and bias of a projection in one matrix, (outputs, inputs + 1), in float64; without bias zeros.

    For errors, see :func:`check_plain`.
    """
    check_plain(projection)
    weight, bias = projection.weight.double(), projection.bias
    column = weight.new_zeros(len(weight), 1) if bias is None else bias.double()[:, None]
    return torch.cat([weight, column], dim=1)


class HeadFactors(NamedTuple):
    """The factors of all heads, in the layout of a layer's weights.

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
        """The same heads in a different dtype or on a different device, detached."""
        return HeadFactors(*(factor.detach().to(device=device, dtype=dtype) for factor in self))

    def balanced(self) -> "HeadFactors":
        """The same heads, with equal norms of the three vectors of each component.

        Balanced factors can be rounded to half precision with little error.
        """
        norms = [self.query.norm(dim=1), self.key.norm(dim=1), self.mixing.norm(dim=0)]
        mean = (norms[0] * norms[1] * norms[2]) ** (1 / 3)
        # a component that is zero in one factor becomes zero in all three
        query, key, mixing = (torch.where(norm > 0, mean / norm, 0.0) for norm in norms)
        return HeadFactors(self.query * query[:, None], self.key * key[:, None], self.mixing * mixing)

    def inner(self, other: "HeadFactors") -> float:
        """⟨T, T'⟩, summed over all entries of both (H, Dq, Dk) tensors, in float64, in O(K · K' · D)."""
        mine, theirs = self.to(torch.float64), other.to(torch.float64)
        products = (mine.query @ theirs.query.T) * (mine.key @ theirs.key.T) * (mine.mixing.T @ theirs.mixing)
        return float(products.sum())

    def content(self, projected: Tensor) -> Tensor:
        """Content biases (H, Dk) with the logits of a query whose projection is s (K): ``(m_i ⊙ s) Bᵀ``."""
        return (self.mixing * projected) @ self.key


class ScoreWeights(NamedTuple):
    """The parameters of a layer's logits, standard or collaborative::

        logit_i(x, y) = scale · [ ((x A + b) ⊙ m_i) (y B)ᵀ + y v_iᵀ ]

    There is no key bias: it adds a constant to all logits of a query, to which softmax is invariant.

    Attributes:
        heads: A, B, M, with K components, H heads, widths Dq and Dk.
        scale: factor on the logits. Conversion keeps the scale of the source layer at every key dimension.
        query_bias: b, (K), or None.
        content_bias: v_i, (H, Dk), or None.
    """

    heads: HeadFactors
    scale: float
    query_bias: Optional[Tensor] = None
    content_bias: Optional[Tensor] = None

    def parameters(self) -> Dict[str, Tensor]:
        """Parameters of a :class:`~collab_fairseq.attention.CollaborativeAttention` by name."""
        named = {
            "q_proj.weight": self.heads.query,
            "k_proj.weight": self.heads.key,
            "mixing": self.heads.mixing,
            "q_proj.bias": self.query_bias,
            "content_bias": self.content_bias,
        }
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def logits(self, query: Tensor, key: Tensor) -> Tensor:
        """logit_i(x, y) for all queries (N, T, Dq) and keys (N, S, Dk): (N, H, T, S), without masks."""
        projected = query @ self.heads.query.T
        if self.query_bias is not None:
            projected = projected + self.query_bias
        mixed = projected[:, None] * self.heads.mixing[None, :, None]  # (N, H, T, K)
        logits = mixed @ (key @ self.heads.key.T)[:, None].transpose(2, 3)
        if self.content_bias is not None:
            logits = logits + (key @ self.content_bias.T).transpose(1, 2)[:, :, None]
        return logits * self.scale

    def to(self, dtype: torch.dtype) -> "ScoreWeights":
        """The same logits in a different dtype, detached."""
        biases = (None if bias is None else bias.detach().to(dtype) for bias in (self.query_bias, self.content_bias))
        return ScoreWeights(self.heads.to(dtype), self.scale, *biases)


def standard_heads(query: Tensor, key: Tensor, num_heads: int) -> HeadFactors:
    """The factors of H standard heads with dk key dimensions each.

    Args:
        query: (H · dk, Dq), weight of the query projection.
        key: (H · dk, Dk), weight of the key projection.
        num_heads: H.

    Raises:
        AttentionError: inconsistent shapes.
    """
    blocks = block_mixing([query.size(0) // num_heads] * num_heads)
    return checked(HeadFactors(query, key, blocks.to(query)), "standard heads")


def checked(heads: HeadFactors, name: str) -> HeadFactors:
    """Return the heads if their shapes are consistent and all numbers are finite.

    Raises:
        AttentionError: a factor is invalid; the message starts with ``name``.
    """
    rank = heads.query.size(0) if heads.query.dim() == 2 else "K"
    for field, factor, rank_dim, shape in (
        ("query", heads.query, 0, f"({rank}, Dq)"),
        ("key", heads.key, 0, f"({rank}, Dk)"),
        ("mixing", heads.mixing, 1, f"(H, {rank})"),
    ):
        if factor.dim() != 2 or factor.size(rank_dim) != rank or factor.numel() == 0:
            raise AttentionError(f"{name}: {field} must have shape {shape}; got {list(factor.shape)}")
        if not factor.is_floating_point():
            raise AttentionError(f"{name}: {field} must be floating-point; got {factor.dtype}")
        if not bool(torch.isfinite(factor).all()):
            raise AttentionError(f"{name}: {field} must be finite; got NaN or infinity")
    return heads


def relative_error(source: HeadFactors, fit: HeadFactors) -> float:
    """‖T − T'‖ / ‖T‖ (Frobenius norms over all heads), in float64; errors below about 1e-8 are lost in rounding.

    Returns 0 if both tensors are zero, and infinity if only the source is.
    """
    square, fit_square = source.inner(source), fit.inner(fit)
    distance = math.sqrt(max(0.0, square - 2 * source.inner(fit) + fit_square))
    if square > 0:
        return distance / math.sqrt(square)
    return 0.0 if fit_square == 0 else math.inf

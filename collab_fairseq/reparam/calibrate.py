"""Calibration: statistics of a layer's queries and keys that weight the fit of its scores.

Changing the bilinear form T_i of head i by Δ_i changes the score of query x and key y by ``x Δ_i yᵀ`` (times the
scale). To second order, this changes the attention p of head i at query x by

    KL(p ‖ p') ≈ ½ (x − μ) Δ_i Cov_p(y) Δ_iᵀ (x − μ)ᵀ        Cov_p(y): covariance of the keys, weighted by p

The content bias absorbs the change at the mean query μ exactly (:func:`.fit_scores`). A change that is equal for all
keys cancels in the softmax. Assume that the covariances depend on the queries only through their size
w = tr Cov_p(y). Then the mean over queries and heads is, up to a factor,

    Σ_i ‖ C_x^½ Δ_i C_y^½ ‖²       C_x = E[w (x − μ)ᵀ (x − μ)] / E[w]       μ = E[w x] / E[w]       C_y = E[Cov_p(y)]

which is the Frobenius norm that :func:`.decompose` minimises, for heads whose factors are multiplied by the two roots.
A query that attends to a single key has w = 0: small changes of the scores do not affect it. Approximating means over
pairs by Kronecker products follows Martens & Grosse (2015), "K-FAC", https://arxiv.org/abs/1503.05671. For single
matrices, weighting a low-rank fit by the covariance of the inputs is known (Wang et al. 2024, "SVD-LLM",
https://arxiv.org/abs/2403.07378).
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import HeadFactors, ScoreWeights
from collab_fairseq.attention.masks import combine


class Calibration(NamedTuple):
    """Statistics of one layer, in float64. Dq, Dk: widths of queries and keys.

    All tensors are zero if every query attends to a single key.

    Attributes:
        queries: number of query positions.
        query_mean: μ, (Dq).
        query_covariance: C_x, (Dq, Dq).
        key_covariance: C_y, (Dk, Dk), averaged over queries and heads.
    """

    queries: int
    query_mean: Tensor
    query_covariance: Tensor
    key_covariance: Tensor


class Calibrator:
    """Accumulates the statistics of one layer batch by batch, in float64 and constant memory.

    Args:
        scores: scores of the layer, which determine its attention; None: uniform attention.
    """

    def __init__(self, scores: Optional[ScoreWeights] = None) -> None:
        self._scores = None if scores is None else scores.to(torch.float64)
        self._queries = 0
        self._sums: Tuple[Tensor, ...] = ()

    @torch.no_grad()
    def update(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        query_padding_mask: Optional[Tensor] = None,
    ) -> None:
        """Add the inputs of one call of the layer. N: sentences, T, S: query and key positions, H: heads.

        Keys are weighted by the attention of each head, ``softmax(scores + mask)``. Queries without keys are ignored.

        Args:
            query: (N, T, Dq).
            key: (N, S, Dk).
            key_padding_mask: (N, S), boolean (True: hidden) or additive.
            attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: hidden) or additive.
            query_padding_mask: (N, T), boolean (True: ignored).

        Raises:
            AttentionError: unmasked inputs are NaN or infinite.
            ValueError: masks do not fit (:func:`collab_fairseq.attention.masks.combine`).
        """
        (rows, query_len, _), key_len = query.shape, key.size(1)
        counted = torch.ones(rows, query_len, dtype=torch.bool, device=query.device)
        if query_padding_mask is not None:
            counted = ~query_padding_mask
        heads = 1 if attn_mask is None or attn_mask.dim() == 2 else attn_mask.numel() // (rows * query_len * key_len)
        additive = torch.zeros(1, 1, 1, key_len, dtype=torch.float64, device=query.device)
        mask = combine(key_padding_mask, attn_mask, False, (rows, heads, query_len, key_len), like=additive)
        visible = additive == 0
        if mask is not None:
            additive, visible = mask.additive, torch.softmax(mask.additive, dim=-1) > 0
            if mask.hidden is not None:
                visible = visible & ~mask.hidden
                counted = counted & ~mask.hidden.all(dim=1).squeeze(-1)  # (N, H or 1, T, 1) → (N, T)
        visible = visible & counted[:, None, :, None]  # (N, H or 1, T, S)

        x = query.to(torch.float64).masked_fill(~counted[:, :, None], 0.0)
        y = key.to(torch.float64).masked_fill(~visible.flatten(1, 2).any(dim=1)[:, :, None], 0.0)
        for name, values in (("query", x), ("key", y)):
            if not bool(torch.isfinite(values).all()):
                raise AttentionError(f"{name} must be finite where it is not masked; got NaN or infinity")
        scores = additive if self._scores is None else additive + self._scores.logits(x, y)
        new = _moments(x, y, torch.softmax(scores, dim=-1) * visible)
        self._sums = tuple(old + more for old, more in zip(self._sums, new, strict=True)) if self._sums else new
        self._queries += int(counted.sum())

    def result(self) -> Calibration:
        """The statistics of all batches so far.

        Raises:
            AttentionError: no query position so far.
        """
        if self._queries == 0:
            raise AttentionError("calibration needs at least one query position that is not masked; got none")
        mean, square, spread = (s / self._queries for s in self._sums)
        weight = spread.trace()
        if not bool(weight > 0):
            return Calibration(self._queries, *(torch.zeros_like(s) for s in (mean, square, spread)))
        mean, square = mean / weight, square / weight
        return Calibration(self._queries, mean, square - mean.outer(mean), spread)


def _moments(x: Tensor, y: Tensor, attention: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
    """Sums over queries of w x, w xᵀ x and Cov_p(y), where Cov_p(y) and its trace w are averaged over heads.

    Shapes: x (N, T, Dq), y (N, S, Dk), attention p (N, H, T, S), which is zero for ignored queries.
    """
    heads = attention.size(1)
    attention = attention.expand(x.size(0), -1, x.size(1), -1)  # N and T may be 1 before
    weight = torch.zeros_like(x[:, :, 0])
    spread = y.new_zeros(y.size(2), y.size(2))
    lengths = y.square().sum(dim=-1, keepdim=True)  # (N, S, 1)
    for head in attention.unbind(dim=1):
        means = head @ y  # (N, T, Dk)
        weight += (head @ lengths).squeeze(-1) - means.square().sum(dim=-1)  # (N, T)
        spread -= means.flatten(0, 1).T @ means.flatten(0, 1)  # (Dk, N · T) (N · T, Dk)
    share = attention.sum(dim=(1, 2))  # (N, S)
    spread += (y * share[:, :, None]).flatten(0, 1).T @ y.flatten(0, 1)
    weight = weight.clamp(min=0).unsqueeze(-1) / heads  # (N, T, 1)
    return (weight * x).sum(dim=(0, 1)), (weight * x).flatten(0, 1).T @ x.flatten(0, 1), spread / heads


def _roots(covariance: Tensor, ridge: float) -> Tuple[Tensor, Tensor]:
    """(C + ridge · tr(C)/D)^½ and its inverse; identities if C is zero."""
    level = covariance.diagonal().mean()
    if not bool(level > 0):
        identity = torch.eye(covariance.size(0), dtype=covariance.dtype, device=covariance.device)
        return identity, identity
    values, vectors = torch.linalg.eigh(covariance)
    roots = (values.clamp(min=0) + ridge * level).sqrt()
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


class Weighting(NamedTuple):
    """Symmetric weight matrices of queries, (Dq, Dq), and keys, (Dk, Dk), and their inverses, in float64."""

    query: Tensor
    query_inverse: Tensor
    key: Tensor
    key_inverse: Tensor

    @classmethod
    def of(cls, calibration: Calibration, ridge: float = 1e-2) -> "Weighting":
        """C_x^½ and C_y^½; ``ridge`` times the mean variance is added to the variance of every direction."""
        return cls(*_roots(calibration.query_covariance, ridge), *_roots(calibration.key_covariance, ridge))

    def apply(self, heads: HeadFactors) -> HeadFactors:
        """Weighted heads, whose Frobenius norm approximates the effect on attention; in float64."""
        query, key, mixing = heads.to(torch.float64)
        return HeadFactors(query @ self.query, key @ self.key, mixing)

    def undo(self, heads: HeadFactors) -> HeadFactors:
        """Inverse of :meth:`apply`."""
        query, key, mixing = heads.to(torch.float64)
        return HeadFactors(query @ self.query_inverse, key @ self.key_inverse, mixing)

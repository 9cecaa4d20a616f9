"""What a layer's queries and keys look like, so that scores are fitted where they matter.

Replacing the score forms T_i of the heads by others with a difference Δ_i changes the score of query x and key y by
``x Δ_i yᵀ``. A softmax over keys does not see what is the same for all of them, and the content bias takes up the mean
of the queries exactly (:func:`.fit_scores`). What is left is the variance over the keys that a query sees of
``(x − E[x]) Δ_i yᵀ``; its mean over queries, queries and keys being taken for independent, is

    Σ_i ‖ C_x^½ Δ_i C_y^½ ‖²       C_x = E[x xᵀ] − E[x] E[x]ᵀ       C_y = E_query[ covariance of the keys it sees ]

the Frobenius norm that :func:`.decompose` minimises, of heads whose factors are multiplied by the two roots. Weighting
a low-rank fit by the covariance of its inputs is known for single matrices (Wang et al. 2024, "SVD-LLM",
https://arxiv.org/abs/2403.07378).
"""

from typing import NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention.masks import combine

from .factors import HeadFactors, ReparamError


class Calibration(NamedTuple):
    """Statistics of one layer, in float64. Dq, Dk: widths of queries and keys.

    Attributes:
        queries: how many query positions were seen.
        query_mean: E[x], (Dq). query_covariance: C_x, (Dq, Dq).
        key_covariance: C_y, (Dk, Dk): of the keys that a query sees around their mean, averaged over queries.
    """

    queries: int
    query_mean: Tensor
    query_covariance: Tensor
    key_covariance: Tensor


class Calibrator:
    """Gathers the statistics of one layer batch by batch, in float64 and constant memory.

    >>> import torch
    >>> calibrator = Calibrator()
    >>> for batch in torch.randn(3, 2, 7, 16):  # three batches of two sentences of seven positions
    ...     calibrator.update(batch, batch, is_causal=True)
    >>> calibrator.result().queries
    42
    """

    def __init__(self) -> None:
        self._queries = 0
        self._sums: Optional[Tuple[Tensor, ...]] = None

    @torch.no_grad()
    def update(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Optional[Tensor] = None,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        query_padding_mask: Optional[Tensor] = None,
    ) -> None:
        """Count the inputs of one call of the layer. N: sentences, T, S: query and key positions, H: heads.

        Keys count by what the masks leave of a uniform attention, ``softmax(mask)``, averaged over heads: evenly where
        masks only hide, and next to nothing under a large negative fill. Queries that see no key do not count.

        Args:
            query: (N, T, Dq). key: (N, S, Dk).
            key_padding_mask: (N, S), boolean (True: padding, not seen) or additive.
            attn_mask: (T, S), (N·H, T, S) or (N, H, T, S), boolean (True: not seen) or additive.
            is_causal: position t sees keys up to t; with ``attn_mask`` only a hint, as in torch.
            query_padding_mask: (N, T), boolean, True: padding, does not count.

        Raises:
            ReparamError: widths other than before, padding of another shape, NaN or infinity in what counts.
            ValueError: masks that do not fit (:func:`collab_fairseq.attention.masks.combine`).
        """
        if query.dim() != 3 or key.dim() != 3 or query.size(0) != key.size(0):
            raise ReparamError(
                "query and key must have shapes (N, T, Dq) and (N, S, Dk) with the same N, "
                f"but are {list(query.shape)} and {list(key.shape)}"
            )
        rows, query_len, key_len = query.size(0), query.size(1), key.size(1)
        counted = torch.ones(rows, query_len, dtype=torch.bool, device=query.device)
        if query_padding_mask is not None:
            if query_padding_mask.dtype != torch.bool or query_padding_mask.shape != counted.shape:
                raise ReparamError(
                    f"query_padding_mask must be boolean of shape {list(counted.shape)}, "
                    f"but is {query_padding_mask.dtype} of shape {list(query_padding_mask.shape)}"
                )
            counted = ~query_padding_mask
        heads = 1 if attn_mask is None or attn_mask.dim() == 2 else attn_mask.numel() // (rows * query_len * key_len)
        mask = combine(
            key_padding_mask, attn_mask, is_causal, rows, heads, query_len, key_len, torch.float64, query.device
        )
        seen = torch.full((1, 1, 1, key_len), 1 / key_len, dtype=torch.float64, device=query.device)
        if mask is not None:
            seen = torch.softmax(mask.additive, dim=-1)
            if mask.hidden is not None:
                seen = seen * ~mask.hidden
                counted = counted & ~mask.hidden.all(dim=1).squeeze(-1)
        seen = seen.mean(dim=1) * counted[:, :, None]  # (N, T, S)
        share = seen.sum(dim=1)  # (N, S)

        x = query.to(torch.float64)[counted]
        y = key.to(torch.float64).masked_fill((share == 0)[:, :, None], 0.0)
        for name, values in (("query", x), ("key", y)):
            if not bool(torch.isfinite(values).all()):
                raise ReparamError(f"{name} must be finite where it is not masked, but holds NaN or infinity")
        means = (seen @ y).flatten(0, 1)  # what each query sees on average, (N·T, Dk)
        spread = (y * share[:, :, None]).flatten(0, 1).T @ y.flatten(0, 1) - means.T @ means
        new = (x.sum(0), x.T @ x, spread)
        if self._sums is not None:
            if [s.shape for s in self._sums] != [s.shape for s in new]:
                raise ReparamError(
                    f"queries and keys must be {self._sums[0].size(0)} and {self._sums[2].size(0)} wide as before, "
                    f"but are {query.size(2)} and {key.size(2)}"
                )
            new = tuple(old + more for old, more in zip(self._sums, new, strict=True))  # type: ignore[assignment]
        self._sums = new
        self._queries += x.size(0)

    def result(self) -> Calibration:
        """The statistics so far.

        Raises:
            ReparamError: no query was counted.
        """
        if self._sums is None or self._queries == 0:
            raise ReparamError("calibration needs at least one query position that is not masked, but saw none")
        total, square, spread = (s / self._queries for s in self._sums)
        return Calibration(self._queries, total, square - total.outer(total), spread)


def _roots(covariance: Tensor, ridge: float) -> Tuple[Tensor, Tensor]:
    """(C + ridge · tr(C)/D)^½ and its inverse, by eigenvalues in float64; identities where nothing varies."""
    level = covariance.diagonal().mean()
    if not bool(level > 0):
        identity = torch.eye(covariance.size(0), dtype=covariance.dtype, device=covariance.device)
        return identity, identity
    values, vectors = torch.linalg.eigh(covariance)
    roots = (values.clamp(min=0) + ridge * level).sqrt()
    return (vectors * roots) @ vectors.T, (vectors / roots) @ vectors.T


class Weighting(NamedTuple):
    """Symmetric weights of queries, (Dq, Dq), and keys, (Dk, Dk), and their inverses, in float64."""

    query: Tensor
    query_inverse: Tensor
    key: Tensor
    key_inverse: Tensor

    @classmethod
    def of(cls, calibration: Calibration, ridge: float) -> "Weighting":
        """C_x^½ and C_y^½, both with ``ridge`` times their mean variance added to the variance of every direction."""
        return cls(*_roots(calibration.query_covariance, ridge), *_roots(calibration.key_covariance, ridge))

    def apply(self, heads: HeadFactors) -> HeadFactors:
        """Heads in whose Frobenius norm errors count as they matter; in float64."""
        wide = heads.to(torch.float64)
        return wide._replace(query=wide.query @ self.query, key=wide.key @ self.key)

    def undo(self, heads: HeadFactors) -> HeadFactors:
        """Heads in float64 that :meth:`apply` turns into these."""
        wide = heads.to(torch.float64)
        return wide._replace(query=wide.query @ self.query_inverse, key=wide.key @ self.key_inverse)

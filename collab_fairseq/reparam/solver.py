"""Rank-R CP decomposition of the stacked heads of a layer, computed from their factors.

Given heads ``T_i = P diag(w_i) Qᵀ`` (:class:`.HeadFactors` of rank K), find A (Dq, R), B (Dk, R), M (H, R) with R < K
that minimise ``Σ_i ‖T_i − A diag(m_i) Bᵀ‖²``. Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362,
re-parametrise trained layers this way, by alternating least squares (ALS) on the dense (H, Dq, Dk) tensor. For ALS, see
Kolda and Bader (2009), "Tensor Decompositions and Applications", https://doi.org/10.1137/07070111X.

The tensor already is a CP decomposition, and A and B of every least-squares solution lie in the spans of P and Q. A
sweep therefore works on their coefficients, ``A = P X`` and ``B = Q Y``, and on the Gram matrices of P and Q. With
``p = PᵀA = PᵀP X`` and ``q = QᵀB = QᵀQ Y``, both (K, R), it computes

    X ← [(WᵀM) ⊙ q] (BᵀB ⊙ MᵀM)⁻¹        M ← W [p ⊙ q] (AᵀA ⊙ BᵀB)⁻¹        Y ← [(WᵀM) ⊙ p] (AᵀA ⊙ MᵀM)⁻¹
    AᵀA = Xᵀp        BᵀB = Yᵀq        error² = ‖T‖² − 2 ⟨(WᵀM) ⊙ p, q⟩ + ⟨AᵀA ⊙ BᵀB, MᵀM⟩

in O(K² · R) operations instead of O(H · D² · R), with two products of that size per sweep and the memory of a few
matrices. All computation is in float64: ALS diverges with TF32 or bfloat16 products, which PyTorch may use for float32.
A proximal term damps every solve towards the factor it replaces, and columns are balanced. Sweeps extrapolate as in
Nesterov's gradient method and restart when the error rises: Mitchell, Ye, De Sterck (2020), "Nesterov acceleration of
alternating least squares for canonical tensor decomposition", https://arxiv.org/abs/1810.05846.
"""

import math
import time
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention import AttentionError
from collab_fairseq.attention.factors import HeadFactors, checked, relative_error

# extrapolation β: initial value, growth after a successful sweep, maximum, and factor on the maximum after a restart
_FIRST, _GROWTH, _MOST, _LOWER = 0.3, 1.15, 2.0, 0.8
# weight λ of the proximal term, relative to the mean diagonal of the Gram matrix
_DAMPING = 1e-6
# the same for the coefficients of a random start; just above rounding
_PROJECTION = 1e-12
# increase of the squared relative error that may be rounding
_NOISE = 4 * torch.finfo(torch.float64).eps
# number of sweeps over which progress is measured, and after which only the best start continues
_WINDOW, _RACE = 10, 20


def energy_start(source: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """The R strongest singular components of all heads: the best fit in which each dimension serves one head.

    Every head is decomposed separately, ``T_i = U diag(σ) Vᵀ``, from QR decompositions of its factors. Its singular
    vectors are combinations of its factors: ``U = P diag(w_i) QᵀV diag(σ)⁻¹``, and V likewise.
    """
    queries, keys, strengths, owners = [], [], [], []
    for head, weights in enumerate(source.mixing):
        used = weights.nonzero().flatten()
        if used.numel() == 0:
            continue
        query_core = torch.linalg.qr(source.query[used].T, mode="r").R  # (n, k): k used components, n = min(k, Dq)
        key_core = torch.linalg.qr(source.key[used].T, mode="r").R
        left, values, right = torch.linalg.svd((query_core * weights[used]) @ key_core.T, full_matrices=False)
        # singular values that are zero but for rounding have no coefficients
        inverse = torch.where(values > values[:1] * torch.finfo(values.dtype).eps, 1 / values, 0.0)
        coefficients = source.query.new_zeros(2, values.numel(), source.rank)
        coefficients[0][:, used] = (weights[used, None] * (key_core.T @ right.T) * inverse).T
        coefficients[1][:, used] = (weights[used, None] * (query_core.T @ left) * inverse).T
        queries.append(coefficients[0])
        keys.append(coefficients[1])
        strengths.append(values)
        owners.append(torch.full_like(values, head, dtype=torch.long))
    strength, owner = torch.cat(strengths), torch.cat(owners)
    kept = strength.argsort(descending=True, stable=True)[:rank]
    used_rank = kept.numel()  # less than R if the heads have fewer components in total; the others stay zero
    mixing = torch.zeros_like(source.mixing[:, :rank])
    mixing[owner[kept], torch.arange(used_rank, device=kept.device)] = strength[kept]
    padding = (0, 0, 0, rank - used_rank)
    query, key = (torch.nn.functional.pad(torch.cat(f)[kept], padding) for f in (queries, keys))
    return HeadFactors(query, key, mixing)


def random_start(source: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """Standard normal factors, identical on every device, projected on the spans of P and Q."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (rank, source.query.size(1)), (rank, source.key.size(1)), (source.num_heads, rank)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    query, key, mixing = HeadFactors(*drawn).to(torch.float64, source.query.device)
    return HeadFactors(_coefficients(source.query, query), _coefficients(source.key, key), mixing)


def _coefficients(factor: Tensor, rows: Tensor) -> Tensor:
    """Xᵀ (R, K) such that XᵀPᵀ is the projection of ``rows`` (R, D) on the span of the rows of the factor Pᵀ (K, D)."""
    right = rows @ factor.T
    return _solve(factor @ factor.T, right.T, torch.zeros_like(right.T), _PROJECTION).T


#: name → function of the source in float64, R and the seed. Query and key of the result are the coefficients Xᵀ and Yᵀ.
STARTS: Dict[str, Callable[[HeadFactors, int, int], HeadFactors]] = {"energy": energy_start, "random": random_start}


class Decomposition(NamedTuple):
    """Result of :func:`decompose`.

    Attributes:
        heads: the approximation, of rank R, balanced, with the dtype and device of the source.
        error: relative error ‖T − T'‖ / ‖T‖ of ``heads``, in float64.
        trace: lowest relative error so far after each sweep from ``start``, up to about 1e-8; empty without a fit.
        start: the best start, a name of :data:`.STARTS`; ``exact`` without a fit.
        sweeps: total number of sweeps from all starts.
        seconds: wall time.
    """

    heads: HeadFactors
    error: float
    trace: List[float]
    start: str
    sweeps: int
    seconds: float


def decompose(
    source: HeadFactors,
    rank: int,
    *,
    sweeps: int = 100,
    tolerance: float = 1e-7,
    seed: int = 0,
    starts: Sequence[str] = ("energy", "random"),
) -> Decomposition:
    """Approximate heads by heads with fewer dimensions, which all heads share.

    The energy start suits trained heads; the random start suits heads that share most of their dimensions. Both run for
    a few sweeps, then only the better one continues. The same seed gives the same result on the same device.

    Args:
        source: H heads of rank K.
        rank: R, from 1 to K. At R = K, the source itself is returned.
        sweeps: maximum number of sweeps from the best start.
        tolerance: stop if the relative error falls by less than this per sweep, on average over ten sweeps. After the
            energy start, progress can be slow at first; the paper's 1e-6 stops too early.
        seed: seed of the random start.
        starts: names of :data:`.STARTS`.

    Raises:
        AttentionError: sizes that do not fit, NaN or infinity, or an unknown start.
    """
    checked(source, "source")
    if not 1 <= rank <= source.rank:
        raise AttentionError(f"the shared key dimension must be between 1 and {source.rank}; got {rank}")
    if not starts or set(starts) - set(STARTS):
        raise AttentionError(f"starts must be among {', '.join(STARTS)}; got {', '.join(starts) or 'none'}")
    if sweeps < 1:
        raise AttentionError(f"sweeps must be positive; got {sweeps}")
    began = time.perf_counter()
    with torch.no_grad():
        norm = math.sqrt(max(0.0, source.inner(source)))
        if rank == source.rank or norm == 0:
            heads = HeadFactors(source.query[:rank], source.key[:rank], source.mixing[:, :rank])
            return Decomposition(heads, relative_error(source, heads), [], "exact", 0, time.perf_counter() - began)
        work = source.to(torch.float64).balanced()
        work = work._replace(mixing=work.mixing / norm)
        grams = Grams.of(work)
        runs: List[Descent] = []
        for name in starts:
            runs.append(Descent(grams, Iterate.of(grams, STARTS[name](work, rank, seed)), name))
            runs[-1].descend(min(_RACE, sweeps) if len(starts) > 1 else sweeps, tolerance)
        best = min(runs, key=lambda run: run.error)
        best.descend(sweeps, tolerance)
        heads = best.now.heads(work)
        heads = heads._replace(mixing=heads.mixing * norm).balanced().to(source.query.dtype)
        error = relative_error(source, heads)
    total_sweeps = sum(len(run.trace) for run in runs)
    return Decomposition(heads, error, best.trace, best.start, total_sweeps, time.perf_counter() - began)


class Grams(NamedTuple):
    """A source of Frobenius norm 1, as far as sweeps need it.

    Attributes:
        query: PᵀP, (K, K).
        key: QᵀQ, (K, K).
        mixing: W, (H, K).
    """

    query: Tensor
    key: Tensor
    mixing: Tensor

    @classmethod
    def of(cls, source: HeadFactors) -> "Grams":
        return cls(source.query @ source.query.T, source.key @ source.key.T, source.mixing)


class Iterate(NamedTuple):
    """An approximation of rank R: A = P X, B = Q Y, M. All tensors are linear in the factors.

    Attributes:
        query: Xᵀ, (R, K).
        key: Yᵀ, (R, K).
        key_products: qᵀ = YᵀQᵀQ, (R, K).
        mixing: M, (H, R).
    """

    query: Tensor
    key: Tensor
    key_products: Tensor
    mixing: Tensor

    @classmethod
    def of(cls, source: Grams, start: HeadFactors) -> "Iterate":
        """The approximation with these coefficients, a result of :data:`STARTS`."""
        query, key, mixing = start
        squares = ((query @ source.query) * query).sum(1)
        return cls(query, key, key @ source.key, mixing).balanced(squares)

    def heads(self, source: HeadFactors) -> HeadFactors:
        return HeadFactors(self.query @ source.query, self.key @ source.key, self.mixing)

    def balanced(self, query_squares: Tensor) -> "Iterate":
        """As :meth:`.HeadFactors.balanced`; ``query_squares``: squared norms of the columns of A, (R)."""
        squares = (query_squares, (self.key * self.key_products).sum(1), self.mixing.square().sum(0))
        norms = [square.clamp(min=0).sqrt() for square in squares]
        mean = (norms[0] * norms[1] * norms[2]) ** (1 / 3)
        query, key, mixing = (torch.where(norm > 0, mean / norm, 0.0) for norm in norms)
        return Iterate(
            self.query * query[:, None], self.key * key[:, None], self.key_products * key[:, None], self.mixing * mixing
        )


class Descent:
    """ALS from one start, which has a name."""

    def __init__(self, source: Grams, start: Iterate, name: str) -> None:
        self.source = source
        self.start = name
        self.now = self._before = start
        self.error = math.inf
        self.trace: List[float] = []
        self._ahead, self._most, self._ended = 0.0, _MOST, False

    def descend(self, sweeps: int, tolerance: float) -> None:
        """Sweep until the total is ``sweeps`` or progress is below ``tolerance`` (see :func:`decompose`)."""
        while len(self.trace) < sweeps and self.error > 0 and not self._ended:
            if len(self.trace) > _WINDOW and self.trace[-1 - _WINDOW] - self.trace[-1] < _WINDOW * tolerance:
                break
            self._sweep()

    def _sweep(self) -> None:
        """One extrapolated sweep. It is undone if the error rises; the next sweep then starts without extrapolation."""
        pairs = zip(self.now, self._before, strict=True)
        ahead = Iterate(*(torch.lerp(then, now, 1 + self._ahead) for now, then in pairs))
        found, error = als_sweep(self.source, ahead, _DAMPING)
        if error**2 <= self.error**2 + _NOISE:
            self._before, self.now, self.error = self.now, found, error
            self._ahead = min(self._most, max(_FIRST, self._ahead * _GROWTH))
        else:
            self._ended = self._ahead == 0  # without extrapolation, only rounding can raise the error
            self._ahead, self._most = 0.0, max(_FIRST, self._most * _LOWER)
        self.trace.append(min([self.error, *self.trace[-1:]]))


def als_sweep(source: Grams, start: Iterate, damping: float) -> Tuple[Iterate, float]:
    """Solve for A, M and B in turn, each with the other two fixed.

    Args:
        source: heads of Frobenius norm 1, rank K.
        start: approximation of rank R.
        damping: weight λ of the proximal term, relative to the mean diagonal of the Gram matrix.

    Returns:
        The new approximation, balanced, and its relative error.
    """
    query, key, key_products, mixing = start
    key_gram = key_products @ key.T  # BᵀB, (R, R)
    right = (mixing.T @ source.mixing) * key_products
    query = _solve(key_gram * (mixing.T @ mixing), right, query, damping)
    query_products = query @ source.query
    query_gram = query_products @ query.T  # AᵀA, (R, R)

    right = (query_products * key_products) @ source.mixing.T
    mixing = _solve(query_gram * key_gram, right, mixing.T, damping).T

    gram = query_gram * (mixing.T @ mixing)
    right = (mixing.T @ source.mixing) * query_products
    key = _solve(gram, right, key, damping)
    key_products = key @ source.key

    overlap, square = (right * key_products).sum(), (gram * (key_products @ key.T)).sum()
    error = math.sqrt(max(0.0, 1.0 - float(2 * overlap - square)))
    return Iterate(query, key, key_products, mixing).balanced(query_gram.diagonal()), error


def _solve(gram: Tensor, right: Tensor, before: Tensor, damping: float) -> Tensor:
    """Minimise the least-squares error plus λ‖X − before‖²: X = (G + λI)⁻¹ (right + λ before).

    Shapes: gram G (R, R); right, before (R, ·). ``damping`` is λ relative to the mean diagonal of G.
    """
    amount = max(damping * float(gram.diagonal().mean()), torch.finfo(gram.dtype).tiny)
    while True:
        damped = gram.clone()
        damped.diagonal().add_(amount)
        factor, failed = torch.linalg.cholesky_ex(damped)
        if not bool(failed):
            # the inverse and a product take little more than half the time of two triangular solves; λ bounds the error
            return torch.cholesky_inverse(factor) @ (right + amount * before)
        amount *= 10

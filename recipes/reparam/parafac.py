"""The paper's decomposition: TensorLy's parafac on the dense tensor of the heads' products."""

from typing import List, Tuple

import torch

from collab_fairseq.reparam import HeadFactors


def parafac(
    heads: HeadFactors, rank: int, seed: int, *, iterations: int = 100, tolerance: float = 1e-6
) -> Tuple[HeadFactors, List[float]]:
    """The factors of this rank, from a random start, and the relative error after each iteration."""
    import tensorly
    from tensorly.decomposition import parafac as decomposition

    tensorly.set_backend("pytorch")
    dense = torch.einsum("hk,kd,ke->hde", heads.mixing, heads.query, heads.key)
    (sizes, (mixing, query, key)), errors = decomposition(
        dense, rank, n_iter_max=iterations, init="random", tol=tolerance, random_state=seed, return_errors=True
    )
    return HeadFactors(query.T, key.T, mixing * sizes), [float(error) for error in errors]

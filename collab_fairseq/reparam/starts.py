"""Where the decomposition starts from: functions of (source, rank R, seed), in the precision of the source."""

from typing import Callable, Dict

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors


def energy_start(source: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """The R strongest singular components of all heads: the best fit whose dimensions serve one head each.

    Every head is decomposed on its own, ``T_i = U diag(σ) Vᵀ``, from QR decompositions of its factors. The seed has no
    effect.
    """
    queries, keys, strengths, owners = [], [], [], []
    for head, weights in enumerate(source.mixing):
        used = weights.nonzero().flatten()
        if used.numel() == 0:
            continue
        query, query_core = torch.linalg.qr(source.query[used].T)
        key, key_core = torch.linalg.qr(source.key[used].T)
        left, values, right = torch.linalg.svd((query_core * weights[used]) @ key_core.T)
        queries.append((query @ left[:, : values.numel()]).T)
        keys.append(right[: values.numel()] @ key.T)
        strengths.append(values)
        owners.append(torch.full_like(used[: values.numel()], head))
    strength, owner = torch.cat(strengths), torch.cat(owners)
    kept = strength.argsort(descending=True, stable=True)[:rank]
    found = kept.numel()  # fewer than R where the heads together need fewer: the rest stays zero
    mixing = torch.zeros_like(source.mixing[:, :rank])
    mixing[owner[kept], torch.arange(found, device=kept.device)] = strength[kept]
    query, key = (torch.nn.functional.pad(torch.cat(f)[kept], (0, 0, 0, rank - found)) for f in (queries, keys))
    return HeadFactors(query, key, mixing)


def random_start(source: HeadFactors, rank: int, seed: int) -> HeadFactors:
    """Standard normal factors, the same on every device."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> Tensor:
        return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(source.query)

    return HeadFactors(
        draw(rank, source.query.size(1)), draw(rank, source.key.size(1)), draw(source.num_heads, rank)
    )


#: name → start
STARTS: Dict[str, Callable[[HeadFactors, int, int], HeadFactors]] = {"energy": energy_start, "random": random_start}

"""How much of what heads look at is shared: captured energy of their projections.

Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, section 2 and Figure 1. With the singular values
σ_1 ≥ σ_2 ≥ … of a matrix, its first n principal components capture (σ_1² + … + σ_n²) / Σ σ² of its energy.

Heads come as :class:`.HeadFactors`, query (K, E), key (K, kdim) and mixing (H, K): W_Q^(i) = query' diag(m_i),
W_K^(i) = key'; standard heads have blocks of ones for a mixing matrix. What belongs to the layer is made of the heads':

    W_Q = [W_Q^(1) … W_Q^(H)]        W_K = [W_K^(1) … W_K^(H)]        W_Q W_K' = Σ_i W_Q^(i) W_K^(i)'

A shared dimension can be scaled in the mixing vectors or in the projections without any effect. Mixing vectors are
therefore compared as v_i = m_i ⊙ |q| ⊙ |k|, |q| and |k| being the lengths of the rows of query and key.
"""

import itertools
from typing import Any, Dict, List, Mapping, Sequence

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.modules.heads import in_order, short_name
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import checkpoint_layers
from collab_fairseq.records.drawing import drawing

from .figures import SITE_TITLES

#: what is decomposed, as in the columns of Figure 1
KINDS = {"query": "$W_Q$", "key": "$W_K$", "product": "$W_Q W_K^T$"}
SHARES = (0.90, 0.95, 0.99)


def read_weights(state: Mapping[str, Any]) -> Dict[str, HeadFactors]:
    """Place (``encoder.0``, …) → heads, of a checkpoint of fairseq.

    Raises:
        ConfigurationError: another model, or parameters that are not where they belong.
    """
    found = {}
    for place, layer in checkpoint_layers(as_transformer_collab(dict(state))).items():
        if "keys" in layer.shared():
            raise ConfigurationError(
                f"expected heads that have keys of their own or share key dimensions, but those of {short_name(place)} "
                "share keys"
            )
        found[place] = layer.score_weights().heads.to(torch.float64)
    return found


def captured(values: Tensor) -> List[float]:
    """Cumulative share of the energy of singular values in descending order; zeros where all are, or there are none."""
    if values.numel() == 0:
        return [0.0]
    energy = values.square().cumsum(0)
    return (energy / energy[-1].clamp_min(torch.finfo(energy.dtype).tiny)).tolist()


def redundancy(heads: HeadFactors) -> Dict[str, Any]:
    """Of one layer.

    Returns:
        JSON data: ``heads``, ``key_dim``; ``captured``: kind (:data:`KINDS`) → ``layer`` (cumulative shares) and
        ``heads`` (a list of them); ``dimensions``: kind → how many components hold the :data:`SHARES`, in the same
        form; ``effective_dims``: (Σ_d v_id²)² / Σ_d v_id⁴ of every head; ``overlap``: the cosine of every two heads'
        v_i, (H, H), which is 0 for standard heads.
    """
    query, key, mixing = heads
    own = [(query[row != 0] * row[row != 0, None], key[row != 0]) for row in mixing]
    apart = [_curves(q, k, q, k) for q, k in own]
    layer = _curves(
        # Σ_i W^(i) W^(i)' = query' diag(Σ_i m_i²) query has the squared singular values of the concatenation
        query * mixing.square().sum(0).sqrt()[:, None],
        key * (mixing != 0).double().sum(0).sqrt()[:, None],
        query * mixing.sum(0)[:, None],
        key,
    )
    result: Dict[str, Any] = {"heads": heads.num_heads, "key_dim": heads.rank, "captured": {}, "dimensions": {}}
    for kind in KINDS:
        curves = [layer[kind], *(head[kind] for head in apart)]
        for name, (first, *rest) in (("captured", curves), ("dimensions", [_dimensions(curve) for curve in curves])):
            result[name][kind] = {"layer": first, "heads": rest}
    weighted = mixing * query.norm(dim=1) * key.norm(dim=1)
    energy = weighted.square()
    result["effective_dims"] = (energy.sum(1).square() / energy.square().sum(1).clamp_min(1e-300)).tolist()
    directions = torch.nn.functional.normalize(weighted, dim=1)
    result["overlap"] = (directions @ directions.T).tolist()
    return result


def _curves(query: Tensor, key: Tensor, left: Tensor, right: Tensor) -> Dict[str, List[float]]:
    """Kind → captured energy of query, key, and of the product left' right, (K, E) and (K, F)."""
    first, second = torch.linalg.qr(left.T, mode="r")[1], torch.linalg.qr(right.T, mode="r")[1]
    matrices = (query, key, first @ second.T)  # the last one has the product's singular values, but for zeros
    return {kind: captured(torch.linalg.svdvals(own)) for kind, own in zip(KINDS, matrices, strict=True)}


def _dimensions(curve: Sequence[float]) -> List[int]:
    # rounding can leave the last share a little below 1
    return [next(n for n, x in enumerate(curve, 1) if x >= share - 1e-12 or n == len(curve)) for share in SHARES]


def table(layers: Mapping[str, Mapping[str, Any]]) -> List[List[str]]:
    """Rows of a table: dimensions that hold 90, 95 and 99 % of the energy, in the layer and in the mean head."""
    kinds = [f"{kind}, {part} (90 95 99 %)" for kind in KINDS for part in ("layer", "head")]
    rows = [["layer", "heads", "key dim", *kinds]]
    for name, layer in layers.items():
        rows.append([short_name(name), str(layer["heads"]), str(layer["key_dim"])])
        for counts in (layer["dimensions"][kind] for kind in KINDS):
            means = torch.tensor(counts["heads"], dtype=torch.float64).mean(0).tolist()
            rows[-1] += [" ".join(map(str, counts["layer"])), " ".join(f"{mean:.1f}" for mean in means)]
    return rows


def draw(layers: Mapping[str, Mapping[str, Any]], path: PathLike) -> None:
    """Figure 1: captured energy, one row per site, thin lines for heads, thick ones for layers.

    Raises PlotError as :func:`.drawing` does.
    """
    by_site = itertools.groupby(in_order(layers), key=lambda name: name.split(".")[0])
    groups = {site: list(names) for site, names in by_site}
    with drawing(path, (8.0, 0.6 + 2.2 * len(groups))) as figure:
        from matplotlib import colormaps
        from matplotlib.lines import Line2D

        axes = figure.subplots(len(groups), len(KINDS), squeeze=False, sharey=True)
        for line, (site, names) in zip(axes, groups.items(), strict=True):
            colours = colormaps["viridis"](torch.linspace(0, 0.9, len(names)).numpy())
            for axis, (kind, title) in zip(line, KINDS.items(), strict=True):
                for name, colour in zip(names, colours, strict=True):
                    curves = layers[name]["captured"][kind]
                    for head in curves["heads"]:
                        axis.plot([0.0, *head], color=colour, alpha=0.35, linewidth=0.6)
                    axis.plot([0.0, *curves["layer"]], color=colour, linewidth=1.8)
                axis.set_title(f"{title}, {SITE_TITLES[site]}", fontsize="medium")
            line[0].set_ylabel("captured energy")
        for axis in axes[-1]:
            axis.set_xlabel("principal components")
        looks = (("layer (first to last: dark to light)", 1.8, 1.0), ("one head", 0.6, 0.6))
        handles = [Line2D([], [], color="#444444", linewidth=w, alpha=a, label=text) for text, w, a in looks]
        figure.legend(handles=handles, loc="outside upper center", ncols=2)

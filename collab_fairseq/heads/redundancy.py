"""Head redundancy: captured energy of the query and key projections.

Cordonnier, Loukas, Jaggi (2020), https://arxiv.org/abs/2006.16362, section 2 and Figure 1. With the singular values
σ_1 ≥ σ_2 ≥ … of a matrix, its first n principal components capture (σ_1² + … + σ_n²) / Σ σ² of its energy.

Heads are :class:`.HeadFactors`: query (K, E), key (K, F) and mixing (H, K), for H heads, K key dimensions, and query
and key inputs of width E and F. Standard heads have blocks of ones as mixing vectors. Head i has the projections
W_Q^(i) = query' diag(m_i) and W_K^(i) = key', and a layer has

    W_Q = [W_Q^(1) … W_Q^(H)]        W_K = [W_K^(1) … W_K^(H)]        W_Q W_K' = Σ_i W_Q^(i) W_K^(i)'

A scale can move between mixing vectors and projections without any effect. Mixing vectors are therefore compared as
v_i = m_i ⊙ |q| ⊙ |k|, where |q| and |k| are the norms of the rows of query and key.

Random matrices also have most of their energy in a part of their dimensions. Each result therefore has the numbers of
random heads of the same shape: only a difference from them was learned. Captured energy does not depend on the scale of
the weights, so that normal entries of any variance, as at initialisation, give the same.
"""

import bisect
import itertools
from typing import Any, Dict, List, Mapping, Sequence

import torch
from torch import Tensor

from collab_fairseq.attention.factors import HeadFactors
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.modules.head_names import in_model_order, short_name
from collab_fairseq.modules.sites import checkpoint_layers
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import COLOURS, LAYERS, drawing, is_narrow, legend_columns, legend_height
from fairseq_modern.errors import UserError

from .figures import SITE_TITLES

#: matrices that are decomposed → titles of the columns of Figure 1
MATRICES = {"query": "queries", "key": "keys", "product": "queries × keys"}
SHARES = (0.90, 0.95, 0.99)

#: seed of the random heads
RANDOM_SEED = 0

#: layer_id → result of :func:`redundancy`
Layers = Mapping[str, Mapping[str, Any]]


def read_weights(state: Mapping[str, Any]) -> Dict[str, HeadFactors]:
    """layer_id (``encoder.0``, …) → heads, in float64, of a fairseq checkpoint."""
    weights = {}
    for layer_id, layer in checkpoint_layers(as_transformer_collab(dict(state))).items():
        if "keys" in layer.shared():
            raise UserError(f"heads must have separate keys or dimensions; those of {short_name(layer_id)} share keys")
        weights[layer_id] = layer.score_weights().heads.to(torch.float64)
    return weights


def captured(values: Tensor) -> List[float]:
    """Cumulative share of the energy of descending singular values; zeros if there is no energy."""
    if values.numel() == 0:
        return [0.0]
    energy = values.square().cumsum(0)
    return (energy / energy[-1].clamp_min(torch.finfo(energy.dtype).tiny)).tolist()


def redundancy(heads: HeadFactors) -> Dict[str, Any]:
    """Redundancy of the heads of one layer.

    Returns:
        ``heads``: H. ``key_dim``: K. For each matrix of :data:`MATRICES`, ``captured``: cumulative shares, and
        ``dimensions``: components needed for the :data:`SHARES`; both of the ``layer`` and of its ``heads`` (a list).
        ``random``: the same as ``dimensions``, of :func:`random_heads`. ``random_captured``: the same as ``captured``,
        in five decimals, with the lowest and the highest head only.
        ``effective_dims``: (Σ_d v_id²)² / Σ_d v_id⁴ of each head.
        ``overlap``: (H, H), cosine similarities of the v_i; 0 between standard heads.
    """
    query, key, mixing = heads
    captured_energy, random_energy = _decompose(heads), _decompose(random_heads(heads))
    weighted = mixing * query.norm(dim=1) * key.norm(dim=1)
    squares = weighted.square()
    effective_dims = squares.sum(1).square() / squares.square().sum(1).clamp_min(1e-300)
    directions = torch.nn.functional.normalize(weighted, dim=1)
    return {
        "heads": heads.num_heads,
        "key_dim": heads.rank,
        "captured": captured_energy,
        "dimensions": _dimensions(captured_energy),
        "random": _dimensions(random_energy),
        "random_captured": {matrix: _outlines(energy) for matrix, energy in random_energy.items()},
        "effective_dims": effective_dims.tolist(),
        "overlap": (directions @ directions.T).tolist(),
    }


def random_heads(heads: HeadFactors) -> HeadFactors:
    """Heads of the same shape with normal entries. Entries of the mixing matrix that are 0 or 1 remain."""
    generator = torch.Generator().manual_seed(RANDOM_SEED)
    query, key, mixing = (torch.randn(factor.shape, generator=generator, dtype=torch.float64) for factor in heads)
    fixed = (heads.mixing == 0) | (heads.mixing == 1)
    return HeadFactors(query, key, torch.where(fixed, heads.mixing, mixing))


def _decompose(heads: HeadFactors) -> Dict[str, Dict[str, Any]]:
    """Matrix → captured energy of the ``layer`` and of its ``heads``."""
    query, key, mixing = heads
    head_energies = []
    for row in mixing:
        used = row != 0
        head_query, head_key = query[used] * row[used, None], key[used]
        head_energies.append(_captured_energy(head_query, head_key, head_query, head_key))
    layer_energy = _captured_energy(
        # Σ_i W^(i) W^(i)' = query' diag(Σ_i m_i²) query has the squared singular values of the concatenation
        query * mixing.square().sum(0).sqrt()[:, None],
        key * (mixing != 0).double().sum(0).sqrt()[:, None],
        query * mixing.sum(0)[:, None],
        key,
    )
    return {
        matrix: {"layer": layer_energy[matrix], "heads": [energy[matrix] for energy in head_energies]}
        for matrix in MATRICES
    }


def _captured_energy(query: Tensor, key: Tensor, left: Tensor, right: Tensor) -> Dict[str, List[float]]:
    """Matrix → captured energy of query, key and the product left' right, where left is (K, E) and right is (K, F)."""
    left_r = torch.linalg.qr(left.T, mode="r")[1]
    right_r = torch.linalg.qr(right.T, mode="r")[1]
    # the (K, K) product has the nonzero singular values of left' right
    matrices = {"query": query, "key": key, "product": left_r @ right_r.T}
    return {name: captured(torch.linalg.svdvals(matrix)) for name, matrix in matrices.items()}


def _dimensions(captured_energy: Dict[str, Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
    """Matrix → number of components that capture each of the :data:`SHARES`, of the ``layer`` and of its ``heads``."""
    return {
        matrix: {"layer": _components(energy["layer"]), "heads": [_components(head) for head in energy["heads"]]}
        for matrix, energy in captured_energy.items()
    }


def _outlines(energy: Mapping[str, Any]) -> Dict[str, Any]:
    """Captured energy in five decimals, with the lowest and the highest head instead of all."""
    heads = _stacked(energy["heads"]).double()
    outlines = torch.stack([heads.amin(0), heads.amax(0)])
    rounded = {"layer": torch.tensor(energy["layer"], dtype=torch.float64), "heads": outlines}
    return {name: shares.mul(1e5).round().div(1e5).tolist() for name, shares in rounded.items()}


def _stacked(heads: Sequence[Sequence[float]]) -> Tensor:
    """Captured energy of heads in one tensor; shorter lists of shares end at 1."""
    length = max(map(len, heads))
    return torch.tensor([list(head) + list(head[-1:]) * (length - len(head)) for head in heads])


def _components(energy: Sequence[float]) -> List[int]:
    # rounding can leave the last share a little below 1
    return [min(bisect.bisect_left(energy, share - 1e-12) + 1, len(energy)) for share in SHARES]


def report(layers: Layers) -> str:
    """Markdown table: components that capture 90, 95 and 99 % of the energy of each layer and of its mean head.

    Random heads have one row per shape.
    """
    columns = [f"{matrix}, {part} (90 95 99 %)" for matrix in MATRICES for part in ("layer", "head")]
    rows = [["layer", "heads", "key dimension", *columns]]
    for layer_id, layer in layers.items():
        rows.append([short_name(layer_id), *_report_row(layer, "dimensions")])
    random = [_report_row(layer, "random") for layer in layers.values() if "random" in layer]  # not in older records
    for row in dict.fromkeys(map(tuple, random)):
        rows.append(["random", *row])
    return pages.table(rows) + "\n"


def _report_row(layer: Mapping[str, Any], dimensions: str) -> List[str]:
    row = [str(layer["heads"]), str(layer["key_dim"])]
    for matrix in MATRICES:
        numbers = layer[dimensions][matrix]
        means = torch.tensor(numbers["heads"], dtype=torch.float64).mean(0).tolist()
        row.append(" ".join(map(str, numbers["layer"])))
        row.append(" ".join(f"{mean:.1f}" for mean in means))
    return row


def draw(layers: Layers, path: PathLike, model: str) -> None:
    """Figure 1 of the paper, with one row per site: a line for each layer, and a band for the range of its heads.

    The horizontal axis ends at the largest key dimension. ``model``: its name, for the title.
    """
    by_site = itertools.groupby(in_model_order(layers), key=lambda layer_id: layer_id.split(".")[0])
    groups = {site: list(layer_ids) for site, layer_ids in by_site}
    deepest = max(groups, key=lambda site: len(groups[site]))
    largest = max(layer["key_dim"] for layer in layers.values())
    description = (
        "Share of the squared singular values that the largest ones have (logarithmic axis). Lines: all heads of a "
        "layer together. Bands: from the lowest to the highest single head. One seed. "
        "A band without width: all heads are equal."
    )
    with_random = any("random_captured" in layer for layer in layers.values())  # not in older records
    if with_random:
        description += " Grey: heads of the same shape with random weights."
    title = f"Redundancy of the heads: captured energy, {model}"
    entries = len(groups[deepest]) + with_random
    columns = legend_columns(path, min(7, entries))
    height = 0.5 + 1.8 * len(groups) + legend_height(entries, columns) - legend_height(1, 1)
    with drawing(path, height, title, description) as figure:
        from matplotlib import colormaps

        axes = figure.subplots(len(groups), len(MATRICES), squeeze=False, sharex=True, sharey=True)
        colours = colormaps[LAYERS](torch.linspace(0, 0.8, len(groups[deepest])).numpy())
        for row, (site, layer_ids) in zip(axes, groups.items(), strict=True):
            for axis, (matrix, column_title) in zip(row, MATRICES.items(), strict=True):
                for number, layer_id in enumerate(layer_ids):
                    energy = layers[layer_id]["captured"][matrix]
                    _draw_layer(axis, energy, colours[number], f"layer {number + 1}")
                random = layers[layer_ids[0]].get("random_captured")
                if random:
                    _draw_layer(axis, random[matrix], COLOURS["reference"], "random weights", linestyle="--")
                if site == next(iter(groups)):
                    axis.set_title(column_title.replace(" ×", "\n×") if is_narrow(path) else column_title)
            row[0].set_ylabel(SITE_TITLES[site])
        axes[0][0].set_xscale("log", base=2)
        axes[0][0].set(xlim=(1, largest), ylim=(0, 1.03))
        axes[0][0].xaxis.set_major_formatter("{x:g}")
        figure.supxlabel("number of singular values", fontsize="medium")
        figure.supylabel("captured energy", fontsize="medium")
        handles, labels = axes[list(groups).index(deepest)][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def _draw_layer(axis: Any, energy: Mapping[str, Any], colour: Any, label: str, **style: Any) -> None:
    heads = _stacked(energy["heads"])
    numbers = _log_spaced(heads.size(1))
    columns = torch.tensor(numbers) - 1
    low, high = heads.amin(0)[columns].tolist(), heads.amax(0)[columns].tolist()
    axis.fill_between(numbers, low, high, color=colour, alpha=0.3, linewidth=0)
    numbers = _log_spaced(len(energy["layer"]))
    axis.plot(numbers, [energy["layer"][number - 1] for number in numbers], color=colour, label=label, **style)


def _log_spaced(length: int) -> List[int]:
    """Numbers from 1 to ``length``, at most six per factor of two."""
    powers = (round(2 ** (step / 6)) for step in range(6 * length.bit_length()) if 2 ** (step / 6) <= length)
    return sorted({length, *powers} - {0})

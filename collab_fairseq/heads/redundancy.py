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
from collab_fairseq.records import pages
from collab_fairseq.records.drawing import LAYERS, drawing

from .figures import SITE_TITLES

#: what is decomposed, as in the columns of Figure 1
KINDS = {"query": "queries", "key": "keys", "product": "queries × keys"}
SHARES = (0.90, 0.95, 0.99)


def read_weights(state: Mapping[str, Any]) -> Dict[str, HeadFactors]:
    """layer_id (``encoder.0``, …) → heads, of a checkpoint of fairseq.

    Raises:
        ConfigurationError: another model, or parameters that are not where they belong.
    """
    weights = {}
    for layer_id, layer in checkpoint_layers(as_transformer_collab(dict(state))).items():
        if "keys" in layer.shared():
            raise ConfigurationError(
                "expected heads with separate keys or shared key dimensions, but those of "
                f"{short_name(layer_id)} share keys"
            )
        weights[layer_id] = layer.score_weights().heads.to(torch.float64)
    return weights


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
    of_heads = []
    for row in mixing:
        used = row != 0
        head_query, head_key = query[used] * row[used, None], key[used]
        of_heads.append(_captured_energy(head_query, head_key, head_query, head_key))
    of_layer = _captured_energy(
        # Σ_i W^(i) W^(i)' = query' diag(Σ_i m_i²) query has the squared singular values of the concatenation
        query * mixing.square().sum(0).sqrt()[:, None],
        key * (mixing != 0).double().sum(0).sqrt()[:, None],
        query * mixing.sum(0)[:, None],
        key,
    )
    result: Dict[str, Any] = {"heads": heads.num_heads, "key_dim": heads.rank, "captured": {}, "dimensions": {}}
    for kind in KINDS:
        heads_energy = [energy[kind] for energy in of_heads]
        result["captured"][kind] = {"layer": of_layer[kind], "heads": heads_energy}
        result["dimensions"][kind] = {
            "layer": _dimensions(of_layer[kind]),
            "heads": [_dimensions(energy) for energy in heads_energy],
        }
    weighted = mixing * query.norm(dim=1) * key.norm(dim=1)
    squares = weighted.square()
    result["effective_dims"] = (squares.sum(1).square() / squares.square().sum(1).clamp_min(1e-300)).tolist()
    directions = torch.nn.functional.normalize(weighted, dim=1)
    result["overlap"] = (directions @ directions.T).tolist()
    return result


def _captured_energy(query: Tensor, key: Tensor, left: Tensor, right: Tensor) -> Dict[str, List[float]]:
    """Kind → captured energy of query, key, and of the product left' right, (K, E) and (K, F)."""
    left_r = torch.linalg.qr(left.T, mode="r")[1]
    right_r = torch.linalg.qr(right.T, mode="r")[1]
    # the last matrix has the product's singular values, but for zeros
    matrices = {"query": query, "key": key, "product": left_r @ right_r.T}
    return {kind: captured(torch.linalg.svdvals(matrix)) for kind, matrix in matrices.items()}


def _dimensions(energy: Sequence[float]) -> List[int]:
    """How many components hold each of the :data:`SHARES`."""
    numbers = []
    for share in SHARES:
        # rounding can leave the last share a little below 1
        enough = (number for number, value in enumerate(energy, 1) if value >= share - 1e-12)
        numbers.append(next(enough, len(energy)))
    return numbers


def report(layers: Mapping[str, Mapping[str, Any]]) -> str:
    """A table in Markdown: dimensions that hold 90, 95 and 99 % of the energy, in the layer and in the mean head."""
    kinds = [f"{kind}, {part} (90 95 99 %)" for kind in KINDS for part in ("layer", "head")]
    rows = [["layer", "heads", "key dim", *kinds]]
    for layer_id, layer in layers.items():
        row = [short_name(layer_id), str(layer["heads"]), str(layer["key_dim"])]
        for kind in KINDS:
            numbers = layer["dimensions"][kind]
            means = torch.tensor(numbers["heads"], dtype=torch.float64).mean(0).tolist()
            row += [" ".join(map(str, numbers["layer"])), " ".join(f"{mean:.1f}" for mean in means)]
        rows.append(row)
    return pages.table(rows) + "\n"


def draw(
    layers: Mapping[str, Mapping[str, Any]],
    path: PathLike,
    model: str,
    compared: Sequence[Mapping[str, Mapping[str, Any]]] = (),
) -> None:
    """Figure 1: captured energy, one row per site; a line for a layer, and a band from its lowest to its highest head.

    Args:
        layers: layer_id → result of `redundancy`. model: its name, in the title. compared: those of other models, whose
            figures have the same axes.

    Raises:
        UserError: see :func:`.drawing`.
    """
    by_site = itertools.groupby(in_order(layers), key=lambda layer_id: layer_id.split(".")[0])
    groups = {site: list(layer_ids) for site, layer_ids in by_site}
    depth = max(map(len, groups.values()))
    largest = max(layer["key_dim"] for each in (layers, *compared) for layer in each.values())
    description = (
        "Share of the squared singular values that the largest ones have (logarithmic axis). Lines: all heads of a "
        "layer together. Bands: from the lowest to the highest single head. One seed. "
        "A band without width: all heads are equal."
    )
    title = f"Captured energy of what heads look at, {model}"
    with drawing(path, 0.5 + 1.8 * len(groups), title, description) as figure:
        from matplotlib import colormaps

        axes = figure.subplots(len(groups), len(KINDS), squeeze=False, sharex=True, sharey=True)
        colours = colormaps[LAYERS](torch.linspace(0, 0.8, depth).numpy())
        for line, (site, layer_ids) in zip(axes, groups.items(), strict=True):
            for axis, (kind, matrix) in zip(line, KINDS.items(), strict=True):
                for number, layer_id in enumerate(layer_ids):
                    energy, colour = layers[layer_id]["captured"][kind], colours[number]
                    length = max(map(len, energy["heads"]))
                    # no further component adds anything
                    heads = torch.tensor([[*head, *head[-1:] * (length - len(head))] for head in energy["heads"]])
                    low, high = heads.amin(0).tolist(), heads.amax(0).tolist()
                    shown = _spaced(length)
                    band = [[side[n - 1] for n in shown] for side in (low, high)]
                    axis.fill_between(shown, *band, color=colour, alpha=0.3, linewidth=0)
                    shown = _spaced(len(energy["layer"]))
                    line_of_layer = [energy["layer"][n - 1] for n in shown]
                    axis.plot(shown, line_of_layer, color=colour, label=f"layer {number + 1}")
                axis.set_title(f"{matrix}, {SITE_TITLES[site]}")
            line[0].set_ylabel("captured energy")
        axes[0][0].set_xscale("log", base=2)
        axes[0][0].set(xlim=(1, largest), ylim=(0, 1.03))
        axes[0][0].xaxis.set_major_formatter("{x:g}")
        for axis in axes[-1]:
            axis.set_xlabel("number of singular values")
        deepest = next(line[0] for line, ids in zip(axes, groups.values(), strict=True) if len(ids) == depth)
        handles, labels = deepest.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=6)


def _spaced(length: int) -> List[int]:
    """Numbers from 1 to ``length``, at most six for each factor of two: as many as a logarithmic axis shows."""
    steps = range(6 * length.bit_length())
    return sorted({length, *(round(2 ** (step / 6)) for step in steps if 2 ** (step / 6) <= length)} - {0})

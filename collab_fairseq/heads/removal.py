"""Removal of heads from a checkpoint: named heads, or heads closed by stochastic gates (Voita et al. 2019).

The smaller model computes the same as the masked or gated one. A removed head loses its value rows and output columns;
a standard head also its query and key rows; a collaborative head also its mixing vector and content bias. Shared key
dimensions are removed if the mixing weights of all remaining heads are zero there. The sizes of each layer are stored
in ``attention_shapes``.
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple

import torch
from torch import Tensor

from collab_fairseq.attention import AttentionLayer
from collab_fairseq.checkpoints import PathLike, model_settings
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, drop_training_state
from collab_fairseq.modules.gates import CRITERION, HeadGates
from collab_fairseq.modules.head_names import (
    LETTERS,
    Heads,
    check_heads,
    describe,
    head_name,
    in_model_order,
    parse_heads,
    short_name,
)
from collab_fairseq.modules.sites import checkpoint_layers, parameter_prefix
from collab_fairseq.records import pages
from fairseq_modern.errors import UserError

from .attention_hooks import head_counts
from .figures import Column, draw_grids, panels_of

LOG_ALPHA = "head_gates.log_alpha"


class Gate(NamedTuple):
    """log α of a head, P(g ≠ 0), and whether the head is open in evaluation (log α > 0)."""

    log_alpha: float
    open_probability: float
    is_open: bool


class Removal(NamedTuple):
    """A smaller checkpoint, the removed heads, and the number of attention parameters before and after."""

    state: Dict[str, Any]
    removed: Heads
    parameters_before: int
    parameters_after: int

    def report(self) -> str:
        sizes = f"{self.parameters_before:,} before, {self.parameters_after:,} after"
        return f"removed {describe(self.removed) or 'no head'}\nparameters of attention: {sizes}\n"


def read_gates(state: Mapping[str, Any]) -> Dict[str, Gate]:
    """Head → gate, of a checkpoint with gates."""
    collab_state = as_transformer_collab(dict(state))
    gates: Dict[str, Gate] = {}
    for layer_id in in_model_order(checkpoint_layers(collab_state)):
        log_alpha = collab_state["model"].get(parameter_prefix(layer_id) + LOG_ALPHA)
        if log_alpha is None:
            continue
        layer_gates = HeadGates(len(log_alpha), 0.0)
        layer_gates.log_alpha.data.copy_(log_alpha)
        probabilities = layer_gates.open_probability().tolist()
        for head, (value, probability) in enumerate(zip(log_alpha.tolist(), probabilities, strict=True)):
            gates[head_name(layer_id, head)] = Gate(value, probability, is_open=value > 0)
    if not gates:
        raise UserError("the model has no gates; it was trained without --head-gates")
    return gates


def gates_report(gates: Mapping[str, Gate]) -> str:
    """Markdown table of all gates, and the number of open ones at each site."""
    rows = [["head", "log alpha", "P(open)", ""]]
    for head, gate in gates.items():
        state = "open" if gate.is_open else "closed"
        rows.append([head, f"{gate.log_alpha:.3f}", f"{gate.open_probability:.3f}", state])
    counts = []
    for letter in LETTERS:
        is_open = [gate.is_open for head, gate in gates.items() if head.startswith(letter)]
        counts.append(f"{letter} {sum(is_open)} of {len(is_open)}" if is_open else f"{letter} has no gates")
    return f"{pages.table(rows)}\n\nopen: {', '.join(counts)}\n"


def draw_gates(gates: Mapping[str, Gate], path: PathLike, model: str) -> None:
    """Heat maps of P(open); ``model``: its name, for the title."""
    values = {head: gate.open_probability for head, gate in gates.items()}
    closed = [head for head, gate in gates.items() if not gate.is_open]
    column = Column("", "P(open)", panels_of(values, closed), 1.0)
    draw_grids([column], path, f"Gates of the heads, {model}", "Probability that a gate is not zero. Framed: closed.")


def remove_closed_heads(state: Mapping[str, Any], *, empty_layers: bool = False) -> Removal:
    """The checkpoint without gates and closed heads; ``empty_layers`` as in :func:`remove_heads`."""
    closed = [head for head, gate in read_gates(state).items() if not gate.is_open]
    collab_state = as_transformer_collab(dict(state))
    config, model = model_settings(collab_state), collab_state["model"]
    for name in [name for name in model if name.endswith(LOG_ALPHA)]:
        del model[name]
    config.update(head_gates="none", head_gates_freeze_decoder=False)
    criterion = collab_state["cfg"].get("criterion")
    if isinstance(criterion, dict) and criterion.get("_name") == CRITERION:
        settings = {name: value for name, value in criterion.items() if name != "gate_penalty"}
        collab_state["cfg"]["criterion"] = {**settings, "_name": "label_smoothed_cross_entropy"}
    return _remove(collab_state, parse_heads(" ".join(closed)), empty_layers)


def remove_heads(
    state: Mapping[str, Any], heads: Mapping[str, Iterable[int]], *, empty_layers: bool = False
) -> Removal:
    """The checkpoint without these heads and without the heads in its ``mask_heads``.

    fairseq-train starts from the result at epoch 1 (:func:`.drop_training_state`).

    Args:
        state: of fairseq's ``transformer`` or of ``transformer_collab``; not modified.
        heads: layer_id → heads, from 0.
        empty_layers: a layer may lose all heads; it keeps a head of one dimension with zero weights.
    """
    result = _remove(as_transformer_collab(dict(state)), heads, empty_layers)
    if not result.removed:
        raise UserError("there are no heads to remove")
    return result


def _remove(collab_state: Dict[str, Any], heads: Mapping[str, Iterable[int]], empty_layers: bool) -> Removal:
    config, model = model_settings(collab_state), collab_state["model"]
    layers = checkpoint_layers(collab_state)
    removed = parse_heads(f"{config.get('mask_heads') or ''} {describe(heads)}")
    _check_removable(removed, layers, empty_layers)
    before = _attention_parameters(model, layers)
    shapes = {layer_id: dict(shape) for layer_id, shape in (config.get("attention_shapes") or {}).items()}
    for layer_id, members in removed.items():
        layer = layers[layer_id]
        kept = [head for head in range(layer.num_heads) if head not in members]
        prefix = parameter_prefix(layer_id)
        parameters = {name.removeprefix(prefix): tensor for name, tensor in model.items() if name.startswith(prefix)}
        shape = shapes.setdefault(layer_id, {})
        shape["scale"] = layer.scale
        for argument, name in layer.settings.items():
            if argument.endswith("_heads") and shape.get(argument, config.get(name)):
                shape[argument] = max(1, len(kept))  # groups of one head, since no heads share
        for name, tensor in _cut(parameters, kept, layer.num_heads, shape).items():
            model[prefix + name] = tensor.clone()
    config.update(attention_shapes=shapes, mask_heads=None)
    drop_training_state(collab_state, removed_heads=describe(removed))
    return Removal(collab_state, removed, before, _attention_parameters(model, layers))


def _check_removable(removed: Heads, layers: Mapping[str, AttentionLayer], empty_layers: bool) -> None:
    counts = head_counts(layers)
    check_heads(removed, counts)
    empty = [short_name(layer_id) for layer_id, members in removed.items() if len(members) == counts[layer_id]]
    if empty and not empty_layers:
        raise UserError(f"{', '.join(empty)} would lose all heads; keep one, or allow it with --empty-layers")
    check_separate({layer_id: layers[layer_id] for layer_id in removed})


def check_separate(layers: Mapping[str, AttentionLayer]) -> None:
    """Raise a UserError if heads of a layer (layer_id → layer) share keys or values, so that none can be removed."""
    for layer_id, layer in layers.items():
        shared = " and ".join(layer.shared())
        if shared:
            raise UserError(f"the heads of {short_name(layer_id)} share {shared}: none can be removed separately")


def _cut(parameters: Mapping[str, Tensor], kept: List[int], number: int, shape: Dict[str, Any]) -> Dict[str, Tensor]:
    """Parameters of a layer with the heads ``kept`` of ``number``; writes the new sizes to ``shape``.

    A layer without heads outputs its output bias: it keeps one head of one dimension with zero weights.
    """
    mixing = parameters.get("mixing")
    value_rows = _head_rows(kept, parameters["v_proj.weight"].size(0) // number)
    if mixing is None:
        key_rows = _head_rows(kept, parameters["q_proj.weight"].size(0) // number)
    else:
        key_rows = (mixing[kept] != 0).any(0).nonzero().flatten()
    first = torch.tensor([0])
    heads = torch.tensor(kept) if kept else first
    value_rows = value_rows if kept else first
    key_rows = key_rows if len(key_rows) else first
    shape.update(num_heads=len(heads), head_dim=len(value_rows) // len(heads), key_dim=len(key_rows))
    rows = {"q_proj": key_rows, "k_proj": key_rows, "v_proj": value_rows, "content_bias": heads, "head_gates": heads}
    cut = {}
    for name, tensor in parameters.items():
        part = name.split(".")[0]
        if part in rows:
            cut[name] = tensor[rows[part]]
    cut["out_proj.weight"] = parameters["out_proj.weight"][:, value_rows]
    if mixing is not None:
        cut["mixing"] = mixing[heads][:, key_rows]
    return cut if kept else {name: torch.zeros_like(tensor) for name, tensor in cut.items()}


def _head_rows(heads: List[int], width: int) -> Tensor:
    """Indices of the rows of these heads, each of ``width`` rows."""
    return (torch.tensor(heads, dtype=torch.int64)[:, None] * width + torch.arange(width)).flatten()


def _attention_parameters(model: Mapping[str, Tensor], layer_ids: Iterable[str]) -> int:
    prefixes = tuple(parameter_prefix(layer_id) for layer_id in layer_ids)
    return sum(tensor.numel() for name, tensor in model.items() if name.startswith(prefixes))

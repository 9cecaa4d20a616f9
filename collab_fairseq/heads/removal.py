"""Cutting heads out of a checkpoint, named ones or those that stochastic gates have closed.

What is left is a smaller model that computes what the masked or gated one does. Of a removed head go its value rows and
output columns; of standard heads also their query and key rows; of collaborative heads the rows of the mixing matrix
and the content bias, and the shared key dimensions that no head is left to use (all mixing weights exactly zero). The
sizes of each layer stand in ``attention_shapes``.
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Union

import torch
from torch import Tensor

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.fairseq_compat import as_transformer_collab, drop_training_state, model_config
from collab_fairseq.modules.gates import CRITERION, HeadGates
from collab_fairseq.modules.heads import (
    LETTERS,
    Heads,
    check_heads,
    describe,
    head_name,
    in_order,
    parse_heads,
    short_name,
)
from collab_fairseq.modules.sites import checkpoint_layers, parameter_prefix
from collab_fairseq.records import pages
from fairseq_modern.errors import UserError

from .figures import Column, draw_grids

_GATES = "head_gates.log_alpha"


class Gate(NamedTuple):
    """log α of a head, P(g ≠ 0), and whether the head is open in evaluation (log α > 0)."""

    log_alpha: float
    open_probability: float
    is_open: bool


class Removal(NamedTuple):
    """A smaller checkpoint, the removed heads, and the parameters of all attention layers before and after."""

    state: Dict[str, Any]
    removed: Heads
    parameters_before: int
    parameters_after: int

    def report(self) -> str:
        """Two lines for people."""
        sizes = f"{self.parameters_before:,} before, {self.parameters_after:,} after"
        return f"removed {describe(self.removed) or 'no head'}\nparameters of attention: {sizes}\n"


def read_gates(state: Mapping[str, Any]) -> Dict[str, Gate]:
    """Head → gate, of a checkpoint.

    Raises:
        UserError: the model has no gates.
    """
    made = as_transformer_collab(dict(state))
    gates: Dict[str, Gate] = {}
    for layer_id in in_order(checkpoint_layers(made)):
        log_alpha = made["model"].get(parameter_prefix(layer_id) + _GATES)
        if log_alpha is None:
            continue
        layer_gates = HeadGates(len(log_alpha), 0.0)
        layer_gates.log_alpha.data.copy_(log_alpha)
        values = zip(log_alpha.tolist(), layer_gates.open_probability().tolist(), strict=True)
        for head, (value, open_probability) in enumerate(values):
            gates[head_name(layer_id, head)] = Gate(value, open_probability, is_open=value > 0)
    if not gates:
        raise UserError("the model has no gates; it was trained without --head-gates")
    return gates


def gates_report(gates: Mapping[str, Gate]) -> str:
    """A table of all gates in Markdown, and how many are open at each site."""
    rows = [["head", "log alpha", "P(open)", ""]]
    for head, gate in gates.items():
        state = "open" if gate.is_open else "closed"
        rows.append([head, f"{gate.log_alpha:.3f}", f"{gate.open_probability:.3f}", state])
    counts = []
    for letter in LETTERS:
        of_site = [gate.is_open for head, gate in gates.items() if head.startswith(letter)]
        counts.append(f"{letter} {sum(of_site)} of {len(of_site)}" if of_site else f"{letter} has no gates")
    return f"{pages.table(rows)}\n\nopen: {', '.join(counts)}\n"


def draw_gates(gates: Mapping[str, Gate], path: PathLike, model: str) -> None:
    """Heat maps of P(open); ``model``: its name. Raises UserError as :func:`.drawing` does."""
    values = {head: gate.open_probability for head, gate in gates.items()}
    closed = [head for head, gate in gates.items() if not gate.is_open]
    column = Column("P(open)", values, 1.0, closed)
    draw_grids([column], path, f"Gates of the heads, {model}", "Probability that a gate is not zero. Frames: closed.")


def finalise(state: Mapping[str, Any], *, empty_layers: bool = False) -> Removal:
    """The checkpoint without gates and without the heads that they have closed; it computes what the gated one does.

    Raises:
        UserError: the model has no gates; see also :func:`remove_heads`.
    """
    closed = " ".join(head for head, gate in read_gates(state).items() if not gate.is_open)
    made = as_transformer_collab(dict(state))
    config, model = model_config(made), made["model"]
    for name in [name for name in model if name.endswith(_GATES)]:
        del model[name]
    config.update(head_gates="none", head_gates_freeze_decoder=False)
    criterion = made["cfg"].get("criterion")
    if isinstance(criterion, dict) and criterion.get("_name") == CRITERION:
        plain = {key: value for key, value in criterion.items() if key != "gate_penalty"}
        made["cfg"]["criterion"] = {**plain, "_name": "label_smoothed_cross_entropy"}
    if not closed and not config.get("mask_heads"):
        total = _attention_parameters(model, checkpoint_layers(made))
        drop_training_state(made)
        return Removal(made, {}, total, total)
    return remove_heads(made, closed, empty_layers=empty_layers)


def remove_heads(
    state: Mapping[str, Any], heads: Union[Mapping[str, Iterable[int]], str], *, empty_layers: bool = False
) -> Removal:
    """The checkpoint without these heads, and without those that its ``mask_heads`` masks.

    fairseq-train starts at epoch 1 from the result (:func:`.drop_training_state`).

    Args:
        state: of fairseq's ``transformer`` or of ``transformer_collab``; not modified.
        heads: layer_id → heads, from 0; or their descriptors, such as ``E:1:3,5``.
        empty_layers: a layer may lose all its heads; it keeps one head of one dimension that is zero.

    Raises:
        ConfigurationError: no descriptors, or heads that the model does not have.
        UserError: there are no heads to remove, a layer would lose all, or they share keys or values in groups.
    """
    made = as_transformer_collab(dict(state))
    config, model = model_config(made), made["model"]
    layers = checkpoint_layers(made)
    numbers = {layer_id: layer.num_heads for layer_id, layer in layers.items()}
    masked = config.get("mask_heads") or ""
    chosen = heads if isinstance(heads, str) else describe(heads)
    removed = parse_heads(f"{masked} {chosen}")
    check_heads(removed, numbers)
    if not removed:
        raise UserError("there are no heads to remove")
    empty = [short_name(layer_id) for layer_id, members in removed.items() if len(members) == numbers[layer_id]]
    if len(empty) == len(numbers):
        raise UserError("all heads of the model would be removed; leave some")
    if empty and not empty_layers:
        raise UserError(f"{', '.join(empty)} would lose all heads; leave one, or allow it with --empty-layers")
    for layer_id in removed:
        shared = " and ".join(layers[layer_id].shared())
        if shared:
            raise UserError(
                f"the heads of {short_name(layer_id)} share {shared}, so that none can be removed by itself"
            )
    before = _attention_parameters(model, numbers)
    shapes = {layer_id: dict(shape) for layer_id, shape in (config.get("attention_shapes") or {}).items()}
    for layer_id, members in removed.items():
        kept = [head for head in range(numbers[layer_id]) if head not in members]
        prefix = parameter_prefix(layer_id)
        parameters = {name.removeprefix(prefix): tensor for name, tensor in model.items() if name.startswith(prefix)}
        shape = shapes.setdefault(layer_id, {})
        shape["scale"] = layers[layer_id].scale
        for flag in layers[layer_id].flags:
            if flag.argument.endswith("_heads") and shape.get(flag.argument, flag.of(config)):
                shape[flag.argument] = max(1, len(kept))  # groups, of one head each, since no heads share
        for name, tensor in _cut(parameters, kept, numbers[layer_id], shape).items():
            model[prefix + name] = tensor.clone()
    config.update(attention_shapes=shapes, mask_heads=None)
    drop_training_state(made, removed_heads=describe(removed))
    return Removal(made, removed, before, _attention_parameters(model, numbers))


def _cut(parameters: Mapping[str, Tensor], kept: List[int], number: int, shape: Dict[str, Any]) -> Dict[str, Tensor]:
    """Parameters of one layer with the heads ``kept`` of ``number``; ``shape`` is given its new sizes.

    Without any head its output is the output bias: one head of one dimension, all zeros, stays.
    """
    head_dim = parameters["v_proj.weight"].size(0) // number
    rows = _rows(kept, head_dim) if kept else _rows([0], 1)
    if "mixing" not in parameters:
        key_rows = _rows(kept, parameters["q_proj.weight"].size(0) // number)
    else:
        key_rows = (parameters["mixing"][kept] != 0).any(0).nonzero().flatten()
    key_rows = key_rows if len(key_rows) else _rows([0], 1)
    heads = torch.tensor(kept or [0])
    shape.update(num_heads=len(heads), head_dim=len(rows) // len(heads), key_dim=len(key_rows))
    chosen = {"q_proj": key_rows, "k_proj": key_rows, "v_proj": rows, "content_bias": heads, "head_gates": heads}
    cut = {}
    for name, tensor in parameters.items():
        part = name.split(".")[0]
        if part in chosen:
            cut[name] = tensor[chosen[part]]
    cut["out_proj.weight"] = parameters["out_proj.weight"][:, rows]
    if "mixing" in parameters:
        cut["mixing"] = parameters["mixing"][heads][:, key_rows]
    return cut if kept else {name: torch.zeros_like(tensor) for name, tensor in cut.items()}


def _rows(kept: List[int], width: int) -> Tensor:
    return (torch.tensor(kept, dtype=torch.int64)[:, None] * width + torch.arange(width)).flatten()


def _attention_parameters(model: Mapping[str, Tensor], layer_ids: Iterable[str]) -> int:
    prefixes = tuple(parameter_prefix(layer_id) for layer_id in layer_ids)
    return sum(tensor.numel() for name, tensor in model.items() if name.startswith(prefixes))

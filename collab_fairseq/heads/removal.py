"""Cutting heads out of a checkpoint: a smaller model that computes what the masked one does.

Of a removed head go its value rows and output columns; of standard heads also their query and key rows; of
collaborative heads the rows of the mixing matrix and the content bias, and the shared key dimensions that no head is
left to use (all mixing weights exactly zero). What layers have of their own stands in ``attention_shapes``.
"""

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Set

import torch
from torch import Tensor

from collab_fairseq.modules.heads import Heads, check_heads, describe, in_order, layer_name, parse_heads
from collab_fairseq.modules.sites import head_counts, parameter_prefix
from collab_fairseq.modules.stock import as_transformer_collab, model_config

from .errors import HeadsError


class Removal(NamedTuple):
    """A smaller checkpoint, the heads that are gone, and the parameters of all attention layers before and after."""

    state: Dict[str, Any]
    removed: Heads
    parameters_before: int
    parameters_after: int

    def report(self) -> str:
        """Two lines for people."""
        sizes = f"{self.parameters_before:,} before, {self.parameters_after:,} after"
        return f"removed {describe(self.removed) or 'no head'}\nparameters of attention: {sizes}\n"


def remove_heads(
    state: Mapping[str, Any], heads: Mapping[str, Iterable[int]], *, empty_layers: bool = False
) -> Removal:
    """The checkpoint without these heads, and without those that its ``mask_heads`` masks.

    Optimizer state, epoch and best loss are gone with them: fairseq-train starts anew from the result.

    Args:
        state: of fairseq's ``transformer`` or of ``transformer_collab``; not modified.
        heads: place → heads, from 0.
        empty_layers: a layer may lose all its heads; it keeps one head of one dimension that is zero.

    Raises:
        ConfigurationError: heads that the model does not have.
        HeadsError: there are no heads to remove, or a layer would lose all.
    """
    made = as_transformer_collab(dict(state))
    config, model = model_config(made), made["model"]
    numbers = head_counts(made)
    gone: Dict[str, Set[int]] = {place: set() for place in numbers}
    for source in (heads, parse_heads(config.get("mask_heads"))):
        check_heads(source, numbers)
        for place, members in source.items():
            gone[place].update(members)
    removed: Heads = {place: tuple(sorted(gone[place])) for place in in_order(gone) if gone[place]}
    if not removed:
        raise HeadsError("there are no heads to remove")
    empty = [layer_name(place) for place, members in removed.items() if len(members) == numbers[place]]
    if len(empty) == len(numbers):
        raise HeadsError("all heads of the model would be removed; leave some")
    if empty and not empty_layers:
        raise HeadsError(f"{', '.join(empty)} would lose all heads; leave one, or allow it with --empty-layers")
    before = _attention_parameters(model, numbers)
    shapes = {place: dict(shape) for place, shape in (config.get("attention_shapes") or {}).items()}
    for place, members in removed.items():
        kept = [head for head in range(numbers[place]) if head not in members]
        prefix = parameter_prefix(place)
        own = {name.removeprefix(prefix): tensor for name, tensor in model.items() if name.startswith(prefix)}
        shape = shapes.setdefault(place, {})
        cut = _cut(own, kept, numbers[place], shape)
        for name, tensor in cut.items():
            model[prefix + name] = tensor.clone()
    config["attention_shapes"] = shapes
    config["mask_heads"] = None
    made["last_optimizer_state"] = None
    made["extra_state"] = {
        "train_iterator": {"version": 2, "epoch": 1, "iterations_in_epoch": 0, "shuffle": True},
        "removed_heads": describe(removed),
    }
    return Removal(made, removed, before, _attention_parameters(model, numbers))


def _cut(own: Mapping[str, Tensor], kept: List[int], number: int, shape: Dict[str, Any]) -> Dict[str, Tensor]:
    """Parameters of one layer with the heads ``kept`` of ``number``; ``shape`` is told what it has of its own."""
    value, output = own["v_proj.weight"], own["out_proj.weight"]
    head_dim = value.size(0) // number
    if shape.get("scale") is None:
        shape["scale"] = float(head_dim**-0.5)
    if not kept:
        return _empty(own, shape)
    rows = _rows(kept, head_dim)
    cut = {"v_proj.weight": value[rows], "out_proj.weight": output[:, rows]}
    if "mixing" in own:
        mixing = own["mixing"][kept]
        key_rows = (mixing != 0).any(0).nonzero().flatten()
        key_rows = key_rows if len(key_rows) else torch.zeros(1, dtype=torch.int64)
        cut["mixing"] = mixing[:, key_rows]
    else:
        key_rows = _rows(kept, own["q_proj.weight"].size(0) // number)
    for name in ("q_proj", "k_proj"):
        cut[f"{name}.weight"] = own[f"{name}.weight"][key_rows]
    for name, chosen in (("q_proj", key_rows), ("k_proj", key_rows), ("v_proj", rows)):
        if f"{name}.bias" in own:
            cut[f"{name}.bias"] = own[f"{name}.bias"][chosen]
    for name in ("content_bias", "head_gates.log_alpha"):
        if name in own:
            cut[name] = own[name][kept]
    shape.update(num_heads=len(kept), head_dim=head_dim, key_dim=len(key_rows))
    return cut


def _empty(own: Mapping[str, Tensor], shape: Dict[str, Any]) -> Dict[str, Tensor]:
    """A layer whose output is its output bias: one head of one dimension, all zeros."""
    shape.update(num_heads=1, head_dim=1, key_dim=1)
    cut = {}
    for name, tensor in own.items():
        if name.startswith("out_proj."):
            cut[name] = torch.zeros_like(tensor[:, :1]) if name == "out_proj.weight" else tensor
        elif name in ("mixing", "head_gates.log_alpha"):
            cut[name] = torch.zeros_like(tensor[:1, :1] if tensor.dim() == 2 else tensor[:1])
        else:
            cut[name] = torch.zeros_like(tensor[:1])
    return cut


def _rows(kept: List[int], width: int) -> Tensor:
    return (torch.tensor(kept)[:, None] * width + torch.arange(width)).flatten()


def _attention_parameters(model: Mapping[str, Tensor], places: Iterable[str]) -> int:
    prefixes = tuple(parameter_prefix(place) for place in places)
    return sum(tensor.numel() for name, tensor in model.items() if name.startswith(prefixes))

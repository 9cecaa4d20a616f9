"""What stochastic gates have closed, and the model without it."""

from typing import Any, Dict, List, Mapping, NamedTuple

import torch

from collab_fairseq.modules.gates import CRITERION, HeadGates
from collab_fairseq.modules.heads import Heads, head_name, in_order
from collab_fairseq.modules.sites import head_counts, parameter_prefix
from collab_fairseq.modules.stock import as_transformer_collab, model_config

from .errors import HeadsError
from .removal import Removal, remove_heads

_SUFFIX = "head_gates.log_alpha"


class Gate(NamedTuple):
    """log α of a head, P(g ≠ 0), and whether the head is open in evaluation (log α > 0)."""

    log_alpha: float
    open_probability: float
    is_open: bool


def read_gates(state: Mapping[str, Any]) -> Dict[str, Gate]:
    """Head → gate, of a checkpoint.

    Raises:
        HeadsError: the model has no gates.
    """
    made = as_transformer_collab(dict(state))
    found = {}
    for place in in_order(head_counts(made)):
        values = made["model"].get(parameter_prefix(place) + _SUFFIX)
        if values is not None:
            gates = HeadGates(len(values), 0.0)
            gates.log_alpha.data.copy_(values)
            chances = gates.open_probability().tolist()
            for head, value in enumerate(values.tolist()):
                found[head_name(place, head)] = Gate(value, chances[head], value > 0)
    if not found:
        raise HeadsError("the model has no gates; it was trained without --head-gates")
    return found


def closed_heads(state: Mapping[str, Any]) -> Heads:
    """The heads whose gates are closed in evaluation."""
    found: Heads = {}
    for place in in_order(head_counts(state)):
        values = state["model"].get(parameter_prefix(place) + _SUFFIX)
        if values is not None:
            members: List[int] = torch.nonzero(values <= 0).flatten().tolist()
            if members:
                found[place] = tuple(members)
    return found


def finalise(state: Mapping[str, Any], *, empty_layers: bool = False) -> Removal:
    """The checkpoint without gates and without the heads that they have closed; it computes what the gated one does.

    Raises:
        HeadsError: the model has no gates, or as of :func:`.remove_heads`.
    """
    read_gates(state)
    made = as_transformer_collab(dict(state))
    heads = closed_heads(made)
    for name in [name for name in made["model"] if name.endswith(_SUFFIX)]:
        del made["model"][name]
    model_config(made).update(head_gates="none", head_gates_freeze_decoder=False)
    criterion = made["cfg"].get("criterion")
    if isinstance(criterion, dict) and criterion.get("_name") == CRITERION:
        plain = {key: value for key, value in criterion.items() if key != "gate_penalty"}
        made["cfg"]["criterion"] = {**plain, "_name": "label_smoothed_cross_entropy"}
    if not heads and not model_config(made).get("mask_heads"):
        total = sum(t.numel() for n, t in made["model"].items() if ".self_attn." in n or ".encoder_attn." in n)
        return Removal(made, {}, total, total)
    return remove_heads(made, heads, empty_layers=empty_layers)

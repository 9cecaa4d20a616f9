"""Patches the Transformer's encoder layer (`TransformerEncoderLayerBase`) and the encoder that asks for its fast path.

As published, the layer calls a private function of torch in evaluation. Its signature has changed since, so that
generating and validating stop with "Mask Type should be defined". For that fast path the layer

- carries eight parameters that are never used in training and so never get a gradient, on which
  DistributedDataParallel stops at the second update ("Expected to have finished reduction"),
- takes the third part of torch's version for a number, which fails for versions such as 2.11.0a0, and
- requires an attention module to have query, key and value biases.

The layer keeps its own code, and what a fork or plugin has added to it. It never takes the fast path, loses these
parameters once it is made, and loads checkpoints of either kind. A layer without the fast path is left alone.
"""

import re
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List

import torch
from torch import Tensor, nn

from fairseq_modern.patching import StandIn, names, wrap

FAST_PATH = "_transformer_encoder_layer_fwd"
# What checkpoints of fairseq as published hold in each encoder layer besides its parameters ...
SURPLUS = tuple(f"{name}_{kind}" for name in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))
# ... and what the layer copies them from.
COPIED = tuple(
    f"{module}.{kind}"
    for module in (*(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")), "fc1", "fc2")
    for kind in ("weight", "bias")
)


class Projections(nn.Module):
    """Stands for an attention module without projections or biases while the layer measures them."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = self.out_proj = SimpleNamespace(weight=torch.empty(0, 0), bias=torch.empty(0))


def has_biases(attention: Any) -> bool:
    """Whether an attention module has what the fast path's parameters are measured by."""
    return all(getattr(getattr(attention, name, None), "bias", None) is not None for name in ("q_proj", "out_proj"))


def patch(module: ModuleType) -> None:
    """Wrap the methods of the layer that deal with the fast path."""
    layer = module.TransformerEncoderLayerBase
    if FAST_PATH not in names(layer.forward):
        return

    @wrap(layer)
    def __init__(original: Any, self: Any, *args: Any, **options: Any) -> None:
        build, built = self.build_self_attention, []

        def build_self_attention(*shape: Any, **more: Any) -> Any:
            built.append(build(*shape, **more))
            return built[0] if has_biases(built[0]) else Projections()

        self.build_self_attention = build_self_attention
        original(self, *args, **options)
        del self.build_self_attention
        if isinstance(self.self_attn, Projections):
            self.self_attn = built[0]
        self.can_use_fastpath = False
        for name in SURPLUS:
            if self._parameters.pop(name, None) is not None:
                setattr(self, name, torch.empty(0))  # TorchScript compiles the fast path all the same

    @wrap(layer)
    def _load_from_state_dict(original: Any, self: Any, state_dict: Dict[str, Tensor], prefix: str, *rest: Any) -> None:
        absent = {prefix + name for name in COPIED} - state_dict.keys()
        surplus = absent | {prefix + name for name in SURPLUS}
        like = next((value for value in state_dict.values() if isinstance(value, Tensor)), torch.empty(0))
        state_dict.update(dict.fromkeys(absent, like.new_empty(0)))  # which adds nothing to a concatenation
        original(self, state_dict, prefix, *rest)
        for name in surplus:
            state_dict.pop(name, None)
        unexpected: List[str] = rest[3]
        unexpected[:] = [name for name in unexpected if name not in surplus]

    patch_version(module)


def patch_encoder(module: ModuleType) -> None:
    """Give the encoder a version of torch that it can take apart, if it does."""
    if "__version__" in names(module.TransformerEncoderBase.forward_scriptable):
        patch_version(module)


def patch_version(module: ModuleType) -> None:
    """Give the module a torch whose version is three numbers: 2.11.0 for 2.11.0a0+git123."""
    numbers = [*re.findall(r"\d+", torch.__version__.split("+")[0]), "0", "0"]
    module.torch = StandIn(torch, __version__=".".join(numbers[:3]))  # type: ignore[attr-defined]

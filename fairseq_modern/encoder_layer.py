"""Defect: fairseq's Transformer encoder layer calls a private function of torch, its fast path, in evaluation mode.

Check: the layer's `forward` names that function, and the encoder reads torch's version.

The function has changed: generation and validation fail with "Mask Type should be defined". For the fast path, the
layer also has eight parameters without gradients, at which DistributedDataParallel fails; requires an attention module
to have biases; and cannot parse versions of torch such as 2.11.0a0. With the patch, the layer never takes the fast
path, drops these parameters, and loads checkpoints with or without them. The optimizer state of a checkpoint with them
cannot be loaded (see `unpatched_checkpoints`).
"""

import re
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from fairseq_modern.patching import StandIn, names, wrap

FAST_PATH = "_transformer_encoder_layer_fwd"
# the parameters of the fast path, which checkpoints of unpatched fairseq have in each encoder layer
SURPLUS = tuple(f"{name}_{kind}" for name in ("in_proj", "out_proj", "fc1", "fc2") for kind in ("weight", "bias"))


class EmptyProjections(nn.Module):
    """An attention module of size 0, from which the layer derives the sizes of its fast-path parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = self.out_proj = SimpleNamespace(weight=torch.empty(0, 0), bias=torch.empty(0))


def patch(module: ModuleType) -> None:
    """Wrap `__init__` and `_load_from_state_dict` of the layer."""
    layer = module.TransformerEncoderLayerBase
    if FAST_PATH not in names(layer.forward):
        return

    @wrap(layer)
    def __init__(original, self, *args, **options):
        build, attention = self.build_self_attention, []

        def build_self_attention(*build_args: Any, **build_options: Any) -> Any:
            attention.append(build(*build_args, **build_options))
            return EmptyProjections()

        self.build_self_attention = build_self_attention
        original(self, *args, **options)
        del self.build_self_attention
        self.self_attn = attention[0]
        self.can_use_fastpath = False
        for name in SURPLUS:
            if self._parameters.pop(name, None) is not None:
                setattr(self, name, torch.empty(0))  # TorchScript compiles the fast path nevertheless

    @wrap(layer)
    def _load_from_state_dict(original, self, state_dict, prefix, *rest):
        for name in SURPLUS:
            state_dict.pop(prefix + name, None)
        super(layer, self)._load_from_state_dict(state_dict, prefix, *rest)

    patch_version(module)


def patch_encoder(module: ModuleType) -> None:
    """Patch the encoder, whose `forward_scriptable` reads torch's version."""
    if "__version__" in names(module.TransformerEncoderBase.forward_scriptable):
        patch_version(module)


def patch_version(module: ModuleType) -> None:
    """Give the module a torch whose version has three numbers: 2.11.0 for 2.11.0a0+git123."""
    numbers = [*re.findall(r"\d+", torch.__version__.split("+")[0]), "0", "0"]
    module.torch = StandIn(torch, __version__=".".join(numbers[:3]))  # type: ignore[attr-defined]

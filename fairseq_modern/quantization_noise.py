"""Defect: noise of --quant-noise-pq stays in the weights, and multiplies with every forward pass.

Check: the hook assigns to the data of the weight. The noise then applies to one call, with gradients straight through
to the weight, as in Fan et al. (2020).
"""

import functools
from types import ModuleType
from typing import Any, Callable

from torch import nn

from fairseq_modern.patching import names, wrap


def _add(write: Callable[..., None], layer: Any, inputs: Any) -> None:
    """Give a layer a noisy weight, which hides the parameter; ``write`` is fairseq's hook."""
    if layer.training:
        clean = layer.weight.data
        write(layer, inputs)
        noisy, layer.weight.data = layer.weight.data, clean
        vars(layer)["weight"] = layer.weight + (noisy - clean)


def _remove(layer: nn.Module, *_: Any) -> None:
    vars(layer).pop("weight", None)


def patch(module: ModuleType) -> None:
    """Wrap `quant_noise` of `fairseq.modules.quant_noise`."""
    if "data" not in names(module.quant_noise):
        return

    @wrap(module)
    def quant_noise(original: Any, layer: nn.Module, p: float, block_size: int) -> nn.Module:
        original(layer, p, block_size)
        if p > 0:
            _, write = layer._forward_pre_hooks.popitem()
            layer.register_forward_pre_hook(functools.partial(_add, write))
            layer.register_forward_hook(_remove, always_call=True)
        return layer

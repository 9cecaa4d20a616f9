"""Fast dropout on a CPU: ``--fast-dropout``.

PyTorch's CPU dropout draws one random number per element, sequentially, which takes longer than the layer norm that
follows. Here, one draw of 63 random bits gives four elements 15 bits each. The dropout probability is rounded to a
multiple of 2⁻¹⁵, and kept elements are scaled by the exact inverse, so that the mean does not change. The random
numbers differ from fairseq's.
"""

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

#: random bits per element
BITS = 15


class FastDropout(FairseqDropout):  # type: ignore[misc]
    """fairseq's dropout module with a faster implementation on a CPU."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x of any shape; in training, elements are zeroed with probability p and the others scaled."""
        if self.p <= 0 or not (self.training or self.apply_during_inference):
            return x
        if x.device.type != "cpu":
            return nn.functional.dropout(x, p=self.p, training=True, inplace=inplace)
        return x * factors(x, self.p)


def use_fast_dropout(model: nn.Module) -> None:
    """Replace fairseq's dropout modules by :class:`FastDropout`, before training."""
    for name, module in list(model.named_modules()):
        if type(module) is FairseqDropout:
            model.set_submodule(name, FastDropout(module.p, module.module_name))


def factors(like: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 − p), for p rounded to a multiple of 2⁻¹⁵; shape and dtype as ``like``."""
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_()
    numbers = words.view(torch.int16)[: like.numel()].bitwise_and_((1 << BITS) - 1).view(like.shape)
    threshold = round(p * 2**BITS)
    result = torch.empty(like.shape, dtype=like.dtype)
    if threshold == 2**BITS:
        return result.zero_()
    return torch.ge(numbers, threshold, out=result).mul_(1.0 / (1.0 - threshold / 2**BITS))

"""Dropout that a CPU computes fast: ``--fast-dropout``.

torch draws a separate number for each element, one after the other, which on a CPU takes longer than the layer norm
that follows. Here each element gets 15 random bits, four elements from one draw. The probability becomes a multiple of
2⁻¹⁵, and what is kept is scaled by exactly its inverse, so that the mean stays. Another random stream than fairseq's.
"""

import torch
from fairseq.modules import FairseqDropout
from torch import Tensor, nn

#: random bits that decide over an element
BITS = 15


class FastDropout(FairseqDropout):  # type: ignore[misc]
    """fairseq's dropout module; on a GPU what it computes is fairseq's too."""

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        """x, of any shape, with elements zeroed with probability p and the others scaled, while training."""
        if self.p <= 0 or not (self.training or self.apply_during_inference):
            return x
        if x.device.type != "cpu":
            return nn.functional.dropout(x, p=self.p, training=True, inplace=inplace)
        return x * factors(x, self.p)


def use_fast_dropout(model: nn.Module) -> None:
    """Replace every dropout module of fairseq's by a :class:`FastDropout`, before a model is trained."""
    for name, module in list(model.named_modules()):
        if type(module) is FairseqDropout:
            model.set_submodule(name, FastDropout(module.p, module.module_name))


def factors(like: Tensor, p: float) -> Tensor:
    """0 with probability p, else 1 / (1 − p), for p rounded to a multiple of 2⁻¹⁵; shape and type as ``like``."""
    words = torch.empty(-(-like.numel() // 4), dtype=torch.int64).random_()  # 63 random bits
    numbers = words.view(torch.int16)[: like.numel()].bitwise_and_((1 << BITS) - 1).view(like.shape)
    dropped = round(p * 2**BITS)
    result = torch.empty(like.shape, dtype=like.dtype)
    if dropped == 2**BITS:
        return result.zero_()
    return torch.ge(numbers, dropped, out=result).mul_(1.0 / (1.0 - dropped / 2**BITS))

"""Stochastic gates on heads: the hard-concrete distribution.

Louizos, Welling, Kingma (2018), https://arxiv.org/abs/1712.01312, applied to heads by Voita et al. (2019),
https://arxiv.org/abs/1905.09418. With u uniform in (0, 1):

    s = σ((logit u + log α) / β)        g = clip(s (ζ − γ) + γ, 0, 1)        P(g ≠ 0) = σ(log α − β ln(−γ/ζ))
"""

import math
from typing import Any, Dict

import torch
from torch import Tensor, nn

#: what fairseq calls the criterion with a penalty on open gates (``training/gated_loss.py``)
CRITERION = "label_smoothed_cross_entropy_with_gates"


class HeadGates(nn.Module):
    """One gate for each of H heads, independent of the input.

    In training one draw per call; in evaluation a head is open (1) where log α > 0, else closed (0), so that what is
    evaluated is what is left when closed heads are removed.

    Args:
        num_heads: H. init: log α of every head.

    Parameters: ``log_alpha`` (H).
    """

    beta, gamma, zeta = 0.33, -0.1, 1.1

    def __init__(self, num_heads: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.log_alpha = nn.Parameter(torch.full((num_heads,), float(init)))

    def forward(self) -> Tensor:
        """(H), float32 or wider; between 0 and 1 in training, 0 or 1 in evaluation."""
        log_alpha = self.log_alpha if self.log_alpha.dtype == torch.float64 else self.log_alpha.float()
        if not self.training:
            return (log_alpha > 0).to(log_alpha.dtype)
        noise = torch.logit(torch.rand_like(log_alpha), eps=1e-7)
        stretched = torch.sigmoid((noise + log_alpha) / self.beta) * (self.zeta - self.gamma) + self.gamma
        return stretched.clamp(0.0, 1.0)

    def open_probability(self) -> Tensor:
        """P(g ≠ 0) of each head, (H), float32 or wider, differentiable."""
        log_alpha = self.log_alpha if self.log_alpha.dtype == torch.float64 else self.log_alpha.float()
        return torch.sigmoid(log_alpha - self.beta * math.log(-self.gamma / self.zeta))

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        """A checkpoint without gates (fairseq's hook on loading): they start as in a new model."""
        state_dict.setdefault(f"{name}.log_alpha", torch.full_like(self.log_alpha.detach(), self.init))


#: from here on the mean gate, clip(σ(log α) (ζ − γ) + γ), is exactly 1: where a converged model starts
OPEN = math.log((1 - HeadGates.gamma) / (HeadGates.zeta - 1))

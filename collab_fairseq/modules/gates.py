"""Stochastic gates on heads: the hard-concrete distribution.

Louizos, Welling, Kingma (2018), https://arxiv.org/abs/1712.01312, applied to heads by Voita et al. (2019),
https://arxiv.org/abs/1905.09418. With u uniform in (0, 1):

    s = σ((logit u + log α) / β)        g = clip(s (ζ − γ) + γ, 0, 1)        P(g ≠ 0) = σ(log α − β ln(−γ/ζ))
"""

import math
from typing import Any, Dict

import torch
from torch import Tensor, nn

#: fairseq's name of the criterion that penalises open gates (``training/gated_loss.py``)
CRITERION = "label_smoothed_cross_entropy_with_gates"


class HeadGates(nn.Module):
    """One gate for each of H heads, independent of the input.

    In training, each call samples the gates. In evaluation, a gate is 1 where log α > 0, else 0: removing the heads of
    closed gates does not change the evaluated model.

    Args:
        num_heads: H.
        init: initial log α of every head.

    Parameters: ``log_alpha`` (H).
    """

    beta, gamma, zeta = 0.33, -0.1, 1.1

    def __init__(self, num_heads: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.log_alpha = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The initial log α of every head."""
        nn.init.constant_(self.log_alpha, self.init)

    def forward(self) -> Tensor:
        """Gates (H), at least float32: in [0, 1] in training, 0 or 1 in evaluation."""
        log_alpha = self._wide_log_alpha()
        if not self.training:
            return (log_alpha > 0).to(log_alpha.dtype)
        noise = torch.logit(torch.rand_like(log_alpha), eps=1e-7)
        stretched = torch.sigmoid((noise + log_alpha) / self.beta) * (self.zeta - self.gamma) + self.gamma
        return stretched.clamp(0.0, 1.0)

    def open_probability(self) -> Tensor:
        """P(g ≠ 0) of each head, (H), at least float32, differentiable."""
        return torch.sigmoid(self._wide_log_alpha() - self.beta * math.log(-self.gamma / self.zeta))

    def _wide_log_alpha(self) -> Tensor:
        return self.log_alpha if self.log_alpha.dtype == torch.float64 else self.log_alpha.float()

    def upgrade_state_dict_named(self, state_dict: Dict[str, Any], name: str) -> None:
        """fairseq's hook on loading: with a checkpoint without gates, gates keep their initial values."""
        state_dict.setdefault(f"{name}.log_alpha", torch.full_like(self.log_alpha.detach(), self.init))


#: smallest log α at which the mean gate, clip(σ(log α) (ζ − γ) + γ), is exactly 1
OPEN = math.log((1 - HeadGates.gamma) / (HeadGates.zeta - 1))

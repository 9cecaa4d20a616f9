"""The criterion ``label_smoothed_cross_entropy_with_gates``: training with stochastic gates on heads.

Voita et al. (2019), https://arxiv.org/abs/1905.09418, section 5. :class:`collab_fairseq.modules.gates.HeadGates` are
the gates (``--head-gates``). The objective, per target token, is

    cross-entropy (smoothed) + λ Σ_heads P(g ≠ 0)

summed over all gated heads of the model; λ is ``--gate-penalty``. fairseq sums the cross-entropy over a batch and later
divides it by the sample size (tokens), so the penalty is multiplied by the sample size. (The authors' code divides
the penalty by the number of layers.) ``loss`` in the logs is the cross-entropy, comparable with other runs.
"""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from torch import Tensor, nn

from collab_fairseq.modules.gates import CRITERION
from collab_fairseq.modules.sites import gates_of
from fairseq_modern.errors import UserError


@dataclass
class GatesCriterionConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """fairseq's settings of the loss, and λ (``gate_penalty``)."""

    gate_penalty: float = field(
        default=0.0,
        metadata={
            "help": "weight of the expected number of open heads in the loss per target token, for --head-gates "
            "(default: 0)"
        },
    )


@register_criterion(CRITERION, dataclass=GatesCriterionConfig)
class LabelSmoothedCrossEntropyWithGates(LabelSmoothedCrossEntropyCriterion):  # type: ignore[misc]
    """See the module docstring."""

    gate_penalty: float

    @classmethod
    def build_criterion(cls, cfg: GatesCriterionConfig, task: Any) -> "LabelSmoothedCrossEntropyWithGates":
        criterion: LabelSmoothedCrossEntropyWithGates = super().build_criterion(cfg, task)
        criterion.gate_penalty = cfg.gate_penalty
        return criterion

    def forward(self, model: nn.Module, sample: Mapping[str, Any], reduce: bool = True) -> Tuple[Tensor, int, Any]:
        loss, sample_size, log = super().forward(model, sample, reduce=reduce)
        gates = gates_of(model)
        if not gates:
            raise UserError(f"--criterion {CRITERION} needs a model with gates; choose their sites with --head-gates")
        expected = torch.cat([layer.open_probability() for layer in gates.values()]).sum()
        if reduce:
            loss = loss + self.gate_penalty * sample_size * expected
        open_heads = torch.stack([(layer.log_alpha.detach() > 0).sum() for layer in gates.values()]).tolist()
        log.update({f"open_{name}": number for name, number in zip(gates, open_heads, strict=True)})
        log.update(expected_heads=expected.item(), gated_batches=1)
        return loss, sample_size, log

    @classmethod
    def reduce_metrics(cls, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Also log ``expected_heads``, Σ P(g ≠ 0), and the numbers of open heads by layer (``open_E:1``) and site."""
        super().reduce_metrics(logging_outputs)
        batches = sum(log.get("gated_batches", 0) for log in logging_outputs)
        if not batches:
            return
        totals: Dict[str, float] = {}
        names: List[str] = sorted({key for log in logging_outputs for key in log if key.startswith("open_")})
        for name in names:
            mean = sum(log.get(name, 0) for log in logging_outputs) / batches
            metrics.log_scalar(name, mean, round=1)
            site = name.split(":")[0]
            totals[site] = totals.get(site, 0.0) + mean
        for name, total in totals.items():
            metrics.log_scalar(name, total, round=1)
        expected = sum(log.get("expected_heads", 0) for log in logging_outputs) / batches
        metrics.log_scalar("expected_heads", expected, round=2)

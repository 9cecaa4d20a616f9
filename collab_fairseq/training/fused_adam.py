"""``--optimizer fused_adam``: the updates of fairseq's Adam in one pass over memory.

On a CPU, fairseq's ``adam`` reads and writes parameters, gradients and moments about twenty times per update; PyTorch's
fused AdamW does so once. fairseq adds ε to √v before the bias correction, PyTorch after it. To make the same updates,
PyTorch's optimizer gets ε / √(1 − β₂ᵗ) at update t. All parameters of a group share the largest t: a parameter that
gets its first gradient later starts with a smaller ε than in fairseq. The difference matters only for gradients
nearly as small as ε (6 % of a step at gradients of 1e-6 and ε = 1e-8).

Adam: Kingma and Ba (2015), https://arxiv.org/abs/1412.6980. Decoupled weight decay: Loshchilov and Hutter (2019),
https://arxiv.org/abs/1711.05101. A resumed run may switch between the two optimizers.
"""

import math
from typing import Any, Dict, Iterable, List

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig

from fairseq_modern.errors import UserError


class FusedAdam(torch.optim.AdamW):
    """PyTorch's fused AdamW with fairseq's ε.

    Args:
        params: float32 or float64 parameters, or parameter groups.
        options: ``lr``, ``betas``, ``eps`` and ``weight_decay`` (default 0, as in fairseq).
    """

    supports_flat_params = True  # for --fp16 on a GPU

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, fused=True, **{"weight_decay": 0.0, **options})

    def step(self, closure: Any = None) -> Any:
        """One update. Groups in which tensors of a parameter differ in memory layout do not use the fused kernel."""
        unscaled = [group["eps"] for group in self.param_groups]
        for group, steps in zip(self.param_groups, self._steps(), strict=True):
            group["fused"] = all(map(self._same_layout, group["params"]))
            group["eps"] /= math.sqrt(1.0 - group["betas"][1] ** (steps + 1.0))
        try:
            return super().step(closure)
        finally:
            for group, eps in zip(self.param_groups, unscaled, strict=True):
                group["eps"], group["fused"] = eps, True

    def _same_layout(self, p: torch.Tensor) -> bool:
        """Whether parameter, gradient and moments have the same dense layout, which the fused kernel assumes."""
        moments = [tensor for name, tensor in self.state.get(p, {}).items() if name != "step"]
        dense = p.is_contiguous() or torch.empty_like(p).stride() == p.stride()
        return dense and all(x is None or x.stride() == p.stride() for x in (p.grad, *moments))

    def _steps(self) -> List[float]:
        """For each group, the largest number of updates of a parameter. Synchronises a GPU once."""
        largest = []
        for group in self.param_groups:
            steps = [self.state[p]["step"] for p in group["params"] if self.state.get(p)]
            largest.append(torch.stack(steps or [torch.zeros((), device=group["params"][0].device)]).max())
        return torch.stack(largest).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> Dict[str, Any]:
        """The number of updates is an integer, as in fairseq's Adam."""
        state: Dict[str, Any] = super().state_dict()
        state["state"] = {key: {**values, "step": int(values["step"])} for key, values in state["state"].items()}
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Load the state of either optimizer."""
        for group in state["param_groups"]:
            group.update(fused=True, foreach=None, capturable=False, maximize=False, differentiable=False)
        super().__setstate__(state)


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FairseqFusedAdam(FairseqAdam):  # type: ignore[misc]
    """See the module docstring. Flags are those of ``adam``: --adam-betas, --adam-eps, --weight-decay."""

    same_state_as = FairseqAdam.__name__  # fairseq_modern resumes a run from the state of either optimizer

    def __init__(self, cfg: Any, params: Iterable[Any]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        if getattr(cfg, "fp16_adam_stats", False):
            raise UserError("--fp16-adam-stats needs --optimizer adam; the moments of fused_adam are float32")
        self._optimizer = FusedAdam(params, **self.optimizer_config)

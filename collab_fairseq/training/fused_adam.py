"""``--optimizer fused_adam``: fairseq's Adam in one pass over memory.

fairseq's ``adam`` on a CPU reads and writes parameters, gradients and moments about twenty times per update; torch's
fused AdamW does so once. The numbers are fairseq's: it adds ε to √v before the bias correction, torch after it, so
torch is given ε / √(1 − β₂ᵗ) at update t, that of a group's parameter with the most updates: one that had its first
gradient later sees a smaller ε than fairseq's at first, which matters where gradients are nearly as small as ε (6 % of
a step at gradients of 1e-6 and an ε of 1e-8). Kingma and Ba (2015), https://arxiv.org/abs/1412.6980; decoupled weight
decay: Loshchilov and Hutter (2019), https://arxiv.org/abs/1711.05101.

A training run may change between the two whenever it is resumed.
"""

import math
from typing import Any, Dict, Iterable, List

import torch
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig


class FusedAdam(torch.optim.AdamW):
    """torch's fused AdamW with fairseq's ε.

    Args:
        params: parameters, or groups of them, in float32 or float64.
        options: ``lr``, ``betas``, ``eps`` and ``weight_decay`` (default 0, as in fairseq).
    """

    supports_flat_params = True  # of --fp16 on a GPU

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        super().__init__(params, fused=True, **{"weight_decay": 0.0, **options})

    def step(self, closure: Any = None) -> Any:
        """One update, without the fused kernel where the tensors of a parameter lie in memory differently."""
        unscaled = [group["eps"] for group in self.param_groups]
        for group, steps in zip(self.param_groups, self._steps(), strict=True):
            group["fused"] = all(map(self._laid_out_alike, group["params"]))
            group["eps"] /= math.sqrt(1.0 - group["betas"][1] ** (steps + 1.0))
        try:
            return super().step(closure)
        finally:
            for group, eps in zip(self.param_groups, unscaled, strict=True):
                group["eps"], group["fused"] = eps, True

    def _laid_out_alike(self, p: torch.Tensor) -> bool:
        """Whether the fused kernel, which goes through memory, meets the same element of all tensors of a parameter."""
        moments = [tensor for name, tensor in self.state.get(p, {}).items() if name != "step"]
        dense = p.is_contiguous() or torch.empty_like(p).stride() == p.stride()
        return dense and all(x is None or x.stride() == p.stride() for x in (p.grad, *moments))

    def _steps(self) -> List[float]:
        """Most updates of any parameter of each group. A GPU, which may have skipped some, is waited for once."""
        most = []
        for group in self.param_groups:
            steps = [self.state[p]["step"] for p in group["params"] if self.state.get(p)]
            most.append(torch.stack(steps or [torch.zeros((), device=group["params"][0].device)]).max())
        return torch.stack(most).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> Dict[str, Any]:
        """As in fairseq's Adam: the number of updates is an integer."""
        state: Dict[str, Any] = super().state_dict()
        state["state"] = {key: {**one, "step": int(one["step"])} for key, one in state["state"].items()}
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        """Take up a state of either optimizer."""
        for group in state["param_groups"]:
            group.update(fused=True, foreach=None, capturable=False, maximize=False, differentiable=False)
        super().__setstate__(state)


@register_optimizer("fused_adam", dataclass=FairseqAdamConfig)
class FairseqFusedAdam(FairseqAdam):  # type: ignore[misc]
    """See the top of this file; with the flags of fairseq's ``adam``: --adam-betas, --adam-eps, --weight-decay."""

    state_of = FairseqAdam.__name__  # to fairseq_modern, which lets a training take up what either has saved

    def __init__(self, cfg: Any, params: Iterable[Any]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = FusedAdam(params, **self.optimizer_config)

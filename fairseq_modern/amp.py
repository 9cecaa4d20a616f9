"""Mends `--amp`, which unscales one optimizer and steps another.

torch's GradScaler remembers for each optimizer object whether its gradients have been unscaled. fairseq unscales those
of the inner optimizer before clipping, then steps the wrapper around it, for which the scaler unscales them again: they
end up divided twice by the scale.
"""

from types import ModuleType
from typing import Any

from fairseq_modern.patching import names


def step(self: Any) -> None:
    """Step the optimizer whose gradients were unscaled, unless they overflowed, and adapt the scale."""
    self.scaler.step(self.optimizer)
    self.scaler.update()


def patch(module: ModuleType) -> None:
    """Replace the step of `AMPOptimizer`, where it steps the wrapper."""
    if names(module.AMPOptimizer.step) == {"scaler", "step", "fp32_optimizer", "update"}:
        module.AMPOptimizer.step = step

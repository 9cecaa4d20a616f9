"""A process of several that runs out of memory leaves the others waiting for ever, or mixes up their messages.

As published, that process skips its batch and goes to the next exchange, while the others are still in the one before.
With several processes, running out of memory now ends the training; a process alone skips the batch, as before.
"""

from types import ModuleType
from typing import Any

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap the training step of `fairseq.trainer.Trainer`."""

    @wrap(module.Trainer)
    def train_step(original: Any, self: Any, samples: Any, raise_oom: bool = False) -> Any:
        return original(self, samples, raise_oom or (fault_tolerance.is_on() and self.data_parallel_world_size > 1))

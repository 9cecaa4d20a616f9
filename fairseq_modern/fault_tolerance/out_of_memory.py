"""Defect: if one of several processes runs out of memory, the others wait forever or receive its next message.

Check: there are several processes; the run then ends. A single process still skips the batch.
"""

from types import ModuleType

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.trainer.Trainer.train_step`."""

    @wrap(module.Trainer)
    def train_step(original, self, samples, raise_oom=False):
        must_raise = fault_tolerance.is_on() and self.data_parallel_world_size > 1
        return original(self, samples, raise_oom or must_raise)

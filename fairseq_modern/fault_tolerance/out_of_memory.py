"""Defect: if one of several processes runs out of memory, the others wait forever or receive its next message.

Check: there are several processes; the run then ends. A single process still skips the batch.
"""

from typing import Any

from fairseq_modern.patching import step


@step(skipped=False)
def ends_run(trainer: Any) -> bool:
    """Whether a process that runs out of memory must raise the error."""
    return bool(trainer.data_parallel_world_size > 1)

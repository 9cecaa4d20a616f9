"""A process of several that runs out of memory leaves the others waiting for ever, or mixes up their messages.

As published, that process skips its batch and goes on to the next exchange, while the others are still in the one
before. With several processes, running out of memory now ends the training with one sentence; a process alone goes on
with the next batch, as before. A process whose neighbour has gone says no more than that.
"""

import re
from types import ModuleType
from typing import Any

from fairseq_modern import survival
from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap

# what gloo and NCCL say of a process that has ended
GONE = re.compile(r"[Cc]onnection (was )?(closed|reset)|[Bb]roken pipe|remote process exited|Socket closed")


def explain(trainer: Any, step: str, error: RuntimeError) -> Exception:
    """The sentence for the user that an error in a step of several processes calls for, or the error itself."""
    rank, number = trainer.data_parallel_rank, trainer.data_parallel_world_size
    if "out of memory" in str(error):
        tokens, sentences = trainer.cfg.dataset.max_tokens, trainer.cfg.dataset.batch_size
        size = f"--max-tokens (now {tokens})" if tokens else f"--batch-size (now {sentences})"
        return UserError(
            f"process {rank} of {number} ran out of memory in {step} after update {trainer.get_num_updates()}; lower "
            f"{size} and raise --update-freq in proportion; training goes on from the last checkpoint."
        )
    if GONE.search(str(error)):
        return UserError(
            f"process {rank} of {number} ends because another one has ended in {step}; see that one's message."
        )
    return error


def patch(module: ModuleType) -> None:
    """Wrap the steps of `fairseq.trainer.Trainer`."""

    @wrap(module.Trainer)
    def train_step(original: Any, self: Any, samples: Any, raise_oom: bool = False) -> Any:
        return step(original, self, "training", samples, raise_oom, among_others=True)

    @wrap(module.Trainer)
    def valid_step(original: Any, self: Any, sample: Any, raise_oom: bool = False) -> Any:
        return step(original, self, "validation", sample, raise_oom, among_others=raise_oom)


def step(original: Any, trainer: Any, name: str, samples: Any, raise_oom: bool, among_others: bool) -> Any:
    """A step; `among_others` takes the place of `raise_oom` where there are several processes."""
    if trainer.data_parallel_world_size == 1 or not survival.is_on():
        return original(trainer, samples, raise_oom)
    try:
        return original(trainer, samples, among_others)
    except RuntimeError as error:
        raise explain(trainer, name, error) from error

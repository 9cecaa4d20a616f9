"""Defect: a batch without an update, after an overflow of --fp16 or for lack of memory, repeats validation and saving.

fairseq decides by the number of updates whether they are due. If they were due after the last update, the same score
counts again as one without improvement (--patience).

Check: the number of updates is that after the batch before. The end of an epoch is validated and saved as usual.
"""

from typing import Any

from fairseq_modern.patching import step


@step()
def remember(trainer: Any) -> None:
    """Before an epoch, and after each batch: remember the number of updates."""
    trainer.updates_before = trainer.get_num_updates()


@step(skipped=False)
def is_skipped(trainer: Any, end_of_epoch: bool) -> bool:
    """Whether the last batch made no update, within an epoch."""
    return not end_of_epoch and trainer.get_num_updates() == getattr(trainer, "updates_before", None)

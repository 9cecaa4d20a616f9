"""Defect: with several processes and --update-freq, the last update of an epoch may have a wrong gradient.

If the last batch of a process is a dummy, because another process has one batch more, `Trainer.train_step` adds the
gradients of its batches before, but not their tokens and losses: the sum of gradients is divided by too few tokens.

Check: there are other batches before the dummy. It is then left out. Processes need not have the same number of batches
in an update, because they exchange gradients in the last one only; with fully_sharded, they do so in each.
"""

from typing import Any, List

from fairseq_modern.patching import step


@step()
def leave_out(trainer: Any, samples: List[Any]) -> None:
    """Before an update: remove the dummies from its batches, unless there are only dummies."""
    if not trainer.is_fsdp:
        samples[:] = [sample for sample in samples if sample] or samples[:1]

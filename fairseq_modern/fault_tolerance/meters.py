"""Defect: the first losses in the log of a run that resumes at the end of an epoch are averages of fewer updates.

Check: the position of the checkpoint is the start of an epoch. fairseq then restores no meters. Those of `train_inner`,
which average the updates since the last line of the log, continue in an uninterrupted run.
"""

from typing import Any, Dict, Optional

from fairseq_modern.patching import step

NAME = "train_inner"


@step()
def restore(extra_state: Optional[Dict[str, Any]], reset_meters: bool) -> None:
    """Restore the meters when a trainer has loaded a checkpoint."""
    from fairseq.logging import metrics

    position, saved = ((extra_state or {}).get(name, {}) for name in ("train_iterator", "metrics"))
    if not reset_meters and position.get("iterations_in_epoch") == 0 and NAME in saved:
        metrics.load_state_dict({NAME: saved[NAME]})

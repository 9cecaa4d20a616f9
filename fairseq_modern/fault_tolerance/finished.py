"""Defect: a finished training run makes another update whenever its command is repeated, unless --max-epoch ended it.

fairseq checks --max-update and --stop-time-hours only after an update, and --patience only after a validation.

Check: the loaded checkpoint has reached the limit. Training then ends before the first update.
"""

import logging
from typing import Any

from fairseq_modern.patching import step

logger = logging.getLogger(__name__)


@step(skipped=False)
def is_finished(module: Any, cfg: Any, trainer: Any) -> bool:
    """Before an epoch: whether the run has reached a limit. `module`: `fairseq_cli.train`."""
    updates = trainer.get_num_updates()
    hours = trainer._previous_training_time / 3600  # before this process: the same number in all processes
    limits = {
        "--max-update": (updates, cfg.optimization.max_update),
        "--stop-time-hours": (hours, cfg.optimization.stop_time_hours),
        "--patience": (getattr(module.should_stop_early, "num_runs", 0), cfg.checkpoint.patience),
    }
    # a new run may start from a checkpoint of another one, with its time
    reached = [f"{flag} {limit}" for flag, (value, limit) in limits.items() if updates and value >= limit > 0]
    if reached:
        logger.info(f"this run has already finished, after {updates} updates ({', '.join(reached)})")
    return bool(reached)

"""An update checkpoint for every --save-interval-updates, at the end of an epoch as well.

As published, fairseq writes checkpoint_EPOCH_UPDATE.pt only within an epoch. If a save falls on the end of one, the
average of the last update checkpoints misses the newest, or has too few inputs.
"""

import copy
from types import ModuleType
from typing import Any

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import wrap


class _WithinEpoch:
    """An epoch iterator that never is at the end of an epoch."""

    def __init__(self, epoch_itr: Any) -> None:
        self._epoch_itr = epoch_itr

    def end_of_epoch(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoch_itr, name)


def patch(module: ModuleType) -> None:
    """Wrap `save_checkpoint` of `fairseq.checkpoint_utils`."""

    @wrap(module)
    def save_checkpoint(original: Any, cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> Any:
        saved = original(cfg, trainer, epoch_itr, val_loss)
        interval, updates = cfg.save_interval_updates, trainer.get_num_updates()
        if fault_tolerance.is_on() and epoch_itr.end_of_epoch() and interval > 0 and updates % interval == 0:
            update_only = copy.copy(cfg)
            update_only.no_last_checkpoints, update_only.keep_best_checkpoints = True, 0
            original(update_only, trainer, _WithinEpoch(epoch_itr), val_loss)
        return saved

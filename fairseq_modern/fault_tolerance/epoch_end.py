"""Defect: at the end of an epoch, fairseq writes no update checkpoint, checkpoint_EPOCH_UPDATE.pt.

Check: --save-interval-updates divides the number of updates. Averages would lack the latest update checkpoint. It is
written first: `checkpoint_last.pt` must be the last file of a save, because a killed run resumes after that save.
"""

import copy
from types import ModuleType, SimpleNamespace

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.checkpoint_utils.save_checkpoint`."""

    @wrap(module)
    def save_checkpoint(original, cfg, trainer, epoch_itr, val_loss):
        interval, updates = cfg.save_interval_updates, trainer.get_num_updates()
        if fault_tolerance.is_on() and epoch_itr.end_of_epoch() and interval > 0 and updates % interval == 0:
            update_only = copy.copy(cfg)
            update_only.no_last_checkpoints, update_only.keep_best_checkpoints = True, 0
            within_epoch = SimpleNamespace(
                epoch=epoch_itr.epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict
            )
            original(update_only, trainer, within_epoch, val_loss)
        return original(cfg, trainer, epoch_itr, val_loss)

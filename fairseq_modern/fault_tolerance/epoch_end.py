"""Defect: at the end of an epoch, fairseq writes no update checkpoint, checkpoint_EPOCH_UPDATE.pt.

Check: --save-interval-updates divides the number of updates. Averages would lack the latest update checkpoint. It is
written first: `checkpoint_last.pt` must be the last file of a save, because a killed run resumes after that save.
"""

import copy
from types import SimpleNamespace
from typing import Any, Callable

from fairseq_modern.patching import step


@step()
def save_update(save_checkpoint: Callable[..., Any], cfg: Any, trainer: Any, epoch_itr: Any, val_loss: Any) -> None:
    """Before a save: write the update checkpoint if the epoch ends. `save_checkpoint`: fairseq's function."""
    interval, updates = cfg.save_interval_updates, trainer.get_num_updates()
    if epoch_itr.end_of_epoch() and interval > 0 and updates % interval == 0:
        update_only = copy.copy(cfg)
        update_only.no_last_checkpoints, update_only.keep_best_checkpoints = True, 0
        within_epoch = SimpleNamespace(
            epoch=epoch_itr.epoch, end_of_epoch=lambda: False, state_dict=epoch_itr.state_dict
        )
        save_checkpoint(update_only, trainer, within_epoch, val_loss)

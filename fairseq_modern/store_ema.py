"""Defects of --store-ema.

- It ends in a KeyError if the checkpoint has no moving average, as with --finetune-from-model. Check:
  `Trainer.load_checkpoint` deletes the model from the checkpoint before it needs it. The average then starts at the
  parameters of the model.
- With --ema-update-freq, a resumed run updates the average at other times. Check: the counter of updates is not in the
  checkpoint; it follows from their number.
"""

from typing import Any, Dict, Optional

from fairseq_modern.patching import step


@step()
def add_average(trainer: Any, state: Dict[str, Any]) -> None:
    """Add the average to a checkpoint that a trainer has read."""
    extra_state = state.get("extra_state")
    if trainer.cfg.ema.store_ema and extra_state is not None:
        extra_state.setdefault("ema", dict(state["model"]))


@step()
def restore_counter(trainer: Any, extra_state: Optional[Dict[str, Any]]) -> None:
    """Restore the counter when a trainer has loaded a checkpoint."""
    if trainer.cfg.ema.store_ema and extra_state is not None:
        trainer.ema.update_freq_counter = trainer.get_num_updates() % max(1, trainer.cfg.ema.ema_update_freq)

"""Defects of --store-ema.

- It ends in a KeyError if the checkpoint has no moving average, as with --finetune-from-model. Check:
  `Trainer.load_checkpoint` deletes the model from the checkpoint before it needs it. The average then starts at the
  parameters of the model.
- With --ema-update-freq, a resumed run updates the average at other times. Check: the counter of updates is not in the
  checkpoint; it follows from their number.
"""

from types import ModuleType

from fairseq_modern.patching import adapts_checkpoints, wrap


def patch(module: ModuleType) -> None:
    """Add the average to the checkpoints that `fairseq.trainer.Trainer` loads, and restore the counter."""

    @wrap(module.Trainer)
    def load_checkpoint(original, self, *args, **options):
        extra_state = original(self, *args, **options)
        if self.cfg.ema.store_ema and extra_state is not None:
            self.ema.update_freq_counter = self.get_num_updates() % max(1, self.cfg.ema.ema_update_freq)
        return extra_state

    @adapts_checkpoints(module)
    def adapt(trainer, state, *_, **__):
        extra_state = state.get("extra_state")
        if trainer.cfg.ema.store_ema and extra_state is not None:
            extra_state.setdefault("ema", dict(state["model"]))

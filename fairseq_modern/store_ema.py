"""Defect: --store-ema ends in a KeyError if the checkpoint has no moving average, as with --finetune-from-model.

Check: `Trainer.load_checkpoint` deletes the model from the checkpoint before it needs it. The average then starts at
the parameters of the model.
"""

from types import ModuleType

from fairseq_modern.patching import adapts_checkpoints


def patch(module: ModuleType) -> None:
    """Add the average to the checkpoints that `fairseq.trainer.Trainer` loads."""

    @adapts_checkpoints(module)
    def adapt(trainer, state, *_, **__):
        extra_state = state.get("extra_state")
        if trainer.cfg.ema.store_ema and extra_state is not None:
            extra_state.setdefault("ema", dict(state["model"]))

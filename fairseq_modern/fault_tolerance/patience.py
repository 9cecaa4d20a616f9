"""Defect: a resumed run forgets for how many validations the score has not improved, and stops later with --patience.

Check: the attributes in which fairseq counts these validations. They are stored in checkpoints. Like the best score,
they are not restored with --reset-optimizer or --reset-meters.
"""

from types import ModuleType

from fairseq_modern import fault_tolerance
from fairseq_modern.patching import names, wrap

COUNTERS = ("best", "num_runs")  # attributes of the function `should_stop_early`
KEY = "early_stopping"


def patch(module: ModuleType) -> None:
    """Wrap `save_checkpoint` and `load_checkpoint` of the `Trainer` that `fairseq_cli.train` uses."""
    counted = vars(module.should_stop_early)
    if not names(module.should_stop_early).issuperset(COUNTERS):
        return

    @wrap(module.Trainer)
    def save_checkpoint(original, self, filename, extra_state):
        counters = {name: counted[name] for name in COUNTERS if name in counted}
        if counters:
            extra_state = {**extra_state, KEY: counters}
        return original(self, filename, extra_state)

    @wrap(module.Trainer)
    def load_checkpoint(
        original,
        self,
        filename,
        reset_optimizer=False,
        reset_lr_scheduler=False,
        optimizer_overrides=None,
        reset_meters=False,
    ):
        extra_state = original(self, filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters)
        if fault_tolerance.is_on() and not reset_optimizer and not reset_meters:
            counted.update((extra_state or {}).get(KEY, {}))
        return extra_state

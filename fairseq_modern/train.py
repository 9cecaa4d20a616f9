"""Patches several training runs in one process, such as Hydra's `--multirun`.

fairseq keeps the best score so far as attributes of two functions, where the next run finds the previous run's: it
writes no `checkpoint_best.pt` unless it is better, and stops too early. They are cleared before each run.
(`python -m fairseq_cli.train` runs once and then ends; there the function is left as it is.)
"""

from types import ModuleType
from typing import Any

from fairseq_modern.patching import wrap

LEFT_BEHIND = ("best", "num_runs")


def patch(module: ModuleType) -> None:
    """Wrap `fairseq_cli.train.main`."""

    @wrap(module)
    def main(original: Any, *args: Any, **options: Any) -> Any:
        for function in (module.checkpoint_utils.save_checkpoint, module.should_stop_early):
            for name in LEFT_BEHIND:
                vars(function).pop(name, None)
        return original(*args, **options)

"""Hooks for classes of a `--user-dir`, for which fairseq relies on names and parameter shapes alone.

- A model or criterion may define `check_training(trainer)`. It is called when the trainer has been created, and may
  reject its `cfg`.
- A model may define `adapt_checkpoint(state, filename, reset_optimizer)`. It is called with every checkpoint that
  training loads, and may modify it: fairseq compares parameters, but not the settings that define their meaning.
- A model may set `sequence_generator`, a class that is used instead of fairseq's `SequenceGenerator`.
- An optimizer or criterion may set `same_state_as`, the name of a class whose checkpoints it can load. fairseq rejects
  a checkpoint if the names of the classes differ.

Check: the attribute is defined.
"""

from types import ModuleType
from typing import Any, Dict, Mapping

from fairseq_modern.patching import step, wrap


def rename(last: Dict[str, Any], key: str, registry: Mapping[str, type], current: str) -> None:
    """Replace the class name `last[key]` in a checkpoint by the current one if both have the same state."""
    states = {cls.__name__: getattr(cls, "same_state_as", cls.__name__) for cls in registry.values()}
    saved = last.get(key, "")
    if states.get(saved, saved) == states.get(current, current):
        last[key] = current


@step()
def check_training(trainer: Any) -> None:
    """Call `check_training` of the model and the criterion of a new trainer."""
    for part in (trainer.get_model(), trainer.get_criterion()):
        if hasattr(part, "check_training"):
            part.check_training(trainer)


@step()
def adapt_checkpoint(trainer: Any, state: Dict[str, Any], filename: str, reset_optimizer: bool) -> None:
    """Let the model adapt a checkpoint that a trainer has read, and use the present names of equivalent classes."""
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.optim import OPTIMIZER_REGISTRY

    if hasattr(trainer.get_model(), "adapt_checkpoint"):
        trainer.get_model().adapt_checkpoint(state, filename, reset_optimizer)
    for last in state.get("optimizer_history", [])[-1:]:
        rename(last, "criterion_name", CRITERION_REGISTRY, type(trainer.get_criterion()).__name__)
        settings = trainer.cfg.optimizer
        name = getattr(settings, "_name", None) or getattr(settings, "optimizer", "")
        optimizer: Any = OPTIMIZER_REGISTRY.get(name, type(None))
        rename(last, "optimizer_name", OPTIMIZER_REGISTRY, optimizer.__name__)


def patch_task(module: ModuleType) -> None:
    """Wrap `fairseq.tasks.FairseqTask.build_generator`."""

    @wrap(module.FairseqTask)
    def build_generator(original, self, models, args, seq_gen_cls=None, *rest, **options):
        classes = {getattr(model, "sequence_generator", None) for model in models}
        if seq_gen_cls is None and len(classes) == 1 and not getattr(args, "print_alignment", False):
            (seq_gen_cls,) = classes
        return original(self, models, args, seq_gen_cls, *rest, **options)

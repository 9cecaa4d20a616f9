"""Lets the classes that a `--user-dir` brings have a say where fairseq goes by settings and names alone.

- `check_training(trainer)` of a model or criterion is called as soon as there is a trainer, and may refuse its `cfg`.
- `adapt_checkpoint(state, filename, reset_optimizer)` of a model is called with every checkpoint that a training takes
  up, as it was read, and may change it: fairseq compares parameters, not the settings that give them a meaning.
- `sequence_generator` of models is the class that translates with them, where a task would take fairseq's own
  `SequenceGenerator`; it is made with the same arguments.
- `state_of` of an optimizer or criterion names the class whose state it has. As published, a checkpoint is refused
  unless it was made by a class of the same name.
"""

from types import ModuleType
from typing import Any, Dict, Mapping

from fairseq_modern.patching import adapts_checkpoints, wrap


def rename(last: Dict[str, Any], key: str, registry: Mapping[str, type], now: str) -> None:
    """Where what a checkpoint was made by, `last[key]`, has the state of the class `now`, let it have its name."""
    states = {cls.__name__: getattr(cls, "state_of", cls.__name__) for cls in registry.values()}
    before = last.get(key, "")
    if states.get(before, before) == states.get(now, now):
        last[key] = now


def patch(module: ModuleType) -> None:
    """Wrap how `fairseq.trainer.Trainer` is made and takes up a checkpoint."""

    @wrap(module.Trainer)
    def __init__(original: Any, self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        for part in (self.get_model(), self.get_criterion()):
            if hasattr(part, "check_training"):
                part.check_training(self)

    @adapts_checkpoints(module)
    def adapt(self: Any, state: Any, filename: str, reset_optimizer: bool = False, *_: Any, **__: Any) -> None:
        from fairseq.criterions import CRITERION_REGISTRY
        from fairseq.optim import OPTIMIZER_REGISTRY

        if hasattr(self.get_model(), "adapt_checkpoint"):
            self.get_model().adapt_checkpoint(state, filename, reset_optimizer)
        for last in state.get("optimizer_history", [])[-1:]:
            rename(last, "criterion_name", CRITERION_REGISTRY, type(self.get_criterion()).__name__)
            settings = self.cfg.optimizer
            name = getattr(settings, "_name", None) or getattr(settings, "optimizer", "")
            optimizer: Any = OPTIMIZER_REGISTRY.get(name, type(None))
            rename(last, "optimizer_name", OPTIMIZER_REGISTRY, optimizer.__name__)


def patch_task(module: ModuleType) -> None:
    """Wrap how `fairseq.tasks.FairseqTask` chooses what translates."""

    @wrap(module.FairseqTask)
    def build_generator(
        original: Any, self: Any, models: Any, args: Any, seq_gen_cls: Any = None, *rest: Any, **options: Any
    ) -> Any:
        own = {getattr(model, "sequence_generator", None) for model in models}
        if seq_gen_cls is None and len(own) == 1 and not getattr(args, "print_alignment", False):
            (seq_gen_cls,) = own
        return original(self, models, args, seq_gen_cls, *rest, **options)

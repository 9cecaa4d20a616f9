"""Tools for patches: detect a defect, wrap a function, override names of a module for one other module."""

import functools
import inspect
from types import CodeType, ModuleType
from typing import Any, Callable, Set, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def names(function: Any) -> Set[str]:
    """Return all names and strings in the code of a function and of its nested functions, to check for a defect."""
    collected: Set[str] = set()
    codes = [inspect.unwrap(function).__code__]
    while codes:
        code = codes.pop()
        collected.update(code.co_names)
        collected.update(constant for constant in code.co_consts if isinstance(constant, str))
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return collected


def wrap(owner: Any) -> Callable[[F], F]:
    """Replace the function of the same name in a module or class; pass the original as first argument."""

    def decorate(function: F) -> F:
        original = getattr(owner, function.__name__)

        @functools.wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            return function(original, *args, **options)

        setattr(owner, function.__name__, wrapper)
        return function

    return decorate


class StandIn(ModuleType):
    """A module such as torch as one module of fairseq sees it: some names are overridden."""

    def __init__(self, module: ModuleType, **overrides: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(overrides, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def adapts_checkpoints(module: Any) -> Callable[[F], F]:
    """Call the decorated function with each checkpoint that `fairseq.trainer.Trainer` loads, before it is used.

    The function may modify the checkpoint. Its arguments are the trainer, the checkpoint, and the arguments of
    `Trainer.load_checkpoint`. Functions are called in the order of the table of patches.
    """
    adapters = vars(module.Trainer).get("checkpoint_adapters")
    if adapters is None:
        adapters = module.Trainer.checkpoint_adapters = []

        @wrap(module.Trainer)
        def load_checkpoint(original: Any, self: Any, *args: Any, **options: Any) -> Any:
            def load_checkpoint_to_cpu(*load_args: Any, **load_options: Any) -> Any:
                state = utils.load_checkpoint_to_cpu(*load_args, **load_options)
                for adapt in adapters:
                    adapt(self, state, *args, **options)
                return state

            utils = module.checkpoint_utils
            module.checkpoint_utils = StandIn(utils, load_checkpoint_to_cpu=load_checkpoint_to_cpu)
            try:
                return original(self, *args, **options)
            finally:
                module.checkpoint_utils = utils

    def decorate(adapt: F) -> F:
        adapters.append(adapt)
        return adapt

    return decorate

"""What the patches have in common: telling a defect, wrapping a function, a module's own view of another module."""

import functools
import inspect
from types import CodeType, ModuleType
from typing import Any, Callable, Set, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def names(function: Any) -> Set[str]:
    """All names and strings in the code of a function and of the functions within it; a wrapped one's, if it is one.

    They tell whether a function of fairseq has the defect that a patch is for: other versions may not have it.
    """
    found: Set[str] = set()
    codes = [inspect.unwrap(function).__code__]
    while codes:
        code = codes.pop()
        strings = {constant for constant in code.co_consts if isinstance(constant, str)}
        found |= set(code.co_names) | strings
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


def wrap(owner: Any) -> Callable[[F], F]:
    """Put the decorated function in the place of the module's or class's own of that name, its first argument."""

    def put(function: F) -> F:
        original = getattr(owner, function.__name__)

        @functools.wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            return function(original, *args, **options)

        setattr(owner, function.__name__, wrapper)
        return function

    return put


class StandIn(ModuleType):
    """Stands for a module, such as torch, in one module of fairseq: some names of its own, then all of its."""

    def __init__(self, module: ModuleType, **own: Any) -> None:
        super().__init__(module.__name__, f"{module.__name__} as one module of fairseq sees it")
        vars(self).update(own, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def adapts_checkpoints(module: Any) -> Callable[[F], F]:
    """Call the decorated function with each checkpoint that `fairseq.trainer.Trainer` takes up, as it was read.

    It may change it. Its arguments: the trainer, the checkpoint, and those of `Trainer.load_checkpoint`.
    """

    def put(adapt: F) -> F:
        @wrap(module.Trainer)
        def load_checkpoint(original: Any, self: Any, *args: Any, **options: Any) -> Any:
            def load_checkpoint_to_cpu(*given: Any, **more: Any) -> Any:
                state = utils.load_checkpoint_to_cpu(*given, **more)
                adapt(self, state, *args, **options)
                return state

            utils = module.checkpoint_utils
            module.checkpoint_utils = StandIn(utils, load_checkpoint_to_cpu=load_checkpoint_to_cpu)
            try:
                return original(self, *args, **options)
            finally:
                module.checkpoint_utils = utils

        return adapt

    return put

"""Tools for patches: detect a defect, wrap a function, override names for one other module or for a block."""

import contextlib
import functools
import inspect
from types import CodeType, ModuleType
from typing import Any, Callable, Iterator, Set, TypeVar

import fairseq_modern
from fairseq_modern import fault_tolerance

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


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Set attributes of an object or module, and restore them at the end."""
    originals = {name: getattr(owner, name) for name in values}
    vars(owner).update(values)
    try:
        yield
    finally:
        vars(owner).update(originals)


class StandIn(ModuleType):
    """A module such as torch as one module of fairseq sees it: some names are overridden."""

    def __init__(self, module: ModuleType, **overrides: Any) -> None:
        super().__init__(module.__name__)
        vars(self).update(overrides, _module=module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def step(skipped: Any = None) -> Callable[[F], F]:
    """Mark a part of a wrapper in `wrappers`: it returns `skipped` instead if its patch is in FAIRSEQ_MODERN_SKIP.

    Parts of `fault_tolerance` do so, too, while it is off.
    """

    def decorate(function: F) -> F:
        package, _, patch = function.__module__.rpartition(".")

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            is_off = package == fault_tolerance.__name__ and not fault_tolerance.is_on()
            return skipped if is_off or patch in fairseq_modern.skipped() else function(*args, **options)

        return call  # type: ignore[return-value]

    return decorate

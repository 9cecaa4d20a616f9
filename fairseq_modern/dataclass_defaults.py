"""Patches: `import fairseq` on Python 3.11 and later.

fairseq's configuration dataclasses use instances of one another as default values. Since 3.11 `dataclasses` refuses
every default whose class is unhashable, and a dataclass with `__eq__` is. Factories instead of defaults would not do:
`fairseq.dataclass.initialize.hydra_init` reads the fields' `.default`. So the class of each such default is given the
hash of a plain object, through an `__init_subclass__` on their common base, which covers the classes of plugins too.

The base class must have it before the next class of the same file is made, that is while
`fairseq.dataclass.configs` is being executed. That module is lent a private copy of the built-in functions, in which
the one that makes classes recognises the base class; no one else sees it.
"""

import builtins
import dataclasses
import sys
from types import ModuleType
from typing import Any

BASE = "FairseqDataclass"


def _hash_defaults(base: Any) -> None:
    """Give those classes derived from `base` whose instances serve as defaults, and have no hash, that of `object`."""

    def __init_subclass__(cls: Any, **options: Any) -> None:
        super(base, cls).__init_subclass__(**options)
        for value in vars(cls).values():
            default = value.default if isinstance(value, dataclasses.Field) else value
            if isinstance(default, base) and type(default).__hash__ is None:
                type(default).__hash__ = object.__hash__  # type: ignore[assignment]

    base.__init_subclass__ = classmethod(__init_subclass__)


def _make_class(body: Any, name: str, *bases: Any, **options: Any) -> Any:
    """What a `class` statement calls, for the module that defines the base class of fairseq's dataclasses."""
    made = builtins.__build_class__(body, name, *bases, **options)
    if name == BASE and not bases:
        _hash_defaults(made)
    return made


def hash_configs(module: ModuleType) -> None:
    """Before `fairseq.dataclass.configs` runs: lend it the class statement that looks out for the base class."""
    if sys.version_info >= (3, 11):
        vars(module)["__builtins__"] = {**vars(builtins), "__build_class__": _make_class}


def restore_builtins(module: ModuleType) -> None:
    """After it ran: give it the usual built-in functions."""
    vars(module)["__builtins__"] = vars(builtins)

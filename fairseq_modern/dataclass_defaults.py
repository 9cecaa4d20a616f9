"""Defect: `import fairseq` fails on Python 3.11 and later, where dataclasses reject unhashable default values.

Check: the version of Python, and whether the class of a default is hashable.

Such classes get the hash of `object`, from an `__init_subclass__` of their common base class. The base class needs it
before the next class of the same file is created: while `fairseq.dataclass.configs` runs, its `__build_class__` is
replaced. (`default_factory` is no solution: `hydra_init` reads the `.default` of fields.)
"""

import builtins
import dataclasses
import sys
from types import ModuleType
from typing import Any

BASE = "FairseqDataclass"


def _hash_defaults(base: Any) -> None:
    """Make the classes derived from `base` hashable if their instances serve as defaults."""

    def __init_subclass__(cls: Any, **options: Any) -> None:
        super(base, cls).__init_subclass__(**options)
        for value in vars(cls).values():
            default = value.default if isinstance(value, dataclasses.Field) else value
            if isinstance(default, base) and type(default).__hash__ is None:
                type(default).__hash__ = object.__hash__  # type: ignore[assignment]

    base.__init_subclass__ = classmethod(__init_subclass__)


def _build_class(body: Any, name: str, *bases: Any, **options: Any) -> Any:
    """The `__build_class__` of `fairseq.dataclass.configs`."""
    cls = builtins.__build_class__(body, name, *bases, **options)
    if name == BASE and not bases:
        _hash_defaults(cls)
    return cls


def hash_configs(module: ModuleType) -> None:
    """Before `fairseq.dataclass.configs` runs: replace its `__build_class__`."""
    if sys.version_info >= (3, 11):
        vars(module)["__builtins__"] = {**vars(builtins), "__build_class__": _build_class}


def restore_builtins(module: ModuleType) -> None:
    """After it has run: restore its built-in functions."""
    vars(module)["__builtins__"] = vars(builtins)

"""Mends names that NumPy has removed: `np.int`, `np.float`, `np.compat.long` and their like, and the old spelling of an
argument of `np.percentile`.

The few modules of fairseq that use them get an `np` of their own, which has these names as well; NumPy itself is left
as it is.
"""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

REMOVED = {"bool": bool, "complex": complex, "float": float, "int": int, "object": object, "str": str}


def percentile(*args: Any, **options: Any) -> Any:
    """NumPy's, which since 2.4 knows the argument `interpolation` by the name `method` only."""
    if "interpolation" in options:
        options["method"] = options.pop("interpolation")
    return numpy.percentile(*args, **options)


class OldNumPy(ModuleType):
    """Stands for NumPy in one module: what NumPy has not got any more, then all of NumPy."""

    def __init__(self) -> None:
        super().__init__("numpy", "NumPy with the names that it used to have")
        vars(self).update(REMOVED, compat=SimpleNamespace(long=int), percentile=percentile)

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)


def mend(module: ModuleType) -> None:
    """Give the module its own `np`."""
    module.np = OldNumPy()  # type: ignore[attr-defined]

"""Mends names that NumPy has removed: `np.int`, `np.float`, `np.compat.long` and their like, and the old spelling of an
argument of `np.percentile`.

The few modules of fairseq that use them get an `np` of their own, which has these names as well; NumPy itself is left
as it is.
"""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

from fairseq_modern.patching import StandIn

REMOVED = {"bool": bool, "complex": complex, "float": float, "int": int, "object": object, "str": str}


def percentile(*args: Any, **options: Any) -> Any:
    """NumPy's, which since 2.4 knows the argument `interpolation` by the name `method` only."""
    if "interpolation" in options:
        options["method"] = options.pop("interpolation")
    return numpy.percentile(*args, **options)


def patch(module: ModuleType) -> None:
    """Give the module its own `np`, if it has one."""
    if "np" in vars(module):
        own: Any = StandIn(numpy, **REMOVED, compat=SimpleNamespace(long=int), percentile=percentile)
        module.np = own  # type: ignore[attr-defined]

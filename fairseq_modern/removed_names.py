"""Patches names that NumPy has removed: `np.int`, `np.float`, `np.compat.long` and their like, and the old spelling of
an argument of `np.percentile`; and `bitarray.util.rindex`, which bitarray 3 no longer has.

The few modules of fairseq that use them get an `np` or `util` of their own; NumPy itself is left as it is.
"""

from types import SimpleNamespace
from typing import Any

import numpy

from fairseq_modern.patching import StandIn

REMOVED = {"bool": bool, "complex": complex, "float": float, "int": int, "object": object, "str": str}


def percentile(*args: Any, **options: Any) -> Any:
    """NumPy's, which since 2.4 knows the argument `interpolation` by the name `method` only."""
    if "interpolation" in options:
        options["method"] = options.pop("interpolation")
    return numpy.percentile(*args, **options)


def rindex(bits: Any, value: int) -> int:
    """The position of the last bit that is `value`."""
    return int(bits.index(value, right=True))


def patch(module: Any) -> None:
    """Give the module its own `np`, if it has one."""
    if "np" in vars(module):
        module.np = StandIn(numpy, **REMOVED, compat=SimpleNamespace(long=int), percentile=percentile)


def patch_bits(module: Any) -> None:
    """Give `fairseq.data.huffman.huffman_coder` the function, where bitarray lacks it."""
    if not hasattr(module.util, "rindex"):
        module.util = StandIn(module.util, rindex=rindex)

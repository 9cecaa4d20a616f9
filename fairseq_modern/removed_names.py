"""Defect: fairseq uses names that NumPy and bitarray have removed.

Check: the modules use these names. They get their own `np` or `util`; NumPy and bitarray stay unchanged.
"""

from types import SimpleNamespace
from typing import Any

import numpy

from fairseq_modern.patching import StandIn


def percentile(*args: Any, **options: Any) -> Any:
    """`np.percentile`, which also accepts the old name of the argument `method`."""
    if "interpolation" in options:
        options["method"] = options.pop("interpolation")
    return numpy.percentile(*args, **options)


def rindex(bits: Any, value: int) -> int:
    """Return the position of the last bit that equals `value`."""
    return int(bits.index(value, right=True))


def patch(module: Any) -> None:
    compat = SimpleNamespace(long=int)
    module.np = StandIn(numpy, float=float, int=int, compat=compat, percentile=percentile)


def patch_bits(module: Any) -> None:
    """Patch `fairseq.data.huffman.huffman_coder`."""
    if not hasattr(module.util, "rindex"):
        module.util = StandIn(module.util, rindex=rindex)

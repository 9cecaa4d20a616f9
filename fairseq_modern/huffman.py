"""Mends Huffman-coded data: `bitarray.util.rindex`, which bitarray 3 no longer has."""

from types import ModuleType
from typing import Any

from fairseq_modern.patching import StandIn


def rindex(bits: Any, value: int) -> int:
    """The position of the last bit that is `value`."""
    return int(bits.index(value, right=True))


def patch(module: ModuleType) -> None:
    """Give `fairseq.data.huffman.huffman_coder` the function, where bitarray lacks it."""
    if not hasattr(module.util, "rindex"):
        module.util = StandIn(module.util, rindex=rindex)  # type: ignore[attr-defined]

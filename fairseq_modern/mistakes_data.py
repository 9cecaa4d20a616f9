"""Binarised data whose files do not hold what their index says, as an interrupted copy leaves them.

As published, a training ends in a traceback when it comes to the first sentence that is not there. Here the files are
refused when they are opened.
"""

import io
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy

from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap how `fairseq.data.indexed_dataset.MMapIndexedDataset` opens its two files."""

    @wrap(module.MMapIndexedDataset)
    def _do_init(original: Any, self: Any, path: str) -> None:
        self._bin_buffer_mmap = SimpleNamespace(_mmap=io.BytesIO())  # for __del__, where nothing comes in its place
        try:
            original(self, path)
            start, size = self._index[len(self._index) - 1] if len(self._index) else (0, 0)
            expected, got = int(start) + int(size) * numpy.dtype(self._index.dtype).itemsize, len(self._bin_buffer)
        except ValueError as error:  # the index is cut, or a file is empty
            raise UserError(f"{path}.idx or .bin is not whole ({error}); binarise or copy the data again.") from error
        if got < expected:
            raise UserError(f"{path}.bin has {got} bytes, expected {expected}; binarise or copy the data again.")

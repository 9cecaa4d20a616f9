"""Defect: with truncated data files, as after an interrupted copy, training fails only at the first missing sentence.

Check: the size of the data file, against the last entry of its index, when the files are opened. That entry itself is
checked against the lengths of the sentences, since indexes with wrong positions exist (see `index_overflow`).
"""

import io
from types import ModuleType, SimpleNamespace

import numpy

from fairseq_modern.errors import UserError
from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap the method of `fairseq.data.indexed_dataset.MMapIndexedDataset` that opens its two files."""

    @wrap(module.MMapIndexedDataset)
    def _do_init(original, self, path):
        advice = "binarise or copy the data again"
        self._bin_buffer_mmap = SimpleNamespace(_mmap=io.BytesIO())  # __del__ needs it if opening fails
        try:
            original(self, path)
        except ValueError as error:  # the index is truncated, or a file is empty
            raise UserError(f"{path}.idx or {path}.bin is truncated ({error}); {advice}") from error
        if len(self._index) == 0:
            return
        start, length = self._index[len(self._index) - 1]
        item_size = numpy.dtype(self._index.dtype).itemsize
        expected_start = int(self._index.sizes[:-1].sum(dtype=numpy.int64)) * item_size
        if start != expected_start:
            raise UserError(
                f"{path}.idx must place the last sentence at byte {expected_start}; got {start}, so that sentences "
                "would be wrong; binarise the data again"
            )
        expected = expected_start + int(length) * item_size
        size = len(self._bin_buffer)
        if size < expected:
            raise UserError(f"{path}.bin must have at least {expected} bytes; got {size}; {advice}")

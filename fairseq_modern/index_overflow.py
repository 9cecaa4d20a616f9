"""Defect: `fairseq-preprocess --workers 2` writes wrong positions of sentences if a data file exceeds 2 GiB.

Check: NumPy 2. When fairseq merges the files of its workers, it adds up lengths of type int32; in NumPy 2, the sum has
the same type and overflows. `truncated_data` rejects indexes that were written without this patch.
"""

from types import ModuleType

import numpy

from fairseq_modern.patching import wrap


def patch(module: ModuleType) -> None:
    """Wrap the method of `fairseq.data.indexed_dataset.MMapIndexedDatasetBuilder` that writes the index."""
    if not isinstance(numpy.int32(1) * 2, numpy.int32):  # NumPy 1
        return

    @wrap(module.MMapIndexedDatasetBuilder)
    def finalize(original, self, index_file):
        self._sizes = [int(size) for size in self._sizes]
        original(self, index_file)

"""Patches: an interrupted write leaves a broken checkpoint under the name that training resumes from.

As published, `checkpoint_last.pt` and `checkpoint_best.pt` are plain copies, and nothing is forced to the disk. Here
every checkpoint on a local disk is written to a file beside it, `NAME.HEX.tmp`, forced to the disk and then renamed, so
that it is there whole or not at all; so is a copy. Where the name is a link, the link is replaced; the file that it
points to stays as it is. A fairseq that forces its own checkpoints to the disk is left alone.
"""

import contextlib
import os
import shutil
from types import ModuleType
from typing import Any, Iterator

import torch

from fairseq_modern.errors import CheckpointError
from fairseq_modern.files import atomic_write
from fairseq_modern.patching import names


@contextlib.contextmanager
def checkpoint_file(path: str) -> Iterator[Any]:
    """As `atomic_write`; what the system says is part of a CheckpointError."""
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        raise CheckpointError(
            f"{path} could not be written ({error.strerror or error}); whatever was there before is unchanged."
        ) from error


def patch(module: ModuleType) -> None:
    """Replace how `fairseq.checkpoint_utils` writes and copies checkpoints on local disks."""
    original: Any = module.PathManager
    original_save = module.torch_persistent_save
    if "fsync" in names(original_save) | names(original.copy):
        return

    def torch_persistent_save(obj: Any, filename: Any, async_write: bool = False) -> None:
        """Save `obj` under `filename`, whole or not at all. Remote and asynchronous writes go fairseq's way."""
        if async_write or not isinstance(filename, (str, os.PathLike)) or not original.supports_rename(str(filename)):
            original_save(obj, filename, async_write=async_write)
            return
        with checkpoint_file(os.fspath(filename)) as file:
            torch.save(obj, file)

    class PathManager(original):
        """fairseq's, except that a local copy is there whole or not at all."""

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            remote = original.path_requires_pathmanager(src_path) or original.path_requires_pathmanager(dst_path)
            if remote or (os.path.exists(dst_path) and not overwrite):
                return original.copy(src_path, dst_path, overwrite=overwrite)
            with open(src_path, "rb") as source, checkpoint_file(dst_path) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            return dst_path

    module.torch_persistent_save = torch_persistent_save  # type: ignore[attr-defined]
    module.PathManager = PathManager  # type: ignore[attr-defined]

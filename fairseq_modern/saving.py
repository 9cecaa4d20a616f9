"""Defect: an interrupted write or copy leaves a damaged checkpoint under the name that training resumes from.

Check: fairseq does not call `fsync`. Checkpoints on local disks are then written and copied atomically.
"""

import contextlib
import os
import shutil
from types import ModuleType
from typing import Any, Iterator

import torch

from fairseq_modern.errors import UserError
from fairseq_modern.files import atomic_write
from fairseq_modern.patching import names


@contextlib.contextmanager
def checkpoint_file(path: str) -> Iterator[Any]:
    """`atomic_write` that raises UserError if the file cannot be written."""
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"{path} could not be written ({reason}); an existing file is unchanged") from error


def patch(module: ModuleType) -> None:
    """Replace the functions of `fairseq.checkpoint_utils` that write and copy checkpoints."""
    original: Any = module.PathManager
    original_save = module.torch_persistent_save
    if "fsync" in names(original_save) | names(original.copy):
        return

    def torch_persistent_save(obj: Any, filename: Any, async_write: bool = False) -> None:
        """Save `obj` atomically; leave remote and asynchronous writes to fairseq."""
        is_path = isinstance(filename, (str, os.PathLike))
        if async_write or not is_path or not original.supports_rename(str(filename)):
            original_save(obj, filename, async_write=async_write)
            return
        with checkpoint_file(os.fspath(filename)) as file:
            torch.save(obj, file)

    class PathManager(original):
        """fairseq's `PathManager`, except that local copies are atomic."""

        @staticmethod
        def copy(src_path: str, dst_path: str, overwrite: bool = False) -> Any:
            is_remote = any(original.path_requires_pathmanager(path) for path in (src_path, dst_path))
            if is_remote or (os.path.exists(dst_path) and not overwrite):
                return original.copy(src_path, dst_path, overwrite=overwrite)
            with open(src_path, "rb") as source, checkpoint_file(dst_path) as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            return dst_path

    module.torch_persistent_save = torch_persistent_save  # type: ignore[attr-defined]
    module.PathManager = PathManager  # type: ignore[attr-defined]

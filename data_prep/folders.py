"""Output folders of data preparation: one process at a time writes them, and they record their origin and checksums."""

import contextlib
import os
from pathlib import Path
from typing import Callable, Iterator

from fairseq_modern.errors import UserError
from fairseq_modern.files import CHECKSUMS, acquire_lock, damaged_files, sha256


@contextlib.contextmanager
def output_lock(output: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Allow one preparation of an output at a time. The lock file is removed: a failed preparation leaves nothing."""
    lock = acquire_lock(f"{output}.lock", on_wait, timeout=-1)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # removed by another process, on a file system without locks
            os.unlink(lock.lock_file)  # while it is locked: waiting processes notice it
        lock.release()


def is_complete(output: Path, matches: Callable[[Path], bool], force: bool) -> bool:
    """Whether the output exists and is the requested one.

    Args:
        matches: whether a prepared.txt is that of the requested data.
        force: whether an output of this program is replaced.

    Raises:
        UserError: something else would be overwritten, or the files are damaged.
    """
    if not output.exists():
        return False
    prepared = output / "prepared.txt"
    if not prepared.is_file():
        if not output.is_dir() or any(output.iterdir()):
            raise UserError(f"{output} exists and was not made by this script; move it away or choose another --output")
        output.rmdir()
        return False
    if force:
        return False
    if not matches(prepared):
        raise UserError(
            f"{output} was prepared with different options or files (see its prepared.txt); "
            "give --force to rebuild it, or a different --output"
        )
    if damaged_files(output):
        raise UserError(f"{output} is damaged (its files differ from its {CHECKSUMS}); give --force to rebuild it")
    return True


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, with all files of the folder and its subfolders."""
    paths = [*sorted(folder.glob("*")), *sorted(folder.glob("*/*"))]
    lines = [f"{sha256(path)}  {path.relative_to(folder)}\n" for path in paths if path.is_file()]
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")

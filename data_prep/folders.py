"""A folder that appears whole or not at all, knows what it was made from, and holds the sums of its files."""

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Callable, Iterator

from unpack import CorpusError

from fairseq_modern.files import damaged_files, remove_stale_temp_files, sha256, temporary_name


@contextlib.contextmanager
def alone(output: Path, wait: Callable[[], None]) -> Iterator[None]:
    """One preparation of an output at a time; a killed one holds up none."""
    path = f"{output}.lock"
    while True:
        with open(path, "w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                wait()
                fcntl.lockf(file, fcntl.LOCK_EX)
            if os.path.exists(path) and os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                try:
                    yield
                finally:
                    os.unlink(path)
                return  # otherwise the one before us has taken the file away


def is_complete(output: Path, is_this: Callable[[Path], bool], force: bool) -> bool:
    """Whether the output is there, which `is_this` tells from its prepared.txt; refuses another one, unless forced."""
    if not output.exists():
        return False
    if not (output / "prepared.txt").is_file():
        if not output.is_dir() or any(output.iterdir()):
            raise CorpusError(
                f"{output} exists and was not made by this script; move it away or choose another --output"
            )
        output.rmdir()
        return False
    if force:
        return False
    if not is_this(output / "prepared.txt"):
        raise CorpusError(
            f"{output} was prepared with other options or other files (see its prepared.txt); "
            "give --force to rebuild it, or another --output"
        )
    if damaged_files(output):
        raise CorpusError(f"{output} is damaged (its files differ from its SHA256SUMS); give --force to rebuild it")
    return True


def write_sums(folder: Path) -> None:
    """SHA256SUMS of the files of a folder."""
    files = [path for depth in ("*", "*/*") for path in sorted(folder.glob(depth)) if path.is_file()]
    text = "".join(f"{sha256(path)}  {path.relative_to(folder)}\n" for path in files)
    (folder / "SHA256SUMS").write_text(text, encoding="utf-8")


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A folder next to the output, which it replaces at the end.

    What killed preparations have left is removed; no other one is active (`alone`).
    """
    remove_stale_temp_files(str(output.parent), output.name)
    work, old = Path(temporary_name(str(output))), Path(temporary_name(str(output)))
    try:
        work.mkdir()
        work.chmod(0o755)
        yield work
        if output.exists():
            output.rename(old)
        work.rename(output)
    finally:
        for folder in (work, old):
            shutil.rmtree(folder, ignore_errors=True)

"""Files that appear atomically, locks between processes, checksums."""

import contextlib
import hashlib
import io
import os
import re
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Union

import filelock

PathLike = Union[str, "os.PathLike[str]"]

CHECKSUMS = "SHA256SUMS"
LOCK_PATIENCE = 60  # seconds to wait for a lock
# what `whole_or_not_at_all` writes to
_TEMPORARY = re.compile(r".+\.[0-9a-f]{16}\.tmp")


class _File(io.FileIO):
    """Remembers the system's error: torch reports a full disk as something else."""

    error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


@contextlib.contextmanager
def whole_or_not_at_all(path: str) -> Iterator[IO[bytes]]:
    """A file to write to, which appears under `path` when the block ends, and not at all if it fails.

    The data are on the disk before the name is: a crash leaves either the old or the new file. Until then the file has
    a new name, `path.HEX.tmp` with 16 hexadecimal digits: writers do not meet, and no link is followed.

    Raises:
        OSError: what the system said where it could not write, for example because the disk is full.
    """
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    file = _File(temporary, "x")  # unlike those of tempfile, with the permissions that any new file has
    try:
        with io.BufferedWriter(file) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        if file.error is not None:
            raise file.error from None
        raise
    with contextlib.suppress(OSError):  # some file systems do not sync directories
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def sha256(path: PathLike) -> str:
    """SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def remove_stale_temp_files(folder: str) -> List[str]:
    """Remove what killed processes were writing in a folder that no other process writes to; returns the names."""
    names = list(filter(_TEMPORARY.fullmatch, os.listdir(folder))) if os.path.isdir(folder) else []
    for name in names:
        os.remove(os.path.join(folder, name))
    return names


def acquire_lock(path: str, on_wait: Callable[[], None]) -> filelock.BaseFileLock:
    """Lock a file until `release` is called or this process ends.

    A file system without locks locks nothing.

    Args:
        path: the file, which is created and stays.
        on_wait: called once if another process holds the lock.

    Raises:
        TimeoutError: another process still held it after a minute.
    """
    lock = filelock.FileLock(path, mode=0o666, thread_local=False)
    with contextlib.suppress(NotImplementedError):
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            on_wait()
            lock.acquire(timeout=LOCK_PATIENCE, poll_interval=0.2)
    return lock


def read_checksums(folder: PathLike) -> Dict[str, str]:
    """File → SHA-256, as the SHA256SUMS of a folder has them.

    Raises:
        FileNotFoundError: the folder has none.
    """
    with open(os.path.join(folder, CHECKSUMS), encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split(maxsplit=1) for line in stream if line.strip()]
    return {name.lstrip("*"): digest for digest, name in rows}


def damaged_files(folder: PathLike, verified: Optional[Dict[str, List[int]]] = None) -> List[str]:
    """The files of a folder that are missing or differ from its SHA256SUMS.

    Args:
        verified: file → size and modification time (ns) when it was last verified. A file that still has both is not
            read again. Files that are verified now are added.
    """
    damaged = []
    verified = {} if verified is None else verified
    for name, digest in read_checksums(folder).items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            damaged.append(name)
            continue
        status = os.stat(path)
        stamp = [status.st_size, status.st_mtime_ns]
        if verified.get(name) == stamp:
            continue
        if sha256(path) == digest:
            verified[name] = stamp
        else:
            damaged.append(name)
    return damaged

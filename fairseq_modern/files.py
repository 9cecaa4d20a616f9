"""Files that appear atomically, locks between processes, checksums."""

import contextlib
import fcntl
import hashlib
import io
import os
import re
import shutil
from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Union

import filelock

PathLike = Union[str, "os.PathLike[str]"]

CHECKSUMS = "SHA256SUMS"
LOCK_PATIENCE = 60  # seconds to wait for a lock
# what `temporary_name` gives
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{16}\.tmp")


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
def atomic_write(path: str) -> Iterator[IO[bytes]]:
    """A file to write to, which appears under `path` when the block ends, and not at all if it fails.

    The data are on the disk before the name is: a crash leaves either the old or the new file. Until then the file has
    a name of `temporary_name`: writers do not meet, and no link is followed. What killed processes have left of earlier
    writes of this file is removed.

    Raises:
        OSError: what the system said where it could not write, for example because the disk is full.
    """
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        remove_stale_temp_files(folder or ".", name)
    while True:
        temporary = temporary_name(path)
        file = _File(temporary, "x")  # unlike those of tempfile, with the permissions that any new file has
        hold(file.fileno())
        if os.path.exists(temporary):
            break
        file.close()  # another process has removed it before it was held
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


def temporary_name(path: str) -> str:
    """A new name for what is to appear under `path` when it is complete: `path.HEX.tmp`, 16 hexadecimal digits."""
    return f"{path}.{os.urandom(8).hex()}.tmp"


def hold(descriptor: int) -> None:
    """Lock a temporary file or folder for as long as this process has it open, so that no other one removes it."""
    with contextlib.suppress(OSError):  # some file systems have no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def remove_stale_temp_files(folder: str, of: Optional[str] = None) -> List[str]:
    """Remove what killed processes were writing in a folder.

    Args:
        of: only temporary files (and folders) of this name, which a running process holds (`hold`) while it writes
            them. Default: those of all names, in a folder that no other process writes to.

    Returns:
        The names of what was removed.
    """
    removed = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match, path = _TEMPORARY.fullmatch(name), os.path.join(folder, name)
        if match is None or of not in (None, match[1]):
            continue
        remove = shutil.rmtree if os.path.isdir(path) and not os.path.islink(path) else os.remove
        if of is None:
            remove(path)
            removed.append(name)
            continue
        with contextlib.suppress(OSError):  # it is held, a link, or another user's
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
                removed.append(name)
            finally:
                os.close(descriptor)
    return removed


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

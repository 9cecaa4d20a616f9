"""Atomic writes, locks between processes, checksums."""

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import re
import shutil
import stat
from typing import IO, TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Union

if TYPE_CHECKING:
    import filelock

PathLike = Union[str, "os.PathLike[str]"]

CHECKSUMS = "SHA256SUMS"
LOCK_TIMEOUT = 60  # seconds to wait for a lock
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # on a file system without locks
_TEMPORARY = re.compile(r"(.+)\.[0-9a-f]{16}\.tmp")  # see `temporary_name`


class _File(io.FileIO):
    """A file that remembers the error of a write, since torch reports a full disk as a different error."""

    error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            raise


@contextlib.contextmanager
def atomic_write(path: str) -> Iterator[IO[bytes]]:
    """Open a file that appears as `path` when the block ends, or not at all if the block fails.

    The data are flushed to disk before the file is renamed: after a crash, `path` is either the old or the new file.
    Concurrent writers use separate temporary files; those of killed processes are removed. A link is replaced.
    """
    folder, name = os.path.split(path)
    with contextlib.suppress(OSError):
        remove_stale_temp_files(folder or ".", name)
    while True:
        temporary = temporary_name(path)
        file = _File(temporary, "x+")  # unlike tempfile's files, it has the usual permissions
        hold(file.fileno())
        if os.path.exists(temporary):
            break
        file.close()  # another process has removed the file before it was locked
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
    with contextlib.suppress(OSError):  # some file systems cannot sync directories
        directory = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


@contextlib.contextmanager
def new_folder(path: PathLike, replace: bool = False) -> Iterator[str]:
    """Yield a temporary folder that appears as `path` when the block ends, or not at all if the block fails.

    The data are flushed to disk before the folder is renamed. Temporary folders of killed processes are removed. All
    files get at least the permissions of new files, which those of safetensors lack.

    Args:
        replace: replace a folder that is not empty, which is an OSError by default. The caller must make sure that no
            other process writes to `path`.
    """
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_stale_temp_files(*os.path.split(path))
    work, old = temporary_name(path), temporary_name(path)
    os.mkdir(work)
    descriptor = os.open(work, os.O_RDONLY)
    hold(descriptor)
    usual = os.fstat(descriptor).st_mode & 0o666  # the umask cannot be read without changing it
    try:
        yield work
        for folder, _, files in os.walk(work):
            for file in files:
                with open(os.path.join(folder, file), "rb") as stream:
                    mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
                    if mode | usual != mode:
                        os.fchmod(stream.fileno(), mode | usual)
                    os.fsync(stream.fileno())
        if replace and os.path.exists(path):
            os.rename(path, old)
        os.rename(work, path)
    finally:
        if os.path.exists(old) and not os.path.exists(path):  # interrupted between the two renames
            os.rename(old, path)
        for folder in (work, old):
            shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def temporary_name(path: str) -> str:
    """Return a unique name for an incomplete file or folder: `path.HEX.tmp`, with 16 hexadecimal digits."""
    return f"{path}.{os.urandom(8).hex()}.tmp"


def hold(descriptor: int) -> None:
    """Lock an open temporary file or folder, which protects it from `remove_stale_temp_files` until it is closed."""
    with contextlib.suppress(OSError):  # some file systems have no locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def remove_stale_temp_files(folder: str, target: Optional[str] = None) -> List[str]:
    """Remove the temporary files and folders that killed processes left in a folder; return their names.

    Those that a running process holds (`hold`) stay.

    Args:
        target: remove only those of this file or folder. By default, all are removed, also on file systems without
            locks: there, the caller must make sure that no other process writes to the folder.
    """
    removed = []
    for name in os.listdir(folder) if os.path.isdir(folder) else []:
        match = _TEMPORARY.fullmatch(name)
        if match is None or target not in (None, match[1]):
            continue
        path = os.path.join(folder, name)
        with contextlib.ExitStack() as stack:
            try:
                descriptor = _open_to_lock(path)
                stack.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:  # a link, another user's, or on a file system without locks
                if target is not None:
                    continue
            with contextlib.suppress(OSError):
                _remove(path)
                removed.append(name)
    return removed


def _open_to_lock(path: str) -> int:
    """Open a file to lock it. On NFS, an exclusive lock needs a writable descriptor, if permissions allow it."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_RDWR)
    except (IsADirectoryError, PermissionError):
        return os.open(path, flags | os.O_RDONLY)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def acquire_lock(path: str, on_wait: Callable[[], None], timeout: Optional[float] = None) -> "filelock.BaseFileLock":
    """Lock a file until `release` is called or this process ends. On a file system without locks, do nothing.

    Args:
        on_wait: called if another process holds the lock.
        timeout: seconds to wait before TimeoutError is raised (default: LOCK_TIMEOUT; -1: no limit).
    """
    import filelock  # here, so that importing this module needs only the standard library

    lock = filelock.FileLock(path, mode=0o666, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        on_wait()
        lock.acquire(timeout=LOCK_TIMEOUT if timeout is None else timeout, poll_interval=0.2)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    return lock


def sha256(path: PathLike) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_checksums(path: PathLike) -> Dict[str, str]:
    """Return file → SHA-256 checksum from a list as written by sha256sum."""
    with open(path, encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split(maxsplit=1) for line in stream if line.strip()]
    return {os.path.normpath(name.lstrip("*")): digest for digest, name in rows}


def damaged_files(folder: PathLike, complete: Iterable[str] = ("data-bin", "raw")) -> List[str]:
    """Return the files of a folder that are missing, differ from its SHA256SUMS, or should be listed there.

    Args:
        complete: subfolders whose files must all be listed: fairseq also reads shards (train1, …) that nobody named.
    """
    checksums = read_checksums(os.path.join(folder, CHECKSUMS))
    paths = {name: os.path.join(folder, name) for name in checksums}
    damaged = [name for name, path in paths.items() if not os.path.isfile(path) or sha256(path) != checksums[name]]
    for part in complete:
        path = os.path.join(folder, part)
        for name in sorted(os.listdir(path)) if os.path.isdir(path) else []:
            is_data = os.path.isfile(os.path.join(path, name)) and not name.startswith(".") and name != CHECKSUMS
            if is_data and (relative := os.path.normpath(os.path.join(part, name))) not in checksums:
                damaged.append(relative)
    return damaged

"""Writing a file whole or not at all, and its sum."""

import contextlib
import hashlib
import io
import os
from typing import IO, Any, Iterator, Optional, Union

PathLike = Union[str, "os.PathLike[str]"]


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

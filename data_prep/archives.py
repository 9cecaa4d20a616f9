"""Download, verify, extract and compress archives."""

import bz2
import gzip
import hashlib
import io
import lzma
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, Any, Callable, List, NamedTuple, Optional

from fairseq_modern.errors import UserError

GIB = 1 << 30
#: default limits of the unpacked size: this multiple of the archive's size, but at least MIN_LIMIT bytes.
#: The archives of the data sets in this folder grow by a factor of 3 to 5
MAX_RATIO, MIN_LIMIT = 20, GIB
#: files and folders in an archive
MAX_ENTRIES = 100_000
#: first bytes of compressed files, and the functions that open them
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}


class Archive(NamedTuple):
    """A row of the manifest."""

    row_type: str
    name: str
    checksum: str
    url: str


def download(url: str, file: Path) -> bool:
    """Download a file or continue its download; returns whether it is complete.

    After an error, the partial file remains and can be continued.
    """
    fetch = ["curl", "--fail", "--location", "--silent", "--show-error", "--retry", "3"]
    fetch += ["--write-out", "%{http_code}", "--output", str(file), url]
    done = subprocess.run([*fetch, "--continue-at", "-"], stdout=subprocess.PIPE, text=True, check=False)
    # exit status 22: an HTTP error; 416: the range is not in the file, for example because the file is complete
    cannot_continue = done.returncode in (33, 36) or (done.returncode == 22 and done.stdout == "416")
    if cannot_continue and file.is_file() and file.stat().st_size:
        file.unlink()
        done = subprocess.run(fetch, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode == 0


def fetch(archive: Archive, url: str, folder: Path, say: Callable[[str], None]) -> Path:
    """The archive in a folder, downloaded and verified unless it is already there."""
    file, part = folder / archive.name, folder / f"{archive.name}.part"
    if file.is_file():
        return file
    if not shutil.which("curl"):
        raise UserError("the download needs curl; install it, or name a local copy (see --help)")
    folder.mkdir(parents=True, exist_ok=True)
    say(f"downloading {archive.name}")
    if not download(url, part):
        raise UserError(f"the download of {url} failed; run again to continue, or name a local copy (see --help)")
    try:
        verify(archive, part)
    except UserError as error:
        part.unlink()
        raise UserError(
            f"{url} did not return the expected archive: {error}; download it by hand and pass it (see --help)"
        ) from error
    return part.rename(file)


def verify(archive: Archive, path: Path) -> str:
    """The checksum of an archive, `md5:HEX` or `sha256:HEX`.

    Raises:
        UserError: the file is missing or a web page, or its checksum differs.
    """
    if not path.is_file():
        raise UserError(f"there is no file {path}, expected the archive {archive.name}")
    expected = archive.checksum
    algorithm = "sha256" if expected == "-" else expected.partition(":")[0]
    digest = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        first_bytes = stream.peek(512).lstrip().lower()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    checksum = f"{algorithm}:{digest.hexdigest()}"
    if first_bytes.startswith((b"<!doctype", b"<html")):
        raise UserError(f"{path} must be the archive {archive.name}; got a web page")
    if expected not in ("-", checksum):
        raise UserError(
            f"{path} is truncated, damaged or another file: the checksum of {archive.name} must be {expected}; "
            f"got {checksum}"
        )
    return checksum


class _Limited:
    """A stream of unpacked bytes that raises UserError beyond a limit."""

    def __init__(self, stream: IO[bytes], path: Path, limit: Optional[int]) -> None:
        self._stream, self._path, self._bytes_read = stream, path, 0
        self._limit = limit or max(MIN_LIMIT, MAX_RATIO * path.stat().st_size)

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._bytes_read += len(data)
        self.check(self._bytes_read)
        return data

    def check(self, size: int) -> None:
        if size > self._limit:
            raise UserError(
                f"{self._path} must unpack to at most {self._limit:,} bytes; got more; if it is the right "
                "archive, give a larger --unpacked-limit (in GiB)"
            )


def gzipped(data: bytes) -> bytes:
    """Compress data; equal data give equal bytes on every version of Python with the same zlib.

    The header that `gzip.compress` writes depends on the version of Python.
    """
    compressed = io.BytesIO()
    with gzip.GzipFile("", "wb", mtime=0, fileobj=compressed) as file:
        file.write(data)
    return compressed.getvalue()


def extract(name: str, path: Path, wanted: List[str], folder: Path, limit: Optional[int] = None) -> Path:
    """Extract the wanted members of a tar archive, or a gzipped text, into a new folder in `folder`.

    Raises:
        UserError: the archive is damaged, has more than MAX_ENTRIES entries or unpacks to more than `limit` bytes
            (default: see MAX_RATIO).
    """
    folder = Path(tempfile.mkdtemp(dir=folder))
    is_text = [name] == [f"{member}.gz" for member in wanted]
    with open(path, "rb") as file:
        first_bytes = file.peek(6)
    openers = [opener for magic, opener in _OPENERS.items() if first_bytes.startswith(magic)]
    open_compressed: Any = gzip.open if is_text else [*openers, open][0]
    try:
        with open_compressed(path, "rb") as stream:
            content: Any = _Limited(stream, path, limit)
            if is_text:
                with open(folder / wanted[0], "wb") as text:
                    shutil.copyfileobj(content, text, 1 << 20)
            else:
                _extract_members(content, path, wanted, folder)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is truncated or not a gzipped archive: {error}") from error
    return folder


def _extract_members(content: Any, path: Path, wanted: List[str], folder: Path) -> None:
    with tarfile.open(fileobj=content, mode="r|") as archive:
        for number, entry in enumerate(archive, start=1):
            if number > MAX_ENTRIES:
                raise UserError(f"{path} must have at most {MAX_ENTRIES:,} entries; got more")
            member = str(PurePosixPath(entry.name))
            if entry.isfile() and member in wanted:
                content.check(entry.size)  # a sparse file takes little space in the archive
                unpacked = folder / member
                unpacked.parent.mkdir(parents=True, exist_ok=True)
                with open(unpacked, "wb") as text:
                    shutil.copyfileobj(archive.extractfile(entry), text)  # type: ignore[arg-type]

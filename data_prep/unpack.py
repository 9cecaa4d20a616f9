"""Fetch the archives of a parallel corpus, check them against a manifest and unpack the texts that are used.

The manifest is a tab-separated text file; lines that start with `#` are comments. `-` stands for what is not known.

    archive    NAME     md5:HEX or sha256:HEX or -   URL
    member     NAME     path inside that archive   number of lines, or -   the text it becomes (train.en, ...)
    reference  TEST_SET   length of its compound-split reference in tokens, or -   of its sacreBLEU reference, or -
    TEXT.gz    SHA-256   number of lines   anything       short for a gzipped text and its only member

Members that become one text follow one another in it, in the manifest's order. Of `.sgm` and `.xml` members the text
of the `<seg>` elements is taken, as sacrebleu takes it; of `train.tags.*` the lines outside and the titles and
descriptions within tags. Lengths of references tell the recipes that the right test set was scored.

With every sum filled in (SHA-256 of archives whose sum was not known) it is kept as prepared.txt: the manifest to check
another copy against.
"""

import bz2
import gzip
import hashlib
import lzma
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, Optional

from fairseq_modern.errors import UserError

Rows = List[List[str]]

GIB = 1 << 30
#: an archive of text is unpacked to at most this many times its size, or to LEAST_LIMIT bytes, whichever is more; the
#: archives of the data sets here grow by a factor of 3 to 5
MOST_TIMES, LEAST_LIMIT = 20, GIB
#: files and folders in an archive
MOST_ENTRIES = 100_000
#: how compressed files begin, and what opens them
_OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}

_ROW = re.compile(
    r"archive\t[^\t]+\t(-|md5:[\da-f]{32}|sha256:[\da-f]{64})\t[^\t]*"
    r"|member\t[^\t]+\t[^\t]+\t(-|\d+)\t[^\t]+|reference\t[^\t]+\t(-|\d+)\t(-|\d+)"
)
_SHORT = re.compile(r"(?P<text>[^\t]+)\.gz\t(?P<sum>[\da-f]{64})\t(?P<lines>\d+)\t.*")
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


class CorpusError(UserError):
    """The corpus on disk is not what it should be."""


class _Limited:
    """The unpacked bytes of an archive, to be read once, up to a limit."""

    def __init__(self, stream: IO[bytes], path: Path, limit: Optional[int]) -> None:
        self._stream, self._path, self._read = stream, path, 0
        self._limit = max(LEAST_LIMIT, MOST_TIMES * path.stat().st_size) if limit is None else limit

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; raises CorpusError beyond the limit."""
        data = self._stream.read(size)
        self._read += len(data)
        self.check(self._read)
        return data

    def check(self, number: int) -> None:
        """Raise CorpusError for more bytes than the limit."""
        if number > self._limit:
            raise CorpusError(
                f"{self._path} must unpack to at most {self._limit:,} bytes, but is larger; if it is the right "
                "archive, give a larger --unpacked-limit (in GiB)"
            )


def read_manifest(path: Path) -> Rows:
    """The rows, short ones written out.

    Raises:
        CorpusError: a line is malformed, or a name leads to another folder.
    """
    rows: Rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        short = _SHORT.fullmatch(line)
        if short:
            text, digest, lines = short.group("text", "sum", "lines")
            rows += [["archive", f"{text}.gz", f"sha256:{digest}", ""], ["member", f"{text}.gz", text, lines, text]]
        elif _ROW.fullmatch(line):
            rows.append(line.split("\t"))
        elif line.strip() and not line.startswith("#"):
            raise CorpusError(f"{path}, line {number}: expected an archive, a member or a reference, got {line!r}")
    for kind, name, *fields in rows:
        files, inside = ([name, fields[2]], PurePosixPath(fields[0])) if kind == "member" else ([name], PurePosixPath())
        leads_out = inside.is_absolute() or ".." in inside.parts
        if leads_out or any("/" in file or file in (".", "..") for file in files):
            got = " ".join([kind, name, *fields])
            raise CorpusError(f"{path}: archives, members and texts must not lead to another folder; got {got!r}")
    return rows


def of_kind(rows: Rows, kind: str) -> Rows:
    """The fields of all rows of a kind, without it."""
    return [fields for found, *fields in rows if found == kind]


def checked(name: str, expected: str, path: Path) -> str:
    """The sum of an archive, `md5:HEX` or `sha256:HEX`; raises CorpusError where `path` is not that archive."""
    if not path.is_file():
        raise CorpusError(f"there is no file {path}, expected the archive {name}")
    algorithm = "sha256" if expected == "-" else expected.partition(":")[0]
    digest = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        begin = stream.peek(512).lstrip().lower()
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    found = f"{algorithm}:{digest.hexdigest()}"
    if expected not in ("-", found):
        page = begin.startswith((b"<!doctype", b"<html"))
        what = "a web page" if page else "truncated, damaged or another file"
        raise CorpusError(f"{path} is {what}: its sum is {found}, expected {expected} for {name}")
    return found


def download(url: str, file: Path) -> bool:
    """Continue the download of a file; whether it is there."""
    fetch = ["curl", "--fail", "--location", "--silent", "--show-error", "--retry", "3", "--output", str(file), url]
    status = subprocess.run([*fetch, "--continue-at", "-"], check=False).returncode
    if status in (22, 33, 36) and file.is_file() and file.stat().st_size:
        # the server cannot continue, as when the file is whole already
        file.unlink()
        status = subprocess.run(fetch, check=False).returncode
    return status == 0


def fetched(name: str, digest: str, url: str, folder: Path, tell: Callable[[str], None]) -> Path:
    """An archive, downloaded and checked where it is not in the folder yet."""
    file, part = folder / name, folder / f"{name}.part"
    if file.is_file():
        return file
    if not shutil.which("curl"):
        raise CorpusError("curl is needed for the download; or name what you have (see --help)")
    folder.mkdir(parents=True, exist_ok=True)
    tell(f"downloading {name}")
    if not download(url, part):
        raise CorpusError(f"the download of {url} failed; run again to continue, or name what you have (see --help)")
    try:
        checked(name, digest, part)
    except CorpusError as error:
        part.unlink()
        raise CorpusError(
            f"{url} did not give the archive: {error}; download it by hand and name it (see --help)"
        ) from error
    return part.rename(file)


def extract(name: str, path: Path, wanted: List[str], folder: Path, limit: Optional[int] = None) -> Path:
    """The wanted members of a tar archive, or the gzipped text that is the only one, in a new folder in `folder`.

    Raises:
        CorpusError: a damaged archive, or one that unpacks to more than `limit` bytes (default: see MOST_TIMES) or has
            more than MOST_ENTRIES entries.
    """
    folder = Path(tempfile.mkdtemp(dir=folder))
    try:
        is_text = [name] == [f"{member}.gz" for member in wanted]
        with open(path, "rb") as file:
            begin = file.peek(6)
        opener: Any = next((opener for magic, opener in _OPENERS.items() if begin.startswith(magic)), open)
        with (gzip.open if is_text else opener)(path, "rb") as stream:
            content: Any = _Limited(stream, path, limit)
            if is_text:
                with open(folder / wanted[0], "wb") as text:
                    shutil.copyfileobj(content, text, 1 << 20)
                return folder
            with tarfile.open(fileobj=content, mode="r|") as archive:
                for number, entry in enumerate(archive, start=1):
                    if number > MOST_ENTRIES:
                        raise CorpusError(f"{path} must have at most {MOST_ENTRIES:,} entries, but has more")
                    packed = archive.extractfile(entry) if entry.isfile() else None
                    if packed and str(PurePosixPath(entry.name)) in wanted:
                        content.check(entry.size)  # of which a sparse file holds little
                        unpacked = folder / entry.name
                        unpacked.parent.mkdir(parents=True, exist_ok=True)
                        with open(unpacked, "wb") as text:
                            shutil.copyfileobj(packed, text)
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is truncated or not a gzipped archive: {error}") from error
    return folder


def unpack(rows: Rows, target: Path, sources: Dict[str, Path], limit: Optional[int] = None) -> Rows:
    """Write the texts to `target`; returns the manifest with all sums.

    Every archive is checked before anything is written.

    Args:
        target: an empty folder.
        sources: archive → its file, or a folder in which it was unpacked before.
        limit: bytes that each archive may unpack to (default: see MOST_TIMES).

    Raises:
        CorpusError: an archive or an unpacked text is not what the manifest says, or larger than the limit.
    """
    sums = {
        name: digest if sources[name].is_dir() else checked(name, digest, sources[name])
        for name, digest, _ in of_kind(rows, "archive")
    }
    members, totals = of_kind(rows, "member"), Counter[str]()
    with tempfile.TemporaryDirectory(dir=target) as work:
        folders = {}
        for name, path in sources.items():
            wanted = [inside for archive, inside, *_ in members if archive == name]
            folders[name] = path if path.is_dir() else extract(name, path, wanted, Path(work), limit)
        for name, inside, expected, text in members:
            file = folders[name] / inside
            if not file.is_file():
                file = folders[name] / file.name
            if not file.is_file():
                raise CorpusError(f"{sources[name]} lacks {inside}: it is half unpacked, or not {name}")
            lines = 0
            with open(file, "rb") as stream, open(target / text, "ab") as output:
                for line in text_of(stream, file.name):
                    output.write(line if line.endswith(b"\n") else line + b"\n")
                    lines += 1
            if expected not in ("-", str(lines)):
                half = " (half unpacked? give the archive itself)" if sources[name].is_dir() else ""
                raise CorpusError(f"{inside} of {sources[name]} has {lines} lines, expected {expected}{half}")
            totals[text] += lines
    for text, lines in totals.items():
        base = text.rpartition(".")[0]
        for other, number in totals.items():
            if other.rpartition(".")[0] == base and number != lines:
                got = f"{text} has {lines}, {other} has {number}"
                raise CorpusError(f"the two sides of {base} are misaligned: line counts must be equal, but {got}")
    return [[*row[:2], sums[row[1]], row[3]] if row[0] == "archive" else row for row in rows]


def text_of(stream: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines of a member that are text."""
    for line in stream:
        if name.endswith((".sgm", ".xml")):
            found = _SEGMENT.search(line)
            if found:
                yield " ".join(found[1].decode("utf-8").split()).encode("utf-8")
        elif name.startswith("train.tags."):
            bare = re.sub(rb"</?(title|description)>", b"", line).strip()
            if not bare.startswith(b"<"):
                yield bare
        else:
            yield line


def agree(rows: Rows, others: Rows) -> bool:
    """Whether others are the same rows; addresses, and sums that `rows` do not know, may be any."""
    return len(rows) == len(others) and all(
        old[:2] == new[:2] and (old[2] in ("-", new[2]) if old[0] == "archive" else old[2:] == new[2:])
        for old, new in zip(rows, others, strict=True)
    )

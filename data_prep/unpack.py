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

import gzip
import hashlib
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, Iterable, Iterator, List

Rows = List[List[str]]

_ROW = re.compile(
    r"archive\t[^\t]+\t(-|md5:[\da-f]{32}|sha256:[\da-f]{64})\t[^\t]*"
    r"|member\t[^\t]+\t[^\t]+\t(-|\d+)\t[^\t]+|reference\t[^\t]+\t(-|\d+)\t(-|\d+)"
)
_SHORT = re.compile(r"(?P<text>[^\t]+)\.gz\t(?P<sum>[\da-f]{64})\t(?P<lines>\d+)\t.*")
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


class CorpusError(Exception):
    """The corpus on disk is not what it should be."""

    user_error = True


def read_manifest(path: Path) -> Rows:
    """The rows, short ones written out; raises CorpusError with the number of a line that is malformed."""
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


def extract(name: str, path: Path, wanted: List[str], folder: Path) -> Path:
    """The wanted members of a tar archive, or the gzipped text that is the only one, in a new folder in `folder`."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    try:
        if [name] == [f"{member}.gz" for member in wanted]:
            with gzip.open(path) as packed, open(folder / wanted[0], "wb") as text:
                shutil.copyfileobj(packed, text)
        else:
            with tarfile.open(path, "r|*") as archive:
                for entry in archive:
                    packed = archive.extractfile(entry) if entry.isfile() else None
                    if packed and str(PurePosixPath(entry.name)) in wanted:
                        file = folder / entry.name
                        if not file.resolve().is_relative_to(folder.resolve()):
                            raise CorpusError(f"{entry.name} of {path} is outside the destination")
                        file.parent.mkdir(parents=True, exist_ok=True)
                        with open(file, "wb") as text:
                            shutil.copyfileobj(packed, text)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is truncated or not a gzipped archive: {error}") from error
    return folder


def unpack(rows: Rows, target: Path, sources: Dict[str, Path]) -> Rows:
    """Write the texts to `target`; returns the manifest with all sums.

    Every archive is checked before anything is written.

    Args:
        target: an empty folder.
        sources: archive → its file, or a folder in which it was unpacked before.

    Raises:
        CorpusError: an archive or an unpacked text is not what the manifest says.
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
            folders[name] = path if path.is_dir() else extract(name, path, wanted, Path(work))
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

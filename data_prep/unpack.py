#!/usr/bin/env python3
"""Check the archives of a parallel corpus against a manifest and unpack the texts that are used.

The manifest is a tab-separated text file; lines that start with `#` are comments. `-` stands for what is not known.

    archive    NAME     md5:HEX or sha256:HEX or -   URL
    member     NAME     path inside that archive   number of lines, or -   the text it becomes (train.en, ...)
    reference  TEST_SET   length of its compound-split reference in tokens, or -   of its sacreBLEU reference, or -
    TEXT.gz    SHA-256   number of lines   anything       short for a gzipped text and its only member

Members that become one text follow one another in it, in the manifest's order. Of `.sgm` and `.xml` members the text
of the `<seg>` elements is taken, as sacrebleu takes it; of `train.tags.*` the lines outside and the titles and
descriptions within tags. Lengths of references are for recipes/runner/evaluation.py: they tell that the right test set
was scored.

    unpack.py archives MANIFEST                  `NAME<tab>URL` per archive
    unpack.py check    MANIFEST NAME PATH        the archive's sum, where it is known
    unpack.py unpack   MANIFEST TARGET NAME=PATH ...    write the texts to the folder TARGET
    unpack.py agrees   MANIFEST OTHER            exit status 0 if OTHER has the same rows

PATH is an archive, or a folder in which it was unpacked before. `unpack` prints the manifest with every sum filled in
(SHA-256 of archives whose sum was not known): kept, it is the manifest to check another copy against. Any error is one
sentence on standard error and exit status 1.
"""

import gzip
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Dict, Iterable, Iterator, List

Rows = List[List[str]]

_ROW = re.compile(
    r"archive\t[^\t]+\t(-|md5:[\da-f]{32}|sha256:[\da-f]{64})\t[^\t]*"
    r"|member\t[^\t]+\t[^\t]+\t(-|\d+)\t[^\t]+|reference\t[^\t]+\t(-|\d+)\t(-|\d+)"
)
_SHORT = re.compile(r"(?P<text>[^\t]+)\.gz\t(?P<sum>[\da-f]{64})\t(?P<lines>\d+)\t.*")
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


class CorpusError(Exception):
    """The corpus on disk is not the one that the manifest describes."""


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


def extract(name: str, path: Path, wanted: List[str], folder: Path) -> Path:
    """The wanted members of a tar archive, or the gzipped text that is the only one, in a new folder in `folder`."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    try:
        if [name] == [f"{member}.gz" for member in wanted]:
            with gzip.open(path) as packed, open(folder / wanted[0], "wb") as text:
                shutil.copyfileobj(packed, text)
        else:
            with tarfile.open(path, "r|*") as archive:
                members = (entry for entry in archive if entry.isfile() and str(PurePosixPath(entry.name)) in wanted)
                archive.extractall(folder, members, filter="data")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise CorpusError(f"{path} is truncated or not a gzipped archive: {error}") from error
    return folder


def unpack(rows: Rows, target: Path, sources: Dict[str, Path]) -> Rows:
    """Write the texts to `target`; returns the manifest with all sums.

    Every archive is checked before anything is written.

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


def main() -> int:
    if len(sys.argv) < 3 or sys.argv[1] not in ("archives", "check", "unpack", "agrees"):
        sys.stdout.write(__doc__)
        return 0 if "--help" in sys.argv else 2
    command, manifest, *arguments = sys.argv[1:]
    try:
        rows = read_manifest(Path(manifest))
        archives = of_kind(rows, "archive")
        if command == "archives":
            sys.stdout.writelines(f"{name}\t{url}\n" for name, _, url in archives)
        elif command == "check":
            name, path = arguments
            checked(name, next(digest for archive, digest, _ in archives if archive == name), Path(path))
        elif command == "agrees":
            return 0 if agree(rows, read_manifest(Path(arguments[0]))) else 1
        else:
            sources = {name: Path(path) for name, _, path in (argument.partition("=") for argument in arguments[1:])}
            sys.stdout.writelines("\t".join(row) + "\n" for row in unpack(rows, Path(arguments[0]), sources))
    except (CorpusError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"data_prep/unpack.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

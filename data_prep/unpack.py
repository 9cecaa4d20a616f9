"""Fetch the archives of a parallel corpus, verify them against a manifest and unpack their texts.

The manifest is a tab-separated text file. Lines that start with `#` are comments; `-` means unknown.

    archive    NAME      md5:HEX or sha256:HEX or -              URL
    member     ARCHIVE   path in the archive   number of lines   text it belongs to (train.en, ...)
    reference  TEST_SET  tokens of the compound-split reference  tokens of the sacreBLEU reference
    TEXT.gz    SHA-256   number of lines   comment               a gzipped text: archive and member

Members of the same text are concatenated in the order of the manifest. Of `.sgm` and `.xml` members only the text of
`<seg>` elements is used, as in sacreBLEU; of `train.tags.*` members, untagged lines, titles and descriptions. The
recipes compare the lengths of references with those of the test set that they score.

prepared.txt repeats the manifest with the checksums of all archives that were verified; those of unpacked archives are
unknown. It is itself a manifest, for other copies.
"""

import re
import tempfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Union

from data_prep.archives import Archive, extract, verify
from fairseq_modern.errors import UserError

_ROW = re.compile(
    r"archive\t[^\t]+\t(-|md5:[\da-f]{32}|sha256:[\da-f]{64})\t[^\t]*"
    r"|member\t[^\t]+\t[^\t]+\t(-|\d+)\t[^\t]+|reference\t[^\t]+\t(-|\d+)\t(-|\d+)"
)
_GZIPPED_TEXT = re.compile(r"(?P<text>[^\t]+)\.gz\t(?P<checksum>[\da-f]{64})\t(?P<lines>\d+)\t.*")
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


class Member(NamedTuple):
    row_type: str
    archive: str
    path: str
    lines: str
    text: str


class Reference(NamedTuple):
    row_type: str
    test_set: str
    compound_split_tokens: str
    sacrebleu_tokens: str


Row = Union[Archive, Member, Reference]
ROW_TYPES: Dict[str, Any] = {"archive": Archive, "member": Member, "reference": Reference}


def read_manifest(path: Path) -> List[Row]:
    """The rows of a manifest; a gzipped text becomes an archive and its only member.

    Raises:
        UserError: a line is malformed, or a name leads to another folder.
    """
    rows: List[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        gzipped_text = _GZIPPED_TEXT.fullmatch(line)
        if gzipped_text:
            text, checksum, lines = gzipped_text.group("text", "checksum", "lines")
            rows.append(Archive("archive", f"{text}.gz", f"sha256:{checksum}", ""))
            rows.append(Member("member", f"{text}.gz", text, lines, text))
        elif _ROW.fullmatch(line):
            fields = line.split("\t")
            rows.append(ROW_TYPES[fields[0]](*fields))
        elif line.strip() and not line.startswith("#"):
            raise UserError(f"{path}, line {number} must be an archive, a member or a reference; got {line!r}")
    for row in rows:
        if _leads_to_another_folder(row):
            raise UserError(
                f"{path}: archives, members and texts must not lead to another folder; got {' '.join(row)!r}"
            )
    return rows


def _leads_to_another_folder(row: Row) -> bool:
    names = [row[1]]
    if isinstance(row, Member):
        path = PurePosixPath(row.path)
        if path.is_absolute() or ".." in path.parts:
            return True
        names.append(row.text)
    return any("/" in name or name in (".", "..") for name in names)


def same_corpus(rows: List[Row], recorded: List[Row]) -> bool:
    """Whether recorded rows are those of a manifest; URLs, and checksums unknown to either, may differ."""
    if len(rows) != len(recorded):
        return False
    for row, other in zip(rows, recorded, strict=True):
        if isinstance(row, Archive) and isinstance(other, Archive):
            other = other._replace(url=row.url)
            if "-" in (row.checksum, other.checksum):
                other = other._replace(checksum=row.checksum)
        if row != other:
            return False
    return True


def unpack(rows: List[Row], target: Path, sources: Dict[str, Path], limit: Optional[int] = None) -> List[Row]:
    """Write the texts to `target`, after all archives have been verified.

    Args:
        rows: of the manifest.
        target: an empty folder.
        sources: archive → its file, or a folder that it was unpacked to before.
        limit: bytes that each archive may unpack to (default: see MAX_RATIO).

    Returns:
        The rows with the checksums of all archives; `-` for folders, which have none.

    Raises:
        UserError: an archive or an unpacked text differs from the manifest or exceeds the limit.
    """
    verified: List[Row] = []
    for row in rows:
        if isinstance(row, Archive):
            source = sources[row.name]
            row = row._replace(checksum="-" if source.is_dir() else verify(row, source))
        verified.append(row)
    members = [row for row in rows if isinstance(row, Member)]
    lines_of_texts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(dir=target) as work:
        folders = dict(sources)
        for name, path in sources.items():
            if not path.is_dir():
                wanted = [member.path for member in members if member.archive == name]
                folders[name] = extract(name, path, wanted, Path(work), limit)
        for member in members:
            source, folder = sources[member.archive], folders[member.archive]
            lines_of_texts[member.text] += append_member(member, source, folder, target)
    check_alignment(lines_of_texts)
    return verified


def append_member(member: Member, source: Path, folder: Path, target: Path) -> int:
    """Append an unpacked member to its text; returns the number of lines."""
    file = folder / member.path
    if not file.is_file():
        file = folder / file.name
    if not file.is_file():
        raise UserError(f"{source} lacks {member.path}: it is not {member.archive}, or only partly unpacked")
    lines = 0
    with open(file, "rb") as stream, open(target / member.text, "ab") as output:
        for line in text_lines(stream, file.name):
            output.write(line if line.endswith(b"\n") else line + b"\n")
            lines += 1
    if member.lines not in ("-", str(lines)):
        hint = "; if it is partly unpacked, give the archive itself" if source.is_dir() else ""
        raise UserError(f"{member.path} of {source} must have {member.lines} lines; got {lines}{hint}")
    return lines


def check_alignment(lines_of_texts: Dict[str, int]) -> None:
    """Raise UserError unless both sides of each corpus have the same number of lines."""
    first_sides: Dict[str, str] = {}
    for text, lines in lines_of_texts.items():
        base = text.rpartition(".")[0]
        first = first_sides.setdefault(base, text)
        if lines != lines_of_texts[first]:
            raise UserError(
                f"the two sides of {base} must have the same number of lines; "
                f"got {lines_of_texts[first]} in {first}, {lines} in {text}"
            )


def text_lines(stream: Iterable[bytes], name: str) -> Iterator[bytes]:
    """The lines of a member without markup."""
    for line in stream:
        if name.endswith((".sgm", ".xml")):
            segment = _SEGMENT.search(line)
            if segment:
                yield " ".join(segment[1].decode("utf-8").split()).encode("utf-8")
        elif name.startswith("train.tags."):
            bare = re.sub(rb"</?(title|description)>", b"", line).strip()
            if not bare.startswith(b"<"):
                yield bare
        else:
            yield line

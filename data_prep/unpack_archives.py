#!/usr/bin/env python3
"""Check the tar archives of a parallel corpus against a manifest and unpack the texts that are used.

The manifest is a tab-separated text file; lines that start with `#` are comments. `-` stands for what is not known.

    archive    NAME     md5:HEX or sha256:HEX or -   URL
    member     NAME     path inside that archive   number of lines, or -   the text it becomes (train.en, ...)
    reference  TEST_SET   length of its compound-split reference in tokens, or -   of its sacreBLEU reference, or -

Members that become one text follow one another in it, in the manifest's order. Of `.sgm` and `.xml` members the text
of the `<seg>` elements is taken, as sacrebleu takes it; of `train.tags.*` the lines outside and the titles and
descriptions within tags. Lengths of references are for recipes/lib/evaluate.sh: they tell that the right test set was
scored.

    unpack_archives.py archives MANIFEST                  `NAME<tab>URL` per archive
    unpack_archives.py check    MANIFEST NAME PATH        the archive's sum, where it is known
    unpack_archives.py unpack   MANIFEST TARGET NAME=PATH ...    write the texts to the folder TARGET
    unpack_archives.py agrees   MANIFEST OTHER            exit status 0 if OTHER has the same rows

PATH is an archive, or a folder in which it was unpacked before. `unpack` prints the manifest with every sum filled in
(SHA-256 of archives whose sum was not known): kept, it is the manifest to check another copy against. Any error is one
sentence on standard error and exit status 1.
"""

import argparse
import hashlib
import re
import sys
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

_CHUNK = 1 << 20
_SEGMENT = re.compile(rb"<seg.*?>(.*)</seg>")


class CorpusError(Exception):
    """The corpus on disk is not the one that the manifest describes."""


class Archive(NamedTuple):
    name: str
    digest: Optional[str]  # md5:HEX, sha256:HEX
    url: str


class Member(NamedTuple):
    archive: str
    path: str
    lines: Optional[int]
    text: str  # train.en


class Manifest(NamedTuple):
    archives: List[Archive]
    members: List[Member]
    references: List[Tuple[str, ...]]

    def rows(self) -> Iterator[str]:
        """The manifest as it is written."""
        for archive in self.archives:
            yield f"archive\t{archive.name}\t{archive.digest or '-'}\t{archive.url}"
        for member in self.members:
            lines = "-" if member.lines is None else member.lines
            yield f"member\t{member.archive}\t{member.path}\t{lines}\t{member.text}"
        for reference in self.references:
            yield "\t".join(("reference", *reference))


def read_manifest(path: Path) -> Manifest:
    """Read a manifest; raises CorpusError with the line number where it is malformed."""
    manifest = Manifest([], [], [])
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"cannot read the manifest {path}: {error.strerror}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        kind, *fields = line.rstrip("\r").split("\t")
        names = [archive.name for archive in manifest.archives]
        if kind == "archive" and len(fields) == 3 and re.fullmatch(r"-|md5:[\da-f]{32}|sha256:[\da-f]{64}", fields[1]):
            manifest.archives.append(Archive(fields[0], None if fields[1] == "-" else fields[1], fields[2]))
        elif kind == "member" and len(fields) == 4 and fields[0] in names and re.fullmatch(r"-|\d+", fields[2]):
            lines = None if fields[2] == "-" else int(fields[2])
            manifest.members.append(Member(fields[0], fields[1], lines, fields[3]))
        elif kind == "reference" and len(fields) == 3 and all(re.fullmatch(r"-|\d+", f) for f in fields[1:]):
            manifest.references.append(tuple(fields))
        else:
            raise CorpusError(
                f"{path}, line {number}: expected an archive, a member of an archive named above or a reference, "
                f"got {line!r}"
            )
    if not manifest.members:
        raise CorpusError(f"the manifest {path} lists no members")
    return manifest


def digest(path: Path, algorithm: str) -> str:
    """`md5:HEX` or `sha256:HEX` of a file."""
    state = hashlib.new(algorithm)
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            state.update(chunk)
    return f"{algorithm}:{state.hexdigest()}"


def check(archive: Archive, path: Path) -> Archive:
    """The archive with its sum.

    Raises:
        CorpusError: `path` is not that archive.
    """
    if not path.is_file():
        raise CorpusError(f"there is no file {path}, expected the archive {archive.name}")
    with open(path, "rb") as stream:
        start = stream.read(512).lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")):
        raise CorpusError(f"{path} is a web page, expected the archive {archive.name}")
    if archive.digest is None:
        return archive._replace(digest=digest(path, "sha256"))
    algorithm, _, expected = archive.digest.partition(":")
    got = digest(path, algorithm).partition(":")[2]
    if got != expected:
        what = "damaged or another file" if _is_whole(path) else "truncated or damaged (the gzip stream has no end)"
        raise CorpusError(f"{path} is {what}: its {algorithm.upper()} is {got}, expected {expected} for {archive.name}")
    return archive


def _is_whole(path: Path) -> bool:
    decompress = zlib.decompressobj(wbits=31)
    try:
        with open(path, "rb") as stream:
            while (chunk := stream.read(_CHUNK)) and not decompress.eof:
                decompress.decompress(chunk)
    except zlib.error:
        return False
    return decompress.eof


def unpack(manifest: Manifest, target: Path, sources: Dict[str, Path]) -> Manifest:
    """Write the texts to `target`; returns the manifest with all sums.

    Every archive is checked before anything is written.

    Raises:
        CorpusError: an archive or an unpacked text is not what the manifest says.
    """
    checked = []
    for archive in manifest.archives:
        if archive.name not in sources:
            raise CorpusError(f"there is no {archive.name}, expected {', '.join(a.name for a in manifest.archives)}")
        path = sources[archive.name]
        checked.append(archive if path.is_dir() else check(archive, path))
    counts: Dict[Member, int] = {}
    for archive in manifest.archives:
        path = sources[archive.name]
        wanted = [member for member in manifest.members if member.archive == archive.name]
        found = _from_folder(wanted, path, target) if path.is_dir() else _from_archive(wanted, path, target)
        counts.update(found)
    _check_counts(manifest.members, counts, sources)
    for member in manifest.members:
        part = _part(target, member)
        with open(part, "rb") as piece, open(target / member.text, "ab") as text:
            while chunk := piece.read(_CHUNK):
                text.write(chunk)
        part.unlink()
    return manifest._replace(archives=checked)


def _from_archive(members: List[Member], path: Path, target: Path) -> Dict[Member, int]:
    counts = {}
    wanted = {member.path: member for member in members}
    try:
        with tarfile.open(path, "r|*") as archive:
            for entry in archive:
                member = wanted.get(str(PurePosixPath(entry.name)))
                if member is None or not entry.isfile():
                    continue
                stream = archive.extractfile(entry)
                assert stream is not None  # it is a file
                counts[member] = _write(stream, member, target)
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise CorpusError(f"{path} is truncated or not a gzipped tar archive: {error}") from error
    missing = [member.path for member in members if member not in counts]
    if missing:
        raise CorpusError(f"{path} lacks {', '.join(missing)}: it is another archive than {members[0].archive}")
    return counts


def _from_folder(members: List[Member], folder: Path, target: Path) -> Dict[Member, int]:
    counts, missing = {}, []
    for member in members:
        places = [folder / member.path, folder / PurePosixPath(member.path).name]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            missing.append(member.path)
            continue
        with open(file, "rb") as stream:
            counts[member] = _write(stream, member, target)
    if missing:
        raise CorpusError(f"{folder} is only half unpacked: it lacks {', '.join(missing)}; give the archive itself")
    return counts


def _write(stream: Iterable[bytes], member: Member, target: Path) -> int:
    """Write a member's text, each line with its end; returns the number of lines."""
    number = 0
    with open(_part(target, member), "wb") as text:
        for line in _text_of(stream, PurePosixPath(member.path).name):
            text.write(line if line.endswith(b"\n") else line + b"\n")
            number += 1
    return number


def _text_of(stream: Iterable[bytes], name: str) -> Iterator[bytes]:
    if name.endswith((".sgm", ".xml")):
        for line in stream:
            found = _SEGMENT.search(line)
            if found:
                yield " ".join(found[1].decode("utf-8").split()).encode("utf-8")
    elif name.startswith("train.tags."):
        for line in stream:
            bare = re.sub(rb"</?(title|description)>", b"", line).strip()
            if not bare.startswith(b"<"):
                yield bare
    else:
        yield from stream


def _part(target: Path, member: Member) -> Path:
    return target / f".{member.archive}.{member.path.replace('/', '.')}"


def _check_counts(members: List[Member], counts: Dict[Member, int], sources: Dict[str, Path]) -> None:
    for member in members:
        if member.lines is not None and counts[member] != member.lines:
            path = sources[member.archive]
            half = " (half unpacked? give the archive itself)" if path.is_dir() else ""
            raise CorpusError(f"{member.path} of {path} has {counts[member]} lines, expected {member.lines}{half}")
    totals: Dict[str, int] = {}
    for member in members:
        totals[member.text] = totals.get(member.text, 0) + counts[member]
    for base in dict.fromkeys(text.rpartition(".")[0] for text in totals):
        sides = {text: lines for text, lines in totals.items() if text.rpartition(".")[0] == base}
        if len(set(sides.values())) > 1:
            got = ", ".join(f"{text} has {lines}" for text, lines in sides.items())
            raise CorpusError(f"the two sides of {base} are misaligned: line counts must be equal, but {got}")


def agrees(manifest: Manifest, other: Manifest) -> bool:
    """Whether `other` has the same rows; a sum that `manifest` does not know may be any."""
    if manifest[1:] != other[1:] or len(manifest.archives) != len(other.archives):
        return False
    pairs = zip(manifest.archives, other.archives, strict=True)
    return all(a.name == b.name and a.digest in (None, b.digest) for a, b in pairs)


def _source(text: str) -> Tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise argparse.ArgumentTypeError(f"expected NAME=PATH, got {text!r}")
    return name, Path(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("archives", "check", "unpack", "agrees"):
        command = commands.add_parser(name)
        command.add_argument("manifest", type=Path)
        if name == "check":
            command.add_argument("name")
            command.add_argument("path", type=Path)
        elif name == "unpack":
            command.add_argument("target", type=Path)
            command.add_argument("sources", type=_source, nargs="+")
        elif name == "agrees":
            command.add_argument("other", type=Path)
    args = parser.parse_args()
    try:
        manifest = read_manifest(args.manifest)
        if args.command == "archives":
            sys.stdout.writelines(f"{archive.name}\t{archive.url}\n" for archive in manifest.archives)
        elif args.command == "check":
            check(next(archive for archive in manifest.archives if archive.name == args.name), args.path)
        elif args.command == "agrees":
            return 0 if agrees(manifest, read_manifest(args.other)) else 1
        else:
            done = unpack(manifest, args.target, dict(args.sources))
            sys.stdout.writelines(f"{row}\n" for row in done.rows())
    except (CorpusError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"data_prep/unpack_archives.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

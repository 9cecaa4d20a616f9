#!/usr/bin/env python3
"""Check the files of a parallel corpus against a manifest and unpack them.

The manifest is a tab-separated text file with one line per gzipped file: name (`BASE.LANG.gz`), SHA-256 of the gzipped
file, number of lines of the text in it, and the split it becomes (`train`, `valid`, `test`, `test1`, ...; both
languages of a BASE share it). Lines that start with `#` are comments.

    unpack_corpus.py files  MANIFEST                  the names, one per line
    unpack_corpus.py splits MANIFEST                  `BASE<tab>SPLIT` per corpus, in the manifest's order
    unpack_corpus.py unpack MANIFEST SOURCE TARGET    check every file of SOURCE, then write TARGET/BASE.LANG

Nothing is written before every sum has been checked. Any error is one sentence on standard error and exit status 1.
"""

import argparse
import gzip
import hashlib
import sys
import zlib
from pathlib import Path
from typing import List, NamedTuple

_CHUNK = 1 << 20


class CorpusError(Exception):
    """The corpus on disk is not the one that the manifest describes."""


class Entry(NamedTuple):
    name: str  # train.en.gz
    sha256: str
    lines: int
    split: str  # fairseq's name of the subset

    @property
    def text_name(self) -> str:
        return self.name[: -len(".gz")]

    @property
    def base(self) -> str:
        return self.text_name.rpartition(".")[0]


def read_manifest(path: Path) -> List[Entry]:
    """Entries of a manifest; raises CorpusError with the line number where it is malformed."""
    entries = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CorpusError(f"cannot read the manifest {path}: {error.strerror}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.rstrip("\r").split("\t")
        if len(fields) != 4 or len(fields[1]) != 64 or not fields[2].isdigit() or not fields[0].endswith(".gz"):
            raise CorpusError(
                f"{path}, line {number}: expected `BASE.LANG.gz<tab>sha256<tab>lines<tab>split`, got {line!r}"
            )
        entries.append(Entry(fields[0], fields[1].lower(), int(fields[2]), fields[3]))
    if not entries:
        raise CorpusError(f"the manifest {path} lists no files")
    return entries


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def unpack(entries: List[Entry], source: Path, target: Path) -> None:
    """Check every file of `source` (presence, then SHA-256), unpack to `target` and check the line counts."""
    if not source.is_dir():
        raise CorpusError(f"{source} is not a directory; expected one that holds {', '.join(e.name for e in entries)}")
    missing = [entry.name for entry in entries if not (source / entry.name).is_file()]
    if missing:
        raise CorpusError(f"{source} lacks {', '.join(missing)}, expected {len(entries)} files as in the manifest")
    for entry in entries:
        got = sha256(source / entry.name)
        if got != entry.sha256:
            raise CorpusError(
                f"{source / entry.name} is damaged or another version: its SHA-256 is {got}, expected {entry.sha256}"
            )
    counts = {}
    for entry in entries:
        counts[entry.name] = _unpack_one(source / entry.name, target / entry.text_name)
    for base in dict.fromkeys(entry.base for entry in entries):
        sides = [entry for entry in entries if entry.base == base]
        if len({counts[entry.name] for entry in sides}) > 1:
            got = ", ".join(f"{entry.name} has {counts[entry.name]}" for entry in sides)
            raise CorpusError(f"the two sides of {base} are misaligned: line counts must be equal, but {got}")
    for entry in entries:
        if counts[entry.name] != entry.lines:
            raise CorpusError(f"{source / entry.name} has {counts[entry.name]} lines, expected {entry.lines}")


def _unpack_one(source: Path, target: Path) -> int:
    lines, last = 0, b"\n"
    try:
        with gzip.open(source, "rb") as packed, open(target, "wb") as text:
            while chunk := packed.read(_CHUNK):
                lines += chunk.count(b"\n")
                last = chunk
                text.write(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise CorpusError(f"{source} is not a whole gzip file: {error}") from error
    return lines if last.endswith(b"\n") else lines + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("files", "splits", "unpack"):
        command = commands.add_parser(name)
        command.add_argument("manifest", type=Path)
        if name == "unpack":
            command.add_argument("source", type=Path)
            command.add_argument("target", type=Path)
    args = parser.parse_args()
    try:
        entries = read_manifest(args.manifest)
        if args.command == "unpack":
            unpack(entries, args.source, args.target)
        elif args.command == "files":
            sys.stdout.writelines(f"{entry.name}\n" for entry in entries)
        else:
            splits = dict.fromkeys((entry.base, entry.split) for entry in entries)
            sys.stdout.writelines(f"{base}\t{split}\n" for base, split in splits)
    except (CorpusError, OSError) as error:
        sys.stderr.write(f"data_prep/unpack_corpus.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

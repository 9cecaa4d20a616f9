#!/usr/bin/env python3
"""Make a miniature of a public data set: archives of the same names and layout, with sentences of toy.py.

    miniature.py wmt16_en_de|wmt14_en_de_spm|iwslt14_de_en --output DIR [--seed N] [--train N] [--valid N] [--test N]

For rehearsals and tests without a download. DIR then holds the archives, manifest.tsv (their sums and line counts, for
`--manifest` of the set's script) and references.de or references.en (raw text of the test set). Where the set is
tokenised it is tokenised by sacremoses, and words of more than five letters are cut into pieces as BPE marks them.
Equal options give equal files. DIR appears whole or not at all.
"""

import argparse
import gzip
import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path, PurePosixPath
from typing import Dict, List, Sequence

import toy
from folders import new_folder
from toy import write_lines
from unpack import Rows, of_kind, read_manifest

from collab_fairseq.cli.main import guarded

_HERE = Path(__file__).resolve().parent
_PIECE = 5
# the part of the toy corpus that a text of the set is made of
_PARTS = {"train": "train", "newstest2013": "valid", "newstest2014": "test", "test": "test"}
Lines = List[str]


def tokenised(lines: Sequence[str], lang: str) -> Lines:
    """Tokenised, words of more than five letters in pieces, as Google's set is: `sleep@@ ing`."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=lang)
    return [re.sub(rf"(\S{{{_PIECE}}})(?=\S)", r"\1@@ ", moses.tokenize(line, return_str=True)) for line in lines]


def marked_up(lines: Sequence[str], name: str) -> Lines:
    """The lines as the member of this name has them."""
    if name.endswith((".sgm", ".xml")):
        segments = [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, start=1)]
        return ['<refset setid="miniature" srclang="any">', '<doc docid="1">', *segments, "</doc>", "</refset>"]
    if name.startswith("train.tags."):
        return ["<url>https://example.org</url>", "<keywords>talks, toys</keywords>", *lines]
    return list(lines)


def members(rows: Rows, parts: toy.Parts) -> List[Lines]:
    """The lines of every member: a part is divided among the members that become the same text."""
    found, texts = [], [text for *_, text in rows]
    for number, (_, path, _, text) in enumerate(rows):
        base, _, lang = text.rpartition(".")
        pairs = parts[_PARTS[base]]
        share = -(-len(pairs) // texts.count(text))
        start = texts[:number].count(text) * share
        lines = [pair[0 if lang == "en" else 1] for pair in pairs[start : start + share]]
        found.append(tokenised(lines, lang) if ".bpe." in path else lines)
    return found


def archive_bytes(contents: Dict[str, Lines]) -> bytes:
    """A gzipped tar archive without times, owners or machine."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, lines in contents.items():
            data = "".join(line + "\n" for line in lines).encode("utf-8")
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def write(name: str, parts: toy.Parts, folder: Path) -> None:
    """Write archives, manifest and references into `folder`."""
    public = read_manifest(_HERE / f"{name}.tsv")
    inside = of_kind(public, "member")
    contents = members(inside, parts)
    rows = [f"# miniature of {name}.tsv"]
    for archive, digest, url in of_kind(public, "archive"):
        own = zip(inside, contents, strict=True)
        data = archive_bytes({m[1]: marked_up(lines, PurePosixPath(m[1]).name) for m, lines in own if m[0] == archive})
        (folder / archive).write_bytes(data)
        algorithm = "sha256" if digest == "-" else digest.partition(":")[0]
        rows.append(f"archive\t{archive}\t{algorithm}:{hashlib.new(algorithm, data).hexdigest()}\t{url}")
    rows += [f"member\t{m[0]}\t{m[1]}\t{len(lines)}\t{m[3]}" for m, lines in zip(inside, contents, strict=True)]
    write_lines(folder / "manifest.tsv", rows)
    target = 0 if name.endswith("de_en") else 1
    write_lines(folder / f"references.{('en', 'de')[target]}", [pair[target] for pair in parts["test"]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("wmt16_en_de", "wmt14_en_de_spm", "iwslt14_de_en"))
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    toy.add_options(parser)
    args = parser.parse_args()
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        parser.error(f"--output must be a new or empty folder, but {args.output} is there")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(args.output) as folder:
        write(args.name, toy.parts_of(args), folder)


if __name__ == "__main__":
    sys.exit(guarded("data_prep/miniature.py", main))

#!/usr/bin/env python3
"""Make a miniature of a public data set: archives of the same names and layout, with sentences of data_prep/toy.py.

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
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath
from typing import Callable, Dict, List, Sequence, Tuple

from toy import SIZES, CorpusError, corpus, positive
from unpack_archives import Archive, Manifest, Member, read_manifest

_HERE = Path(__file__).resolve().parent
_PIECE = 5
# the part of the toy corpus that a text of the set is made of
_PARTS = {"train": "train", "newstest2013": "valid", "newstest2014": "test", "test": "test"}
Lines = List[str]


def subwords(line: str) -> str:
    """Words of more than five letters in pieces: `sleep@@ ing`."""
    words = []
    for word in line.split(" "):
        pieces = [word[i : i + _PIECE] for i in range(0, len(word), _PIECE)]
        words += [piece + "@@" for piece in pieces[:-1]] + pieces[-1:]
    return " ".join(words)


def tokenised(lines: Sequence[str], lang: str) -> Lines:
    """Tokenised and in subwords, as Google's set is."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=lang)
    return [subwords(moses.tokenize(line, return_str=True)) for line in lines]


def marked_up(lines: Sequence[str], name: str) -> Lines:
    """The lines as the member of this name has them."""
    if name.endswith((".sgm", ".xml")):
        segments = [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, start=1)]
        return ['<refset setid="miniature" srclang="any">', '<doc docid="1">', *segments, "</doc>", "</refset>"]
    if name.startswith("train.tags."):
        return ["<url>https://example.org</url>", "<keywords>talks, toys</keywords>", *lines]
    return list(lines)


def members(manifest: Manifest, parts: Dict[str, List[Tuple[str, str]]]) -> Dict[Member, Lines]:
    """The lines of every member: a part is divided among the members that become the same text."""
    found = {}
    plain: Callable[[Sequence[str], str], Lines] = lambda lines, lang: list(lines)  # noqa: E731
    for member in manifest.members:
        base, _, lang = member.text.rpartition(".")
        same = [other for other in manifest.members if other.text == member.text]
        pairs = parts[_PARTS[base]]
        share = -(-len(pairs) // len(same))
        start = same.index(member) * share
        lines = [pair[0 if lang == "en" else 1] for pair in pairs[start : start + share]]
        prepare = tokenised if ".bpe." in member.path else plain
        found[member] = prepare(lines, lang)
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


def write(name: str, parts: Dict[str, List[Tuple[str, str]]], folder: Path) -> None:
    """Write archives, manifest and references into `folder`."""
    public = read_manifest(_HERE / f"{name}.tsv")
    contents = members(public, parts)
    archives = []
    for archive in public.archives:
        inside = [member for member in contents if member.archive == archive.name]
        own = {m.path: marked_up(contents[m], PurePosixPath(m.path).name) for m in inside}
        data = archive_bytes(own)
        (folder / archive.name).write_bytes(data)
        algorithm = archive.digest.partition(":")[0] if archive.digest else "sha256"
        archives.append(Archive(archive.name, f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}", archive.url))
    rows = Manifest(archives, [m._replace(lines=len(lines)) for m, lines in contents.items()], [])
    text = f"# miniature of {name}.tsv\n" + "".join(f"{row}\n" for row in rows.rows())
    (folder / "manifest.tsv").write_text(text, encoding="utf-8", newline="\n")
    target = 0 if name.endswith("de_en") else 1
    references = "".join(pair[target] + "\n" for pair in parts["test"])
    (folder / f"references.{('en', 'de')[target]}").write_text(references, encoding="utf-8", newline="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("wmt16_en_de", "wmt14_en_de_spm", "iwslt14_de_en"))
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    parser.add_argument("--seed", type=positive, default=1, metavar="N", help="(default: %(default)s)")
    for part, size in SIZES.items():
        parser.add_argument(
            f"--{part}", type=positive, default=size, metavar="N", help="sentence pairs (default: %(default)s)"
        )
    args = parser.parse_args()
    try:
        if args.output.exists() and any(args.output.iterdir()):
            raise CorpusError(f"{args.output} must be a new or empty folder; choose another --output")
        parts = corpus(args.seed, {part: getattr(args, part) for part in SIZES})
        args.output.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{args.output.name}.", dir=args.output.parent))
        try:
            write(args.name, parts, partial)
            partial.chmod(0o755)
            os.replace(partial, args.output)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (CorpusError, OSError) as error:
        sys.stderr.write(f"data_prep/miniature.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make a miniature of a public data set: archives of the same names and layout, with sentences of toy.py.

    python -m data_prep miniature wmt16_en_de|wmt14_en_de_spm|iwslt14_de_en --output DIR [OPTIONS]

For rehearsals and tests without a download. DIR then contains the archives, manifest.tsv (for `--manifest` of the data
set's script) and references.de or references.en (raw text of the test set). Where the public texts are tokenised, the
miniature is tokenised by sacremoses, and words of more than five letters are split with BPE markers. Equal options give
equal files. DIR is written atomically.
"""

import argparse
import hashlib
import io
import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import Dict, List, Sequence

from data_prep import toy
from data_prep.archives import Archive, gzipped
from data_prep.toy import write_lines
from data_prep.unpack import Member, Row, read_manifest
from fairseq_modern.files import new_folder

_HERE = Path(__file__).resolve().parent
_PIECE = 5
#: text → part of the toy corpus
_PARTS = {"train": "train", "newstest2013": "valid", "newstest2014": "test", "test": "test"}


def tokenised(lines: Sequence[str], lang: str) -> List[str]:
    """Tokenised lines with long words in pieces, as in Google's data: `sleep@@ ing`."""
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang=lang)
    return [re.sub(rf"(\S{{{_PIECE}}})(?=\S)", r"\1@@ ", moses.tokenize(line, return_str=True)) for line in lines]


def marked_up(lines: Sequence[str], name: str) -> List[str]:
    """The lines with the markup of a member of this name."""
    if name.endswith((".sgm", ".xml")):
        segments = [f'<seg id="{number}">{line}</seg>' for number, line in enumerate(lines, start=1)]
        return ['<refset setid="miniature" srclang="any">', '<doc docid="1">', *segments, "</doc>", "</refset>"]
    if name.startswith("train.tags."):
        return ["<url>https://example.org</url>", "<keywords>talks, toys</keywords>", *lines]
    return list(lines)


def lines_of_members(members: List[Member], parts: toy.Parts) -> Dict[Member, List[str]]:
    """The lines of each member; the members of a text get equal shares of its part."""
    texts = [member.text for member in members]
    lines_of = {}
    for number, member in enumerate(members):
        base, _, lang = member.text.rpartition(".")
        pairs = parts[_PARTS[base]]
        share = -(-len(pairs) // texts.count(member.text))
        start = texts[:number].count(member.text) * share
        side = toy.LANGUAGES.index(lang)
        lines = [pair[side] for pair in pairs[start : start + share]]
        lines_of[member] = tokenised(lines, lang) if ".bpe." in member.path else lines
    return lines_of


def archive_bytes(contents: Dict[str, List[str]]) -> bytes:
    """A gzipped tar archive without times or owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, lines in contents.items():
            data = "".join(line + "\n" for line in lines).encode("utf-8")
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzipped(packed.getvalue())


def write(name: str, parts: toy.Parts, folder: Path) -> None:
    """Write archives, manifest and references."""
    public = read_manifest(_HERE / f"{name}.tsv")
    lines_of = lines_of_members([row for row in public if isinstance(row, Member)], parts)
    rows: List[Row] = []
    for row in public:
        if isinstance(row, Archive):
            members = [member for member in lines_of if member.archive == row.name]
            contents = {each.path: marked_up(lines_of[each], PurePosixPath(each.path).name) for each in members}
            data = archive_bytes(contents)
            (folder / row.name).write_bytes(data)
            algorithm = "sha256" if row.checksum == "-" else row.checksum.partition(":")[0]
            rows.append(row._replace(checksum=f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"))
        elif isinstance(row, Member):
            rows.append(row._replace(lines=str(len(lines_of[row]))))
    write_lines(folder / "manifest.tsv", [f"# miniature of {name}.tsv", *("\t".join(row) for row in rows)])
    target = "en" if name.endswith("de_en") else "de"
    references = [pair[toy.LANGUAGES.index(target)] for pair in parts["test"]]
    write_lines(folder / f"references.{target}", references)


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m data_prep miniature", description=__doc__, formatter_class=formatter)
    parser.add_argument("name", choices=("wmt16_en_de", "wmt14_en_de_spm", "iwslt14_de_en"))
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty folder")
    toy.add_options(parser)
    args = parser.parse_args()
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        parser.error(f"--output must be a new or empty folder, got {args.output}")
    with new_folder(args.output) as folder:
        write(args.name, toy.parts_of(args), Path(folder))

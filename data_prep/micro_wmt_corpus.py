"""Build the micro-WMT corpus from its public sources, as input of data_prep/micro_wmt.sh.

    python -m data_prep micro_wmt_corpus --tatoeba deu-eng.zip --testsets OPUS-MT-testsets --output DIR

deu-eng.zip is that of https://github.com/rioyshky/translation (commit de48b702). OPUS-MT-testsets is a checkout of
https://github.com/Helsinki-NLP/OPUS-MT-testsets (commit ac0f19c0), whose news sets WMT releases for research use.

The training text consists of Tatoeba's pairs, the news sets of 2008 to 2012 and of 2015 to 2020, and the German-English
sets of 2019 and 2020, in this order. Duplicates are removed, and so are pairs with an empty side or a side that is in a
held-out set: Tatoeba's test set v2021-08-07, newstest2013 or newstest2014. micro_wmt.held_out.tsv selects the Tatoeba
pairs for validation and test by their checksums. Every text must have the SHA-256 in micro_wmt.texts.tsv; otherwise
nothing is written.

DIR then contains the gzipped texts, for `micro_wmt.sh --source DIR`, and manifest.tsv. A Python with zlib-ng compresses
differently: add `--manifest DIR/manifest.tsv`.
"""

import argparse
import hashlib
import zipfile
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

from data_prep.archives import gzipped
from fairseq_modern.errors import UserError
from fairseq_modern.files import new_folder

HERE = Path(__file__).parent
Pair = Tuple[str, str]  # English, German

NEWS = (
    *("news-test2008", "newssyscomb2009", "newstest2009", "newstest2010", "newstest2011", "newstest2012"),
    *(f"newstest{year}-ende" for year in (2015, 2016, 2017, 2018, 2019)),
    *("newstest2020-ende", "newstest2019-deen", "newstest2020-deen"),
)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def read_pairs(testsets: Path, stem: str) -> List[Pair]:
    """The pairs of a test set; the checkout has several folders, and language codes of two or three letters."""
    sides = []
    for codes in (("en", "eng"), ("de", "deu")):
        paths = [path for code in codes for path in sorted(testsets.glob(f"**/{stem}.{code}")) if path.is_file()]
        if not paths:
            raise UserError(f"{testsets} has neither {stem}.{codes[0]} nor {stem}.{codes[1]}")
        lines = paths[0].read_bytes().decode("utf-8").split("\n")[:-1]  # read_text() would also split at "\r"
        sides.append([line.strip() for line in lines])
    return list(zip(*sides, strict=True))


def tatoeba_pairs(archive: Path) -> Iterator[Pair]:
    """The first two columns of the table in the archive."""
    try:
        with zipfile.ZipFile(archive) as files:
            table = next(name for name in files.namelist() if name.endswith(".txt") and "about" not in name)
            lines = files.read(table).decode("utf-8").split("\n")
    except zipfile.BadZipFile as error:
        raise UserError(f"{archive}: {error}") from error
    for line in lines:
        columns = [*line.split("\t"), ""]
        yield columns[0].strip(), columns[1].strip()


def training_pairs(candidates: Iterable[Pair], held_out: Iterable[Pair]) -> List[Pair]:
    """The distinct pairs without an empty side or a side that is held out."""
    sides = {side for pair in held_out for side in pair}
    return [pair for pair in dict.fromkeys(candidates) if all(pair) and not sides.intersection(pair)]


def read_texts(archive: Path, testsets: Path, selection: Path) -> Dict[str, List[Pair]]:
    """The pairs of train, newstest2013, tatoeba_valid and tatoeba_test."""
    tatoeba_test = read_pairs(testsets, "tatoeba-test-v2021-08-07")
    newstest2013 = read_pairs(testsets, "newstest2013")
    held_out = [*tatoeba_test, *newstest2013, *read_pairs(testsets, "newstest2014-deen")]
    news = [pair for stem in NEWS for pair in read_pairs(testsets, stem)]
    texts = {"train": training_pairs([*tatoeba_pairs(archive), *news], held_out), "newstest2013": newstest2013}
    pairs = {sha256("\t".join(pair))[:16]: pair for pair in tatoeba_test}
    for line in selection.read_text(encoding="utf-8").splitlines():
        text, checksum = line.split("\t")
        if checksum not in pairs:
            raise UserError(f"Tatoeba's test set in {testsets} lacks a pair of {text}: it is not v2021-08-07")
        texts.setdefault(text, []).append(pairs[checksum])
    return texts


def write(texts: Dict[str, List[Pair]], checksums: Path, folder: Path) -> None:
    """Verify all texts and write them with their manifest."""
    manifest = ""
    for row in checksums.read_text(encoding="utf-8").splitlines():
        if row.startswith("#"):
            continue
        name, expected, lines, split = row.split("\t")
        base, lang = name.split(".")
        side = 1 if lang == "de" else 0
        text = "".join(pair[side] + "\n" for pair in texts[base])
        if sha256(text) != expected:
            got = f"{len(texts[base])} lines, {sha256(text)}"
            raise UserError(f"{name} must have {lines} lines and the checksum {expected}; got {got}")
        compressed = gzipped(text.encode("utf-8"))
        (folder / f"{name}.gz").write_bytes(compressed)
        manifest += f"{name}.gz\t{hashlib.sha256(compressed).hexdigest()}\t{lines}\t{split}\n"
    (folder / "manifest.tsv").write_text(manifest, encoding="utf-8")


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m data_prep micro_wmt_corpus", description=__doc__, formatter_class=formatter
    )
    add = parser.add_argument
    add("--tatoeba", type=Path, required=True, metavar="ZIP", help="deu-eng.zip")
    add("--testsets", type=Path, required=True, metavar="DIR", help="checkout of OPUS-MT-testsets")
    add("--output", type=Path, required=True, metavar="DIR", help="a new folder")
    text = "checksums of the texts (default: micro_wmt.texts.tsv)"
    add("--checksums", type=Path, default=HERE / "micro_wmt.texts.tsv", metavar="FILE", help=text)
    text = "checksums of the held-out Tatoeba pairs (default: micro_wmt.held_out.tsv)"
    add("--held-out", type=Path, default=HERE / "micro_wmt.held_out.tsv", metavar="FILE", help=text)
    args = parser.parse_args()
    if args.output.exists():
        raise UserError(f"{args.output} exists; --output must be a new folder")
    texts = read_texts(args.tatoeba, args.testsets, args.held_out)
    with new_folder(args.output) as folder:
        write(texts, args.checksums, Path(folder))

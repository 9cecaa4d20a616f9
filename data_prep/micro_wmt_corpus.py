#!/usr/bin/env python3
"""Make the micro-WMT corpus from its public sources, the files that data_prep/micro_wmt.sh takes.

    micro_wmt_corpus.py --tatoeba deu-eng.zip --testsets OPUS-MT-testsets --output DIR

deu-eng.zip is that of https://github.com/rioyshky/translation (commit de48b702), the other a checkout of
https://github.com/Helsinki-NLP/OPUS-MT-testsets (commit ac0f19c0), whose news sets WMT releases for research use.

A training pair is kept if both sides are non-empty, neither is a side of a held-out set (Tatoeba's test set
v2021-08-07, newstest2013, newstest2014), and the pair is new: Tatoeba's pairs first, then the news sets of 2008 to
2012, of 2015 to 2020, and the German-English ones of 2019 and 2020. The held-out Tatoeba pairs are those whose sums
stand in micro_wmt.held_out.tsv. The SHA-256 of every text must be that of micro_wmt.texts.tsv, or nothing is written.

DIR then holds the gzipped texts and manifest.tsv, for `micro_wmt.sh --source DIR --manifest DIR/manifest.tsv`.
"""

import argparse
import gzip
import hashlib
import os
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Tuple

HERE = Path(__file__).parent
Pair = Tuple[str, str]  # English, German

NEWS = (
    *("news-test2008", "newssyscomb2009", "newstest2009", "newstest2010", "newstest2011", "newstest2012"),
    *(f"newstest{year}-ende" for year in (2015, 2016, 2017, 2018, 2019)),
    *("newstest2020-ende", "newstest2019-deen", "newstest2020-deen"),
)


def sum_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def read_pairs(testsets: Path, stem: str) -> List[Pair]:
    """The pairs of one set, which stands under either direction and either kind of language code."""
    sides = []
    for codes in (("en", "eng"), ("de", "deu")):
        found = [path for code in codes for path in sorted(testsets.glob(f"**/{stem}.{code}")) if path.is_file()]
        if not found:
            raise ValueError(f"{testsets} lacks {stem}.{codes[0]} and {stem}.{codes[1]}")
        sides.append([line.strip() for line in found[0].read_text(encoding="utf-8").split("\n")[:-1]])
    return list(zip(*sides, strict=True))


def tatoeba_pairs(archive: Path) -> Iterator[Pair]:
    """The first two columns of the archive's table."""
    with zipfile.ZipFile(archive) as files:
        table = next(name for name in files.namelist() if name.endswith(".txt") and "about" not in name)
        for line in files.read(table).decode("utf-8").split("\n"):
            english, _, rest = line.partition("\t")
            yield english.strip(), rest.partition("\t")[0].strip()


def training_pairs(candidates: Iterable[Pair], held_out: Iterable[Pair]) -> List[Pair]:
    """The new pairs of two non-empty sides of which none is held out, in their order."""
    sides = {side for pair in held_out for side in pair}
    return [pair for pair in dict.fromkeys(candidates) if all(pair) and not sides.intersection(pair)]


def texts(archive: Path, testsets: Path, chosen: Path) -> Dict[str, List[Pair]]:
    """The pairs of train, newstest2013, tatoeba_valid and tatoeba_test."""
    tatoeba, valid_news = read_pairs(testsets, "tatoeba-test-v2021-08-07"), read_pairs(testsets, "newstest2013")
    held_out = [*tatoeba, *valid_news, *read_pairs(testsets, "newstest2014-deen")]
    news = (pair for stem in NEWS for pair in read_pairs(testsets, stem))
    result = {"train": training_pairs((*tatoeba_pairs(archive), *news), held_out), "newstest2013": valid_news}
    by_sum = {sum_of("\t".join(pair))[:16]: pair for pair in tatoeba}
    for line in chosen.read_text(encoding="utf-8").splitlines():
        base, digest = line.split("\t")
        if digest not in by_sum:
            raise ValueError(f"Tatoeba's test set in {testsets} lacks a pair of {base}: it is not v2021-08-07")
        result.setdefault(base, []).append(by_sum[digest])
    return result


def write(pairs: Dict[str, List[Pair]], rows: Iterable[str], output: Path) -> None:
    """Check every text and write all of them, with their manifest, to the new folder `output`, or nothing."""
    with tempfile.TemporaryDirectory(dir=output.parent) as work:
        folder, manifest = Path(work) / "corpus", []
        folder.mkdir()
        for row in rows:
            name, expected, lines, split = row.split("\t")
            base, lang = name.split(".")
            text = "".join(pair[lang == "de"] + "\n" for pair in pairs[base])
            if sum_of(text) != expected:
                got = f"{len(pairs[base])} lines and the sum {sum_of(text)}"
                raise ValueError(f"{name} has {got}, not {lines}, {expected}")
            packed = gzip.compress(text.encode("utf-8"), mtime=0)
            (folder / f"{name}.gz").write_bytes(packed)
            manifest.append(f"{name}.gz\t{hashlib.sha256(packed).hexdigest()}\t{lines}\t{split}\n")
        (folder / "manifest.tsv").write_text("".join(manifest), encoding="utf-8")
        os.rename(folder, output)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tatoeba", type=Path, required=True, help="deu-eng.zip")
    parser.add_argument("--testsets", type=Path, required=True, help="checkout of OPUS-MT-testsets")
    parser.add_argument("--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--sums", type=Path, default=HERE / "micro_wmt.texts.tsv", help="sums of the texts")
    parser.add_argument("--held-out", type=Path, default=HERE / "micro_wmt.held_out.tsv", help="sums of held-out pairs")
    args = parser.parse_args()
    try:
        if args.output.exists():
            raise ValueError(f"{args.output} exists; name a new folder")
        rows = [line for line in args.sums.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
        write(texts(args.tatoeba, args.testsets, args.held_out), rows, args.output)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        sys.stderr.write(f"data_prep/micro_wmt_corpus.py: error: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

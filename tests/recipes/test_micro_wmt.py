"""The micro-WMT recipe in miniature, from its public sources to a record."""

import json
import zipfile

import pytest

from data_prep import micro_wmt_corpus as corpus
from fairseq_modern import processor
from tests.common import ROOT, rejected, run

LANGUAGES = {"en": "eng", "de": "deu"}  # as in OPUS-MT-testsets


def pairs(word, number):
    return [(f"The {word} number {n} runs.", f"Das {word.title()} Nummer {n} läuft.") for n in range(number)]


def lines(text, language):
    """One side of a text, as in a file."""
    return "".join(f"{pair[language == 'de']}\n" for pair in text)


@pytest.fixture
def sources(tmp_path):
    """An archive, a checkout and their checksums. Returns the folder and the expected texts."""
    tatoeba, test = pairs("dog", 30), pairs("bird", 6)
    leaks = [(test[0][0], "Etwas anderes."), ("", "Leer."), tatoeba[0], ("Something else.", test[1][1])]
    with zipfile.ZipFile(tmp_path / "deu-eng.zip", "w") as archive:
        archive.writestr("_about.txt", "a\tb\n")
        archive.writestr("deu.txt", "".join(f"{e}\t{d}\tCC-BY\n" for e, d in tatoeba + leaks))
    folder = tmp_path / "checkout" / "testsets" / "eng-deu"
    folder.mkdir(parents=True)
    news = {stem: pairs(f"paper{n}", 2) for n, stem in enumerate(corpus.NEWS)}
    sets = {"tatoeba-test-v2021-08-07": test, "newstest2013": pairs("flag", 5), "newstest2014-deen": pairs("tree", 2)}
    for stem, text in {**news, **sets}.items():
        for language, code in LANGUAGES.items():
            (folder / f"{stem}.{code}").write_text(f" {lines(text, language)}", encoding="utf-8")
    expected = {
        "train": tatoeba + [pair for text in news.values() for pair in text],
        "tatoeba_valid": test[4:2:-1],
        "newstest2013": sets["newstest2013"],
        "tatoeba_test": test[:2],
    }
    held_out = [(base, pair) for base in ("tatoeba_valid", "tatoeba_test") for pair in expected[base]]
    rows = [f"{base}\t{corpus.sha256(chr(9).join(pair))[:16]}\n" for base, pair in held_out]
    (tmp_path / "held_out.tsv").write_text("".join(rows))
    with open(tmp_path / "sums.tsv", "w") as sums:
        for base, text in expected.items():
            for language in LANGUAGES:
                sums.write(f"{base}.{language}\t{corpus.sha256(lines(text, language))}\t{len(text)}\t-\n")
    return tmp_path, expected


def make(folder, check=True):
    sources = ["--tatoeba", folder / "deu-eng.zip", "--testsets", folder / "checkout", "--output", folder / "corpus"]
    checksums = ["--checksums", folder / "sums.tsv", "--held-out", folder / "held_out.tsv"]
    return run("python", "-m", "data_prep", "micro_wmt_corpus", *sources, *checksums, check=check)


def test_lines_of_test_sets_end_at_newlines_only(tmp_path):
    (tmp_path / "set.en").write_bytes(b"a\rb\nc\r\n")
    (tmp_path / "set.de").write_bytes(b"A B\nC\n")
    assert corpus.read_pairs(tmp_path, "set") == [("a\rb", "A B"), ("c", "C")]


def test_corpus_is_made_prepared_and_trained_on(sources):
    folder, expected = sources
    make(folder)
    with open(folder / "corpus" / "train.en.gz", "rb") as stream:  # data_prep/micro_wmt.tsv has checksums of such files
        assert stream.read(10) == b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"
    source = ["--source", folder / "corpus", "--manifest", folder / "corpus" / "manifest.tsv"]
    data = folder / "data"
    run("bash", ROOT / "data_prep" / "micro_wmt.sh", *source, "--output", data, "--vocab-size", "80")
    for base, text in expected.items():
        for language in LANGUAGES:
            assert (data / "raw" / f"{base}.{language}").read_text("utf-8") == lines(text, language)
    recipe = ["bash", ROOT / "recipes" / "micro_wmt" / "run.sh", "--data", data, "--updates", 2]
    recipe += ["--average", 1, "--threads", 1, "--device", "cpu", "lr_scheduler.warmup_updates=1"]
    run(*recipe, "--output", folder / "run", env={processor.ASSUMED: "some"})
    record = json.loads((folder / "run" / "record.json").read_text())
    assert record["settings"]["config"]["common"]["amp"]
    parts = record["parts"]
    assert set(parts["scores"]) == {"tatoeba_test"}
    assert set(parts["curves"]) == {"train", "valid", "valid1"}
    assert parts["curves"]["valid"][-1]["loss"] != parts["curves"]["valid1"][-1]["loss"] > 0


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("held_out.tsv", "tatoeba_test\t0123456789abcdef", "it is not v2021-08-07"),
        ("sums.tsv", "train.en\t0\t1\ttrain", "must have 1 lines and the checksum 0; got"),
    ],
)
def test_rejects_other_sources_and_leaves_nothing(sources, file, line, message):
    folder, _ = sources
    (folder / file).write_text(line + "\n")
    rejected(make(folder, check=False), message)
    assert not (folder / "corpus").exists()

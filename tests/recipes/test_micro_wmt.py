"""The micro-WMT recipe in miniature, from its public sources to a record."""

import gzip
import json
import sys
import zipfile

import pytest

from data_prep import micro_wmt_corpus as corpus
from fairseq_modern import processor
from tests.common import ROOT, run


def pairs(word, number):
    return [(f"The {word} number {n} runs.", f"Das {word.title()} Nummer {n} läuft.") for n in range(number)]


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
    for stem, rows in {**news, **sets}.items():
        for code, side in (("eng", 0), ("deu", 1)):
            (folder / f"{stem}.{code}").write_text("".join(f" {row[side]}\n" for row in rows), encoding="utf-8")
    expected = {
        "train": tatoeba + [pair for rows in news.values() for pair in rows],
        "tatoeba_valid": test[4:2:-1],
        "newstest2013": sets["newstest2013"],
        "tatoeba_test": test[:2],
    }
    held_out = [(base, pair) for base in ("tatoeba_valid", "tatoeba_test") for pair in expected[base]]
    rows = [f"{base}\t{corpus.sha256(chr(9).join(pair))[:16]}" for base, pair in held_out]
    (tmp_path / "held_out.tsv").write_text("\n".join(rows) + "\n")
    splits = dict(zip(expected, ("train", "valid", "valid1", "test"), strict=True))
    with open(tmp_path / "sums.tsv", "w") as sums:
        for base, wanted in expected.items():
            for lang, side in (("en", 0), ("de", 1)):
                text = "".join(pair[side] + "\n" for pair in wanted)
                sums.write(f"{base}.{lang}\t{corpus.sha256(text)}\t{len(wanted)}\t{splits[base]}\n")
    return tmp_path, expected


def make(folder, check=True):
    sources = ["--tatoeba", folder / "deu-eng.zip", "--testsets", folder / "checkout", "--output", folder / "corpus"]
    checksums = ["--sums", folder / "sums.tsv", "--held-out", folder / "held_out.tsv"]
    return run(sys.executable, ROOT / "data_prep" / "micro_wmt_corpus.py", *sources, *checksums, check=check)


def test_corpus_is_made_prepared_and_trained_on_by_any_cpu(sources):
    folder, expected = sources
    make(folder)
    for base, wanted in expected.items():
        for lang, side in (("en", 0), ("de", 1)):
            text = gzip.decompress((folder / "corpus" / f"{base}.{lang}.gz").read_bytes()).decode("utf-8")
            assert text.split("\n")[:-1] == [pair[side] for pair in wanted]
    source = ["--source", folder / "corpus", "--manifest", folder / "corpus" / "manifest.tsv"]
    more = ["--output", folder / "data", "--vocab-size", "80", "--python", sys.executable]
    run("bash", ROOT / "data_prep" / "micro_wmt.sh", *source, *more)
    assert (folder / "data" / "data-bin" / "valid1.en-de.de.bin").stat().st_size > 0
    newstest2013 = (folder / "data" / "raw" / "newstest2013.de").read_text()
    assert newstest2013.splitlines() == [german for _, german in expected["newstest2013"]]
    small = ["--updates", 2, "--average", 1, "--threads", 1, "--device", "cpu", "--python", sys.executable]
    recipe = ["bash", ROOT / "recipes" / "micro_wmt" / "run.sh", "--data", folder / "data", *small]
    for units in ("none", "some"):
        output = folder / units
        run(*recipe, "--output", output, "lr_scheduler.warmup_updates=1", env={processor.ASSUMED: units})
        record = json.loads((output / "record.json").read_text())
        assert record["settings"]["config"]["common"]["amp"] == (units == "some")
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
    done = make(folder, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "corpus").exists()


def test_variant_of_a_config_becomes_flags_and_a_part_of_the_name():
    script = ROOT / "recipes" / "micro_wmt" / "run.sh"
    done = run("bash", script, "--config", "rate", "--variant", "blocks8_lr005", "--dry-run")
    assert "--lr 0.005 " in done.stdout
    assert "--mixing-init blocks " in done.stdout
    assert "/runs/micro_wmt/encoder_cross_decoder-dk32-blocks8_lr005-s1-u1200/checkpoints" in done.stdout

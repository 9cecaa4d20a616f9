"""From the public sources of micro-WMT to a data-bin, in miniature, and a run of its recipe."""

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
    """An archive and a checkout whose texts are known; the checksums of the held-out sentences and of the texts."""
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
    rows = [
        f"{base}\t{corpus.sha256(chr(9).join(pair))[:16]}"
        for base in expected
        if "toeba" in base
        for pair in expected[base]
    ]
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


def test_the_corpus_is_made_by_its_rules_and_prepared_and_any_cpu_trains_on_it(sources):
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
    assert (folder / "data" / "raw" / "newstest2013.de").read_text() == "".join(
        d + "\n" for _, d in expected["newstest2013"]
    )
    small = ["--updates", 2, "--average", 1, "--threads", 1, "--device", "cpu", "--python", sys.executable]
    recipe = ["bash", ROOT / "recipes" / "micro_wmt" / "run.sh", "--data", folder / "data", *small]
    for units in ("none", "some"):
        output = folder / units
        run(*recipe, "--output", output, "lr_scheduler.warmup_updates=1", env={processor.ASSUMED: units})
        record = json.loads((output / "record.json").read_text())
        assert record["settings"]["config"]["common"]["amp"] == (units == "some")
        found = record["parts"]
        assert set(found["scores"]) == {"tatoeba_test"}
        assert set(found["curves"]) == {"train", "valid", "valid1"}
        assert found["curves"]["valid"][-1]["loss"] != found["curves"]["valid1"][-1]["loss"] > 0


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("held_out.tsv", "tatoeba_test\t0123456789abcdef", "it is not v2021-08-07"),
        ("sums.tsv", "train.en\t0\t1\ttrain", "must have 1 lines and the checksum 0; got"),
    ],
)
def test_other_sources_leave_nothing(sources, file, line, message):
    folder, _ = sources
    (folder / file).write_text(line + "\n")
    done = make(folder, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "corpus").exists()


def test_a_sweep_names_runs_by_their_flags():
    sweep = ["bash", ROOT / "recipes" / "multi30k" / "sweep.sh", "--dry-run"]
    done = run(*sweep, "--config", "table", "--seeds", "2")
    names = [line.split("/runs/multi30k/")[1].split()[0] for line in done.stdout.splitlines()]
    assert names[0] == "none-dk128-s2-u4000"
    assert "encoder_cross_decoder-dk64-blocks8_values2-s2-u4000" in names
    for wrong, message in (["model.key_dim=8"], "give --runs"), (["--runs", "none:128:keys9"], "keys9"):
        assert message in run(*sweep, *wrong, check=False).stderr


@pytest.mark.parametrize(
    ("recipe", "flags", "expected"),
    [
        ("multi30k", ["--heads", "none", "--variant", "keys1", "--threads", "1"], "--kv-heads 1 "),
        ("micro_wmt", ["--config", ROOT / "recipes/micro_wmt/rate.yaml", "--variant", "lr005"], "--lr 0.005 "),
        ("iwslt14_de_en", ["--variant", "blocks8", "--device", "cpu", "--precision", "fp32"], "--mixing-init blocks "),
    ],
)
def test_variants_become_flags(recipe, flags, expected):
    assert expected in run("bash", ROOT / "recipes" / recipe / "run.sh", *flags, "--dry-run").stdout

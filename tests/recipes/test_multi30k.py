"""The Multi30K recipe in miniature, from gzipped text to a record, with a synthetic corpus."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import folders
import pytest
import toy

from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.sufficient_statistics import load
from tests.common import ROOT, content, run
from tests.recipes.test_wmt14_data import rejected

PREPARE = ROOT / "data_prep" / "multi30k.sh"
RECIPE = ROOT / "recipes" / "multi30k" / "run.sh"
SPLITS = {
    "train": ("train", 300),
    "val": ("valid", 20),
    "test_2016_flickr": ("test", 20),
    "test_2017_flickr": ("test1", 20),
}


def write_gz(path: Path, lines) -> None:
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode("utf-8"), mtime=0))


def write_manifest(folder: Path, path: Path) -> None:
    """Write a manifest of the present files."""
    rows = ["# file\tsha256\tlines\tsplit"]
    for base, (split, number) in SPLITS.items():
        for lang in ("en", "de"):
            name = f"{base}.{lang}.gz"
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
            rows.append(f"{name}\t{digest}\t{number}\t{split}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_corpus(folder: Path) -> Path:
    source = folder / "source"
    source.mkdir()
    for seed, (base, (_, number)) in enumerate(SPLITS.items(), start=1):
        pairs = toy.corpus(seed, {"train": number, "valid": 0, "test": 0})["train"]
        write_gz(source / f"{base}.en.gz", [pair[0] for pair in pairs])
        write_gz(source / f"{base}.de.gz", [pair[1] for pair in pairs])
    write_manifest(source, folder / "manifest.tsv")
    write_gz(source / "blind_2018_flickr.en.gz", ["A dog runs.", "", "A man sleeps."])
    return folder


def prepare(folder: Path, *flags, check=True, **options):
    given = ["--source", folder / "source", "--manifest", folder / "manifest.tsv", "--output", folder / "data" / "mini"]
    options["check"] = check
    return run("bash", PREPARE, *given, "--vocab-size", 150, "--python", sys.executable, *flags, **options)


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus(tmp_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = write_corpus(tmp_path_factory.mktemp("prepared"))
    prepare(folder)
    return folder


def test_second_preparation_does_nothing_and_force_gives_the_same_bytes(prepared):
    data = prepared / "data" / "mini"
    before, time = content(data), (data / "prepared.txt").stat().st_mtime_ns
    assert "is complete, nothing to do" in prepare(prepared).stderr
    assert (data / "prepared.txt").stat().st_mtime_ns == time
    rejected(prepare(prepared, "--vocab-size", 120, check=False), "was prepared with other options")
    prepare(prepared, "--force")
    assert content(data) == before
    assert [path.name for path in (prepared / "data").iterdir()] == ["mini"]


def test_parallel_preparations_of_one_output_wait_for_each_other(prepared):
    data = prepared / "data" / "mini"
    command = [PREPARE, "--source", prepared / "source", "--manifest", prepared / "manifest.tsv", "--output", data]
    with folders.output_lock(data, pytest.fail):
        second = subprocess.Popen([*map(str, command), "--vocab-size", "150"], stderr=subprocess.PIPE, text=True)
        assert f"{data}; waiting" in second.stderr.readline()
    assert "is complete, nothing to do" in second.communicate(timeout=100)[1]
    assert [path.name for path in data.parent.iterdir()] == ["mini"]


def test_failed_preparation_leaves_nothing(corpus):
    rejected(prepare(corpus, "--vocab-size", 5000, check=False), "Vocabulary size too high")
    (corpus / "source" / "val.de.gz").write_bytes(b"plain text\n")
    write_manifest(corpus / "source", corpus / "manifest.tsv")
    rejected(prepare(corpus, check=False), "val.de.gz is truncated or not a gzipped archive")
    assert not (corpus / "data").exists()


def test_preparation_uses_a_given_vocabulary_and_dictionary(prepared, corpus):
    earlier = prepared / "data" / "mini"
    words = (earlier / "data-bin" / "dict.en.txt").read_text(encoding="utf-8")
    (corpus / "dict.txt").write_text(f"extra 1\n{words}", encoding="utf-8")
    given = ["--spm", earlier / "sentencepiece.model"]
    for dictionary, output in ((earlier / "data-bin" / "dict.de.txt", "same"), (corpus / "dict.txt", "more")):
        prepare(corpus, *given, "--dict", dictionary, "--output", corpus / output)
    for file in (earlier / "data-bin").iterdir():
        assert (corpus / "same" / "data-bin" / file.name).read_bytes() == file.read_bytes()
    assert (corpus / "more" / "data-bin" / "dict.en.txt").read_bytes() == (corpus / "dict.txt").read_bytes()
    assert "spm " in (corpus / "same" / "prepared.txt").read_text(encoding="utf-8")
    other = prepare(corpus, *given, "--output", corpus / "same", check=False)
    rejected(other, "was prepared with other options")
    rejected(prepare(corpus, "--dict", corpus / "dict.txt", check=False), "--dict needs the SentencePiece model")


def test_existing_files_are_verified_and_never_lost(prepared, tmp_path):
    data = Path(shutil.copytree(prepared, tmp_path / "copy")) / "data" / "mini"
    with open(data / "data-bin" / "train.en-de.en.bin", "ab") as stream:
        stream.write(b"x")
    damaged = prepare(tmp_path / "copy", check=False)
    rejected(damaged, "is damaged (its files differ from its SHA256SUMS); give --force")
    (data / "prepared.txt").unlink()  # now it may be any folder
    before = content(data)
    for flags in ([], ["--force"]):
        rejected(prepare(tmp_path / "copy", *flags, check=False), "exists and was not made by this script")
    assert content(data) == before


@pytest.fixture(scope="module")
def finished(prepared) -> Path:
    """A complete run of the recipe with four updates."""
    recipe(prepared, prepared / "run")
    return prepared / "run"


def recipe(folder: Path, output: Path, *flags, check=True):
    given = ["--data", folder / "data" / "mini", "--source", folder / "source", "--output", output]
    given += ["--updates", 4, "--average", 2, "--threads", 1, "--device", "cpu", "--python", sys.executable]
    settings = ["lr_scheduler.warmup_updates=2", "recipe.batch_tokens=600"]
    return run("bash", RECIPE, *given, *settings, *flags, check=check)


def test_run_ends_in_scores_and_a_record(finished):
    record = load_run(finished / "record.json")
    assert set(record["scores"]) == {"test_2016_flickr", "test_2017_flickr"}
    assert {scores["sentences"] for scores in record["scores"].values()} == {20}
    assert [entry["num_updates"] for entry in record["averaged_from"]] == [4, 3]
    assert record["training"]["updates"] == 4
    assert [point["updates"] for point in record["curves"]["valid"]] == [1, 2, 3, 4]
    assert (record["config"]["model"]["key_dim"], record["config"]["lr_scheduler"]["warmup_updates"]) == (32, 2)
    assert record["data"]["data-bin/dict.de.txt"]


def test_run_keeps_hypotheses_and_losses_of_the_average(prepared, finished):
    scored = gzip.decompress((finished / "hypotheses" / "test_2017_flickr.de.gz").read_bytes()).decode("utf-8")
    log = (finished / "test_2017_flickr.generate.log").read_text(encoding="utf-8")
    translations = {int(n): text for n, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", log, re.MULTILINE)}
    assert scored.splitlines() == [translations[n] for n in range(20)]
    losses = load_run(finished / "record.json")["losses"]
    for loss in losses.values():  # the losses of the sentences add up to that of the test set
        bits, tokens = load(loss["sentences"], "nll").sum(axis=0)
        assert (bits / tokens, tokens) == pytest.approx((loss["nll_loss"], loss["tokens"]), abs=1e-4)
    assert list(losses) == ["valid", "test_2016_flickr", "test_2017_flickr"]
    data = prepared / "data" / "mini" / "data-bin"
    done = run(
        *("fairseq-validate", data, "--task", "translation", "--path", finished / "averaged.pt", "--cpu"),
        *("--user-dir", ROOT / "collab_fairseq", "--valid-subset", "valid,test,test1", "--log-format", "json"),
        *("--max-tokens", 4000),
    )
    for name, split in zip(losses, ("valid", "test", "test1"), strict=True):
        expected = json.loads(re.findall(rf'\{{.*"{split}_loss".*\}}', done.stdout)[-1])
        for field in ("loss", "nll_loss"):
            assert losses[name][field] == pytest.approx(float(expected[f"{split}_{field}"]), abs=6e-4)
    assert len({entry["nll_loss"] for entry in losses.values()}) == 3


def test_exported_model_translates_the_sets_without_references(finished):
    translated = gzip.decompress((finished / "hypotheses" / "blind_2018_flickr.de.gz").read_bytes())
    lines = translated.decode("utf-8").split("\n")
    done = run("collab", "translate", finished / "model", "--threads", 1, input="A man sleeps.\n")
    assert lines == [lines[0], "", done.stdout.rstrip("\n"), ""]
    assert (finished / "model" / "record.json").read_bytes() == (finished / "record.json").read_bytes()


def test_same_command_only_prints_and_other_settings_are_rejected(prepared, finished):
    def files():
        return {name: data for name, data in content(finished).items() if not name.endswith("scores.json")}

    before = files()
    assert recipe(prepared, finished, "--dry-run").stdout.startswith("env OMP_NUM_THREADS=1 ")
    done = recipe(prepared, finished)
    assert done.stdout.count("sacreBLEU") == 2
    assert done.stderr.count("already done") == 5
    assert files() == before
    rejected(recipe(prepared, finished, "--seed", 2, check=False), "holds a run with other settings")

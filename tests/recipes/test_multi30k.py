"""The Multi30k recipe in miniature, from gzipped text to a record, with a synthetic corpus."""

import contextlib
import errno
import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path
from unittest import mock

import pytest

from collab_fairseq.records.rows import load_run
from collab_fairseq.scoring.sufficient_statistics import load
from collab_fairseq.translation import load_model, loss
from data_prep import data_set, folders, toy
from data_prep import prepare as data_prepare
from tests.common import ROOT, content, rejected, run

PREPARE = ROOT / "data_prep" / "multi30k.sh"
SENTENCES = {"train": 300, "val": 20, "test_2016_flickr": 20, "test_2017_flickr": 20}
#: split of the data → name of its loss
LOSSES = {"valid": "valid", "test": "test_2016_flickr", "test1": "test_2017_flickr"}


def write_gz(path: Path, lines) -> None:
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode("utf-8"), mtime=0))


def prepare(folder: Path, *flags, **options):
    sources = ["--source", folder / "source", "--manifest", folder / "manifest.tsv"]
    vocabulary = [] if "--spm" in flags else ["--vocab-size", 150]
    return run("bash", PREPARE, *sources, "--output", folder / "data" / "mini", *vocabulary, *flags, **options)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    """A folder with a corpus in source/, its manifest, and the data prepared from it in data/mini."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "source").mkdir()
    rows = ["# file\tsha256\tlines\tcomment"]
    for seed, (base, number) in enumerate(SENTENCES.items(), start=1):
        pairs = toy.corpus(seed, {"train": number, "valid": 0, "test": 0})["train"]
        for side, lang in enumerate(("en", "de")):
            file = folder / "source" / f"{base}.{lang}.gz"
            write_gz(file, [pair[side] for pair in pairs])
            rows.append(f"{file.name}\t{hashlib.sha256(file.read_bytes()).hexdigest()}\t{number}\t-")
    (folder / "manifest.tsv").write_text("\n".join(rows), encoding="utf-8")
    write_gz(folder / "source" / "blind_2018_flickr.en.gz", ["A dog runs.", "", "A man sleeps."])
    prepare(folder)
    return folder


def test_second_preparation_does_nothing_and_force_gives_the_same_bytes(prepared):
    data = prepared / "data" / "mini"
    before, time = content(data), (data / "prepared.txt").stat().st_mtime_ns
    assert "is complete, nothing to do" in prepare(prepared).stderr
    assert (data / "prepared.txt").stat().st_mtime_ns == time
    rejected(prepare(prepared, "--vocab-size", 120, check=False), "was prepared with different options")
    prepare(prepared, "--force")
    assert content(data) == before
    assert [path.name for path in (prepared / "data").iterdir()] == ["mini"]


def test_an_output_on_another_disk_stays_a_link(prepared, tmp_path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "mini"
    link.symlink_to(tmp_path / "disk")
    for flags in ([], ["--force"]):
        prepare(prepared, "--output", link, *flags)
        assert link.is_symlink()
        assert content(tmp_path / "disk") == content(prepared / "data" / "mini")


def test_a_complete_output_needs_no_lock(prepared, monkeypatch):
    monkeypatch.setattr(data_prepare, "output_lock", lambda *_: pytest.fail("the folder may be read-only"))
    words = ["multi30k.sh", "--source", str(prepared / "source"), "--manifest", str(prepared / "manifest.tsv")]
    words += ["--output", str(prepared / "data" / "mini"), "--vocab-size", "150"]
    described = data_prepare.load("multi30k")
    data_prepare.prepare("multi30k", described, data_set.parser_of("multi30k", described).parse_args(words[1:]))


def test_parallel_preparations_of_one_output_wait_for_each_other(prepared):
    data = prepared / "data" / "mini"
    sources = ["--source", prepared / "source", "--manifest", prepared / "manifest.tsv"]
    command = [str(word) for word in (PREPARE, *sources, "--output", data, "--vocab-size", 150)]
    with folders.output_lock(data, pytest.fail):
        damaged = data / "sentencepiece.model"  # which the first process repairs
        content_before = damaged.read_bytes()
        damaged.write_bytes(b"")
        second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert f"{data}; waiting" in second.stderr.readline()
        damaged.write_bytes(content_before)
    assert "is complete, nothing to do" in second.communicate(timeout=100)[1]
    assert [path.name for path in data.parent.iterdir()] == ["mini"]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EIO])
def test_on_a_file_system_without_locks_preparations_do_not_wait(number, tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", failing := mock.Mock(side_effect=OSError(number, "no")))
    expected = pytest.raises(OSError, match="no") if number == errno.EIO else contextlib.nullcontext()
    with expected, folders.output_lock(tmp_path / "out", pytest.fail):
        assert number == errno.ENOSYS
        assert failing.called
    if number == errno.ENOSYS:
        assert list(tmp_path.iterdir()) == []


def test_failed_preparation_leaves_nothing(prepared, tmp_path):
    too_many = ["--vocab-size", 5000, "--output", tmp_path / "data" / "mini"]
    rejected(prepare(prepared, *too_many, check=False), "Vocabulary size too high")
    assert not list(tmp_path.iterdir())


def test_preparation_uses_a_given_vocabulary_and_dictionary(prepared, tmp_path):
    earlier, dictionary = prepared / "data" / "mini", tmp_path / "dict.txt"
    words = (earlier / "data-bin" / "dict.en.txt").read_text(encoding="utf-8")
    for extra, output in (("", "same"), ("extra 1\n", "more")):
        dictionary.write_text(f"{extra}{words}", encoding="utf-8")
        given = ["--spm", earlier / "sentencepiece.model", "--dict", dictionary]
        prepare(prepared, *given, "--output", tmp_path / output)
    for file in (earlier / "data-bin").iterdir():
        assert (tmp_path / "same" / "data-bin" / file.name).read_bytes() == file.read_bytes()
    assert (tmp_path / "more" / "data-bin" / "dict.en.txt").read_bytes() == dictionary.read_bytes()
    assert "spm " in (tmp_path / "same" / "prepared.txt").read_text(encoding="utf-8")
    other = prepare(prepared, *given[:2], "--output", tmp_path / "same", check=False)
    rejected(other, "was prepared with different options")
    rejected(prepare(prepared, *given[2:], check=False), "--dict needs the SentencePiece model")
    message = "argument --vocab-size: not allowed with argument --spm"
    given += ["--vocab-size", 150, "--output", tmp_path / "new"]
    rejected(prepare(prepared, *given, check=False), message, status=2)


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


def recipe(folder: Path):
    words = ["--data", folder / "data" / "mini", "--source", folder / "source", "--output", folder / "run"]
    words += ["--updates", 4, "--average", 2, "--threads", 1, "--device", "cpu"]
    settings = ["lr_scheduler.warmup_updates=2", "recipe.batch_tokens=600"]
    return run("bash", ROOT / "recipes" / "multi30k" / "run.sh", *words, *settings)


@pytest.fixture(scope="module")
def finished(prepared) -> Path:
    """A complete run of the recipe with four updates."""
    recipe(prepared)
    return prepared / "run"


def test_run_ends_in_a_record_with_scores_and_losses_of_the_average(prepared, finished):
    record = load_run(finished / "record.json")
    assert set(record["scores"]) == {"test_2016_flickr", "test_2017_flickr"}
    assert {scores["sentences"] for scores in record["scores"].values()} == {20}
    assert [entry["num_updates"] for entry in record["averaged_from"]] == [4, 3]
    assert [point["updates"] for point in record["curves"]["valid"]] == [1, 2, 3, 4]
    assert (record["config"]["model"]["key_dim"], record["config"]["lr_scheduler"]["warmup_updates"]) == (32, 2)
    assert record["data"]["data-bin/dict.de.txt"]

    losses = record["losses"]
    model = load_model(finished / "averaged.pt", str(prepared / "data" / "mini" / "data-bin"))
    assert set(losses) == set(LOSSES.values())
    for split, name in LOSSES.items():
        expected, recorded = loss(model, split), losses[name]
        assert (recorded["loss"], recorded["nll_loss"]) == pytest.approx((expected.loss, expected.nll_loss))
        # the losses of the sentences add up to that of the test set
        bits, tokens = load(recorded["sentences"], "nll").sum(axis=0)
        assert (bits / tokens, tokens) == pytest.approx((expected.nll_loss, expected.tokens), abs=1e-4)
    assert len({recorded["nll_loss"] for recorded in losses.values()}) == 3


def test_run_keeps_hypotheses_and_translates_sets_without_references_with_the_exported_model(finished):
    def hypotheses(name):
        with gzip.open(finished / "hypotheses" / f"{name}.de.gz", "rt", encoding="utf-8") as stream:
            return stream.read().split("\n")

    log = (finished / "test_2017_flickr.generate.log").read_text(encoding="utf-8")
    translations = {int(n): text for n, text in re.findall(r"^D-(\d+)\t\S+\t(.*)$", log, re.MULTILINE)}
    assert hypotheses("test_2017_flickr") == [*(translations[n] for n in range(20)), ""]
    done = run("collab", "translate", finished / "model", "--threads", 1, input="A man sleeps.\n")
    blind = hypotheses("blind_2018_flickr")
    assert blind == [blind[0], "", done.stdout.rstrip("\n"), ""]
    assert (finished / "model" / "record.json").read_bytes() == (finished / "record.json").read_bytes()


def test_same_command_skips_all_steps_and_prints_the_scores(prepared, finished):
    done = recipe(prepared)
    assert done.stdout.count("sacreBLEU") == 2
    assert done.stderr.count("already done") == 5

"""Benchmarks: memory, interleaved rounds, statistics, comparison, records, tables, `python -m benchmarks`."""

import json
import sys
from functools import partial

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator

from benchmarks import __main__ as program
from benchmarks import layers, measure, models
from benchmarks.layers import implementations
from benchmarks.measure import Options, interleave, peak_bytes, ratio, spread
from benchmarks.rows import rows
from benchmarks.sentences import LENGTHS, Task, random_lengths
from benchmarks.table import table
from collab_fairseq.attention.cache import source_rows
from collab_fairseq.modules.attention import IncrementalAttention
from collab_fairseq.records import environment
from collab_fairseq.records.record import load
from collab_fairseq.search.shortlist import ShortlistGenerator
from fairseq_modern.errors import UserError
from tests.common import ROOT, rejected, run

ONCE = Options(rounds=1)
DO_NOTHING = {"ours": lambda: None, "fairseq": lambda: None}
TWO_ROWS = {"layer/a": lambda _: [DO_NOTHING], "layer/b": lambda _: [DO_NOTHING]}
SELF = {"fairseq-self", "standard-sdpa", "authors", "ours", "ours-bmm"}
DECODE = {"fairseq", "standard-sdpa", "authors", "ours", "ours-bmm"}
ROWS = {
    "layer": {"layer/encoder/3x6/dk8/train": SELF, "layer/encoder/3x6/dk8/memory": SELF},
    "decode": {
        "decode/cross/3x2/S5/dk8": DECODE,
        "decode/self/3x2/T4/dk8": DECODE,
        "decode/translate/tiny/3/dk32": {"fairseq", "none", "ours"},
        "decode/translate/tiny/3/dk32/bf16": {"fairseq", "fairseq-bf16", "ours"},
    },
    "train": {
        "train/tiny/3x6/dk32": {"fairseq", "none", "authors", "ours"},
        "train/tiny/3x6/dk32/fast": {"fairseq", "ours"},
        "train/tiny/3x6/dk32/fast-bf16": {"fairseq", "fairseq-bf16", "ours"},
        "train/tiny/3x6/dk32/fast-memory": {"fairseq", "ours"},
    },
}


def test_peak_memory_is_the_largest_running_sum():
    kept = torch.empty(50_000)  # allocated before the step: does not count

    def step():
        a = torch.empty(1000)
        b = torch.empty(2000)  # peak: 12,000 bytes
        del a
        c = torch.empty(500)
        del b, c
        d = torch.empty(2400)
        return d.numel() + kept.numel()

    assert peak_bytes(step, "cpu") == 4 * (1000 + 2000)
    assert peak_bytes(lambda: None, "cpu") == 0


@pytest.fixture
def clock(monkeypatch):
    """A clock that only tests advance."""
    now = [0.0]
    monkeypatch.setitem(measure.CLOCKS, "wall", lambda: now[0])
    return now


def test_rounds_run_all_implementations_in_random_order_after_warm_up(clock):
    calls, seconds = [], {"a": 2.0, "b": 1.0, "c": 4.0}

    def step(name):
        calls.append(name)
        clock[0] += seconds[name]

    parts = [{name: partial(step, name) for name in seconds}] * 2
    times = interleave(parts, Options(rounds=40, seconds=1e9))
    assert times == {"a": [4.0] * 40, "b": [2.0] * 40, "c": [8.0] * 40}
    rounds = [calls[n : n + 3] for n in range(6, len(calls), 3)]  # after two rounds of the first part
    assert len(rounds) == 80
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len({tuple(names) for names in rounds}) == 6  # every order occurs


@pytest.mark.parametrize(("rounds", "seconds", "expected"), [(100, 6.0, 6), (100, 0.5, 3), (2, 60.0, 2)])
def test_rounds_and_seconds_limit_a_row(clock, rounds, seconds, expected):
    def step():
        clock[0] += 1.0

    assert len(interleave([{"a": step}], Options(rounds=rounds, seconds=seconds))["a"]) == expected


def test_statistics():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "rounds": 5}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "rounds": 1}
    # medians 4 / 4; the ratios within rounds, 2, 1 and 0.5, give the quartiles
    assert ratio([2.0, 4.0, 6.0], [1.0, 4.0, 12.0]) == {"median": 1.0, "q1": 0.75, "q3": 1.5, "rounds": 3}


@torch.no_grad()
def change_values(module):
    module.v_proj.weight[0, 0] += 0.5


def halve_gradient(module):
    module.register_forward_hook(lambda module, args, out: ((out[0].detach() + out[0]) / 2, None))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("fairseq", change_values, "output of standard-sdpa, compared with fairseq"),
        ("standard-sdpa", change_values, "output of standard-sdpa, compared with fairseq"),
        ("authors", change_values, "output of ours, compared with authors"),
        ("ours", change_values, "output of ours, compared with authors"),
        ("ours-bmm", change_values, "output of ours-bmm, compared with authors"),
        ("ours", halve_gradient, "input gradient of ours, compared with authors"),
    ],
)
def test_wrong_implementations_are_not_timed(name, change, message, monkeypatch):
    def changed(*args, **kwargs):
        modules = implementations(*args, **kwargs)
        change(modules[name])
        return modules

    sizes = (3, 6, 8)
    assert set(layers.train(*sizes, ONCE)[0]) == SELF
    monkeypatch.setattr(layers, "implementations", changed)
    with pytest.raises(UserError, match=rf"{message}, differs by .* of the largest value"):
        layers.train(*sizes, ONCE)


def test_gpus_also_have_large_batches():
    on_gpu = Options(device="cuda", dtype="bfloat16")
    for what, row in (("layer", "layer/encoder/512x32/dk128/train"), ("train", "train/base/512x32/dk128/fast")):
        assert row in rows(what, on_gpu)
        assert row not in rows(what, Options())


def test_wrong_reordering_of_caches_is_not_timed(monkeypatch):
    sizes = ("self", 3, 2, 4, 8)
    assert "ours" in layers.decode(*sizes, ONCE)[0]
    monkeypatch.setattr(IncrementalAttention, "reorder_incremental_state", lambda self, state, *order: state)
    with pytest.raises(UserError, match=r"^output of \S+, compared with fairseq, differs"):
        layers.decode(*sizes, ONCE)


def test_models_of_one_attention_type_have_equal_parameters():
    task = Task(64)
    built = models.build("tiny", task, 32, models.TRAIN_IMPLEMENTATIONS[None], "cpu")
    batch = task.batch(task.sentences([6, 4]), task.sentences([5, 6], 2), "cpu")["net_input"]
    with torch.no_grad():
        outputs = {name: model.eval()(**batch)[0] for name, model in built.items()}
    torch.testing.assert_close(outputs["none"], outputs["fairseq"])
    torch.testing.assert_close(outputs["ours"], outputs["authors"])
    assert (outputs["ours"] - outputs["none"]).abs().max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_rows_run_in_the_data_type_of_the_record(dtype, monkeypatch):
    options = Options(dtype=dtype)
    monkeypatch.setattr(models, "_step", lambda *arguments, autocast: autocast)
    tiny = {name: row for name, row in rows("train", options).items() if "tiny" in name}
    assert ("train/tiny/170x24/dk32/fast-bf16" in tiny) == (dtype == "float32")  # it compares both types
    for name, row in tiny.items():
        if not name.endswith("fast-bf16"):
            assert set(row(options)[0].values()) == {dtype == "bfloat16"}


def test_sentence_lengths_are_those_of_multi30k_up_to_scale():
    drawn = random_lengths(5000, seed=1)
    assert abs(sorted(drawn)[2500] - LENGTHS[4]) <= 1
    assert 2 <= min(drawn) < max(drawn) == LENGTHS[-1]
    batch = random_lengths(64, 1, longest=512)
    assert max(batch) == batch[0] == 512
    assert min(batch) < 256
    mask = layers.padding_mask(3, 20, "cpu")
    assert mask.sum(1).tolist() == [20 - length for length in random_lengths(3, longest=20)]
    assert not mask[:, -1].any()


def test_decoding_step_reads_the_order_on_the_host_only_once(monkeypatch):
    """Each time, it would wait for a GPU. The layers of a model share the result, too."""
    calls = []
    monkeypatch.setattr(layers, "source_rows", lambda *arguments: calls.append(arguments) or source_rows(*arguments))
    step = layers.decode("cross", 3, 2, 4, 8, ONCE)[0]["ours"]
    step()
    step()
    assert len(calls) == 1


@pytest.fixture
def measure_rows(monkeypatch, tmp_path):
    """A function that runs `python -m benchmarks layer` with these rows, and returns the record."""

    def call(rows, path=None, *flags):
        path = path or tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        monkeypatch.setattr(program, "rows", lambda *_: rows)
        words = ["benchmarks", "layer", "--device", "cpu", "--rounds", "1", "--json", str(path), *flags]
        monkeypatch.setattr(sys, "argv", words)
        program.run(program.parse())
        return load(path, "bench", "layer")

    return call


def test_interrupted_benchmark_continues(tmp_path, monkeypatch, measure_rows):
    measured, path = [], tmp_path / "record.json"

    def first(options):
        measured.append("first")
        return [DO_NOTHING]

    def interrupted(options):
        raise KeyboardInterrupt

    rows = {"layer/first": first, "layer/second": interrupted}
    with pytest.raises(KeyboardInterrupt):
        measure_rows(rows, path)
    before = load(path, "bench", "layer")["parts"]["layer/first"]
    rows["layer/second"] = lambda options: [DO_NOTHING]
    record = measure_rows(rows, path)
    assert measured == ["first"]
    assert json.loads(path.read_text()) == record
    assert record["parts"]["layer/first"] == before
    assert set(record["parts"]) == set(rows)

    monkeypatch.setattr(environment, "commit", lambda folder: {"id": "other", "modified": False})
    with pytest.raises(UserError, match="was made with commit"):
        measure_rows(rows, path)


@pytest.mark.parametrize("error", [UserError, RuntimeError, torch.OutOfMemoryError])
def test_failed_row_is_missing_and_others_are_measured(error, caplog, measure_rows):
    def failing_with(options):
        raise error("no luck\nand a long story")

    record = measure_rows({"layer/failing": failing_with, "layer/good": lambda _: [DO_NOTHING]})
    assert record["parts"]["layer/failing"] == {"missing": "no luck"}
    assert "layer/failing is missing: no luck" in caplog.text
    assert "| layer/good | " in table([record])
    assert "failing" not in table([record])
    with pytest.raises(UserError, match=r"must have ratios of python -m benchmarks; got none"):
        table([{**record, "parts": {"sentences": 200}}])


def failing(options):
    raise UserError("no luck")


def test_a_failed_row_is_measured_again(tmp_path, measure_rows):
    rows = {"layer/first": failing, "layer/second": lambda _: [DO_NOTHING]}
    first = measure_rows(rows, tmp_path / "record.json")["parts"]
    rows["layer/first"] = lambda _: [DO_NOTHING]
    second = measure_rows(rows, tmp_path / "record.json")["parts"]
    assert "missing" in first["layer/first"]
    assert "ratios" in second["layer/first"]
    assert second["layer/second"] == first["layer/second"]


def test_a_row_of_a_table_is_in_one_record(measure_rows):
    both, one = measure_rows(TWO_ROWS), measure_rows(TWO_ROWS, None, "--rows", "layer/a")
    with pytest.raises(UserError, match="layer/a must be in one record only"):
        table([both, one])
    assert "| layer/b |" in table([both, one], ["layer/b"])


def test_notes_of_a_table_are_about_its_rows(measure_rows):
    first, second = (measure_rows(TWO_ROWS, None, "--rows", row) for row in TWO_ROWS)
    second["hardware"]["cpu"] = "A different CPU"
    paths = ["first.json", "second.json"]
    both = table([first, second], paths=paths)
    assert both.count("Ratio of the medians") == 1
    assert all(text in both for text in ("A different CPU", "(first.json)", "(second.json)"))
    one = table([first, second], ["layer/a"], paths)
    assert "(first.json)" in one
    assert "A different CPU" not in one
    assert "(second.json)" not in one


def test_only_our_models_search_with_shortlists():
    (searches,) = models.translate("tiny", 3, 32, None, ONCE)
    generators = {name: type(search.args[0]) for name, search in searches.items()}
    assert generators == {"fairseq": SequenceGenerator, "none": ShortlistGenerator, "ours": ShortlistGenerator}


@pytest.mark.parametrize("what", ROWS)
def test_rows_of_other_sizes_measure_their_implementations(what, tmp_path):
    path = tmp_path / "record.json"
    chosen = [word for name in ROWS[what] for word in ("--rows", name)]
    limits = ["--rounds", 2, "--seconds", 2.5, "--dtype", "float32"]
    done = run("python", "-m", "benchmarks", what, "--device", "cpu", *limits, "--json", path, *chosen, cwd=ROOT)
    record = json.loads(path.read_text())
    expected = {"rounds": 2, "seconds": 2.5, "dtype": "float32"}
    assert (record["name"], {**record["settings"], **expected}) == (what, record["settings"])
    parts = record["parts"]
    assert {name: set(part["values"]) for name, part in parts.items()} == ROWS[what]
    assert all(part["unit"] == ("bytes" if name.endswith("memory") else "s") for name, part in parts.items())
    assert all(f"| {name} |" in done.stdout for name in parts)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rows nothing", "--rows nothing matches no row"),
        ("--clock processor --threads 2", "--clock processor needs --threads 1"),
        ("--json nowhere/x.json", "cannot write nowhere/x.json"),
    ],
)
def test_rejects_wrong_flags_first(flags, message):
    done = run("python", "-m", "benchmarks", "layer", "--device", "cpu", *flags.split(), check=False, cwd=ROOT)
    rejected(done, message)

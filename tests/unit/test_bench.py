"""Benchmarks: counting memory, taking turns, statistics, agreement of implementations, growing records, tables."""

import json
import random

import pytest
import torch

pytest.importorskip("fairseq")

from collab_fairseq.bench import layers, measure, models, programs, runner
from collab_fairseq.bench.implementations import implementations
from collab_fairseq.bench.measure import BenchError, Options, interleave, peak_bytes, ratio, spread
from collab_fairseq.bench.models import LENGTHS, draw
from collab_fairseq.bench.table import table
from collab_fairseq.records import environment
from collab_fairseq.records.record import load
from fairseq_modern.errors import UserError
from tests.common import Waiting

QUICK = Options(quick=True)


def test_peak_memory_is_the_largest_running_sum():
    kept = torch.empty(50_000)  # held before the start: counts neither way

    def step():
        a = torch.empty(1000)
        b = torch.empty(2000)  # 12,000 bytes are held here
        del a
        c = torch.empty(500)
        del b, c
        d = torch.empty(2400)
        return d.numel() + kept.numel()

    assert peak_bytes(step, "cpu") == 4 * (1000 + 2000)
    assert peak_bytes(lambda: None, "cpu") == 0


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only where it is moved on."""
    now = [0.0]
    monkeypatch.setitem(measure.CLOCKS, "wall", lambda: now[0])
    return now


def test_implementations_take_turns_in_shuffled_rounds_and_warm_up(clock):
    calls, chance, speed = [], random.Random(0), {"a": 2.0, "b": 1.0, "c": 4.0}

    def step_of(name):
        def step():
            calls.append(name)
            clock[0] += speed[name] * chance.choice([1.0, 1.0, 3.0])

        return step

    options = Options(rounds=40, seconds=1e9)
    times = interleave([{name: step_of(name) for name in speed}] * 2, options)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(speed, 40)
    warmup, timed = calls[:6], calls[6:]
    rounds = [timed[n : n + 3] for n in range(0, len(timed), 3)]
    assert (len(warmup), len(rounds)) == (6, 80)
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) == 6  # every order occurs
    assert sum(map(sum, times.values())) <= clock[0]
    assert ratio(times["c"], times["b"])["median"] > 2 > ratio(times["b"], times["c"])["median"]


@pytest.mark.parametrize(("rounds", "seconds", "expected"), [(100, 6.0, 6), (100, 0.5, 3), (2, 60.0, 2)])
def test_rounds_and_seconds_end_a_row(clock, rounds, seconds, expected):
    def step():
        clock[0] += 1.0

    options = Options(rounds=rounds, seconds=seconds)
    assert len(interleave([{"a": step}], options)["a"]) == expected


def test_statistics():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "rounds": 5}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "rounds": 1}
    # of medians 4 / 4, not the median of the ratios 2, 1, 0.5, which are its spread
    assert ratio([2.0, 4.0, 6.0], [1.0, 4.0, 12.0]) == {"median": 1.0, "q1": 0.75, "q3": 1.5, "rounds": 3}


def test_an_implementation_that_computes_something_else_is_noticed(monkeypatch):
    """What each should compute is held to the reference in the tests of attention; here they are held to each other."""
    spoil = {}

    def spoilt(*args, **kwargs):
        modules = implementations(*args, **kwargs)
        for name, change in spoil.items():
            change(modules[name].module)
        return modules

    monkeypatch.setattr(layers, "implementations", spoilt)
    sizes = (3, 6, 8, 16, 2)
    assert set(layers.train(*sizes, QUICK)[0]) == {"fairseq-self", "standard-sdpa", "authors", "ours"}

    @torch.no_grad()
    def other_values(module):
        module.v_proj.weight[0, 0] += 0.5

    def half_gradient(module):
        module.register_forward_hook(lambda module, args, out: ((out[0].detach() + out[0]) / 2, None))

    for name in ("fairseq", "standard-sdpa", "authors", "ours"):
        spoil = {name: other_values}
        with pytest.raises(BenchError, match=r"differs by .* of the largest value"):
            layers.train(*sizes, QUICK)
    spoil = {"ours": half_gradient}  # right values
    with pytest.raises(BenchError, match="input gradient of ours, compared with authors"):
        layers.train(*sizes, QUICK)


def test_a_decoding_step_with_a_spoilt_cache_is_noticed(monkeypatch):
    sizes = (False, 3, 2, 4, 4, 16, 2)
    assert "ours" in layers.decode(*sizes, QUICK)[0]
    from collab_fairseq.modules.attention import IncrementalAttention

    monkeypatch.setattr(IncrementalAttention, "reorder_incremental_state", lambda self, state, *order: state)
    with pytest.raises(BenchError, match=r"^output of \S+, compared with fairseq, differs"):
        layers.decode(*sizes, QUICK)


def test_models_have_the_parameters_of_their_like():
    task = models.Task(QUICK, "base")
    built = models.build("base", task, 4, programs.TRAIN_IMPLEMENTATIONS[""], QUICK)
    batch = models.make_batch(task.sentences([6, 4]), task.sentences([5, 6], 2), task, "cpu")["net_input"]
    with torch.no_grad():
        outputs = {name: model.eval()(**batch)[0] for name, model in built.items()}
    torch.testing.assert_close(outputs["none"], outputs["fairseq"])
    torch.testing.assert_close(outputs["ours"], outputs["authors"])
    assert (outputs["ours"] - outputs["none"]).abs().max() > 0.1


def test_rows_are_of_every_kind():
    rows = programs.train_rows(quick=False)
    assert {row.split("/")[4] for row in rows if row.count("/") == 4} == {"fast", "fast-bf16", "fast-memory"}
    (steps,) = programs.train("base", 3, 6, 4, "fast-bf16", QUICK)
    assert list(steps) == ["fairseq", "fairseq-bf16", "ours"]
    assert sum(map(len, (runner.rows(what, Options()) for what in ("layer", "decode", "train")))) == 24 + 12 + 9


def test_lengths():
    drawn = draw(5000, seed=1)
    assert abs(sorted(drawn)[2500] - LENGTHS[4]) <= 1
    assert 2 <= min(drawn) < max(drawn) == LENGTHS[-1]
    for longest in (20, 512):
        batch = draw(64, 1, longest)
        assert (len(batch), max(batch), batch[0]) == (64, longest, longest)
        assert min(batch) < longest / 2
    mask = layers.padding_mask(3, 20, "cpu")
    assert mask.sum(1).tolist() == [20 - length for length in draw(3, longest=20)]
    assert not mask[:, -1].any()


@pytest.mark.parametrize("cross", [True, False])
def test_a_step_of_decoding_waits_for_nothing(cross):
    with Waiting() as device:
        step = layers.decode(cross, 3, 2, 4, 4, 16, 2, QUICK)[0]["ours"]
        step()  # as before a graph is captured
        device.values.clear()
        step()
    assert set(device.values) <= {torch.bool}  # masks, which are looked at on a CPU alone


def test_an_interrupted_benchmark_continues_where_it_was(tmp_path, monkeypatch):
    prepared, broken, path = [], ["layer/second"], tmp_path / "record.json"

    def row(name):
        def prepare(options):
            if name in broken:
                raise KeyboardInterrupt
            prepared.append(name)
            return [{"ours": lambda: None, "fairseq": lambda: None}]

        return prepare

    monkeypatch.setattr(runner, "rows", lambda *_: {name: row(name) for name in ("layer/first", "layer/second")})
    with pytest.raises(KeyboardInterrupt):
        runner.run("layer", QUICK, output=path, command="collab bench --output /home/me/x.json")
    first = load(path, "bench", "layer")["parts"]["layer/first"]
    broken.clear()
    record = runner.run("layer", QUICK, output=path)
    assert prepared == ["layer/first", "layer/second"]
    assert json.loads(path.read_text()) == record
    assert record["parts"]["layer/first"] == first
    assert set(record["parts"]) == {"layer/first", "layer/second"}
    assert "/home" not in record["command"]

    monkeypatch.setattr(environment, "commit", lambda folder: {"id": "other", "modified": False})
    with pytest.raises(UserError, match="was made with commit"):
        runner.run("layer", QUICK, output=path)


@pytest.mark.parametrize("error", [BenchError, RuntimeError, torch.OutOfMemoryError])
def test_a_row_that_fails_is_missing_and_the_others_are_measured(error, caplog, monkeypatch):
    def broken(options):
        raise error("no luck\nand a long story")

    whole = lambda options: [{"ours": lambda: None, "fairseq": lambda: None}]  # noqa: E731
    monkeypatch.setattr(runner, "rows", lambda *_: {"layer/broken": broken, "layer/whole": whole})
    record = runner.run("layer", QUICK)
    assert record["parts"]["layer/broken"] == {"missing": "no luck"}
    assert "layer/broken is missing: no luck" in caplog.text
    assert "| layer/whole | " in table([record])
    assert "broken" not in table([record])


def test_tables_show_ratios():
    ratios = {
        "fairseq": {**spread([0.7, 0.8, 1.0]), "rounds": 3},
        "authors": spread([0.5]),
        "authors-bmm": spread([0.6]),  # measured by an earlier version
        "ours-bmm": spread([1.0]),  # another kernel of ours: no baseline
    }
    parts = {
        "peaks": {"copy": 1e9, "matmul": 1e12},  # of older records, as are limits
        "layer/a/train": {"unit": "s", "values": {}, "ratios": ratios, "limits": {"ours": 0.5}},
        "layer/a/memory": {"unit": "bytes", "values": {}, "ratios": {"authors": spread([0.25])}},
        "layer/a/graph": None,
    }
    settings = {"clock": "processor", "dtype": "float32", "quick": False}
    hardware = {"device": "cpu", "cpu": "a CPU", "threads": 1, "gpus": []}
    record = {"name": "layer", "settings": settings, "hardware": hardware, "versions": {"torch": "2"}, "parts": parts}
    lines = table([record], paths=["a/b/x.json"], folder="a").splitlines()
    assert lines[0] == "| ours, compared with | (a) fairseq | (d) authors, einsum | (d) authors, bmm |"
    assert lines[2:4] == ["| layer/a/train | 0.800 ± 0.100 | 0.500 | 0.600 |", "| layer/a/memory | – | 0.250 | – |"]
    assert "float32, a CPU, 1 thread(s), torch 2." in lines[5]
    assert lines[-1] == "Records: [layer](b/x.json)."

"""Benchmarks: counting memory, taking turns, statistics, agreement of contestants, growing records, tables."""

import json
import random

import pytest
import torch

pytest.importorskip("fairseq")

from collab_fairseq.bench import layers, measure, models, runner, training
from collab_fairseq.bench.baselines import contestants
from collab_fairseq.bench.cases import LENGTHS, Case, Options, draw
from collab_fairseq.bench.measure import MismatchError, interleave, peak_bytes, ratio, spread
from collab_fairseq.records import environment
from collab_fairseq.records.record import RecordError, load
from collab_fairseq.training import chunked_loss
from tests.common import Waiting

QUICK = Options(rounds=2, seconds=1.0, least=1, quick=True)


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


def test_contestants_take_turns_in_shuffled_rounds_and_warm_up(clock):
    calls, chance, speed = [], random.Random(0), {"a": 2.0, "b": 1.0, "c": 4.0}

    def contestant(name):
        def step():
            calls.append(name)
            clock[0] += speed[name] * chance.choice([1.0, 1.0, 3.0])

        return step

    options = Options(rounds=40, seconds=1e9, least=1, seed=3)
    times = interleave([{name: contestant(name) for name in speed}] * 2, options)
    assert {name: len(values) for name, values in times.items()} == dict.fromkeys(speed, 40)
    warmup, timed = calls[:6], calls[6:]
    rounds = [timed[n : n + 3] for n in range(0, len(timed), 3)]
    assert (len(warmup), len(rounds)) == (6, 80)
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len({tuple(turn) for turn in rounds}) == 6  # every order occurs
    assert sum(map(sum, times.values())) <= clock[0]
    assert ratio(times["c"], times["b"])["median"] > 2 > ratio(times["b"], times["c"])["median"]


@pytest.mark.parametrize(("rounds", "seconds", "expected"), [(100, 6.0, 6), (100, 0.5, 5), (3, 60.0, 3)])
def test_rounds_and_seconds_end_a_row(clock, rounds, seconds, expected):
    def step():
        clock[0] += 1.0

    options = Options(rounds=rounds, seconds=seconds, least=5)
    assert len(interleave([{"a": step}], options)["a"]) == expected


def test_statistics():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "rounds": 5}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "rounds": 1}
    # of medians 4 / 4, not the median of the ratios 2, 1, 0.5, which are its spread
    assert ratio([2.0, 4.0, 6.0], [1.0, 4.0, 12.0]) == {"median": 1.0, "q1": 0.75, "q3": 1.5, "rounds": 3}


@pytest.mark.parametrize("quick", [False, True])
def test_ids_tell_all_rows_apart(quick):
    options = Options(quick=quick)
    rows = [case.id for what in ("layer", "decode", "train") for case in runner.cases(what, options)]
    assert len(set(rows)) == len(rows)


def test_a_contestant_that_computes_something_else_is_noticed(monkeypatch):
    """What each should compute is held to the reference in the tests of attention; here they are held to each other."""
    spoil = {}

    def spoilt(*args, **kwargs):
        found = contestants(*args, **kwargs)
        for name, change in spoil.items():
            change(found[name].module)
        return found

    monkeypatch.setattr(layers, "contestants", spoilt)
    case = layers.layer_case(3, 6, 8, "train", embed_dim=16, num_heads=2)
    names = {"fairseq", "standard-sdpa", "standard", "authors", "authors-bmm", "ours", "ours-bmm"}
    assert names <= set(case.prepare(QUICK)[0])

    @torch.no_grad()
    def other_values(module):
        module.v_proj.weight[0, 0] += 0.5

    def half_gradient(module):
        module.register_forward_hook(lambda module, args, out: ((out[0].detach() + out[0]) / 2, None))

    for name in names - {"fairseq", "standard"}:  # the module of another, too, and at this key dim alone
        spoil = {name: other_values}
        with pytest.raises(MismatchError, match=r"differs by .* of the largest value"):
            case.prepare(QUICK)
    spoil = {"ours": half_gradient}  # right values
    with pytest.raises(MismatchError, match="input gradient of ours, compared with authors"):
        case.prepare(QUICK)


def test_a_decoding_step_with_a_spoilt_cache_is_noticed(monkeypatch):
    case = layers.decode_case("decoder", 3, 2, 4, 4, embed_dim=16, num_heads=2)
    assert "ours" in case.prepare(QUICK)[0]
    from collab_fairseq.modules.attention import IncrementalAttention

    monkeypatch.setattr(IncrementalAttention, "reorder_incremental_state", lambda self, state, *order: state)
    with pytest.raises(MismatchError, match=r"^output of \S+, compared with \S+, differs"):
        case.prepare(QUICK)


def test_models_whose_parameters_differ_are_noticed(monkeypatch):
    def build(*args, **flags):
        found = models.build(*args, **flags)
        torch.nn.init.normal_(next(found["none"].parameters()))
        return found

    monkeypatch.setattr(training, "build", build)
    with pytest.raises(MismatchError, match="loss of the model none, compared with fairseq"):
        training.train_case("base", 3, 6, 4).prepare(QUICK)


def test_fast_steps_are_of_every_device_and_of_one_loss(monkeypatch):
    rows = {device: [case.id for case in training.train_cases(Options(device=device))] for device in ("cpu", "cuda")}
    assert {row.split("/")[4] for row in rows["cpu"] if row.count("/") == 4} == {"fast", "fast-bf16", "fast-memory"}
    assert rows["cuda"] == rows["cpu"]
    (steps,) = training.train_case("base", 3, 6, 4, "fast-bf16").prepare(QUICK)
    assert list(steps) == ["fairseq", "fairseq-bf16", "ours"]
    monkeypatch.setattr(chunked_loss, "factors", lambda epsilon, types: (1.0, 0.0))
    with pytest.raises(MismatchError, match="loss in chunks, compared with fairseq's, differs"):
        training.train_case("base", 3, 6, 4, "fast").prepare(QUICK)


def test_lengths():
    drawn = draw(5000, seed=1)
    assert abs(sorted(drawn)[2500] - LENGTHS[4]) <= 1
    assert 2 <= min(drawn) < max(drawn) == LENGTHS[-1]
    for longest in (20, 512):
        batch = draw(64, 1, longest)
        assert (len(batch), max(batch), batch[0]) == (64, longest, longest)
        assert min(batch) < longest / 2
    mask = layers.padding_mask(3, 20, QUICK)
    assert mask.sum(1).tolist() == [20 - length for length in draw(3, QUICK.seed, 20)]
    assert not mask[:, -1].any()


@pytest.mark.parametrize("site", ["cross", "decoder"])
def test_a_step_of_decoding_waits_for_nothing(site):
    case = layers.decode_case(site, 3, 2, 4, 4, embed_dim=16, num_heads=2)
    with Waiting() as device:
        step = case.prepare(QUICK)[0]["ours"]
        step()  # as before a graph is captured
        device.values.clear()
        step()
    assert set(device.values) <= {torch.bool}  # masks, which are looked at on a CPU alone


def test_an_interrupted_benchmark_goes_on_where_it_was(tmp_path, monkeypatch):
    prepared, broken, path = [], ["layer/second"], tmp_path / "record.json"

    def case(name):
        def prepare(options):
            if name in broken:
                raise KeyboardInterrupt
            prepared.append(name)
            return [{"ours": lambda: None, "fairseq": lambda: None}]

        return Case(name, prepare)

    monkeypatch.setitem(runner._CASES, "layer", lambda options: [case("layer/first"), case("layer/second")])
    with pytest.raises(KeyboardInterrupt):
        runner.run("layer", QUICK, output=path, command="collab bench --output /home/me/x.json")
    first = load(path, "bench", "layer")["parts"]["layer/first"]
    broken.clear()
    record = runner.run("layer", QUICK, output=path)
    assert prepared == ["layer/first", "layer/second"]
    assert json.loads(path.read_text()) == record
    assert record["parts"]["layer/first"] == first
    assert set(runner.rows_of(record)) == {"layer/first", "layer/second"}
    assert "/home" not in record["command"]

    monkeypatch.setattr(environment, "commit", lambda folder: {"id": "other", "modified": False})
    with pytest.raises(RecordError, match="holds a result with another commit"):
        runner.run("layer", QUICK, output=path)


@pytest.mark.parametrize("error", [MismatchError, RuntimeError, torch.OutOfMemoryError])
def test_a_row_that_fails_is_missing_and_the_others_are_measured(error, caplog):
    def broken(options):
        raise error("no luck\nand a long story")

    whole = Case("layer/whole", lambda options: [{"ours": lambda: None, "fairseq": lambda: None}])
    cases = lambda options: [Case("layer/broken", broken), whole]  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(runner._CASES, "layer", cases)
        record = runner.run("layer", QUICK)
    assert record["parts"]["layer/broken"] == {"missing": "no luck"}
    assert list(runner.rows_of(record)) == ["layer/whole"]
    assert "layer/broken is missing: no luck" in caplog.text
    assert runner.full_table(record).endswith("\n\nlayer/broken is missing: no luck\n")


def test_tables_show_ratios_and_times():
    time = {name: spread([seconds]) for name, seconds in (("ours", 1.0), ("fairseq", 1.25), ("ours-bmm", 2.0))}
    found = {"fairseq": spread([0.8, 0.8]), "ours-bmm": spread([0.5])}
    parts = {
        "peaks": {"copy": 1e9, "matmul": 1e12},  # of older records, as are limits
        "layer/a/train": {"unit": "s", "values": time, "ratios": found, "limits": {"ours": 0.5}},
        "layer/a/memory": {"unit": "bytes", "values": {"ours": spread([2**20])}, "ratios": {}},
        "layer/a/graph": None,
    }
    settings = {"clock": "processor", "dtype": "float32", "quick": False}
    hardware = {"device": "cpu", "cpu": "a CPU", "threads": 1, "gpus": []}
    record = {"name": "layer", "settings": settings, "hardware": hardware, "versions": {"torch": "2"}, "parts": parts}
    full = runner.full_table(record)
    assert "| layer/a/train | 1,250.000 ms (0.800) | 1,000.000 ms | 2,000.000 ms (0.500) |" in full
    assert "| layer/a/memory | – | 1.0 MiB | – |" in full

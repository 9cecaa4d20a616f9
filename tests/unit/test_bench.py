"""Benchmarks: counting memory, taking turns, statistics, agreement of contestants, limits, growing records, tables."""

import json
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("fairseq")

from collab_fairseq.bench import fast, layers, measure, models, programs, report, runner
from collab_fairseq.bench.baselines import Shape, contestants
from collab_fairseq.bench.cases import LENGTHS, Case, Options, draw, padding_mask
from collab_fairseq.bench.checks import MismatchError, attempt, check, check_against_reference, make_inputs
from collab_fairseq.bench.measure import interleave, peak_bytes, ratio, spread, stopwatch
from collab_fairseq.models import chunked_loss
from collab_fairseq.records import environment
from collab_fairseq.records.record import RecordError, load
from tests.common import Waiting

QUICK = Options(rounds=2, seconds=1.0, least=1, quick=True)
PEAKS = {"copy": 1e9, "matmul": 1e12}


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
    times = interleave([{name: contestant(name) for name in speed}] * 2, stopwatch(options), options)
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
    assert len(interleave([{"a": step}], stopwatch(options), options)["a"]) == expected


def test_statistics():
    assert spread([5.0, 1.0, 3.0, 2.0, 4.0]) == {"median": 3.0, "q1": 2.0, "q3": 4.0, "rounds": 5}
    assert spread([7.0]) == {"median": 7.0, "q1": 7.0, "q3": 7.0, "rounds": 1}
    # of medians 4 / 4, not the median of the ratios 2, 1, 0.5, which are its spread
    assert ratio([2.0, 4.0, 6.0], [1.0, 4.0, 12.0]) == {"median": 1.0, "q1": 0.75, "q3": 1.5, "rounds": 3}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_ids_tell_all_rows_apart(device):
    options = Options(device=device)
    rows = [case.id for what in ("layer", "decode", "train") for case in runner.cases(what, options)]
    assert len(set(rows)) == len(rows)
    assert any(row.endswith("/graph") for row in rows) == (device == "cuda")


def inputs_of(site):
    return make_inputs(Shape(16, 2, 8, site), 6, [6, 3, 4], "cpu", torch.float32, seed=1)


@pytest.mark.parametrize("site", ["encoder", "cross", "decoder"])
def test_contestants_agree_with_the_reference_and_each_other(site):
    found = contestants(Shape(16, 2, 8, site))
    expected = {"fairseq", "standard-sdpa", "standard", "authors", "authors-bmm", "ours", "ours-bmm"}
    check_against_reference(found, Shape(16, 2, 8, site))
    check(found, inputs_of(site))
    assert expected <= set(found)


@pytest.mark.parametrize("name", ["fairseq", "standard-sdpa", "standard", "authors-bmm", "ours"])
def test_a_contestant_that_computes_something_else_is_noticed(name):
    shape = Shape(16, 2, 8, "encoder")
    found = contestants(shape)
    with torch.no_grad():
        found[name].module.v_proj.weight[0, 0] += 0.5
    if name == "fairseq":
        del found["fairseq-self"]  # the same module
    if name != "standard":  # at this key dim the only one of its function
        with pytest.raises(MismatchError, match=r"differs by .* of the largest value"):
            check(found, inputs_of("encoder"))
    # right values, half the gradient
    found = {name: contestants(shape)[name]}
    found[name].module.register_forward_hook(lambda module, args, out: ((out[0].detach() + out[0]) / 2, None))
    with pytest.raises(MismatchError, match=f"input gradient of {name}, compared with attention/reference"):
        check_against_reference(found, shape)


def test_a_decoding_step_with_a_spoilt_cache_is_noticed(monkeypatch):
    case = layers.decode_case("decoder", 3, 2, 4, 4, embed_dim=16, num_heads=2)
    assert "ours" in case.prepare(QUICK)[0]
    from collab_fairseq.modules.attention import IncrementalAttention

    monkeypatch.setattr(IncrementalAttention, "reorder_incremental_state", lambda self, state, order: state)
    with pytest.raises(MismatchError, match="decoding step"):
        case.prepare(QUICK)
    with pytest.raises(MismatchError, match="decoder step"):
        programs.beam_step_case("base", 2, 4, 5, 4).prepare(QUICK)


def test_models_whose_parameters_differ_are_noticed(monkeypatch):
    def build(*args):
        found = models.build(*args)
        torch.nn.init.normal_(next(found["none"].parameters()))
        return found

    monkeypatch.setattr(programs, "build", build)
    with pytest.raises(MismatchError, match="loss of the model none, compared with fairseq"):
        programs.train_case("base", 3, 6, 4).prepare(QUICK)


def test_fast_steps_are_of_a_cpu_and_of_one_loss(monkeypatch):
    rows = [case.id for case in fast.fast_cases(Options())]
    assert rows[:2] == ["train/base/64x32/dk128/fast", "train/base/64x32/dk128/fast-bf16"]
    assert not fast.fast_cases(Options(device="cuda"))
    (steps,) = fast.fast_case("base", 3, 6, 4, "fast-bf16").prepare(QUICK)
    assert list(steps) == ["fairseq", "fairseq-bf16", "ours"]
    monkeypatch.setattr(chunked_loss, "factors", lambda epsilon, types: (1.0, 0.0))
    with pytest.raises(MismatchError, match="loss in chunks, compared with fairseq's, differs"):
        fast.fast_case("base", 3, 6, 4, "fast").prepare(QUICK)


def test_a_kernel_that_cannot_is_left_out_but_ours_is_not():
    def fail():
        raise ValueError("cannot")

    assert attempt("ours-sdpa", fail) is None
    with pytest.raises(ValueError, match="cannot"):
        attempt("ours", fail)


def test_lengths():
    for name, known in LENGTHS.items():
        drawn = draw(name, 5000, seed=1)
        assert abs(sorted(drawn)[2500] - known[4]) <= 1
        assert 2 <= min(drawn) < max(drawn) <= round(known[-1])
        batch = draw(name, 64, seed=1, longest=20)
        assert (len(batch), max(batch), batch[0]) == (64, 20, 20)
        assert draw(name, 4, seed=1, longest=512)[0] == 512  # stretched to documents
    assert padding_mask([2, 4], True, "cpu").tolist() == [[True, True, False, False], [False] * 4]
    assert padding_mask([2, 4], False, "cpu")[0].tolist() == [False, False, True, True]


def test_limits_are_of_the_least_work():
    case = layers.layer_case("encoder", 1, 1, 4, "forward", embed_dim=4, num_heads=2)
    # by hand: 1 row, T = S = 1: two projections of 16, mixing 8, scores 8, values 16 + 4 + 16 multiply–adds
    adds, numbers = case.work["ours"]
    assert (adds, numbers) == (32 + 8 + 8 + 36, 4 + 4 + (2 * 16 + 2 * 16 + 8 + 8 + 8))
    backward = replace(case, work=layers.layer_case("encoder", 1, 1, 4, "train", embed_dim=4, num_heads=2).work)
    assert backward.work["ours"][0] == 3 * adds
    limits = runner.measure(case, QUICK, PEAKS)["limits"]
    assert limits["ours"] == pytest.approx(max(2 * adds / 1e12, 4 * numbers / 1e9))
    per_sentence, own = (layers.decode_case(site, 8, 4, 10, 64).work["ours"] for site in ("cross", "decoder"))
    assert (per_sentence[0] < own[0], per_sentence[1] < own[1]) == (True, True)


def test_a_graph_without_ours_gives_no_row(monkeypatch):
    monkeypatch.setattr(runner, "captured", lambda steps: {})
    case = layers.layer_case("encoder", 3, 6, 4, "train", embed_dim=16, num_heads=2, graph=True)
    assert runner.measure(case, QUICK, PEAKS) is None


@pytest.mark.parametrize(
    "case",
    [
        layers.decode_case("cross", 3, 2, 4, 4, embed_dim=16, num_heads=2, graph=True),
        layers.decode_case("decoder", 3, 2, 4, 4, embed_dim=16, num_heads=2, graph=True),
        programs.beam_step_case("base", 2, 4, 5, 4, graph=True),
    ],
    ids=lambda case: case.id,
)
def test_what_goes_into_a_graph_of_decoding_waits_for_nothing(case):
    with Waiting() as device:
        step = case.prepare(QUICK)[0]["ours"]
        device.values.clear()
        step()
        step()
    assert set(device.values) <= {torch.bool}  # masks, which are looked at on a CPU alone


def test_steps_that_cannot_be_captured_are_left_out(monkeypatch, caplog):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    graphs = [SimpleNamespace(replay=lambda number=number: number) for number in range(2)]
    made = iter(graphs)
    for name, stub in {
        "Stream": lambda: stream, "current_stream": lambda: stream, "synchronize": lambda: None,
        "stream": lambda stream: nullcontext(), "CUDAGraph": lambda: next(made), "graph": lambda graph: nullcontext(),
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, stub)
    calls = []

    def waits():
        raise RuntimeError("operation not permitted when stream is capturing")

    found = measure.captured({"waits": waits, "ours": lambda: calls.append("ours")})
    assert {name: replay() for name, replay in found.items()} == {"ours": 0}
    assert len(calls) == 3 + 1  # warm-up, capture
    assert "waits cannot be captured in a CUDA graph: operation not permitted" in caplog.text


@pytest.fixture
def two_rows(monkeypatch):
    """A benchmark of two rows whose second can be made to fail; the rows that were prepared."""
    prepared, broken = [], [False]

    def case(name):
        def prepare(options):
            if name == "layer/second" and broken[0]:
                raise KeyboardInterrupt
            prepared.append(name)
            return [{"ours": lambda: None, "fairseq": lambda: None}]

        return Case(name, prepare)

    monkeypatch.setitem(runner._CASES, "layer", lambda options: [case("layer/first"), case("layer/second")])
    return prepared, broken


def test_an_interrupted_benchmark_goes_on_where_it_was(two_rows, tmp_path, monkeypatch):
    prepared, broken = two_rows
    path, broken[0] = tmp_path / "record.json", True
    with pytest.raises(KeyboardInterrupt):
        runner.run("layer", QUICK, output=path, command="collab bench --output /home/me/x.json")
    peaks, first = (load(path, "bench", "layer")["parts"][part] for part in ("peaks", "layer/first"))
    broken[0] = False
    record = runner.run("layer", QUICK, output=path, profile=True)
    assert prepared == ["layer/first", "layer/first", "layer/second", "layer/second"]  # the first only for its profile
    assert json.loads(path.read_text()) == record
    assert (record["parts"]["peaks"], record["parts"]["layer/first"]) == (peaks, first)
    assert set(report.rows_of(record)) == {"layer/first", "layer/second"}
    assert set(record["parts"]["profile/layer/first"]) == {"ours", "fairseq"}
    assert "/home" not in record["command"]

    with pytest.raises(RecordError, match=r"holds a result with another seed \(1 there, 2 asked for"):
        runner.run("layer", replace(QUICK, seed=2), output=path)
    monkeypatch.setattr(environment, "commit", lambda folder: {"id": "other", "modified": False})
    with pytest.raises(RecordError, match="holds a result with another commit"):
        runner.run("layer", QUICK, output=path)
    path.write_text(json.dumps({**record, "rows": []}))
    with pytest.raises(RecordError, match="is no record of kind bench"):
        load(path, "bench")


def test_tables_show_ratios_times_and_limits():
    time = {name: spread([seconds]) for name, seconds in (("ours", 1.0), ("fairseq", 1.25), ("ours-bmm", 2.0))}
    found = {"fairseq": {**spread([0.8, 0.8]), "q1": 0.75, "q3": 0.81}, "ours-bmm": spread([0.5])}
    parts = {
        "peaks": PEAKS,
        "layer/a/train": {"unit": "s", "values": time, "ratios": found, "limits": {"ours": 0.5}},
        "layer/a/memory": {"unit": "bytes", "values": {"ours": spread([2**20])}, "ratios": {}, "limits": {}},
        "layer/a/graph": None,
    }
    settings = {"clock": "processor", "dtype": "float32", "quick": False}
    hardware = {"device": "cpu", "cpu": "a CPU", "threads": 1, "gpus": []}
    record = {"name": "layer", "settings": settings, "hardware": hardware, "versions": {"torch": "2"}, "parts": parts}
    full = report.full_table(record)
    assert "| layer/a/train | 1.25 s (0.800) | 1 s, limit 500 ms (50%) | 2 s (0.500) |" in full
    assert "| layer/a/memory | – | 1.0 MiB | – |" in full
    ratios = report.ratio_table([record], ["results/layer.json"], ".", ["*/train"])
    assert "| layer/a/train | 0.800 ± 0.050 |\n" in ratios
    assert "processor time" in ratios
    assert "[layer](results/layer.json)" in ratios

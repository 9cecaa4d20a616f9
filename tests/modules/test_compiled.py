"""``--compile``: number of graphs, equal results, interchangeable checkpoints."""

import copy
import json
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel

from benchmarks.sentences import Task, random_lengths
from collab_fairseq import checkpoints
from collab_fairseq.modules import compiled
from fairseq_modern.errors import UserError
from tests.commands import train_command
from tests.common import FLOAT32, run
from tests.models.cases import KINDS, SMALL, batch, build

ONE = {**SMALL, "encoder_layers": 1, "decoder_layers": 1}
TASK = Task(64)
VOCABULARY = len(TASK.source_dictionary)


@pytest.fixture
def compiler(monkeypatch):
    """Run graphs eagerly; ``batches`` has the number of the batch in which each graph was created."""
    created = SimpleNamespace(batch=0, batches=[])

    def backend(graph, example_inputs):
        created.batches.append(created.batch)
        return graph.forward

    torch._dynamo.reset()
    counters.clear()
    compiled._compiled.cache_clear()
    monkeypatch.setattr(compiled, "BACKEND", backend)
    monkeypatch.setattr(compiled, "_check_compiler", lambda *_: None)  # would be one more graph
    yield created
    compiled._compiled.cache_clear()
    torch._dynamo.reset()


def batch_of(*lengths):
    """Model inputs for sources and targets of these lengths, collated by fairseq."""
    return TASK.batch(*(TASK.sentences(side, seed=0) for side in lengths), "cpu")["net_input"]


def real_batches(number):
    """Batches with the sentence lengths of Multi30k: every third without padding, some with one sentence."""
    random = torch.Generator().manual_seed(3)
    for n in range(number):
        size = int(torch.randint(1, 12, (), generator=random))
        lengths = [random_lengths(size, 7 * n + side) for side in (0, 1)]
        if n % 3 == 0:
            lengths = [[side[0]] * size for side in lengths]
        yield batch_of(*lengths)


def test_equal_sizes_in_the_first_batch_are_not_taken_for_one_size(compiler):
    """Nor are batches of one sentence compiled."""
    model = build(**ONE, vocabulary=VOCABULARY, key_dim=6, dropout=0.0, compile=True).train()
    sizes = [(5, 5, 5), (5, 7, 5), (3, 4, 6), (1, 5, 4), (6, 6, 3)]
    for compiler.batch, (rows, source, target) in enumerate(sizes):
        assert torch.isfinite(model(**batch_of([source] * rows, [target] * rows))[0]).all()
    assert compiler.batches == [0, 0]
    assert compiled._compiled.cache_info().misses == 1  # one compiled function for all layers and batches


@pytest.mark.parametrize(("layers", "number"), [(2, 4), pytest.param(6, 200, marks=pytest.mark.slow)])
def test_distributed_training_needs_three_graphs(layers, number, compiler, tmp_path, monkeypatch):
    """By default torch splits graphs at gradient buckets. Here layers share a graph."""
    monkeypatch.setattr(torch.distributed, "_DEFAULT_FIRST_BUCKET_BYTES", 1000)
    sizes = {**SMALL, "encoder_layers": layers, "decoder_layers": layers}
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = build(**sizes, vocabulary=VOCABULARY, key_dim=6, dropout=0.1, compile=True).train()
        parallel = DistributedDataParallel(model, bucket_cap_mb=0.001)
        for compiler.batch, inputs in enumerate(real_batches(number)):
            parallel(**inputs)[0].logsumexp(-1).mean().backward()
    finally:
        torch.distributed.destroy_process_group()
    assert len(compiler.batches) == 3
    assert max(compiler.batches) < 20
    assert counters["frames"]["total"] == counters["frames"]["ok"] == 3
    assert not counters["graph_break"]


SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("standard", "pre-norm", "cross-self")]


@pytest.mark.parametrize("kind", ["collaborative", *SLOW_KINDS])
def test_compiled_layers_give_the_same_results(kind, compiler):
    """Logits and all gradients. Calls without gradients, with hooks or in evaluation are not compiled."""
    flags = {**SMALL, **KINDS[kind], "dropout": 0.0}
    plain, fast = (build(**flags, compile=flag).train() for flag in (False, True))
    assert list(fast.state_dict()) == list(plain.state_dict())
    results = []
    for model in (plain, fast):
        logits = model(*batch())[0]
        logits.logsumexp(-1).mean().backward()
        results.append([logits, *(p.grad for p in model.parameters())])
    assert all((one - other).abs().max() < FLOAT32 for one, other in zip(*results, strict=True))
    assert len(compiler.batches) == 3
    with torch.no_grad():
        fast(*batch())
    hook_calls = []
    layers = [*fast.encoder.layers, *fast.decoder.layers]
    hooks = [layer.register_forward_hook(lambda *_: hook_calls.append(1)) for layer in layers]
    fast(*batch())
    for hook in hooks:
        hook.remove()
    assert len(hook_calls) == 4
    assert (copy.deepcopy(fast).eval()(*batch())[0] - plain.eval()(*batch())[0]).abs().max() < FLOAT32
    assert len(compiler.batches) == 3


def test_hooks_that_are_added_after_the_first_batch_are_called(compiler):
    """To a submodule, which changes its output, and to a layer, before its backward pass."""
    flags, calls = {**SMALL, "dropout": 0.0, "key_dim": 6}, []
    logits = []
    for model in (build(**flags, compile=flag).train() for flag in (False, True)):
        before = model(*batch())[0]
        model.encoder.layers[0].fc1.register_forward_hook(lambda layer, inputs, output: 0 * output)
        logits.append(model(*batch())[0])
        assert (logits[-1] - before).abs().max() > 0.01  # control
        model.encoder.layers[1].register_full_backward_pre_hook(lambda layer, gradients: calls.append(layer))
        model(*batch())[0].sum().backward()
    assert (logits[0] - logits[1]).abs().max() < FLOAT32
    assert len(calls) == 2
    assert compiler.batches


def test_rejects_wrapped_layers():
    with pytest.raises(UserError, match="--compile is for plain layers") as error:
        build(**SMALL, compile=True, checkpoint_activations=True)
    assert error.value.user_error


def test_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("/nowhere/c++",))
    with pytest.raises(
        UserError, match=r"--compile needs a C\+\+ compiler that torch.compile can use for cpu devices; a tr"
    ):
        compiled._check_compiler("cpu")


@pytest.mark.slow
def test_training_without_a_compiler_fails_with_one_sentence(tiny_data, tmp_path):
    environment = {"CXX": "/nowhere/c++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    command = train_command(tiny_data, tmp_path, compile=True, max_update=1, no_save=True, **SMALL)
    done = run(*command, env=environment, check=False)
    assert done.returncode != 0
    expected = "--compile needs a C++ compiler that torch.compile can use for cpu devices; a trial failed: "
    assert expected in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_run_can_be_resumed_with_and_without_the_flag(tiny_data, tmp_path):
    """Without dropout the losses equal those of an uncompiled run. On a CPU the flag logs a warning."""
    options = {"key_dim": 8, "dropout": 0.0, "save_interval_updates": 3, "log_format": "json", "log_interval": 1, **ONE}
    options.update(no_epoch_checkpoints=True, disable_validation=True)
    logs, states = {}, {}
    runs = {"plain": (None, {}, 6), "fast": (None, {"compile": True}, 3)}
    runs.update({"fast on": ("fast", {"compile": True}, 6), "off": ("fast", {}, 6)})
    for name, (before, flag, updates) in runs.items():
        folder = tmp_path / name
        if before:
            shutil.copytree(tmp_path / before, folder)
        done = run(*train_command(tiny_data, folder, max_update=updates, **options, **flag))
        assert ("does not speed up training on a CPU" in done.stdout + done.stderr) is bool(flag)
        logs[name] = [float(json.loads(x)["loss"]) for x in re.findall(r"train_inner \| (\{.*\})", done.stdout)]
        states[name] = checkpoints.load(folder / "checkpoint_last.pt")["model"]
    assert logs["fast"] + logs["fast on"] == pytest.approx(logs["plain"], abs=2e-3)
    assert logs["fast"] + logs["off"] == pytest.approx(logs["plain"], abs=2e-3)
    assert len(set(logs["plain"])) == 6
    assert len({tuple(state) for state in states.values()}) == 1

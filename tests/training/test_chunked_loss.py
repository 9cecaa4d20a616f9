"""The chunked label-smoothed loss compared with fairseq's criterion."""

import contextlib
import math
from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion, label_smoothed_nll_loss
from fairseq.distributed.fully_sharded_data_parallel import FullyShardedDataParallel
from torch.overrides import TorchFunctionMode

from benchmarks.measure import peak_bytes
from collab_fairseq.training import chunked_loss
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy, label_smoothed, tokens
from fairseq_modern.errors import UserError
from tests.models.cases import SMALL, VOCABULARY, Task, batch, build


class OnGpu(TorchFunctionMode):
    """A simulated GPU: tensors for it are created on the meta device and report that they are on the GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function == torch.Tensor.device.__get__:
            return torch.device("cuda", 0) if args[0].is_meta else function(*args)
        if function == torch.Tensor.is_cuda.__get__:
            return args[0].is_meta
        if torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Four tokens per chunk: every batch has several chunks, and one of them is shorter."""
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * VOCABULARY * 4)


def sample_of(padded=True):
    """A batch of fairseq: five sentences of up to 7 tokens."""
    source, lengths, target = batch(sentences=5, target_len=7)
    target = torch.cat([target[:, 1:], torch.full((5, 1), 2)], dim=1)
    before = target.roll(1, dims=1)
    if padded:
        for row in range(1, 5):
            target[row, 7 - row :] = before[row, 7 - row :] = 1
    net_input = {"src_tokens": source, "src_lengths": lengths, "prev_output_tokens": before}
    return {"net_input": net_input, "target": target, "ntokens": int(target.ne(1).sum())}


def outcome(kind, model, sample, reduce=True, label_smoothing=0.1, **options):
    """Loss, sample size, log, and the gradients of the loss in a random direction."""
    options = {"sentence_avg": False, "label_smoothing": label_smoothing, "report_accuracy": True, **options}
    loss, size, log = kind(Task(), **options)(model, sample, reduce=reduce)
    direction = torch.ones(()) if reduce else torch.randn(loss.shape, generator=torch.Generator().manual_seed(0))
    return loss, size, log, torch.autograd.grad(loss, list(model.parameters()), direction.expand_as(loss))


def test_on_a_gpu_chunks_are_large_and_padding_is_skipped_without_synchronising():
    target = torch.tensor([5, 1, 7, 7, 1, 1, 9])
    assert tokens(target, 1, 4).tolist() == tokens(target, 1).tolist() == [0, 2, 3, 6]
    with pytest.raises(RuntimeError):
        tokens(target, 1, 5)
    with OnGpu():
        parts = list(chunked_loss.chunks(*(torch.empty(n, 8, device="cuda") for n in (8192, 32768)), None))
    assert [rows.stop - rows.start for rows, *_ in parts] == [4096, 4096]  # 512 MiB each


def distance(ours, theirs):
    return max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("flags", [{"key_dim": 6}, {"arch": "transformer", "share_all_embeddings": False}])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduce": False},
        {"label_smoothing": 0.0, "ignore_prefix_size": 2, "sentence_avg": True},
        {"padded": False, "label_smoothing": 0.3},
    ],
    ids=str,
)
def test_loss_gradients_and_log_equal_fairseqs(flags, options):
    model = build(**{**SMALL, **flags}).eval()
    options = dict(options)
    sample = sample_of(options.pop("padded", True))
    sample["target"][0, 4] = model(**sample["net_input"])[0][0, 4].argmax()  # a correct prediction
    ours = outcome(ChunkedLabelSmoothedCrossEntropy, model, sample, **options)
    theirs = outcome(LabelSmoothedCrossEntropyCriterion, model, sample, **options)
    assert ours[0].shape == theirs[0].shape
    assert torch.allclose(ours[0], theirs[0], rtol=1e-6)
    assert ours[1] == theirs[1]
    assert ours[2].keys() == theirs[2].keys()
    for key, value in theirs[2].items():
        assert torch.allclose(torch.as_tensor(ours[2][key]).float(), torch.as_tensor(value).float(), rtol=1e-6), key
    assert ours[2]["n_correct"] > 0
    largest = max(float(g.abs().max()) for g in theirs[3])
    assert distance(ours[3], theirs[3]) < 2e-6 * largest
    other = outcome(LabelSmoothedCrossEntropyCriterion, model, sample, **{**options, "label_smoothing": 0.2})
    assert distance(other[3], theirs[3]) > 1e-3 * largest  # control


def leaves(dtype=torch.float64, tokens=11, words=13, width=3):
    torch.manual_seed(0)
    features, weight, bias = torch.randn(tokens, width), torch.randn(words, width), torch.randn(words)
    return [x.to(dtype).requires_grad_() for x in (features, weight, bias)], torch.randint(words, (tokens,))


@pytest.mark.parametrize("reduce", [True, False])
def test_gradcheck(reduce, monkeypatch):
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * 13 * 8)
    inputs, target = leaves()
    assert torch.autograd.gradcheck(lambda *x: label_smoothed(*x, target, 0.1, reduce).loss, inputs, fast_mode=True)
    for frozen in range(3):
        some = [x.detach() if i == frozen else x for i, x in enumerate(inputs)]
        assert torch.autograd.gradcheck(lambda *x: label_smoothed(*x, target, 0.1, reduce).loss, some, fast_mode=True)


def test_gradients_are_recomputed_if_the_graph_is_retained_and_have_no_graph():
    inputs, target = leaves()
    loss = label_smoothed(*inputs, target, 0.1).loss
    first, second, tripled = (torch.autograd.grad(loss * n, inputs, retain_graph=True) for n in (1, 1, 3))
    assert distance(first, second) < 1e-12
    assert distance([3 * g for g in first], tripled) < 1e-12
    loss = label_smoothed(*inputs, target, 0.1).loss
    assert distance(torch.autograd.grad(3 * loss, inputs), tripled) < 1e-12
    with torch.no_grad():
        assert not label_smoothed(*inputs, target, 0.1).loss.requires_grad
    with pytest.raises(RuntimeError, match="create_graph must be False"):
        torch.autograd.grad(label_smoothed(*inputs, target, 0.1).loss, inputs, create_graph=True)


def plain(features, weight, bias, target):
    """fairseq's loss."""
    logits = torch.nn.functional.linear(features, weight, bias)
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return label_smoothed_nll_loss(torch.log_softmax(logits, -1, dtype=wide), target, 0.1, ignore_index=1)[0]


@pytest.mark.parametrize("way", ["parameters", "autocast", "float16"])
def test_half_precision_has_at_most_twice_the_error_of_fairseqs(way):
    dtype = {"parameters": torch.bfloat16, "autocast": torch.float32, "float16": torch.float16}[way]
    inputs, target = leaves(dtype, tokens=64, words=97, width=32)
    target = target.clamp(min=2)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    truth = torch.autograd.grad(plain(*exact, target), exact)
    errors = []
    for loss in (lambda *x: label_smoothed(*x, 0.1).loss, plain):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way == "autocast"):
            value = loss(*inputs, target)
        assert value.dtype == torch.float32
        gradients = torch.autograd.grad(value, inputs)
        assert [g.dtype for g in gradients] == [dtype] * 3
        errors.append([float((a.double() - b).norm() / b.norm()) for a, b in zip(gradients, truth, strict=True)])
    for ours, theirs in zip(*errors, strict=True):
        assert 0 < ours < 2 * theirs + 1e-6
        assert theirs < 0.05


def test_loss_scale_prevents_underflow_in_float16():
    """p = e⁻²⁰ underflows in float16, e⁻²⁰ · 2¹⁴ does not: the scale must be applied before the cast."""
    features = torch.ones(1, 1, dtype=torch.float16)
    weight = torch.tensor([[0.0], [-20.0], [-20.0]], dtype=torch.float16, requires_grad=True)
    for scale, expected in ((2.0**14, 2.0**14 * math.exp(-20)), (1.0, 0.0)):
        loss = label_smoothed(features, weight, None, torch.tensor([0]), 0.0).loss
        gradient = torch.autograd.grad(loss * scale, weight)[0]
        assert gradient[1:].flatten().tolist() == pytest.approx([expected] * 2, rel=0.01)


def test_memory_is_limited_to_one_chunk_and_the_gradients(monkeypatch):
    words, tokens, width = 2000, 400, 4
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", words * 4 * 40)
    inputs, target = leaves(torch.float32, tokens, words, width)

    def peak(loss):
        return peak_bytes(lambda: torch.autograd.grad(loss(), inputs), "cpu")

    ours = peak(lambda: label_smoothed(*inputs, target, 0.1).loss)
    assert words * 4 * 40 < ours < 2 * words * 4 * 40
    assert peak(lambda: plain(*inputs, target)) > 3 * words * 4 * tokens  # control


def test_rejects_unsupported_models():
    criterion = ChunkedLabelSmoothedCrossEntropy(Task(), sentence_avg=False, label_smoothing=0.1)
    adaptive = build(**SMALL, share_all_embeddings=False, adaptive_softmax_cutoff="20,30")
    sharded = FullyShardedDataParallel.__new__(FullyShardedDataParallel)  # fairscale need not be installed
    hooked = build(**SMALL)
    hooked.decoder.output_projection.register_forward_hook(lambda *_: None)
    adapted = build(**SMALL)
    adapted.decoder.output_projection.forward = lambda features: 2 * features
    wrong = {"--adaptive-softmax-cutoff": adaptive, "--ddp-backend fully_sharded": sharded, "or adapters": adapted}
    for match, model in {**wrong, "without hooks": hooked, "Linear with NoneType": torch.nn.Linear(2, 2)}.items():
        with pytest.raises(UserError, match=match):
            criterion(model, sample_of())


@pytest.mark.parametrize(
    ("tied", "backend", "rejected"),
    [(False, "pytorch_ddp", True), (True, "pytorch_ddp", False), (False, "legacy_ddp", False)],
)
def test_rejects_search_for_unused_parameters_that_misses_the_output_layer(tied, backend, rejected):
    """DDP would fail: "Expected to mark a variable ready only once"."""
    distributed = SimpleNamespace(find_unused_parameters=True, ddp_backend=backend)
    model = build(**SMALL, share_all_embeddings=False, share_decoder_input_output_embed=tied)
    cfg = SimpleNamespace(distributed_training=distributed)
    trainer = SimpleNamespace(cfg=cfg, data_parallel_world_size=2, get_model=lambda: model)
    criterion = ChunkedLabelSmoothedCrossEntropy(Task(), sentence_avg=False, label_smoothing=0.1)
    with pytest.raises(UserError) if rejected else contextlib.nullcontext():
        criterion.check_training(trainer)

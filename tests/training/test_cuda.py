"""Fast training and search on a GPU, compared with fairseq on the CPU in float64 or float32."""

import json
import re
from unittest import mock

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from torch.utils._pytree import tree_map

from collab_fairseq.attention.kernels import sdpa
from collab_fairseq.modules import compiled
from collab_fairseq.search.shortlist import ShortlistGenerator
from collab_fairseq.training import chunked_loss
from collab_fairseq.training.chunked_loss import ChunkedLabelSmoothedCrossEntropy
from tests.commands import train_command
from tests.common import run
from tests.models.cases import KINDS, SMALL, batch, build, model_of
from tests.search.test_shortlist import hypotheses, sample_of
from tests.training.test_chunked_loss import outcome
from tests.training.test_chunked_loss import sample_of as loss_sample

GPU = "cuda"
pytestmark = pytest.mark.gpu


def to_gpu(sample):
    return tree_map(lambda x: x.to(GPU) if torch.is_tensor(x) else x, sample)


def error(actual, expected):
    """The largest difference between two lists of tensors, relative to the largest number of each expected tensor."""
    errors = []
    for a, b in zip(actual, expected, strict=True):
        errors.append(float((a.cpu().double() - b.double()).abs().max() / b.abs().max().clamp(min=1e-9)))
    return max(errors)


@pytest.mark.parametrize(
    ("dtype", "bound", "of_gradients"),
    [(torch.float32, 1e-6, 1e-5), (torch.bfloat16, 2e-3, 0.04), (torch.float16, 2e-4, 3e-3)],
)
@pytest.mark.parametrize("chunk", [1 << 29, 800])
def test_chunked_loss(dtype, bound, of_gradients, chunk, monkeypatch):
    """On a CPU, errors are at most a third of the bounds."""
    monkeypatch.setattr(chunked_loss, "GPU_CHUNK_BYTES", chunk)
    exact = build(**SMALL, key_dim=8, attention_kernel="bmm").eval().double()
    on_gpu = build(**SMALL, key_dim=8, attention_kernel="bmm").eval().to(GPU, dtype)
    sample = loss_sample()
    with torch.no_grad():  # otherwise, no prediction is right
        sample["target"][0, 4] = exact(**sample["net_input"])[0][0, 4].argmax()
    loss, _, log, gradients = outcome(ChunkedLabelSmoothedCrossEntropy, on_gpu, to_gpu(sample))
    expected = outcome(LabelSmoothedCrossEntropyCriterion, exact, sample)
    assert error([loss], [expected[0]]) < bound
    flat, flat_expected = (torch.cat([x.flatten() for x in tensors]) for tensors in (gradients, expected[3]))
    assert error([flat], [flat_expected]) < of_gradients
    assert expected[2]["n_correct"] > 0
    assert log["n_correct"] == pytest.approx(expected[2]["n_correct"], abs=0 if dtype == torch.float32 else 2)
    other = outcome(LabelSmoothedCrossEntropyCriterion, exact, loss_sample(padded=False))
    assert error([other[0]], [expected[0]]) > bound  # control


@pytest.mark.parametrize("kind", ["collaborative", "standard"])
def test_shortlist_search(kind, monkeypatch):
    monkeypatch.setitem(KINDS, "collaborative", {"key_dim": 8})  # sdpa needs a multiple of 4
    fused = mock.Mock(wraps=sdpa.scaled_dot_product_attention)
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", fused)
    theirs = hypotheses(SequenceGenerator, [model_of(kind)], sample_of())
    fused.reset_mock()
    ours = hypotheses(ShortlistGenerator, [model_of(kind).to(GPU)], to_gpu(sample_of()))
    assert fused.called
    other = hypotheses(SequenceGenerator, [model_of(kind, seed=1)], sample_of())
    best, expected, control = ([s[0]["tokens"].tolist() for s in results] for results in (ours, theirs, other))
    assert best == expected != control
    scores = [torch.stack([s[0]["score"] for s in results]) for results in (ours, theirs)]
    assert error(scores[:1], scores[1:]) < 1e-4


@pytest.mark.parametrize("kind", [{}, {"collaborative_heads": "none"}])
def test_compiled_layers(kind):
    compiled._compiled.cache_clear()
    flags = {**SMALL, "key_dim": 8, "dropout": 0.0, **kind}
    plain, fast = build(**flags).train().double(), build(**flags, compile=True).train().to(GPU)
    results = []
    for model, inputs in ((plain, batch()), (fast, to_gpu(batch()))):
        logits = model(*inputs)[0]
        logits.logsumexp(-1).mean().backward()
        results.append([logits.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])])
    assert 0 < error(results[1], results[0]) < 1e-3
    assert compiled._compiled.cache_info().misses == 1  # control


@pytest.mark.parametrize("precision", [[], ["--bf16"], ["--fp16"], ["--amp"]])
def test_training_losses_equal_those_on_the_cpu(precision, tiny_data, tmp_path):
    options = {"key_dim": 8, "dropout": 0.0, "max_update": 8, "log_format": "json", "log_interval": 1, **SMALL}
    options.update(no_save=True, disable_validation=True, clip_norm=1.0)
    fast = {"criterion": "label_smoothed_cross_entropy_chunked", "optimizer": "fused_adam"}
    theirs = train_command(tiny_data, tmp_path / "cpu", **options)
    ours = [*train_command(tiny_data, tmp_path / "gpu", **{**options, **fast}), *precision]
    losses = []
    for command in (theirs, [word for word in ours if word != "--cpu"]):
        done = run(*command, fresh=True)  # CUDA must not be used before a fork
        losses.append([float(json.loads(x)["loss"]) for x in re.findall(r"train_inner \| (\{.*\})", done.stdout)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3 if not precision else 0.03)
    assert losses[1] != losses[0] or not precision  # control: the flag has an effect
    assert losses[0][-1] < 0.9 * losses[0][0]

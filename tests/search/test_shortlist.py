"""Beam search over shortlists compared with fairseq's."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import search
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from collab_fairseq.search import shortlist
from collab_fairseq.search.shortlist import Shortlist, ShortlistGenerator
from tests.models.cases import KINDS, SMALL, Task, batch, build, model_of

DICTIONARY = Task().target_dictionary


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(shortlist, "BLOCK", 3)


@pytest.fixture
def shortlists(monkeypatch):
    """The shortlists that were created."""
    created, original = [], Shortlist.__init__

    def record(self, *args):
        created.append(self)
        original(self, *args)

    monkeypatch.setattr(Shortlist, "__init__", record)
    return created


def sample_of(sentences=7, seed=7):
    source, lengths, target = batch(sentences=sentences, source_len=9, seed=seed)
    return {"net_input": {"src_tokens": source, "src_lengths": lengths}, "target": target}


def hypotheses(kind, models, sample, prefix_tokens=None, **options):
    generator = kind(models, DICTIONARY, **{"beam_size": 4, "max_len_b": 12, **options})
    torch.manual_seed(0)
    return generator.generate(models, sample, prefix_tokens=prefix_tokens)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for sentence, other in zip(ours, theirs, strict=True):
        if len(sentence) != len(other):
            return False
        for a, b in zip(sentence, other, strict=True):
            for name in ("tokens", "score", "positional_scores", "attention"):
                if a[name].shape != b[name].shape or not torch.allclose(a[name], b[name], rtol=0, atol=1e-6):
                    return False
    return True


OPTIONS = [
    {"beam_size": 1},
    {"beam_size": 7, "len_penalty": 0.6},
    {"unk_penalty": -8.0, "min_len": 5},
    {"temperature": 9.0},
    {"temperature": 1.7, "max_len_b": 3},
    {"normalize_scores": False, "match_source_len": True},
]


@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in KINDS), *(("collaborative", options) for options in OPTIONS)],
    ids=str,
)
def test_hypotheses_and_scores_equal_fairseqs(kind, options, shortlists):
    models = [model_of(kind)]
    with torch.no_grad():  # makes </s> likely, so that sentences leave the batch at different steps
        weight = models[0].decoder.output_projection.weight
        weight[2] = weight[4:].mean(0) + 0.6 * (weight[29] + weight[46] + weight[36])
    ours = hypotheses(ShortlistGenerator, models, sample_of(), **options)
    assert len(shortlists) == 1
    assert same(ours, hypotheses(SequenceGenerator, models, sample_of(), **options))
    other = hypotheses(SequenceGenerator, models, sample_of(seed=8), **options)
    assert not same(ours, other)  # control
    if not options and kind == "collaborative":
        assert len({max(len(h["tokens"]) for h in sentence) for sentence in ours}) > 2


def test_models_stay_in_training_mode():
    """So that dropout applies, as with fairseq's generator."""
    models = [build(**SMALL, key_dim=6, dropout=0.5)]
    ours, theirs = (
        kind(models, DICTIONARY, beam_size=4, max_len_b=12) for kind in (ShortlistGenerator, SequenceGenerator)
    )
    models[0].train()
    found = []
    for generator in (ours, theirs):
        torch.manual_seed(3)
        found.append(generator.generate(models, sample_of()))
        assert models[0].training
        assert models[0].encoder.layers[0].training
    assert same(*found)


def test_supports_ensembles_other_output_layers_and_attention(shortlists):
    with_attention = model_of("collaborative")
    with_attention.decoder.layers[-1].need_attn = True
    for models in (
        [model_of("content"), model_of("standard", seed=1)],
        [build(**SMALL, share_all_embeddings=False, adaptive_softmax_cutoff="20,30").eval()],
        [model_of("collaborative").bfloat16()],
        [with_attention],
    ):
        ours = hypotheses(ShortlistGenerator, models, sample_of())
        assert same(ours, hypotheses(SequenceGenerator, models, sample_of()))
    assert ours[0][0]["attention"].numel() > 0
    assert len(shortlists) == 4


def replace_forward(model):
    """As LoRA does in scripts that add adapters to a finished model."""
    layer = model.decoder.output_projection
    layer.forward = lambda features, call=layer.forward: call(features).flip(-1)


def replace_output_layer(model):
    """As a decoder of a user does."""

    class Decoder(type(model.decoder)):
        def output_layer(self, features):
            return super().output_layer(features).flip(-1)

    model.decoder.__class__ = Decoder


def replace_probabilities(model):
    class Model(type(model)):
        def get_normalized_probs(self, net_output, log_probs, sample=None):
            return super().get_normalized_probs(net_output, log_probs, sample).flip(-1)

    model.__class__ = Model


def add_hook(model):
    model.decoder.output_projection.register_forward_hook(lambda _, __, logits: logits.flip(-1))


@pytest.mark.parametrize("change", [replace_forward, replace_output_layer, replace_probabilities, add_hook])
def test_changed_output_layers_are_called(change, shortlists):
    """Compared with fairseq's search, and with the unchanged model as a control."""
    model = model_of("collaborative")
    before = hypotheses(ShortlistGenerator, [model], sample_of())
    change(model)
    ours = hypotheses(ShortlistGenerator, [model], sample_of())
    assert same(ours, hypotheses(SequenceGenerator, [model], sample_of()))
    assert not same(ours, before)
    assert len(shortlists) == 2


def test_supports_autocast_with_a_projection_before_the_vocabulary():
    model = build(**SMALL, share_all_embeddings=False, decoder_output_dim=12).eval()
    ours, theirs = Shortlist([model], len(DICTIONARY) - shortlist.SPECIAL), EnsembleModel([model])

    def lprobs(ensemble, autocast):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            source = ensemble.forward_encoder(sample_of()["net_input"])
            return ensemble.forward_decoder(torch.full((7, 1), 2), source, [{}])[0]

    expected, rounded = lprobs(theirs, False), lprobs(theirs, True)
    listed = lprobs(ours, True)
    listed = torch.empty_like(listed).scatter(1, ours.entries, listed)
    assert 0 < (rounded - expected).abs().max() < 0.1
    assert 0 < (listed - expected).abs().max() < 0.1


def test_drops_hypotheses_with_nan_scores(monkeypatch, shortlists):
    model = model_of("collaborative")
    forward = model.decoder.forward

    def broken(*args, **kwargs):
        output, extra = forward(*args, **kwargs)
        output[3::4] = float("nan")
        return output, extra

    expected = hypotheses(SequenceGenerator, [model], sample_of())
    monkeypatch.setattr(model.decoder, "forward", broken)
    ours = hypotheses(ShortlistGenerator, [model], sample_of())
    assert same(ours, hypotheses(SequenceGenerator, [model], sample_of()))
    assert not same(ours, expected)
    assert shortlists


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_tokens": torch.tensor([[9, 8]] * 7)},
        {"search_strategy": search.Sampling(DICTIONARY, sampling_topk=10)},
        {"search_strategy": search.DiverseBeamSearch(DICTIONARY, num_groups=2, diversity_strength=0.5)},
        {"no_repeat_ngram_size": 2},
        {"tokens_to_suppress": ("w3",)},
        {"eos": 30},
        {"beam_size": 30},
    ],
    ids=str,
)
def test_searches_by_vocabulary_index_use_no_shortlist(options, shortlists):
    models = [model_of("collaborative")]
    ours = hypotheses(ShortlistGenerator, models, sample_of(), **options)
    assert same(ours, hypotheses(SequenceGenerator, models, sample_of(), **options))
    assert not shortlists


def test_tasks_use_shortlists_only_for_our_models():
    task = SimpleNamespace(target_dictionary=DICTIONARY)
    for models, expected in (
        ([model_of("collaborative")], ShortlistGenerator),
        ([build("transformer", **SMALL)], SequenceGenerator),
        ([model_of("collaborative"), build("transformer", **SMALL)], SequenceGenerator),
    ):
        assert type(FairseqTask.build_generator(task, models, OmegaConf.create({"beam": 3}))) is expected

"""Roles of heads: planted attention is recognised, parses are aligned, relevance is conserved."""

import itertools

import pytest
import torch
from torch import nn

from collab_fairseq import checkpoints
from collab_fairseq.heads import attention_hooks, relevance, roles, syntax
from collab_fairseq.heads.attention_hooks import multiplied
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import Record
from collab_fairseq.translation import batches
from fairseq_modern.errors import UserError
from tests.fixtures import sentence_pairs
from tests.heads.cases import (
    HEADS,
    LAYER_IDS,
    collab,
    collaborative_state,
    load,
    parts_of,
    relevance_totals,
    standard_state,
)

#: source side of valid
SENTENCES = [source.split() for source, _ in sentence_pairs(20, seed=1)]


@pytest.fixture(scope="module", params=[standard_state, collaborative_state])
def trained(request, tiny_run, tiny_data):
    return load(request.param(tiny_run), tiny_data)


def test_attention_maps_equal_the_weights_of_the_layer(trained):
    sample = next(iter(batches(trained, "valid", sentences=3)))
    layer = attention_layers(trained.model)["cross.0"]
    calls = []
    handle = layer.register_forward_hook(lambda *call: calls.append(call[1:]), with_kwargs=True)
    maps = attention_hooks.attention(trained, sample)
    handle.remove()
    ((arguments, keywords, _),) = calls
    options = {**keywords, "need_weights": True, "need_head_weights": True}
    weights = layer(*arguments, **options)[1]
    assert torch.allclose(weights.transpose(0, 1), maps["cross.0"].weights, atol=1e-12)
    for layer_id in LAYER_IDS:
        assert torch.allclose(maps[layer_id].weights.sum(-1), torch.ones((), dtype=torch.float64))
    assert maps["encoder.0"].queries.sum() == sum(len(words) for words in SENTENCES[:3])
    assert maps["decoder.0"].queries[:, 0].sum() == 0  # </s>
    assert layer.hook is None


def plant(monkeypatch, module, trained, key_of):
    """Head h attends to word ``key_of(sentence, h, t)`` from word t with weight 0.6, and to </s> with the rest."""

    def attention(_, sample):
        tokens = sample["net_input"]["src_tokens"]  # left-padded
        is_word = tokens.ne(trained.task.source_dictionary.pad()) & tokens.ne(trained.task.source_dictionary.eos())
        length = tokens.size(1)
        weights = torch.zeros(len(tokens), 2, length, length, dtype=torch.float64)
        weights[..., -1] = 0.4
        for row, number in enumerate(sample["id"].tolist()):
            count = len(SENTENCES[number])
            first = length - 1 - count
            for head, step in itertools.product(range(2), range(count)):
                key = key_of(number, head, step)
                weights[row, head, first + step, first + key if 0 <= key < count else -1] += 0.6
        return {"encoder.0": attention_hooks.AttentionMaps(weights, is_word, is_word, tokens)}

    monkeypatch.setattr(module, "attention", attention)


def test_planted_positions_and_rare_words_are_found(trained, monkeypatch):
    ranks = roles.frequency_ranks(trained)
    dictionary = trained.task.source_dictionary
    assert ranks[dictionary.nspecial] == 0
    assert ranks[dictionary.eos()] > ranks[dictionary.nspecial :].max()
    rank = {word: int(ranks[dictionary.index(word)]) for words in SENTENCES for word in words}
    monkeypatch.setattr(roles, "COMMON", 5)

    def key_of(number, head, step):
        words = SENTENCES[number]
        rarest = max(range(len(words)), key=lambda n: rank[words[n]])
        return step - 1 if head == 0 else rarest

    plant(monkeypatch, roles, trained, key_of)
    results = roles.roles(trained, "valid", sentences=20)
    previous, rare = results["E:1:1"], results["E:1:2"]
    assert (previous["offset"], previous["positional"]) == (-1, 1.0)
    assert rare["rare"] == 1.0 > 0.5 > previous["rare"]
    assert rare["positional"] < 0.9
    queries = sum(map(len, SENTENCES))
    assert previous["confidence"] == pytest.approx(0.6 * (queries - 20) / queries)
    assert rare["confidence"] == pytest.approx(0.6)
    assert [roles.role_of(numbers) for numbers in (previous, rare)] == ["position -1", "rare words"]


def parse_of(words, turn):
    """Every second word is amod of the next word in even turns, of the previous word in odd turns."""
    rows = []
    for number, word in enumerate(words, 1):
        head = number + (1 if turn % 2 == 0 else -1)
        relation, head = ("amod", head) if number % 2 == 0 and head <= len(words) else ("dep", 0)
        rows.append(f"{number}\t{word}\t_\t_\t_\t_\t{head}\t{relation}:x\t_\t_")
    return "\n".join(["# a comment", *rows]) + "\n\n"


@pytest.fixture
def parses(tmp_path):
    path = tmp_path / "valid.conllu"
    path.write_text("".join(parse_of(words, turn) for turn, words in enumerate(SENTENCES)), encoding="utf-8")
    return path


def test_planted_syntactic_head_is_distinguished_from_a_positional_one(trained, parses, monkeypatch):
    sentences = syntax.read_conllu(parses)

    def key_of(number, head, step):
        words = sentences[number].words
        if head == 1:
            return step + 1
        return words[step].head - 1 if words[step].relation == "amod" else step

    plant(monkeypatch, syntax, trained, key_of)
    result = syntax.syntax(trained, "valid", sentences)
    assert (result["sentences"], result["skipped"]) == (20, 0)
    name = "amod dependent→head"
    syntactic, positional = (result["heads"][head][name] for head in ("E:1:1", "E:1:2"))
    numbered = [(number, word) for sentence in sentences for number, word in enumerate(sentence.words, 1)]
    heads_after = [word.head > number for number, word in numbered if word.relation == "amod"]
    instances, forward = len(heads_after), sum(heads_after)
    assert syntactic["instances"] == instances >= syntax.MIN_INSTANCES
    assert syntactic["accuracy"] == 1.0
    assert positional["accuracy"] == pytest.approx(forward / instances)
    assert syntactic["baseline"] == pytest.approx(max(forward, instances - forward) / instances)
    assert syntactic["syntactic"]
    assert not positional["syntactic"]
    assert not result["heads"]["E:1:1"]["amod head→dependent"]["syntactic"]
    assert roles.role_of({"syntax": result["heads"]["E:1:1"]}) == name


SAMPLE = """\
# text = Don't eat the dog's 10 m² cake
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\t_\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\t_\t_\t3\tadvmod\t_\t_
3\teat\teat\tVERB\t_\t_\t0\troot\t_\t_
3.1\teat\teat\tVERB\t_\t_\t_\t_\t_\t_
4\tthe\tthe\tDET\t_\t_\t7\tdet\t_\t_
5\tm²\tm2\tNOUN\t_\t_\t7\tnmod\t_\t_
6\tgreen\tgreen\tADJ\t_\t_\t7\tamod\t_\t_
7\tcake\tcake\tNOUN\t_\t_\t3\tdobj\t_\t_
"""


def test_parses_are_aligned_to_subwords(tmp_path):
    path = tmp_path / "sample.conllu"
    path.write_text(SAMPLE, encoding="utf-8")
    (sentence,) = syntax.read_conllu(path)
    assert [word.form for word in sentence.words] == ["Do", "n't", "eat", "the", "m²", "green", "cake"]
    pieces = ["▁Don", "'", "t", "▁eat", "▁the", "▁m", "2", "▁g", "reen", "▁ca", "ke"]
    assert syntax.align(sentence, pieces) == [[0, 1, 2], [0, 1, 2], [3], [4], [5, 6], [7, 8], [9, 10]]
    bpe = ["Don@@", "'t", "eat", "the", "m@@", "2", "green", "ca@@", "ke"]
    assert syntax.align(sentence, bpe) == [[0, 1], [0, 1], [2], [3], [4, 5], [6], [7, 8]]
    assert syntax.align(sentence, ["▁Do", "▁not", *pieces[3:]]) is None
    forward = {("advmod", 1, 2), ("amod", 5, 6), ("obj", 6, 2)}  # name, dependent, head
    expected = {(f"{name} dependent→head", dependent, head) for name, dependent, head in forward}
    expected |= {(f"{name} head→dependent", head, dependent) for name, dependent, head in forward}
    assert set(syntax.relations(sentence)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no sentences"),
        (SAMPLE.replace("\n2\t", "\n4\t"), "line 1 is not valid CoNLL-U: expected word 2, got 4"),
        (SAMPLE.replace("1-2", "1-9"), "line 1 is not valid CoNLL-U: it refers to word 9 of 7"),
        (SAMPLE, "none of the 1 parses matches the text of its sentence in valid"),
    ],
)
def test_rejects_invalid_parses_and_parses_of_another_text(trained, text, message, tmp_path):
    path = tmp_path / "bad.conllu"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        syntax.syntax(trained, "valid", syntax.read_conllu(path))


class Small(nn.Module):
    """Two linear layers, an activation, a layer norm and a residual."""

    def __init__(self, activation):
        super().__init__()
        self.fc1, self.fc2, self.layer_norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
        self.activation_fn = activation

    def forward(self, x):
        return self.layer_norm(x + self.fc2(self.activation_fn(self.fc1(x))))


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.gelu])
def test_relevance_equals_explicit_rules(activation):
    torch.manual_seed(0)
    model = Small(activation).double()
    nn.init.normal_(model.layer_norm.weight)
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    with relevance.linearised(model):
        output = model(x)[2]
        result = x * torch.autograd.grad(output, x)[0]
    assert model.activation_fn is activation
    assert torch.allclose(model(x)[2], output)
    with torch.no_grad():
        before = model.fc1(x)
        hidden = activation(before)
        y = x + model.fc2(hidden)
        deviation = (y.var(unbiased=False) + model.layer_norm.eps).sqrt()
        # output 2 of the layer norm is Σ_i y_i c_i + its bias, and y_i has the relevance y_i c_i
        c = (torch.eye(4).double()[2] - 0.25) / deviation * model.layer_norm.weight[2]
        relevance_of_hidden = hidden * (c @ model.fc2.weight)
        expected = x * c + x * ((relevance_of_hidden / before) @ model.fc1.weight)
    assert torch.allclose(result, expected, atol=1e-12)


def test_relevance_is_conserved(trained):
    model, sample = trained.model, next(iter(batches(trained, "valid", sentences=4)))
    with torch.no_grad():
        before = model(**sample["net_input"])[0]
    expected, plain = relevance_totals(model, sample)
    with relevance.linearised(model), relevance.values_only(attention_layers(model)):
        top, total = relevance_totals(model, sample)
    assert torch.allclose(top, expected, atol=1e-10)
    assert torch.allclose(total, expected.sum(0), rtol=1e-9)
    assert not torch.allclose(plain, expected.sum(0), rtol=1e-3)  # control: input × gradient without the rules
    steps = list(relevance.relevance_by_step(trained, sample))
    assert len(steps) == expected.size(1)
    assert all(step["encoder.0"].abs().min() > 0 for step in steps)
    with torch.no_grad():  # hooks and activations are restored
        assert torch.equal(model(**sample["net_input"])[0], before)


def test_head_without_output_has_no_relevance(trained):
    layers = attention_layers(trained.model)
    with multiplied(layers, {"encoder.0": torch.tensor([0.0, 1.0], dtype=torch.float64)}):
        heads = relevance.relevance(trained, "valid", sentences=3)["heads"]
    assert heads == pytest.approx({"E:1:1": 0.0, "E:1:2": 1.0})
    assert relevance.relevance(trained, "valid", sentences=3)["heads"]["E:1:1"] > 0.01


@pytest.mark.parametrize("text", ["", SAMPLE])
def test_mistakes_are_found_before_the_roles(trained, text, tmp_path, monkeypatch):
    path = tmp_path / "bad.conllu"
    path.write_text(text, encoding="utf-8")
    for name in ("relevance", "roles"):
        monkeypatch.setattr(roles, name, lambda *arguments, **options: pytest.fail("the work has begun"))
    with pytest.raises(UserError, match="has no sentences" if not text else "none of the 1 parses matches"):
        roles.measure(trained, "valid", Record("heads", "roles", "", {}), parses=path, relevance_sentences=3)


def test_command_prints_and_draws(tiny_run, tiny_data, parses, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    names = ("model.pt", "importance.json", "roles.json", "figure.svg")
    checkpoint, importance, record, figure = (tmp_path / name for name in names)
    checkpoints.save(standard_state(tiny_run), checkpoint)
    model = [checkpoint, "--data", tiny_data, "--device", "cpu"]
    options = ["--parses", parses, "--importance", importance, "--relevance-sentences", 3, "--figure", figure]
    collab("importance", *model, "--json", importance)
    printed = collab("roles", *model, *options, "--json", record)
    rows = [line for line in printed.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0][2:] for row in rows[2:]] == HEADS
    assert "20 parsed sentences; 0 skipped" in printed
    assert set(parts_of(record)) == {"looks", "syntax", "relevance"}
    assert "confidence" in figure.read_text(encoding="utf-8")

    checkpoints.save(collaborative_state(tiny_run), tmp_path / "other.pt")
    monkeypatch.setattr(roles, "measure", lambda *arguments, **options: pytest.fail("the roles were computed"))
    for wrong, message in (
        (importance, "got that of model.pt with another checksum"),
        (tmp_path / "missing.json", "cannot read"),
    ):
        command = ["roles", tmp_path / "other.pt", *model[1:], "--importance", wrong]
        assert message in collab(*command, status=1)

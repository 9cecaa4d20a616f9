"""Importance and ablation of heads of transformers' models, against finite differences and models without the heads."""

import copy
import json
from functools import partial

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.cli.main import main  # noqa: E402
from collab_fairseq.heads.attention_hooks import multiplied  # noqa: E402
from collab_fairseq.heads.huggingface import (  # noqa: E402
    Encoded,
    answers,
    batch_of,
    compare_answers,
    importance,
    read_examples,
)
from collab_fairseq.heads.importance import gradients  # noqa: E402
from collab_fairseq.modules.heads import head_name  # noqa: E402
from collab_fairseq.reparam.huggingface import to_collaborative  # noqa: E402
from tests.unit.huggingface_cases import HEADS, WIDTH, inputs, make, outputs  # noqa: E402

LABELLED = ("bert", "distilbert", "albert", "marian")


def labelled(case, rows=3, seed=1):
    batch = inputs(case, rows, seed)
    if case != "marian":
        batch["labels"] = torch.arange(rows) % 2
    counted = int((batch["labels"] != -100).sum())
    return Encoded(batch, rows, int(batch["attention_mask"].sum()), counted)


def scaled(model, layer_id, head, factor):
    """The same model with a head's values multiplied, which multiplies its context."""
    made = copy.deepcopy(model)
    layer = dict(zip(hf.head_layers(made), dict(hf.attention_layers(made)).values(), strict=True))[layer_id]
    value = getattr(layer, next(n for n in ("value", "v_lin", "v_proj") if hasattr(layer, n)))
    rows = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
    with torch.no_grad():
        value.weight[rows] *= factor
        value.bias[rows] *= factor
    return made


def loss_of(model, batch, row=None):
    """Summed over labels, of all sentences or one."""
    inputs = batch.inputs if row is None else {name: tensor[row : row + 1] for name, tensor in batch.inputs.items()}
    return float(outputs(model, inputs).loss * (inputs["labels"] != -100).sum())


@pytest.mark.parametrize("heads", ["standard", "collaborative"])
@pytest.mark.parametrize("case", LABELLED)
def test_gradients_are_finite_differences(case, heads):
    model = make(case, dtype=torch.float64)
    if heads == "collaborative":
        model = to_collaborative(model, 12)
    layers, batch = hf.head_layers(model), labelled(case)
    sites = {"encoder", "cross", "decoder"} if case == "marian" else {"encoder"}
    assert {layer_id.split(".")[0] for layer_id in layers} == sites
    trained = [parameter.requires_grad for parameter in model.parameters()]
    result = gradients(model, layers, batch_of(model, batch))
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    row, step = 1, 1e-5

    def slope(change):
        ends = [loss_of(change(1 + sign * step), batch, row) for sign in (1, -1)]
        return pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-4, abs=1e-7)

    for layer_id in list(layers)[-3:]:
        assert result[layer_id].shape == (3, HEADS)
        for head in range(HEADS):
            assert float(result[layer_id][row, head]) == slope(partial(scaled, model, layer_id, head))
    assert max(float(gradient.abs().max()) for gradient in result.values()) > 1e-3


def test_importance_is_the_mean_over_sentences_whatever_the_batches():
    model = make("marian", dtype=torch.float64)
    model.train()  # dropout must not count
    layers, batches = hf.head_layers(model), [labelled("marian", 3, 1), labelled("marian", 5, 2)]
    result = importance(model, layers, batches)
    assert model.training
    assert result["sentences"] == 8
    for name in ("source_tokens", "target_tokens"):
        assert result[name] == sum(getattr(batch, name) for batch in batches)
    of_batches = [gradients(model, layers, batch_of(model, batch)) for batch in batches]
    for layer_id in layers:
        expected = sum(of_batch[layer_id].abs().sum(0) for of_batch in of_batches) / 8
        raw = [result["heads"][head_name(layer_id, head)]["raw"] for head in range(HEADS)]
        assert raw == pytest.approx(expected.tolist(), rel=1e-9, abs=1e-12)
    one_by_one = []
    for batch in batches:
        for row in range(batch.sentences):
            inputs_of_row = {name: tensor[row : row + 1] for name, tensor in batch.inputs.items()}
            one_by_one.append(Encoded(inputs_of_row, 1, 0, int((inputs_of_row["labels"] != -100).sum())))
    for head, values in importance(model, layers, one_by_one)["heads"].items():
        assert result["heads"][head] == pytest.approx(values, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("case", LABELLED)
def test_masked_heads_are_heads_without_values(case, implementation):
    for model in (make(case, implementation), to_collaborative(make(case, implementation), 12)):
        batch, layers = labelled(case).inputs, hf.head_layers(model)
        layer_id = list(layers)[-1]
        mask = torch.ones(HEADS)
        mask[2] = 0.0
        with multiplied(layers, {layer_id: mask}):
            logits = outputs(model, batch).logits
        torch.testing.assert_close(logits, outputs(scaled(model, layer_id, 2, 0.0), batch).logits, rtol=0, atol=1e-5)
        assert (logits - outputs(model, batch).logits).abs().max() > 1e-3  # control; and no hook stays behind


def test_the_exact_test_of_mcnemar():
    rights = ("1" * 10 + "0" * 10, "1" * 15 + "0" * 5, "1" * 4 + "0" * 6 + "1" + "0" * 9)
    whole, better, worse = ({"right": right} for right in rights)
    expected = {"accuracy": 75.0, "difference": 25.0, "p_value": 2 / 2**5}
    assert compare_answers(better, whole) == pytest.approx(expected)
    expected = {"accuracy": 25.0, "difference": -25.0, "p_value": 16 / 128}  # 1 of 7 won: 2 (1 + 7) / 2^7
    assert compare_answers(worse, whole) == pytest.approx(expected)
    assert compare_answers(whole, whole)["p_value"] == 1.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Classifiers and a translation model with a tokenizer of 48 words, and text for both."""
    folder = tmp_path_factory.mktemp("models")
    words = ["<pad>", "</s>", *(f"w{n}" for n in range(2, 48))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", model_max_length=20
    )
    made = {case: make(case, "sdpa") for case in ("bert", "marian")}
    made["marian"].generation_config.max_length = 12
    for name, model in {**made, "bert-12": to_collaborative(made["bert"], 12)}.items():
        model.save_pretrained(folder / name)
        fast.save_pretrained(folder / name)
    random = torch.Generator().manual_seed(3)
    lines = []
    for _ in range(12):
        first, second = (" ".join(f"w{n}" for n in torch.randint(2, 48, (5,), generator=random)) for _ in range(2))
        lines.append({"premise": first, "hypothesis": second, "label": int(torch.randint(2, (1,), generator=random))})
    (folder / "text.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


@pytest.fixture
def collab(folders, tmp_path, capsys):
    """`collab heads WHAT` of a model on the text: what is printed, and the parts of the record."""

    def collab(what, model, *more):
        output = tmp_path / f"{model}.json"
        words = [folders / model, "--text", folders / "text.jsonl", "--device", "cpu", "--json", output, *more]
        assert main(["heads", what, *map(str, words)]) == 0
        return capsys.readouterr().out, json.loads(output.read_text())["parts"]

    return collab


@pytest.mark.parametrize("name", ["bert", "bert-12"])
def test_importance_of_a_folder(collab, name, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "figure.svg"
    shown, parts = collab("importance", name, "--fields", "premise,hypothesis", "--batch-size", 5, "--figure", figure)
    assert "12 sentences" in shown
    assert figure.exists()
    part = parts["importance"]
    assert set(part["heads"]) == {head_name(f"encoder.{n}", head) for n in range(2) for head in range(HEADS)}


def test_ablation_of_a_classifier(collab, folders):
    shown, parts = collab("ablate", "bert", "--fields", "premise")
    assert "text: accuracy" in shown
    model = make("bert", "sdpa")
    examples = read_examples(folders / "text.jsonl", ["premise"], "label")
    tokens = torch.tensor([[int(word[1:]) for word in example.texts[0].split()] for example in examples])
    batch = [Encoded({"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}, 12, 60, 12)]
    predicted = answers(scaled(model, "encoder.1", 2, 0.0), batch)
    accuracy = 100 * sum(a == example.label for a, example in zip(predicted, examples, strict=True)) / 12
    assert parts["text/without/E:2:3"]["accuracy"] == pytest.approx(accuracy)
    assert parts["whole/text"]["score"] == pytest.approx(accuracy - parts["text/without/E:2:3"]["difference"])
    assert len(parts) == 1 + 2 * 2 * HEADS


def test_ablation_of_a_translation_model(collab):
    text = ["--fields", "premise", "--label", "hypothesis", "--sentences", 4]
    shown, parts = collab("ablate", "marian", *text, "--beam", 2, "--sites", "cross", "--mode", "only")
    assert "text: BLEU" in shown
    heads = [head_name(f"cross.{layer}", head) for layer in range(2) for head in range(HEADS)]
    assert set(parts) == {"whole/text", *(f"text/only/{head}" for head in heads)}
    assert {"bleu", "difference", "p_value"} == set(parts["text/only/A:1:1"])


def test_what_cannot_be_done_is_said(folders, tmp_path, capsys):
    text, bert = str(folders / "text.jsonl"), str(folders / "bert")
    transformers.BertModel(make("bert").config).save_pretrained(tmp_path / "bare")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"number": 3, "word": "w2", "class": 0}\n{"number": 3, "word": "w3", "class": 2}\n')
    read, marian = ["--text", str(broken), "--fields", "word", "--label"], str(folders / "marian")
    for words, message in (
        (["importance", bert, *read, "class"], "line 2: expected a class from 0 to 1 as label, got 2"),
        (["ablate", bert, *read, "word"], "line 1: expected a class from 0 to 1 as label, got 'w2'"),
        (["ablate", marian, *read, "class"], "line 1: expected a translation as label, got 0"),
        (["ablate", bert, *read[:3], "number", "--label", "class"], "line 1: number must be a text; got 3"),
        (["importance", bert], "needs --text FILE.jsonl"),
        (["importance", bert, "--text", text], "line 1: expected the field text, got premise, hypothesis, label"),
        (["ablate", bert, "--text", text, "--reference", "test=x"], "--reference is for checkpoints of fairseq"),
        (["importance", str(tmp_path / "bare"), "--text", text], "expected a model for sequence classification"),
    ):
        assert main(["heads", *words]) == 1
        assert message in capsys.readouterr().err

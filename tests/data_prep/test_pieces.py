"""SentencePiece models, held-out pairs and length limits of prepared corpora."""

import pytest
import sentencepiece

from data_prep import pieces, prepare
from fairseq_modern.errors import UserError

LANGUAGES = ("de", "en")
SHORT, LONG = "a b", "a " * 176


def write(folder, lines):
    """Write the same lines as both sides of train."""
    for lang in LANGUAGES:
        (folder / f"train.{lang}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_sentencepiece_does_not_read_held_out_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ["eins zwei drei", "vier fünf", "sechs sieben ß"] * 20)
    for every, is_piece in ((3, False), (0, True)):
        pieces.train(["train.de", "train.en"], "model.model", 40, every=every)
        model = sentencepiece.SentencePieceProcessor(model_file="model.model")
        assert ("ß" in {model.id_to_piece(number) for number in range(40)}) == is_piece
    counts = pieces.clean(tmp_path / "train", tmp_path / "kept", tmp_path / "held_out", LANGUAGES, 9, 2.0, every=3)
    assert counts == {"kept": 40, "held out": 20, "left out": 0}
    assert "ß" not in (tmp_path / "kept.de").read_text(encoding="utf-8")
    assert (tmp_path / "held_out.en").read_text(encoding="utf-8") == "sechs sieben ß\n" * 20


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([SHORT] * 22, "held out must be at least 1 .*; got 22 pairs kept, 0 pairs held out, 0 pairs left out"),
        (
            [SHORT] * 22 + [LONG],
            "held out must be at least 1 .*; got 22 pairs kept, 0 pairs held out, 1 pairs left out",
        ),
        ([LONG] * 22 + [SHORT], "kept must be at least 1 .*; got 0 pairs kept, 1 pairs held out, 22 pairs left out"),
        ([SHORT] * 23, None),
    ],
)
def test_rejects_empty_sets_after_cleaning(lines, message, tmp_path):
    """IWSLT14: every 23rd line is held out; at most 175 pieces."""
    write(tmp_path, lines)
    name, data_set = "iwslt14_de_en", prepare.load("iwslt14_de_en")
    preparation = prepare.Preparation(name, data_set, prepare.parser_of(name, data_set).parse_args([]))
    if message is None:
        assert preparation.clean(tmp_path / "raw", tmp_path) == {"valid": "valid", "test": "test", "train": "clean"}
        return
    with pytest.raises(UserError, match=message):
        preparation.clean(tmp_path / "raw", tmp_path)

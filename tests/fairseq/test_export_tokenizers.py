"""Exported tokenisation: Moses, BPE codes, SentencePiece."""

import re
import shutil

import pytest
import sentencepiece

import collab_fairseq
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from collab_fairseq.translation.tokenizer import Card, Tokenizer
from fairseq_modern.errors import UserError
from tests.common import collab
from tests.fairseq.serving_cases import SOURCES, write_checkpoint, write_data


def write_bpe_model(folder, langs=("en", "de"), version="#version: 0.2\n", words=()):
    """Write a model with BPE codes, and dictionaries without subword units for the languages in `words`."""
    (data := folder / "data-bin").mkdir()
    codes = folder / "codes"
    codes.write_text(f"{version}r e\nre d</w>\nd o\n")
    units = ["red", "do@@", "g", "t@@", "h@@", "e", ".", *(f"madeupword{n}" for n in range(6))]
    for lang in langs:
        lines = "".join(f"{unit} 1\n" for unit in units)
        (data / f"dict.{lang}.txt").write_text(lines.replace("@@", "") if lang in words else lines)
    return write_checkpoint(folder / "bpe.pt", data, langs=langs, key_dim=6), codes


def test_both_sides_have_units_of_the_codes(tmp_path):
    path, codes = write_bpe_model(tmp_path, words=("en",))
    with pytest.raises(UserError, match="have subword units, which need their BPE codes"):
        read_source(path)
    with pytest.raises(UserError, match=r"the source dictionary .* must have BPE units .*; got words"):
        read_source(path, bpe_codes=codes)


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.2\n"])
def test_the_tokenizer_of_transformers_is_left_out_if_it_would_split_differently(tmp_path, version):
    pytest.importorskip("transformers")
    path, codes = write_bpe_model(tmp_path, version=version)
    write(read_source(path, bpe_codes=codes, moses=True), "huggingface", tmp_path / "out")
    has_tokenizer = version == "#version: 0.2\n"
    assert (tmp_path / "out" / "merges.txt").exists() == has_tokenizer
    readme = (tmp_path / "out" / "README.md").read_text()
    assert ("`FSMTTokenizer` supports BPE codes of version 0.2 only" in readme) != has_tokenizer


def test_moses_has_the_rules_of_a_language_with_a_region(tmp_path):
    """sacremoses treats unknown languages such as en-US differently, without a message."""
    path, codes = write_bpe_model(tmp_path, langs=("en-US", "fr-CA"))
    write(read_source(path, bpe_codes=codes, moses=True), "folder", tmp_path / "folder")
    tokenizer = collab_fairseq.load(tmp_path / "folder").tokenizer
    assert " ".join(tokenizer.split("don't")).replace("@@ ", "") == "don &apos;t"
    assert tokenizer.join(["l'", "homme", ":"]) == "l'homme :"


def test_tokenizers_lowercase_and_split_like_moses_and_bpe(tmp_path):
    path, codes = write_bpe_model(tmp_path)
    text = ["--bpe-codes", codes, "--moses", "--lowercase"]
    collab("export", path, "--to", "folder", *text, "--output", tmp_path / "folder")
    tokenizer = collab_fairseq.load(tmp_path / "folder").tokenizer
    tokens = ["t@@", "h@@", "e", "red", "do@@", "g", "."]
    assert tokenizer.split("The RED dog.") == tokens
    assert tokenizer.join(tokens) == "the red dog."
    assert "".join(tokenizer.split("dog's")).replace("@@", "") == "dog&apos;s"

    transformers = pytest.importorskip("transformers")
    source = read_source(path, bpe_codes=codes, moses=True, lowercase=True)
    write(source, "huggingface", tmp_path / "huggingface")
    theirs = transformers.FSMTTokenizer.from_pretrained(tmp_path / "huggingface")
    dictionary = source.trained.task.source_dictionary
    ids = [*map(dictionary.index, tokens), dictionary.eos()]
    assert theirs("The RED dog.").input_ids == ids
    assert theirs.decode(ids, skip_special_tokens=True) == "the red dog."
    readme = (tmp_path / "huggingface" / "README.md").read_text(encoding="utf-8")
    assert '`FSMTTokenizer` normalises punctuation (“ becomes ")' in readme
    quoted, normalised = ([*map(dictionary.index, tokenizer.split(f"{q}red{q}")), 2] for q in ("“", '"'))
    assert theirs("“red“").input_ids == theirs('"red"').input_ids == normalised != quoted
    with pytest.raises(UserError, match="export the checkpoint or model folder it was made from"):
        read_source(tmp_path / "huggingface")


#: name → options of SentencePiece's trainer
SENTENCEPIECE = {
    "bytes": {"byte_fallback": True, "vocab_size": 320},
    "suffix": {"treat_whitespace_as_suffix": True},
    "no prefix": {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "symbols": {"user_defined_symbols": ["<sep>"], "control_symbols": ["<2tgt>"]},
    "unknown": {"unk_piece": "[UNK]", "unk_surface": " ?? "},
    "no <s>": {"bos_id": -1, "vocab_size": 79},
}


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_units_are_joined_like_sentencepiece(name, tmp_path):
    write_data(tmp_path, **SENTENCEPIECE[name])
    shutil.copy(tmp_path / "sentencepiece.model", tmp_path / "sentencepiece.bpe.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    tokenizer = Tokenizer(tmp_path, Card("torch", "src", "tgt", "sentencepiece", False, False, 9))
    text = "the red dog"
    if name in ("bytes", "symbols"):
        text += {"bytes": " größer Ω", "symbols": "<sep>the"}[name]
    tokens = tokenizer.split(text)
    assert tokenizer.join(tokens) == pieces.decode(pieces.encode(text)) == (f"{text} " if name == "suffix" else text)
    (first, *_), unknown = tokens, pieces.id_to_piece(pieces.unk_id())
    assert tokenizer.join(["<s>", first, "<unk>"]) == pieces.decode([first, unknown])
    if name == "symbols":
        assert tokenizer.join(["<2tgt>", *tokens]) == text
    assert tokenizer.join([first, "▁word"]).endswith(" word")  # a unit that is not a piece


def test_every_export_of_a_model_with_byte_units_translates_to_text(tmp_path, monkeypatch, capsys):
    data = write_data(tmp_path, **SENTENCEPIECE["bytes"])
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    source = read_source(write_checkpoint(tmp_path / "bytes.pt", data, key_dim=6))
    expected = []
    for target in ("folder", "ctranslate2"):
        pytest.importorskip("ctranslate2")
        write(source, target, tmp_path / target)
        found = collab_fairseq.load(tmp_path / target).search(SOURCES, beam=2, max_length=20)
        expected = [pieces.decode([*best.target]) for best, *_ in found]
        assert [best.text for best, *_ in found] == expected
        assert sum("<0x" in unit for best, *_ in found for unit in best.target) > 10
        assert not any("<0x" in text for text in expected)
    assert "fairseq prints byte units such as `<0x00>`" in (tmp_path / "folder" / "README.md").read_text("utf-8")
    pytest.importorskip("transformers")
    write(source, "huggingface", tmp_path / "DIR")
    (code,) = re.findall("```python\n(.*?)```", (tmp_path / "DIR" / "README.md").read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    capsys.readouterr()
    exec(code.replace("num_beams=5", "num_beams=1"), names)
    printed = capsys.readouterr().out
    units = [names["target"][number] for number in names["output"] if number > 2]
    assert "<0x" in "".join(units)
    assert printed == pieces.decode(units) + "\n"

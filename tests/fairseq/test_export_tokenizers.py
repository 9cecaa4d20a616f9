"""Exports of models with Moses tokenisation and BPE codes: subword units, and their tokenizers."""

import pytest

import collab_fairseq
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from fairseq_modern.errors import UserError
from tests.common import collab
from tests.fairseq.serving_cases import write_checkpoint


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

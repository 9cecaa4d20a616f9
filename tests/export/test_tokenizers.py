"""Exported tokenisation: Moses, BPE codes, SentencePiece."""

import io
import json
import re
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import sacremoses
import sentencepiece
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from subword_nmt import apply_bpe, learn_bpe

import collab_fairseq
from collab_fairseq.export import write
from collab_fairseq.export.preprocessing import infer
from collab_fairseq.export.source import read_source
from collab_fairseq.translation.tokenizer import Card, Tokenizer
from fairseq_modern.errors import UserError
from tests.common import collab
from tests.export.cases import SOURCES, write_checkpoint, write_data


def write_bpe_model(folder, langs=("en", "de"), version="#version: 0.2\n", words=()):
    """Write a model with BPE codes, and dictionaries without subword units for the languages in `words`."""
    (data := folder / "data-bin").mkdir()
    codes = folder / "codes"
    codes.write_text(f"{version}r e\nre d</w>\nd o\nh t\n")
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


def test_codes_are_those_of_the_source_dictionary(tmp_path):
    """Other codes would split words into units that the model does not know."""
    path, codes = write_bpe_model(tmp_path)
    assert read_source(path, bpe_codes=codes).card.subwords == "subword_nmt"
    codes.write_text("#version: 0.2\nr e\nt h\nth e</w>\n")
    with pytest.raises(UserError, match=r"codes is not the subword model of the source dictionary .* got 0%"):
        read_source(path, bpe_codes=codes)


def test_dictionaries_with_other_subword_units_are_rejected(tmp_path):
    """They were exported as words. The control has words."""
    path, _ = write_bpe_model(tmp_path, words=("en", "de"))
    assert read_source(path).card.subwords is None
    for lang in ("en", "de"):
        dictionary = path.parent / "data-bin" / f"dict.{lang}.txt"
        dictionary.write_text(dictionary.read_text().replace("do", "##do"))
    checkpoint = write_checkpoint(tmp_path / "pieces.pt", path.parent / "data-bin", langs=("en", "de"), key_dim=6)
    with pytest.raises(UserError, match=r"have subword units .marker ##.; an export can only split text with"):
        read_source(checkpoint)


def test_codes_of_fastbpe_are_named(tmp_path, capfd):
    path, codes = write_bpe_model(tmp_path)
    codes.write_text("r e 9\nre d</w> 8\n")  # with frequencies
    error = collab("export", path, "--bpe-codes", codes, "--to", "folder", "--output", tmp_path / "out", status=1)
    assert f"{codes} must have BPE codes of subword-nmt (invalid line 1 in BPE codes file: r e 9)" in error
    assert "Error: invalid line" not in capfd.readouterr().err


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
    assert "units that the dictionary lacks" in readme
    units = [*map(dictionary.index, ["h@@", "t@@", "g"])]  # the codes make ht@@
    assert [*map(dictionary.index, tokenizer.split("htg"))] == units
    assert theirs("htg").input_ids == [dictionary.unk(), units[2], dictionary.eos()]
    with pytest.raises(UserError, match="export the checkpoint or model folder it was made from"):
        read_source(tmp_path / "huggingface")


LINES = [
    'The two-year-old says "it\'s a well-known off-screen voice" & leaves. Then a T-shirt [red] is seen.',
    "He said \"don't\" | she didn't. He's at No. 5, Mr. Smith's U.S. office. The dog-sitter isn't here.",
]
#: name → options of sacremoses, what separates hyphenated words, flags that the dictionary cannot replace
MOSES = {
    "-a": ({"aggressive_dash_splits": True, "escape": True}, "@-@", {}),
    "lower-cased": ({"aggressive_dash_splits": False, "escape": True}, "@-@", {"lowercase": True}),
    "-no-escape": ({"aggressive_dash_splits": False, "escape": False}, "@-@", {}),
    "-a -no-escape": ({"aggressive_dash_splits": True, "escape": False}, "@-@", {}),
    "of Google": ({"aggressive_dash_splits": True, "escape": True}, "##AT##-##AT##", {}),
}


def moses_case(folder, name, subwords, langs=("en", "de")):
    """A model of text preprocessed by sacremoses and a subword tool: its checkpoint, flags and reference."""
    options, mark, lower = MOSES[name]
    moses, unmoses = sacremoses.MosesTokenizer(langs[0]), sacremoses.MosesDetokenizer(langs[1])

    def words(line):
        line = moses.tokenize(line, **options, return_str=True).replace("@-@", mark)
        return line.lower() if lower else line

    def text(line):
        return unmoses.detokenize(line.replace(mark, "@-@").split(), unescape=options["escape"])

    (data := folder / "data-bin").mkdir()
    training = [words(line) for line in LINES]
    flags = {**lower, "moses": True}
    if subwords == "sentencepiece":
        model = folder / "sentencepiece.model"
        sizes = {"vocab_size": 130, "model_type": "bpe", "minloglevel": 2}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(training * 20), model_prefix=str(model)[:-6], **sizes
        )
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
        split = lambda line: pieces.encode(words(line), out_type=str)  # noqa: E731
    else:
        flags["bpe_codes"], codes = folder / "codes", io.StringIO()
        learn_bpe.learn_bpe(io.StringIO("\n".join(training * 2)), codes, 60)
        flags["bpe_codes"].write_text(codes.getvalue())
        bpe = apply_bpe.BPE(codes)
        split = lambda line: bpe.process_line(words(line)).split()  # noqa: E731
    counts = Counter(unit for line in LINES for unit in split(line))
    for lang in langs:
        lines = "".join(f"{unit} {n}\n" for unit, n in counts.items())
        (data / f"dict.{lang}.txt").write_text(lines, encoding="utf-8")
    path = write_checkpoint(folder / "moses.pt", data, langs=langs, key_dim=6)
    return SimpleNamespace(path=path, flags=flags, words=words, split=split, text=text)


@pytest.mark.parametrize(
    ("name", "subwords"),
    [*((name, "subword_nmt") for name in MOSES), *((name, "sentencepiece") for name in MOSES if name != "of Google")],
)
def test_moses_has_the_options_of_the_training_text(tmp_path, name, subwords):
    """They are inferred from the dictionary."""
    case = moses_case(tmp_path, name, subwords)
    write(read_source(case.path, **case.flags), "folder", tmp_path / "folder")
    tokenizer = collab_fairseq.load(tmp_path / "folder").tokenizer
    for line in LINES:
        assert tokenizer.split(line) == case.split(line)
        assert tokenizer.join(case.split(line)) == case.text(case.words(line)) != case.words(line)
    card = json.loads((tmp_path / "folder" / "translation.json").read_text())
    readme = (tmp_path / "folder" / "README.md").read_text(encoding="utf-8")
    dashes, escape = (MOSES[name][0][option] for option in ("aggressive_dash_splits", "escape"))
    assert ("hyphenated words whole" in readme) == (" --moses-no-dash-splits" in readme) == (not dashes)
    assert ("characters not escaped" in readme) == (" --moses-no-escape" in readme) == (not escape)
    assert ("It does not know the mark `##AT##-##AT##`" in readme) == (name == "of Google")
    if name != "of Google":  # fairseq has no lower-casing and no other mark
        hub = TransformerModel.from_pretrained(str(tmp_path / "folder"))
        for line in LINES:
            tokens = hub.apply_bpe(hub.tokenize(line)).split()
            assert tokens == tokenizer.split(line) or name == "lower-cased"
    # a folder of an earlier version is read as before
    for field in ("moses_no_dash_splits", "moses_no_escape", "hyphen", "lowercase_last"):
        del card[field]
    (tmp_path / "folder" / "translation.json").write_text(json.dumps(card))
    old = collab_fairseq.load(tmp_path / "folder").tokenizer
    assert any(old.split(line) != case.split(line) for line in LINES) == (name != "-a")


def test_flags_of_moses_replace_what_the_dictionary_says(tmp_path):
    case = moses_case(tmp_path, "-a", "subword_nmt")
    words = ["export", case.path, "--bpe-codes", case.flags["bpe_codes"], "--to", "folder", "--output"]
    flags = ["--moses-no-dash-splits", "--moses-no-escape"]
    for name, given in {"inferred": ["--moses"], "given": flags}.items():
        collab(*words, tmp_path / name, *given)
        text = "".join(collab_fairseq.load(tmp_path / name).tokenizer.split("it's off-screen")).replace("@@", "")
        assert text == {"inferred": "it&apos;soff@-@screen", "given": "it'soff-screen"}[name]


@pytest.mark.parametrize("change", [None, "moses_no_dash_splits", "moses_no_escape", "hyphen"])
def test_the_tokenizer_of_transformers_has_one_form_of_moses(tmp_path, change):
    pytest.importorskip("transformers")
    path, codes = write_bpe_model(tmp_path)
    flags = {change: True} if change in ("moses_no_dash_splits", "moses_no_escape") else {}
    if change == "hyphen":
        dictionary = path.parent / "data-bin" / "dict.en.txt"
        dictionary.write_text(dictionary.read_text().replace("madeupword0", "##AT##-##AT##"))
    write(read_source(path, bpe_codes=codes, moses=True, **flags), "huggingface", tmp_path / "out")
    assert (tmp_path / "out" / "merges.txt").exists() == (change is None)
    assert ("The folder has no tokenizer: " in (tmp_path / "out" / "README.md").read_text()) == (change is not None)


def test_what_a_dictionary_says_about_its_text(caplog):
    def of(units, **flags):
        dictionary = Dictionary()
        for unit in [*units, *(f"w{number}" for number in range(99))]:
            dictionary.add_symbol(unit, 2)
        defaults = dict.fromkeys(("moses", "lowercase", "moses_no_dash_splits", "moses_no_escape"), False)
        return infer(dictionary, **{**defaults, **flags})

    assert not of(["5"])["lowercase"]  # too few units
    assert of(["w"])["lowercase"]
    assert not of(["w", "Das"])["lowercase"]
    assert not caplog.records
    for units in (["@-@"], ["&apos;s"], ["▁&", "apos", ";"]):
        assert not of(units)["moses"]
        assert "--moses was not given" in caplog.text
        caplog.clear()
    assert of(["off-screen", "'"], moses=True)["moses_no_escape"]
    unknown = of([], moses=True)
    assert not unknown["moses_no_dash_splits"]
    assert not unknown["moses_no_escape"]
    assert of([], moses_no_escape=True)["moses"]


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
    data = write_data(tmp_path, **SENTENCEPIECE[name])
    shutil.copy(data / "dict.src.txt", tmp_path)
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


def test_bpe_makes_units_of_the_dictionary(tmp_path):
    """Units that training text with a vocabulary threshold does not have; the parts of a word may be known."""
    (tmp_path / "bpecodes").write_text("#version: 0.2\nr e\nre d</w>\nd o\nh t\n")
    dictionary = tmp_path / "dict.en.txt"
    dictionary.write_text("re@@ 3\nd 2\ndo@@ 1\ng 1\n")
    tokenizer = Tokenizer(tmp_path, Card("torch", "en", "de", "subword_nmt", False, False, 9))
    with open(dictionary) as vocabulary, open(tmp_path / "bpecodes") as codes:
        reference = apply_bpe.BPE(codes, vocab=apply_bpe.read_vocabulary(vocabulary, None))
    assert " ".join(tokenizer.split("red dog")) == reference.process_line("red dog") == "re@@ d do@@ g"
    dictionary.write_text("red 1 #fairseq:overwrite\ndo@@ 1\ng 1\n")
    tokenizer = Tokenizer(tmp_path, tokenizer.card)
    assert tokenizer.split("red dog") == ["red", "do@@", "g"]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_sentencepiece_makes_units_of_the_dictionary(tmp_path, algorithm):
    data = write_data(tmp_path, model_type=algorithm, vocab_size=46)
    shutil.copy(tmp_path / "sentencepiece.model", tmp_path / "sentencepiece.bpe.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "sentencepiece.model"))
    texts = [pieces.decode(pieces.encode(text)) for text in SOURCES]
    used = Counter(unit for text in texts for unit in pieces.encode(text, out_type=str) if len(unit) > 1)
    missing = {unit for unit, _ in used.most_common(10)}
    lines = (data / "dict.src.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    units = "".join(line for line in lines if line.split(" ")[0] not in missing)
    (tmp_path / "dict.src.txt").write_text(units, encoding="utf-8")
    tokenizer = Tokenizer(tmp_path, Card("torch", "src", "tgt", "sentencepiece", False, False, 9))
    for text in texts:
        assert not missing & {*tokenizer.split(text)}
        assert pieces.decode(tokenizer.split(text)) == tokenizer.join(pieces.encode(text, out_type=str)) == text
    shutil.copy(data / "dict.src.txt", tmp_path)  # the control: with all units, they are those of the model
    tokenizer = Tokenizer(tmp_path, tokenizer.card)
    assert [tokenizer.split(text) for text in texts] == [pieces.encode(text, out_type=str) for text in texts]


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

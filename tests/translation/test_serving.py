"""Model folders, and translation with them: fairseq, Python, `collab translate`."""

import hashlib
import json
import os
import re
import resource
import shutil
import sys
from importlib.util import find_spec

import pytest

import collab_fairseq
from collab_fairseq import checkpoints
from collab_fairseq.cli import main
from collab_fairseq.export import write
from collab_fairseq.export.source import read_source
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation.tokenizer import Card, Tokenizer, require
from collab_fairseq.translation.translator import Hypothesis, batches
from fairseq_modern.errors import UserError
from fairseq_modern.files import sha256
from tests.common import collab, content
from tests.export.cases import SOURCES, write_data

SEARCH = {"beam": 3, "lenpen": 0.6, "max_length": 12}
FLAGS = ["--beam", "3", "--lenpen", "0.6", "--max-length", "12"]


@pytest.fixture(scope="module")
def exported(models):
    """The folder of a collaborative model, exported on the command line."""
    output = models.data.parent / "exported"
    collab("export", models.checkpoint("collaborative"), "--to", "folder", "--output", output)
    return output


@pytest.fixture(scope="module")
def translator(exported):
    return collab_fairseq.load(exported)


@pytest.fixture
def translate(capfdbinary):
    """`collab translate` in this process: exit status, lines, messages."""

    def translate(*argv):
        status = main.main(["translate", *map(str, argv)])
        out, err = capfdbinary.readouterr()
        return status, out.decode().split("\n")[:-1], err.decode()

    return translate


def test_exported_checkpoint_contains_no_path(exported):
    assert str(exported.parent) not in repr(checkpoints.load(exported / "model.pt")["cfg"])


def test_order_empty_lines_and_batches(translator):
    lines = [*SOURCES, "", "  ", *SOURCES[:3], "a\nred\r\ndog"]
    alone = [translator.translate([line], **SEARCH)[0] for line in lines]
    assert translator.translate(lines, **SEARCH) == alone
    assert alone[12:14] == ["", ""]
    assert alone[-1] == translator.translate(["a red dog"], **SEARCH)[0] != ""
    assert len(set(alone)) > 3
    assert translator.translate(iter(lines), **SEARCH) == alone
    assert translator.translate([]) == []
    assert list(batches([5, 0, 9, 2, 5], max_tokens=12)) == [(2,), (0, 4), (3,)]


def test_translations_of_the_maximum_length_are_named(translator, monkeypatch, caplog):
    """They may be cut. The engine copies its source."""

    def search(sentences, search):
        return [[Hypothesis(tokens[: search.max_length], 0.0)] for tokens in sentences]

    monkeypatch.setattr(translator.engine, "search", search)
    lines = ["the", "the red dog runs", "the", "a cat", "the red dog runs", "the red dog"]
    expected = [len(translator.tokenizer.split(line)) for line in lines]
    for buffer in (2, 9):
        caplog.clear()
        assert len([*translator.stream(lines, print, buffer=buffer, max_length=expected[1])]) == (
            3 if buffer == 2 else 1
        )
        named = [number for record in caplog.records for number in re.findall(r"\d+", record.args[0])]
        assert named == ["2", "5"]
    assert f"end at the maximum length, {expected[1]}" in caplog.text
    caplog.clear()
    translator.translate(lines, max_length=expected[1] + 1)
    assert not caplog.records


def test_command_keeps_order_and_names_skipped_lines(exported, translator, translate, tmp_path, caplog):
    lines = [*SOURCES[:5], "", *SOURCES[5:]]
    text = [line.encode() for line in lines]
    text[3:3] = [b"a \xff dog", b" ".join([b"the"] * 1100)]
    file = tmp_path / "text"
    file.write_bytes(b"\xef\xbb\xbf" + b"\n".join(text))  # with a byte order mark, without a final line break
    expected = translator.translate(lines, **SEARCH)
    expected[3:3] = ["", ""]
    status, found, _ = translate(exported, file, *FLAGS, "--buffer", 4)
    assert (status, found) == (1, expected)
    assert "line 4 was not translated" in caplog.text
    assert "line 5 was not translated" in caplog.text
    file.write_text("".join(f"{line}\n" for line in lines))
    best = translator.search(lines, **SEARCH)
    scores = [f"{one.score:.4f}\t{one.text}" for (one, *_) in best]
    assert translate(exported, file, *FLAGS, "--scores") == (0, scores, "")
    best = translator.search(lines, nbest=2, **SEARCH)
    rows = [f"{n}\t{one.score:.4f}\t{one.text}" for n, row in enumerate(best, 1) for one in row]
    assert translate(exported, file, *FLAGS, "--nbest", 2)[:2] == (0, rows)
    assert "6\t0.0000\t" in rows
    pipe, end = os.pipe()
    os.write(end, file.read_bytes())
    os.close(end)
    assert translate(exported, f"/dev/fd/{pipe}", *FLAGS, "--scores") == (0, scores, "")
    os.close(pipe)
    assert translate(exported, tmp_path / "missing")[0] == 1


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_readers_of_text_reject_other_encodings_than_utf8(encoding, exported, translate, tmp_path, caplog):
    text, plain = tmp_path / "text.de", tmp_path / "plain.de"
    text.write_bytes("a red dog\nthe old cat\n".encode(encoding))
    plain.write_text("a red dog\nthe old cat\n")
    status, lines, messages = translate(exported, text, *FLAGS)
    if encoding.startswith("utf-8"):
        assert (status, lines) == translate(exported, plain, *FLAGS)[:2]
        assert read_lines(text) == read_lines(plain)
        return
    message = "text.de must be UTF-8 text; got (UTF-16|UTF-32|zero bytes, as in UTF-16): convert it with iconv"
    assert (status, lines) == (1, [])
    assert len(re.findall(message, messages + caplog.text)) == 1
    for words in ((text, "--reference", plain), (plain, "--reference", text)):
        assert re.search(message, collab("score", *words, status=1))
    with pytest.raises(UserError, match=message):
        read_lines(text)


def test_a_translation_is_one_line(exported, translate, monkeypatch, tmp_path):
    """Byte units of SentencePiece can spell a line break."""
    monkeypatch.setattr(Tokenizer, "join", lambda *_: "a\r\nb")
    (tmp_path / "text").write_text("a\nb\n")
    assert translate(exported, tmp_path / "text", *FLAGS)[:2] == (0, ["a b", "a b"])


def test_interruption_keeps_translations(exported, translator, translate, monkeypatch, caplog, tmp_path):
    expected = translator.translate(SOURCES, **SEARCH)
    engine, batches_left = type(translator.engine), [None, None]

    def search(self, *arguments, original=engine.search):
        if not batches_left:
            raise KeyboardInterrupt
        batches_left.pop()
        return original(self, *arguments)

    monkeypatch.setattr(engine, "search", search)
    (tmp_path / "text").write_text("\n".join(SOURCES))
    assert translate(exported, tmp_path / "text", *FLAGS, "--buffer", 2)[:2] == (130, expected[:4])
    assert "interrupted after 4 lines" in caplog.text


def test_half_precision_keeps_shared_embeddings(models, exported, translate, tmp_path):
    tied = models.checkpoint("collaborative", share_all_embeddings=True)
    write(read_source(tied), "folder", tmp_path / "tied", half=True)
    state = checkpoints.load(tmp_path / "tied" / "model.pt")["model"]
    embedding, projection = state["encoder.embed_tokens.weight"], state["decoder.output_projection.weight"]
    assert embedding.data_ptr() == projection.data_ptr()
    write(read_source(exported), "folder", tmp_path / "half", half=True)
    exact, rounded = (collab_fairseq.load(path).search(SOURCES, **SEARCH) for path in (exported, tmp_path / "half"))
    gaps = [abs(a[0].score - b[0].score) for a, b in zip(exact, rounded, strict=True) if a[0].text == b[0].text]
    assert 0 < max(gaps) < 0.05
    assert len(gaps) > 8
    for precision in ("bfloat16", "float16"):
        low = collab_fairseq.load(exported, precision=precision)
        assert 0 < abs(low.search(SOURCES[:1], **SEARCH)[0][0].score - exact[0][0].score) < 0.2
    (tmp_path / "text").write_text("\n".join(SOURCES))
    float32, bfloat16 = (
        translate(exported, tmp_path / "text", "--scores", *FLAGS, "--precision", name)[1]
        for name in ("float32", "bfloat16")
    )
    assert float32 == [f"{best[0].score:.4f}\t{best[0].text}" for best in exact] != bfloat16


def test_a_given_sentencepiece_model_replaces_that_of_the_data(models, tmp_path):
    given, data = tmp_path / "mine.model", tmp_path / "data-bin"
    shutil.copytree(models.data, data)  # without the model in its parent folder
    shutil.copy(models.data.parent / "sentencepiece.model", given)
    words = [
        "export",
        models.checkpoint("collaborative"),
        "--data",
        data,
        "--to",
        "folder",
        "--output",
        tmp_path / "out",
    ]
    assert "need their SentencePiece model (--sentencepiece)" in collab(*words, status=1)
    collab(*words, "--sentencepiece", given)
    assert collab_fairseq.load(tmp_path / "out").tokenizer.join(["▁a", "b"]) == "ab"


def test_failed_export_leaves_nothing(models, tmp_path):
    def error_of(checkpoint, *flags, to="folder", output="out"):
        before = sorted(os.listdir(tmp_path))
        error = collab("export", checkpoint, "--to", to, "--output", tmp_path / output, *flags, status=1)
        assert sorted(os.listdir(tmp_path)) == before
        return error

    checkpoint = models.checkpoint("collaborative")
    other = write_data(tmp_path / "other")
    lines = (other / "dict.src.txt").read_text().replace("▁", "▁x")
    for lang in ("src", "tgt"):
        (other / f"dict.{lang}.txt").write_text(lines)
    assert "is not the subword model of the source dictionary" in error_of(checkpoint, "--data", other)
    assert "BPE codes need" in error_of(checkpoint, "--bpe-codes", checkpoint)
    assert "--half cannot be used with" in error_of(checkpoint, "--half", to="ctranslate2")
    narrow, limits = models.checkpoint("collaborative", key_dim=7), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        for target in ("folder", "fairseq", "ctranslate2", *["huggingface"] * bool(find_spec("transformers"))):
            assert "File too large" in error_of(narrow, to=target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("taken", "link"):
        assert "already exists" in error_of(checkpoint, output=name)
    collab("export", checkpoint, "--to", "folder", "--output", tmp_path / "empty")


@pytest.mark.parametrize("line", ["red\x0bdog", "red\x85dog", "red\x1fdog", "Prix\xa0: dix"])
def test_line_endings_do_not_change_the_tokens(translator, line):
    """White space of Unicode within a line is that of SentencePiece, as in training."""
    expected = translator.tokenizer.split(line)
    assert all(translator._split(f"{line}{ending}") == expected for ending in ("", "\n", "\r\n"))
    assert translator._split("red\n\r\ndog") == translator.tokenizer.split("red dog")


def test_rejects_folders_that_fairseq_would_split(exported, tmp_path):
    """The dictionaries would be those of another model."""
    for name in ("a", "a:b"):
        shutil.copytree(exported, tmp_path / name)
    collab_fairseq.load(tmp_path / "a")
    with pytest.raises(UserError, match="a:b must be a folder without ':' in its path"):
        collab_fairseq.load(tmp_path / "a:b")


def test_rejects_file_without_bpe_codes(tmp_path):
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    (tmp_path / "bpecodes").write_text("one two three\n")
    with pytest.raises(UserError, match="bpecodes"):
        Tokenizer(tmp_path, Card("torch", "en", "de", "subword_nmt", moses=False, lowercase=False, longest=9))


@pytest.mark.parametrize(
    ("setting", "value", "match"),
    [
        ("files", "../victim", "files must be .*victim"),
        ("files", "VICTIM", "files must be"),
        ("files", "..", "files must be"),
        ("files", "model.pt", "model.pt differs from the file"),
        ("source_lang", "x/../../victim", "language must be"),
        ("subwords", "unigram", "subwords must be"),
        ("engine", "../victim", "engine must be"),
        ("longest", "1024", "at least 2 tokens"),
    ],
)
def test_card_cannot_name_files_outside_its_folder(exported, setting, value, match, tmp_path):
    """In every command that reads a folder. VICTIM is a file outside the folder."""
    folder, victim = shutil.copytree(exported, tmp_path / "in" / "folder"), tmp_path / "in" / "victim"
    victim.write_text("precious")
    (tmp_path / "text").write_text("a dog\n")
    card = json.loads((folder / "translation.json").read_text())
    if setting == "files":
        value = {**card["files"], value.replace("VICTIM", str(victim)): hashlib.sha256(b"precious").hexdigest()}
    (folder / "translation.json").write_text(json.dumps({**card, setting: value}))
    before = content(tmp_path)
    for read in (collab_fairseq.load, read_source):
        with pytest.raises(UserError, match=match):
            read(folder)
    collab("translate", folder, tmp_path / "text", status=1)
    for command in ("export --to ctranslate2", "reparam --key-dim 4", "heads prune --remove E:1:1", "average --inputs"):
        collab(*command.split(), folder, "--output", tmp_path / "out", status=1)
    assert content(tmp_path) == before


def test_checkpoint_cannot_name_files_outside_its_folder(exported, models, tmp_path):
    state = checkpoints.load(models.checkpoint("collaborative"))
    state["cfg"]["task"]["target_lang"] = "/../../victim"
    folder = shutil.copytree(exported, tmp_path / "folder")
    checkpoints.save(state, folder / "model.pt")
    card = json.loads((folder / "translation.json").read_text())
    card["files"]["model.pt"] = sha256(folder / "model.pt")
    (folder / "translation.json").write_text(json.dumps(card))
    for path in (folder, folder / "model.pt"):
        with pytest.raises(UserError, match=r"language must be .*/\.\./"):
            read_source(path)


def test_export_reads_but_never_writes_through_links(exported, translator, tmp_path):
    """Caches store files under other names and link to them."""
    (linked := tmp_path / "linked").mkdir()
    for number, file in enumerate(sorted(exported.iterdir())):
        shutil.copyfile(file, tmp_path / f"blob{number}")
        (linked / file.name).symlink_to(tmp_path / f"blob{number}")
    assert collab_fairseq.load(linked).translate(SOURCES, **SEARCH) == translator.translate(SOURCES, **SEARCH)
    before = content(tmp_path)
    write(read_source(linked), "folder", tmp_path / "out")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {file.name for file in exported.iterdir()}
    assert not any(file.is_symlink() for file in (tmp_path / "out").iterdir())
    assert {name: data for name, data in content(tmp_path).items() if not name.startswith("out/")} == before


@pytest.mark.parametrize(
    ("lines", "search", "match"),
    [
        (["the"], {"beam": 2, "nbest": 3}, "nbest"),
        ("the", {}, "one string"),
        (iter(["the", 3]), {}, "sentence 2 must be a string; got 3"),
        (["the", " ".join(["the"] * 1100)], {}, "sentence 2"),
    ],
)
def test_rejects_impossible_requests(translator, lines, search, match):
    with pytest.raises(UserError, match=match):
        translator.translate(lines, **search)


def test_a_missing_package_has_advice_that_helps(monkeypatch):
    with pytest.raises(UserError, match=r"pip install 'collab_fairseq\[huggingface\]'"):
        require("nosuchpackage", "huggingface")
    monkeypatch.setattr(sys, "version_info", (3, 10))  # for which the extra is empty
    with pytest.raises(UserError, match=r"it needs Python 3\.11 or newer"):
        require("nosuchpackage", "huggingface")

"""Exported folders with damaged or manipulated files raise an error of one line."""

import hashlib
import json
import os
import shutil
import signal

import pytest

import collab_fairseq
from collab_fairseq.export import folder as model_folder
from collab_fairseq.export.source import new_folder, read_source
from collab_fairseq.translation import TranslationError
from fairseq_modern.files import remove_stale_temp_files
from tests.fairseq.serving_cases import SOURCES, cases


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return read_source(cases(tmp_path_factory.mktemp("damaged")).checkpoint("collaborative"))


@pytest.fixture(scope="module")
def torch_folder(source, tmp_path_factory):
    output = tmp_path_factory.mktemp("torch") / "folder"
    model_folder.export(source, output)
    return output


@pytest.fixture(scope="module")
def ctranslate2_folder(source, tmp_path_factory):
    pytest.importorskip("ctranslate2")
    from collab_fairseq.export import ctranslate2

    output = tmp_path_factory.mktemp("ctranslate2") / "folder"
    ctranslate2.export(source, output)
    return output


def check_rejected(folder, match):
    with pytest.raises(TranslationError, match=match) as caught:
        collab_fairseq.load(folder).translate(SOURCES[:1], beam=2, max_length=8)
    assert len(str(caught.value).splitlines()) == 1


#: change of the dictionary; error message
DICTIONARIES = {
    "not UTF-8": (lambda text: b"\xff\xfe 1\n" + text, "Incorrect encoding|a word and its count"),
    "no counts": (lambda text: text.replace(b" 1\n", b"\n"), "Incorrect dictionary format|a word and its count"),
    "counts that are words": (lambda text: text.replace(b" 1\n", b" one\n"), "Incorrect dictionary format|got others"),
    "a word twice": (lambda text: text.partition(b"\n")[0] + b"\n" + text, "Duplicate word|got others"),
    "an empty line": (lambda text: b"\n" + text, "Incorrect dictionary format|a word and its count"),
    "padding as a word": (lambda text: b"<pad> 1\n" + text, "Duplicate word|got others"),
    "empty": (lambda text: b"", "the data of another model|got others"),
    "an extra word": (lambda text: text + b"extra 1\n", "the data of another model|got others"),
}


@pytest.mark.parametrize("name", DICTIONARIES)
@pytest.mark.parametrize("engine", ["torch", "ctranslate2"])
def test_rejects_malformed_dictionary_with_valid_checksum(name, engine, tmp_path, request):
    folder = shutil.copytree(request.getfixturevalue(f"{engine}_folder"), tmp_path / "folder")
    card, (change, match) = json.loads((folder / "translation.json").read_text()), DICTIONARIES[name]
    if name == "counts that are words" and engine == "ctranslate2":
        pytest.skip("CTranslate2 reads no counts")
    for file in ("dict.src.txt", "dict.tgt.txt"):
        text = change((folder / file).read_bytes())
        (folder / file).write_bytes(text)
        card["files"][file] = hashlib.sha256(text).hexdigest()
    (folder / "translation.json").write_text(json.dumps(card))
    check_rejected(folder, match)


def replaced(name, change):
    """Change the bytes of a file; remove it if the result is None."""

    def apply(folder):
        content = change((folder / name).read_bytes())
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)

    return apply


def linked(name, target):
    def apply(folder):
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return apply


def other_words(change):
    return replaced("shared_vocabulary.json", lambda text: json.dumps(change(json.loads(text))).encode())


def other_setting(**changes):
    return replaced("config.json", lambda text: json.dumps({**json.loads(text), **changes}).encode())


DAMAGED = {
    "no weights": (replaced("model.bin", lambda content: None), "has no file model.bin"),
    "empty weights": (replaced("model.bin", lambda content: b""), "cannot use .* model.bin is incomplete"),
    "all but a byte": (replaced("model.bin", lambda content: content[:-1]), "model.bin is incomplete"),
    "weights of ones": (replaced("model.bin", lambda content: b"\xff" * len(content)), "cannot use"),
    "endless weights": (linked("model.bin", "/dev/zero"), "has no file model.bin"),
    "another file as weights": (linked("model.bin", os.__file__), "cannot use"),
    "no vocabulary": (replaced("shared_vocabulary.json", lambda text: None), "must have a file source_vocabulary.json"),
    "short vocabulary": (other_words(lambda words: words[:5]), "must have the entries of dict.src.txt"),
    "a vocabulary in another order": (other_words(lambda words: words[::-1]), "must have the entries of dict.src.txt"),
    "no JSON as vocabulary": (replaced("shared_vocabulary.json", lambda text: b"[[["), "cannot be read as JSON"),
    "no settings": (replaced("config.json", lambda text: None), "has no file config.json"),
    "no JSON as settings": (replaced("config.json", lambda text: b"{{"), "config.json cannot be read as JSON"),
    "deep settings": (replaced("config.json", lambda text: b"[" * 100_000), "config.json cannot be read as JSON"),
    "a list as settings": (replaced("config.json", lambda text: b"[1]"), "add_source_bos must be False; got None"),
    "another start": (other_setting(decoder_start_token="nope"), "decoder_start_token must be '</s>'; got 'nope'"),
    "a setting of another type": (other_setting(layer_norm_epsilon="x"), "cannot use .* must be number"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_rejects_damaged_ctranslate2_folder(name, ctranslate2_folder, tmp_path):
    folder = shutil.copytree(ctranslate2_folder, tmp_path / "folder")
    change, match = DAMAGED[name]
    change(folder)
    check_rejected(folder, match)


def test_undamaged_ctranslate2_folder_translates(ctranslate2_folder, torch_folder):
    translations, expected = (
        collab_fairseq.load(folder).translate(SOURCES[:3], beam=2, max_length=8)
        for folder in (ctranslate2_folder, torch_folder)
    )
    assert translations == expected


def test_export_removes_folders_of_killed_exports(tmp_path):
    (tmp_path / f"other.{16 * 'a'}.tmp").mkdir()
    pid = os.fork()
    if pid == 0:
        with new_folder(tmp_path / "folder") as work:
            with open(os.path.join(work, "weights"), "wb") as stream:
                stream.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(tmp_path.iterdir())) == 2
    with new_folder(tmp_path / "folder") as slow:
        assert remove_stale_temp_files(str(tmp_path), "folder") == []
        assert os.path.isdir(slow)  # the process is alive
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", f"other.{16 * 'a'}.tmp"]

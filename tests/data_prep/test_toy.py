"""Generated corpus: reproducible files, agreement and word order of the German sentences."""

import argparse
import re
import sys

import pytest

from data_prep import miniature, toy
from tests.common import content


def test_files_depend_on_the_seed_only(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        toy.make(argparse.Namespace(seed=seed, train=300, valid=40, test=30), tmp_path / name)
    a, b, c = (content(tmp_path / name) for name in "abc")
    assert a == b
    assert all(a[name] != c[name] for name in a)
    assert sorted(a) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for name, data in a.items():
        lines = data.decode("utf-8").splitlines()
        assert len(lines) == {"train": 300, "valid": 40, "test": 30}[name.partition(".")[0]]
        assert all(re.fullmatch(r"[A-ZÄÖÜ][^\n\r]*[a-zäöüßA-Z0-9][.?]", line) for line in lines)
        assert not [line for line in lines if re.search(r"  | [,.?]|,,|[-_/~+|;]", line)]


def test_splits_are_disjoint_and_the_test_set_does_not_depend_on_the_training_size():
    small, large = (toy.corpus(1, {"train": size, "valid": 20, "test": 20}) for size in (10, 2000))
    assert (small["test"], small["valid"], small["train"]) == (large["test"], large["valid"], large["train"][:10])
    assert len({english for pairs in large.values() for english, _ in pairs}) == 2040


def test_miniature_leaves_nothing_on_failure_and_keeps_existing_folders(tmp_path, monkeypatch, capsys):
    def no_space(name, parts, folder):
        (folder / "manifest.tsv").touch()
        raise OSError(28, "No space left on device")

    output = tmp_path / "corpus"
    sizes = ["--train", "9", "--valid", "3", "--test", "12"]
    monkeypatch.setattr(sys, "argv", ["miniature.py", "iwslt14_de_en", "--output", str(output), *sizes])
    monkeypatch.setattr(miniature, "write", no_space)
    with pytest.raises(OSError, match="No space left"):
        miniature.main()
    assert list(tmp_path.iterdir()) == []
    output.mkdir()
    (output / "thesis.txt").write_text("mine")
    with pytest.raises(SystemExit):
        miniature.main()
    assert "--output must be a new or empty folder" in capsys.readouterr().err
    assert content(tmp_path) == {"corpus/thesis.txt": b"mine"}


ADJECTIVE, NOUN = "[a-zäöüß]+", "[A-ZÄÖÜ][a-zäöüß]+"
WRONG = (
    rf"(dem|diesem|meinem|unserem|einem|den|diesen|meinen|unseren|einen) {ADJECTIVE}(?<!en) {NOUN}",
    rf"(in|neben|hinter|vor|mit) (der|dieser|einer|meiner|unserer) {ADJECTIVE}(?<!en) {NOUN}",
    rf"(ein|mein|unser) {ADJECTIVE}(?<=es) (Mann|Hund|Tisch)\b",
    rf"(in|neben|hinter|vor|mit) (den|zwei|diesen|meinen|unseren) ({ADJECTIVE} )*{NOUN}(?<!n)(?<!s)\b",  # dative plural
    r"(weil|obwohl|während|bevor) \w+ (hat|ist|wird|kann|muss)\b(?!\.)",
)
RIGHT = (r"ein \w+er (Mann|Hund|Tisch)", r"ein \w+es (Kind|Auto|Buch)", "wirfst", "Rufst du", "angerufen hat", "anruft")


def test_german_sentences_are_grammatical():
    """Articles, adjectives and nouns agree, and verbs and their prefixes are in the right place."""
    text = dict(toy.corpus(1, {"train": 12000, "valid": 0, "test": 0})["train"])
    english, german = ("\n".join(side) for side in (text, text.values()))
    for right in RIGHT:
        assert re.search(rf"\b{right}\b", german), right
    for wrong in WRONG:
        assert not re.search(rf"\b{wrong}", german), wrong
    assert re.search(r"\ban old", english)
    assert not re.search(r"\b(a [aeiou]|an [^aeiou])", english)

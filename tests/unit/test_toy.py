"""The generated corpus: its files, the forms and the word order of its German."""

import re
import sys

import pytest
import toy
import toy_grammar as grammar

from tests.common import ROOT, run

SCRIPT = ROOT / "data_prep" / "toy.py"


def make(output, *flags, check=True):
    return run("python", SCRIPT, "--output", output, "--train", 300, "--valid", 40, "--test", 30, *flags, check=check)


def content(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        make(tmp_path / name, "--seed", seed)
    a, b, c = (content(tmp_path / name) for name in "abc")
    assert a == b
    assert all(a[name] != c[name] for name in a)
    assert sorted(a) == ["test.de", "test.en", "train.de", "train.en", "valid.de", "valid.en"]
    for part, size in (("train", 300), ("valid", 40), ("test", 30)):
        for lang in ("en", "de"):
            lines = a[f"{part}.{lang}"].decode("utf-8").split("\n")
            assert lines.pop() == ""
            assert len(lines) == size
            assert all(re.fullmatch(r"[A-ZÄÖÜ][^\n\r]*[a-zäöüßA-Z0-9][.?]", line) for line in lines)
            assert not [line for line in lines if re.search(r"  | [,.?]|,,|[-_/~+|;]", line)]


def test_parts_are_disjoint_and_the_test_set_does_not_depend_on_the_size_of_training():
    small, large = (toy.corpus(1, {"train": size, "valid": 20, "test": 20}) for size in (10, 2000))
    assert (small["test"], small["valid"], small["train"]) == (large["test"], large["valid"], large["train"][:10])
    assert len({english for pairs in large.values() for english, _ in pairs}) == 2040


def test_a_failure_or_a_folder_that_is_there_leaves_all_as_it_was(tmp_path, monkeypatch, capsys):
    def no_space(source, target):
        assert len(list(source.iterdir())) == 6
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(toy.os, "replace", no_space)
    monkeypatch.setattr(sys, "argv", ["toy.py", "--output", str(tmp_path / "corpus"), "--train", "9"])
    assert toy.main() == 1
    assert "data_prep/toy.py: error: [Errno 28] No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert "expected a whole number from 1, got '0'" in make(tmp_path, "--valid", "0", check=False).stderr
    (tmp_path / "thesis.txt").write_text("mine")
    assert "--output must be a new or empty folder" in make(tmp_path, check=False).stderr
    assert content(tmp_path) == {"thesis.txt": b"mine"}


# the language: forms and sentences, written by hand

NOUNS = {row[1]: row for table in grammar.NOUNS.values() for row in grammar.rows(table)}
ADJECTIVES = {row[1]: row for row in grammar.rows(grammar.ADJECTIVES)}
DETERMINERS = [row[0] for row in grammar.DETERMINERS]


@pytest.mark.parametrize(
    ("german", "adjective", "plural", "first", "english", "forms"),
    [
        ("Tisch", "alt", False, "", "an old table", "ein alter Tisch/einen alten Tisch/einem alten Tisch"),
        ("Auto", "neu", False, "", "our new car", "unser neues Auto/unser neues Auto/unserem neuen Auto"),
        ("Apfel", "rot", True, "", "these red apples", "diese roten Äpfel/diese roten Äpfel/diesen roten Äpfeln"),
        ("Tisch", "klein", False, "kitchen/Küchen", "my small kitchen table",
         "mein kleiner Küchentisch/meinen kleinen Küchentisch/meinem kleinen Küchentisch"),
    ],
)  # fmt: skip
def test_declension(german, adjective, plural, first, english, forms):
    word = {"an": "a", "these": "this"}.get(english.split()[0], english.split()[0])
    begins = tuple(first.split("/")) if first else ("", "")
    made = grammar.decline(NOUNS[german], DETERMINERS.index(word), [ADJECTIVES[adjective]], plural, begins)
    assert made.en == english
    assert "/".join(made.de.values()) == forms


def test_conjugation():
    assert " ".join(grammar.present("arbeiten", "")) == "arbeite arbeitest arbeitet arbeiten arbeitet arbeiten"
    assert " ".join(grammar.present("werfen", "wirf")) == "werfe wirfst wirft werfen werft werfen"


def test_word_order():
    """The finite verb is second, or last after a conjunction; prefixes, participles, infinitives end a clause."""
    text = dict(toy.corpus(1, {"train": 12000, "valid": 0, "test": 0})["train"])
    german = "\n".join(text.values())
    for order in ("Rufst du", "Er ruft", "angerufen hat", "anruft", "hat er"):
        assert re.search(rf"\b{order}\b", german), order
    assert not re.search(r"\b(weil|obwohl|während|bevor) \w+ (hat|ist|wird|kann|muss)\b(?!\.)", german)

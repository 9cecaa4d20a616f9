"""The generated corpus: its files, the forms and the word order of its German, and that nothing is missing from it."""

import hashlib
import json
import re
import sys
from typing import Dict

import pytest
import toy
import toy_grammar as grammar
import toy_words as tables

from tests.common import ROOT, run

SCRIPT = ROOT / "data_prep" / "toy.py"


def make(output, *flags, check=True):
    return run("python", SCRIPT, "--output", output, "--train", 300, "--valid", 40, "--test", 30, *flags, check=check)


def content(folder) -> Dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# the files


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
            assert not [line for line in lines if re.search(r"  | [,.?]|,,|[_/~+]", line)]
    assert "ü" in a["train.de"].decode("utf-8")


def test_the_test_set_does_not_depend_on_the_size_of_training():
    small, large = (toy.corpus(1, {"train": size, "valid": 20, "test": 20}) for size in (10, 200))
    assert small["test"] == large["test"]
    assert small["valid"] == large["valid"]
    assert small["train"] == large["train"][:10]


def test_the_whole_corpus_is_that_of_the_records_and_its_parts_are_disjoint(tmp_path):
    """No word of it may change without making the records of the demo anew."""
    parts = toy.corpus(1, toy.SIZES)
    english = [pair[0] for pairs in parts.values() for pair in pairs]
    assert len(set(english)) == len(english) == sum(toy.SIZES.values()) == 13000
    toy.write(parts, tmp_path)
    made = {f"raw/{name}": hashlib.sha256(text).hexdigest() for name, text in content(tmp_path).items()}
    record = json.loads((ROOT / "results" / "runs" / "demo-standard-64-s1-u1500.json").read_text(encoding="utf-8"))
    assert made == {name: digest for name, digest in record["settings"]["data"].items() if name.startswith("raw/")}


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    done = make(tmp_path / "mine", check=False)
    assert done.returncode == 1
    assert "must be a new or empty folder" in done.stderr
    assert content(tmp_path / "mine") == {"thesis.txt": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch, capsys):
    def no_space(source, target):
        assert len(list(source.iterdir())) == 6
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(toy.os, "replace", no_space)
    monkeypatch.setattr(sys, "argv", ["toy.py", "--output", str(tmp_path / "corpus"), "--train", "9"])
    assert toy.main() == 1
    assert "data_prep/toy.py: error: [Errno 28] No space left" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [("--train", "0"), ("--seed", "x"), ("--valid", "-1")])
def test_wrong_numbers_are_named(tmp_path, flags):
    done = make(tmp_path / "corpus", *flags, check=False)
    assert done.returncode == 2
    assert f"expected a whole number from 1, got '{flags[1]}'" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "--seed N" in run("python", SCRIPT, "--help").stdout


# the language: forms, written by hand

NOUNS = {row[1]: row for table in tables.NOUNS.values() for row in grammar.entries(table)}
ADJECTIVES = {row[1].split("/")[0]: row for row in grammar.entries(tables.ADJECTIVES)}
VERBS = {verb.infinitive: verb for verb in map(grammar.parse_verb, grammar.entries(tables.VERBS))}


@pytest.mark.parametrize(
    ("german", "determiner", "adjective", "more", "english", "forms"),
    [
        ("Tisch", "the", "groß", {}, "the big table",
         "der große Tisch/den großen Tisch/dem großen Tisch/des großen Tisches"),
        ("Tisch", "a", "alt", {}, "an old table",
         "ein alter Tisch/einen alten Tisch/einem alten Tisch/eines alten Tisches"),
        ("Lampe", "my", "alt", {}, "my old lamp",
         "meine alte Lampe/meine alte Lampe/meiner alten Lampe/meiner alten Lampe"),
        ("Buch", "our", "teuer", {}, "our expensive book",
         "unser teures Buch/unser teures Buch/unserem teuren Buch/unseres teuren Buches"),
        ("Buch", "this", "alt", {}, "this old book",
         "dieses alte Buch/dieses alte Buch/diesem alten Buch/dieses alten Buches"),
        ("Junge", "the", "klein", {}, "the small boy",
         "der kleine Junge/den kleinen Jungen/dem kleinen Jungen/des kleinen Jungen"),
        ("Kind", "a", "alt", {"plural": True}, "old children", "alte Kinder/alte Kinder/alten Kindern/alter Kinder"),
        ("Apfel", "this", "rot", {"plural": True}, "these red apples",
         "diese roten Äpfel/diese roten Äpfel/diesen roten Äpfeln/dieser roten Äpfel"),
        ("Auto", "the", "neu", {"plural": True, "number": ("two", "zwei")}, "two new cars",
         "zwei neue Autos/zwei neue Autos/zwei neuen Autos/zwei neuer Autos"),
        ("Tisch", "her", "klein", {"first": ("kitchen", "Küchen")}, "her small kitchen table",
         "ihr kleiner Küchentisch/ihren kleinen Küchentisch/ihrem kleinen Küchentisch/ihres kleinen Küchentisches"),
    ],
)  # fmt: skip
def test_declension(german, determiner, adjective, more, english, forms):
    made = grammar.decline(NOUNS[german], determiner, [ADJECTIVES[adjective]], **more)
    assert made.en == english
    assert [made.de[case] for case in ("nom", "acc", "dat", "gen")] == forms.split("/")


@pytest.mark.parametrize(
    ("infinitive", "present", "past"),
    [
        ("kaufen", "kaufe kaufst kauft kaufen kauft kaufen", "bought"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeitet arbeiten", "worked"),
        ("zeichnen", "zeichne zeichnest zeichnet zeichnen zeichnet zeichnen", "drew"),
        ("tanzen", "tanze tanzt tanzt tanzen tanzt tanzen", "danced"),
        ("essen", "esse isst isst essen esst essen", "ate"),
        ("einladen", "lade lädst lädt laden ladet laden", "invited"),
        ("aufräumen", "räume räumst räumt räumen räumt räumen", "tidied~up"),
    ],
)
def test_conjugation(infinitive, present, past):
    assert VERBS[infinitive].present == present.split()
    assert VERBS[infinitive].past == past

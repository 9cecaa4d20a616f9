"""The generated corpus: its files, the forms and the word order of its German, and that nothing is missing from it."""

import importlib
import re
import sys
from typing import Dict, List, Set

import pytest

from tests.common import ROOT, run

SCRIPT = ROOT / "data_prep" / "toy.py"
sys.path.insert(0, str(SCRIPT.parent))
toy = importlib.import_module("toy")
inflection = importlib.import_module("toy_grammar.inflection")
words = importlib.import_module("toy_grammar.words")
grammar = importlib.import_module("toy_grammar.clauses")
parts = importlib.import_module("toy_grammar.noun_phrases")
Clause, NounPhrase, Pronoun, Name = grammar.Clause, parts.NounPhrase, parts.Pronoun, parts.Name


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


@pytest.fixture(scope="module")
def whole() -> Dict[str, list]:
    return toy.corpus(1, toy.SIZES)


def test_the_whole_corpus_is_large_and_its_parts_are_disjoint(whole):
    assert len(whole["train"]) >= 12000
    english = [pair[0] for pairs in whole.values() for pair in pairs]
    assert len(set(english)) == len(english) == sum(toy.SIZES.values())


def test_a_folder_that_is_there_is_not_touched(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    done = make(tmp_path / "mine", check=False)
    assert done.returncode == 1
    assert "must be a new or empty folder" in done.stderr
    assert content(tmp_path / "mine") == {"thesis.txt": b"mine"}
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_failure_leaves_nothing(tmp_path, monkeypatch):
    def no_space(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(toy.os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        toy.write({"train": [("A.", "B.")]}, tmp_path / "corpus")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flags", [("--train", "0"), ("--seed", "x"), ("--valid", "-1")])
def test_wrong_numbers_are_named(tmp_path, flags):
    done = make(tmp_path / "corpus", *flags, check=False)
    assert done.returncode == 2
    assert f"expected a whole number from 1, got '{flags[1]}'" in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert "--seed N" in run("python", SCRIPT, "--help").stdout


# the language: forms, written by hand

VERBS = {verb.infinitive: verb for verb in map(inflection.parse_verb, reversed(words.VERBS.strip().splitlines()))}
BIG, OLD = parts.Adjective("big", "groß", "groß"), parts.Adjective("old", "alt", "alt")
DEAR = parts.Adjective("expensive", "teur", "teuer")


def phrase(noun: str, determiner: str = "the", *adjectives, plural: bool = False, german: str = "", **more):
    """A noun phrase; `german` picks one of two nouns with the same English."""
    found = next(n for n in inflection.nouns() if n.en == noun and german in ("", n.de))
    return NounPhrase(found, determiner, plural, list(adjectives), **more)


@pytest.mark.parametrize(
    ("made", "forms"),
    [
        (phrase("table", "the", BIG), "der große Tisch/den großen Tisch/dem großen Tisch/des großen Tisches"),
        (phrase("table", "a", BIG), "ein großer Tisch/einen großen Tisch/einem großen Tisch/eines großen Tisches"),
        (phrase("lamp", "the", OLD), "die alte Lampe/die alte Lampe/der alten Lampe/der alten Lampe"),
        (phrase("lamp", "my", OLD), "meine alte Lampe/meine alte Lampe/meiner alten Lampe/meiner alten Lampe"),
        (phrase("book", "the", DEAR), "das teure Buch/das teure Buch/dem teuren Buch/des teuren Buches"),
        (phrase("book", "no", DEAR), "kein teures Buch/kein teures Buch/keinem teuren Buch/keines teuren Buches"),
        (phrase("book", "your:ihr"), "euer Buch/euer Buch/eurem Buch/eures Buches"),
        (phrase("book", "this", OLD), "dieses alte Buch/dieses alte Buch/diesem alten Buch/dieses alten Buches"),
        (phrase("boy", "the", OLD), "der alte Junge/den alten Jungen/dem alten Jungen/des alten Jungen"),
        (phrase("neighbour", "their", german="Nachbar"), "ihr Nachbar/ihren Nachbarn/ihrem Nachbarn/ihres Nachbarn"),
        (phrase("child", "a", OLD, plural=True), "alte Kinder/alte Kinder/alten Kindern/alter Kinder"),
        (phrase("child", "my", OLD, plural=True), "meine alten Kinder/meine alten Kinder/meinen alten Kindern/"
         "meiner alten Kinder"),
        (phrase("car", "two", OLD, plural=True), "zwei alte Autos/zwei alte Autos/zwei alten Autos/zwei alter Autos"),
        (phrase("apple", "our", plural=True), "unsere Äpfel/unsere Äpfel/unseren Äpfeln/unserer Äpfel"),
        (phrase("apple tree", "a"), "ein Apfelbaum/einen Apfelbaum/einem Apfelbaum/eines Apfelbaums"),
        (phrase("e-mail address", "the", plural=True), "die E-Mail-Adressen/die E-Mail-Adressen/den E-Mail-Adressen/"
         "der E-Mail-Adressen"),
        (phrase("online course", "this", BIG), "dieser große Online-Kurs/diesen großen Online-Kurs/"
         "diesem großen Online-Kurs/dieses großen Online-Kurses"),
        (phrase("Wi-Fi password", "no", plural=True), "keine WLAN-Passwörter/keine WLAN-Passwörter/"
         "keinen WLAN-Passwörtern/keiner WLAN-Passwörter"),
    ],
    ids=lambda value: value.en() if isinstance(value, NounPhrase) else "",
)  # fmt: skip
def test_declension(made, forms):
    assert [made.de(case) for case in ("nom", "acc", "dat", "gen")] == forms.split("/")


@pytest.mark.parametrize(
    ("infinitive", "present", "participle"),
    [
        ("kaufen", "kaufe kaufst kauft kaufen kauft kaufen", "gekauft"),
        ("arbeiten", "arbeite arbeitest arbeitet arbeiten arbeitet arbeiten", "gearbeitet"),
        ("zeichnen", "zeichne zeichnest zeichnet zeichnen zeichnet zeichnen", "gezeichnet"),
        ("öffnen", "öffne öffnest öffnet öffnen öffnet öffnen", "geöffnet"),
        ("lernen", "lerne lernst lernt lernen lernt lernen", "gelernt"),
        ("tanzen", "tanze tanzt tanzt tanzen tanzt tanzen", "getanzt"),
        ("schließen", "schließe schließt schließt schließen schließt schließen", "geschlossen"),
        ("lesen", "lese liest liest lesen lest lesen", "gelesen"),
        ("essen", "esse isst isst essen esst essen", "gegessen"),
        ("waschen", "wasche wäschst wäscht waschen wascht waschen", "gewaschen"),
        ("sehen", "sehe siehst sieht sehen seht sehen", "gesehen"),
        ("einladen", "lade lädst lädt laden ladet laden", "eingeladen"),
        ("erinnern", "erinnere erinnerst erinnert erinnern erinnert erinnern", "erinnert"),
        ("aufräumen", "räume räumst räumt räumen räumt räumen", "aufgeräumt"),
        ("anrufen", "rufe rufst ruft rufen ruft rufen", "angerufen"),
    ],
)
def test_conjugation(infinitive, present, participle):
    verb = VERBS[infinitive]
    assert [verb.present(person) for person in range(6)] == present.split()
    assert verb.participle == participle


def test_other_endings_in_el_than_those_of_eln():
    others = {verb.infinitive: verb for verb in map(inflection.parse_verb, words.OTHER_VERBS.strip().splitlines())}
    assert [others[name].present(0) for name in ("spielen", "sammeln")] == ["spiele", "sammle"]
    assert others["sammeln"].present(2) == "sammelt"
    assert [VERBS["gehen"].preterite(person) for person in (0, 2, 3, 5)] == ["ging", "ging", "gingen", "gingen"]
    assert [VERBS["warten"].preterite(person) for person in (0, 3)] == ["wartete", "warteten"]
    with pytest.raises(ValueError, match="ich, er, wir and sie only"):
        VERBS["gehen"].preterite(1)


# the language: clauses, written by hand; every choice that the grammar leaves to chance is tried

WOMAN, TEACHER = phrase("woman"), phrase("teacher", "my", german="Lehrer")
CHOICES = [{"object_first": a, "german_front": b, "preterite": c, "plain_future": d}
           for a in (False, True) for b in (False, True) for c in (False, True) for d in (False, True)]  # fmt: skip


def clause(subject, verb: str, thing=None, **more):
    return Clause(subject, VERBS[verb], thing, **more)


TODAY, YESTERDAY = ("today", "heute"), ("yesterday", "gestern")
CASES = [
    (clause(WOMAN, "anrufen", TEACHER), "the woman calls my teacher", {"die Frau ruft meinen Lehrer an"},
     {"die Frau meinen Lehrer anruft"}),
    (clause(WOMAN, "anrufen", Pronoun("er"), modal="müssen"), "the woman must call him", {"die Frau muss ihn anrufen"},
     {"die Frau ihn anrufen muss"}),
    (clause(Pronoun("ich"), "abholen", phrase("child"), tense="past", time=YESTERDAY),
     "I picked up the child yesterday",
     {"ich habe gestern das Kind abgeholt", "ich habe das Kind gestern abgeholt", "gestern habe ich das Kind abgeholt",
      "ich holte gestern das Kind ab", "ich holte das Kind gestern ab", "gestern holte ich das Kind ab"},
     {"ich gestern das Kind abgeholt habe", "ich das Kind gestern abgeholt habe", "ich gestern das Kind abholte",
      "ich das Kind gestern abholte"}),
    (clause(Pronoun("du"), "kaufen", phrase("book", "not a"), negated=True, contracted=True), "you don't buy a book",
     {"du kaufst kein Buch"}, {"du kein Buch kaufst"}),
    (clause(Pronoun("ihr"), "suchen", phrase("ring"), negated=True), "you do not look for the ring",
     {"ihr sucht den Ring nicht"}, {"ihr den Ring nicht sucht"}),
    (clause(Pronoun("Sie"), "helfen", WOMAN, tense="future", time=("tomorrow", "morgen")),
     "you will help the woman tomorrow",
     {"Sie werden morgen der Frau helfen", "Sie werden der Frau morgen helfen", "morgen werden Sie der Frau helfen",
      "Sie helfen morgen der Frau", "Sie helfen der Frau morgen", "morgen helfen Sie der Frau"},
     {"Sie morgen der Frau helfen werden", "Sie der Frau morgen helfen werden", "Sie morgen der Frau helfen",
      "Sie der Frau morgen helfen"}),
    (clause(Name("Weber", "Herr"), "warten", phrase("friend", german="Freundin"), tense="progressive"),
     "Mr. Weber is waiting for the friend", {"Herr Weber wartet auf die Freundin"},
     {"Herr Weber auf die Freundin wartet"}),
    (clause(Name("Anna"), "träumen", phrase("horse", "the", BIG)), "Anna dreams of the big horse",
     {"Anna träumt vom großen Pferd"}, {"Anna vom großen Pferd träumt"}),
    (clause(Pronoun("wir"), "freuen", phrase("e-mail", "your:du"), tense="perfect"),
     "we have looked forward to your e-mail", {"wir haben uns auf deine E-Mail gefreut"},
     {"wir uns auf deine E-Mail gefreut haben"}),
    (clause(WOMAN, "geben", phrase("apple", "a"), receiver=phrase("boy")), "the woman gives the boy an apple",
     {"die Frau gibt dem Jungen einen Apfel"}, {"die Frau dem Jungen einen Apfel gibt"}),
    (clause(WOMAN, "zeigen", phrase("apple"), receiver=Name("Koch", "Herr"), receiver_with_to=True, time=TODAY),
     "the woman shows the apple to Mr. Koch today",
     {"die Frau zeigt heute Herrn Koch den Apfel", "die Frau zeigt Herrn Koch den Apfel heute",
      "heute zeigt die Frau Herrn Koch den Apfel"},
     {"die Frau heute Herrn Koch den Apfel zeigt", "die Frau Herrn Koch den Apfel heute zeigt"}),
    (clause(phrase("student", "two", plural=True, german="Studentin"), "aufstehen", tense="past"),
     "two students got up", {"zwei Studentinnen sind aufgestanden", "zwei Studentinnen standen auf"},
     {"zwei Studentinnen aufgestanden sind", "zwei Studentinnen aufstanden"}),
    (clause(Pronoun("er"), "gehen", parts.Fixed("to the museum", "ins Museum"), modal="wollen"),
     "he wants to go to the museum", {"er will ins Museum gehen"}, {"er ins Museum gehen will"}),
    (clause(Pronoun("sie"), "wegwerfen", Pronoun("er", ("it", "it")), tense="past"), "she threw it away",
     {"sie hat ihn weggeworfen", "sie warf ihn weg"}, {"sie ihn weggeworfen hat", "sie ihn wegwarf"}),
    (Clause(phrase("soup", "this"), predicate=("too cold", "zu kalt"), tense="past", negated=True),
     "this soup was not too cold", {"diese Suppe war nicht zu kalt"}, {"diese Suppe nicht zu kalt war"}),
]  # fmt: skip


@pytest.mark.parametrize(("made", "english", "second", "final"), CASES, ids=[case[1] for case in CASES])
def test_word_order(made, english, second, final):
    assert made.english() == english
    got_second: Set[str] = set()
    got_final: Set[str] = set()
    for choice in CHOICES:
        if choice["preterite"] and made.subject.person in (inflection.DU, inflection.IHR):
            continue
        variant = Clause(**{**vars(made), **choice})
        got_second.add(variant.german_main())
        got_final.add(variant.german_final())
    assert got_second == second
    assert got_final == final


def test_questions_purposes_and_relative_clauses():
    ask = clause(Pronoun("ihr"), "einladen", phrase("aunt", "our"), tense="past")
    assert ask.english_question() == "did you invite our aunt"
    assert ask.german_question() == "habt ihr unsere Tante eingeladen"
    often = clause(WOMAN, "lesen", phrase("book"), modal="wollen", frequency=("often", "oft"))
    assert often.english_question() == "does the woman often want to read the book"
    purpose = clause(Pronoun("sie"), "mitbringen", phrase("umbrella", "a"))
    assert (purpose.english_purpose(), purpose.german_purpose()) == (
        "to bring along an umbrella", "um einen Regenschirm mitzubringen",
    )  # fmt: skip
    assert clause(WOMAN, "kaufen", phrase("hat")).german_purpose() == "um den Hut zu kaufen"
    pronouns = [inflection.relative_pronoun(case, "mfn"[i], False) for case in ("nom", "acc", "dat") for i in range(3)]
    assert pronouns == ["der", "die", "das", "den", "die", "das", "dem", "der", "dem"]
    assert [inflection.relative_pronoun(case, "m", True) for case in ("nom", "acc", "dat")] == ["die", "die", "denen"]
    man = phrase("man", "the", OLD, relative=("that she sees", "den sie sieht"))
    sleeps = clause(man, "schlafen")
    assert grammar.finish(sleeps.german_main()) == "Der alte Mann, den sie sieht, schläft."
    assert grammar.finish(f"sie sucht {man.de('acc')}") == "Sie sucht den alten Mann, den sie sieht."


def test_possessors_and_contractions():
    car = phrase("car", possessor=phrase("teacher", "the", german="Lehrer"))
    assert (car.en(), car.de("dat")) == ("the teacher's car", "dem Auto des Lehrers")
    shelves = phrase("shelf", "the", BIG, plural=True, possessor=phrase("boy", "my", plural=True))
    assert (shelves.en(), shelves.de("acc")) == ("my boys' big shelves", "die großen Regale meiner Jungen")
    for preposition, noun, case, german in (
        ("in", "garden", "dat", "im Garten"), ("in", "museum", "acc", "ins Museum"),
        ("in", "kitchen", "acc", "in die Küche"),
        ("zu", "church", "dat", "zur Kirche"), ("zu", "tower", "dat", "zum Turm"), ("von", "dog", "dat", "vom Hund"),
        ("vor", "house", "dat", "vor dem Haus"), ("in der Nähe", "forest", "gen", "in der Nähe des Waldes"),
    ):  # fmt: skip
        assert parts.prepositional(preposition, phrase(noun), case) == german
    assert parts.prepositional("in", phrase("garden", "this"), "dat") == "in diesem Garten"


# the corpus

#: phenomenon: pattern of the German (or English) side, smallest and largest share of the sentences, in per cent
PHENOMENA = {
    "because": (r"de:\b(weil|da)\b", 12, 35),
    "although": (r"de:\bobwohl\b", 2, 10),
    "if and when": (r"de:\b[Ww]enn\b", 4, 18),
    "that": (r"de:\bdass\b", 5, 16),
    "subordinate clause first": (r"de:^(Weil|Da|Obwohl|Wenn) ", 2, 12),
    "relative clause": (r"de:, (der|die|das|den|dem|denen) ", 3, 15),
    "um ... zu": (r"de:, um .*(\bzu\b|zu\w+en\b)", 4, 15),
    "question": (r"de:\?$", 6, 16),
    "modal verb": (r"de:\b(kann|könn\w+|kannst|musst?|müss\w+|willst|will|woll\w+|soll\w*|darf\w*|dürf\w+)\b", 10, 35),
    "perfect": (r"de:\b(haben?|hast|hat|habt|bin|bist|ist|sind|seid)\b.* (\w*ge\w+(t|en)|\w+iert|vergessen|besucht)\b",
                15, 50),
    "future": (r"de:\b(werde|wirst|[Ww]ird|[Ww]erden|werdet)\b.*en\b", 2, 15),
    "separable verb, apart": (r"de:\b(an|auf|ab|aus|ein|mit|vor|weg|zu|zurück|fern)(, \w+( \w+)?)?[.?]$", 2, 20),
    "separable verb, participle": (r"de:\b(an|auf|ab|aus|ein|mit|vor|weg|zu|zurück|fern)ge\w+", 4, 20),
    "reflexive": (r"de:\b(sich|mich|dich|uns|euch)\b.*(erinner|freu)", 1, 8),
    "hyphenated compound, German": (r"de:\w-\w", 3, 15),
    "hyphenated word, English": (r"en:\w-\w", 5, 35),
    "closed compound": (r"de:\b(Küchen|Garten|Kinder|Schul|Winter|Sommer|Büro|Reise|Familien|Arbeits|Apfel|Kirsch)"
                        r"[a-zäöü]{4,}", 2, 15),
    "genitive": (r"de:[A-ZÄÖÜ]\w+ (des|meines|deines|eures|ihres|seines|unseres) [A-ZÄÖÜ]\w+", 1, 10),
    "no": (r"de:\b[Kk]ein\w*", 2, 15),
    "not": (r"de:\bnicht\b", 4, 20),
    "verb before subject": (r"de:^(Heute|Gestern|Morgen|Am|Um|Jeden|Letzte|Letztes|Nächste|Jetzt|Bald|Vor) ", 6, 25),
    "half past": (r"de:\bum halb\b|Um halb\b", 2, 12),
    "you": (r"en:\b[Yy]ou\b", 8, 30),
    "you is du": (r"de:\b[Dd]u\b", 2, 12),
    "you is ihr": (r"de:\bihr \w+(e?t)\b|\w+t ihr\b", 1, 20),
    "you is named": (r"en:^(\w+|M\w+\. \w+), .*\b(you|your)\b|, (\w+|M\w+\. \w+)[.?]$", 2, 15),
    "bank": (r"en:\bbanks?\b", 0.5, 4),
}  # fmt: skip


@pytest.mark.parametrize("name", PHENOMENA)
def test_every_phenomenon_occurs(whole, name):
    pattern, low, high = PHENOMENA[name]
    side = {"en": 0, "de": 1}[pattern[:2]]
    share = 100 * sum(bool(re.search(pattern[3:], pair[side])) for pair in whole["train"]) / len(whole["train"])
    assert low <= share <= high, f"{name}: {share:.1f} %"


def german(whole) -> List[str]:
    return [pair[1] for pairs in whole.values() for pair in pairs]


GENDERS = {
    "m": "Tisch Stuhl Schrank Mantel Hut Mann Hund Garten Park Turm Zaun Apfelsaft Online-Kurs Wald",
    "f": "Frau Katze Tasche Lampe Tür Küche Schule Zeitung Suppe Jacke Brücke Uhr E-Mail-Adresse Küchenlampe",
    "n": "Kind Buch Auto Bett Hemd Kleid Museum Haus Radio Pferd Schloss Online-Konto WLAN-Passwort",
}
ARTICLES = {
    "m": "der den dem des ein einen einem eines kein keinen keinem keines dieser diesen diesem dieses",
    "f": "die der eine einer keine keiner diese dieser",
    "n": "das dem des ein einem eines kein keinem keines dieses diesem",
}


def test_articles_agree_with_genders_written_by_hand(whole):
    every = {article for articles in ARTICLES.values() for article in articles.split()}
    checked = 0
    for gender, nouns in GENDERS.items():
        either = "|".join(nouns.split())
        # with a lower-case article: at the start of a sentence or after a comma it may be a pronoun
        pattern = re.compile(rf"(?<!, )\b({'|'.join(every)}) (?:[a-zäöüß]+e[nmrs]? )?({either})\b(?![-\w])")
        for line in german(whole):
            for article, noun in pattern.findall(line):
                checked += 1
                assert article.lower() in ARTICLES[gender].split(), f"{article} {noun}: {line}"
    assert checked > 1000


def test_auxiliaries_end_subordinate_clauses(whole):
    auxiliary = r"(?:habe|hast|hat|haben|habt|bin|bist|ist|sind|seid)"
    clauses = [m.group(1) for line in german(whole) for m in re.finditer(r"\b(?:weil|obwohl|dass) ([^,.?]*)", line)]
    with_auxiliary = [text for text in clauses if re.search(rf"\b{auxiliary}\b", text)]
    assert len(with_auxiliary) > 300
    assert [text for text in with_auxiliary if not re.search(rf"\b{auxiliary}\s*$", text.split(" und ")[0])] == []


def test_pronouns_take_up_the_gender_of_their_noun():
    corpus = toy.corpus(5, {"train": 10000, "valid": 1, "test": 1})["train"]
    expected = {"Tisch": "er|ihn", "Tasche": "sie", "Buch": "es", "Mantel": "er|ihn", "Lampe": "sie", "Bett": "es",
                "Stuhl": "er|ihn", "Jacke": "sie", "Hemd": "es"}  # fmt: skip
    checked = 0
    for en, de in corpus:
        if not re.search(r" (because|although|if|when) it (is|was) ", en):
            continue
        for noun, pronoun in expected.items():
            match = re.search(rf"\b{noun}, (?:weil|da|obwohl|wenn) (\w+) [^,]*(?:ist|war)\b", de)
            if match:
                checked += 1
                assert re.fullmatch(pronoun, match.group(1)), de
    assert checked > 8

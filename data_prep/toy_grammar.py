"""A small grammar of English and German side by side, for `toy.py`: agreement, word order and compounds.

German nouns, articles, adjectives and verbs agree in gender, case, number and person; the finite verb is second in a
main clause and last in a subordinate one; separable prefixes, participles and infinitives go to the end; nouns are
compounded. Where English does not tell what German must (you: du, ihr, Sie; synonyms; free word order), chance decides.
"""

import random
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

import toy_words as tables

T = TypeVar("T")
CASES = ("nom", "acc", "dat", "gen")
# endings by case, for masculine, feminine, neuter, plural
THE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
DIES = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}
EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en", "gen": "es er es er"}
# adjectives after der and dies, after ein, and without a determiner (which occurs in the plural only)
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"}
BARE = {"nom": "e e e e", "acc": "e e e e", "dat": "en en en en", "gen": "er er er er"}


def entries(table: str) -> List[List[str]]:
    """The rows of a table above."""
    return [row.split() for row in re.split(r"[|\n]", table) if row.strip()]


def pairs(table: str) -> List[Tuple[str, str]]:
    """English and German of a list above."""
    return [tuple(item.replace("~", " ").split("/")) for item in table.split()]  # type: ignore[misc]


def ending(table: Dict[str, str], case: str, column: int) -> str:
    return table[case].split()[column].replace("-", "")


class Phrase(NamedTuple):
    """A noun phrase or pronoun: English as subject and as object, German by case, the person of its verb."""

    en: str
    en_object: str
    de: Dict[str, str]
    person: int
    pronoun: bool = False
    column: int = 0  # masculine, feminine, neuter, plural


class Verb(NamedTuple):
    """A verb of both languages; `takes` is what it has for an object."""

    en: str
    past: str
    infinitive: str
    prefix: str
    present: List[str]
    participle: str
    auxiliary: str
    takes: str


def inflected(word: str, ending: str) -> str:
    """A verb or noun with `s` (third person, plural) or `d` (past): `looks~for`, `tried`."""
    head, tilde, particle = word.partition("~")
    if re.search("[^aeiou]y$", head):
        head = head[:-1] + "ie"
    elif re.search("(s|sh|ch|x|o)$" if ending == "s" else "[^e]$", head):
        head += "e"
    return head + ending + tilde + particle


def parse_verb(row: Sequence[str]) -> Verb:
    """One entry of VERBS."""
    english, german, participle, takes = row
    en, _, past = english.partition("/")
    infinitive, _, changed = german.partition("/")
    prefix, _, plain = infinitive.rpartition("+")
    stem = plain.removesuffix("en") if plain.endswith("en") else plain[:-1]
    e = "e" if re.search("([td]|([^aeiouäöülrhmn]|ch)[mn])$", stem) else ""
    second = changed or stem + e
    st = "t" if re.search("[sßz]$", second) else "st"
    third = second if changed and second.endswith(("t", "d")) and not e else second + "t"
    if changed and e:  # lädt, but lädst
        third, st = changed + "t", "st"
    present = [stem + "e", second + st, third, plain, stem + e + "t", plain]
    participle, _, with_sein = participle.partition(";")
    auxiliary = "sein" if with_sein else "haben"
    return Verb(en, past or inflected(en, "d"), prefix + plain, prefix, present, participle, auxiliary, takes)


def decline(
    noun: Sequence[str],
    determiner: str,
    adjectives: Sequence[Sequence[str]] = (),
    plural: bool = False,
    number: Optional[Tuple[str, str]] = None,
    first: Optional[Tuple[str, str]] = None,
) -> Phrase:
    """A noun phrase from rows of the tables; `first` begins a compound, `number` stands in the determiner's place."""
    english, german, gender, forms = noun
    singular, _, irregular = english.partition("/")
    de_plural, _, weak = forms.partition(";")
    column = 3 if plural else "mfn".index(gender)
    if plural:
        nouns = dict.fromkeys(CASES, de_plural)
        nouns["dat"] += "" if de_plural[-1] in "ns" else "n"
    else:
        nouns = {**dict.fromkeys(CASES, weak or german), "nom": german}
        if gender != "f" and not weak:
            short = len(german) < 5 and german[-1] not in "aeio"
            nouns["gen"] += "es" if short or re.search("([sßzx]|sch)$", german) else "s"
    words = [row[0] for row in adjectives] + [(irregular or inflected(singular, "s")) if plural else singular]
    if first:
        words.insert(-1, first[0])
        nouns = {case: first[1] + form.lower() for case, form in nouns.items()}
    de = {}
    for case in CASES:
        if number or (plural and determiner == "a"):
            article, table = number[1] if number else "", BARE
        elif determiner == "the":
            article, table = ending(THE, case, column), WEAK
        else:
            table = WEAK if determiner == "this" else MIXED
            article = tables.DETERMINERS[determiner] + ending(DIES if determiner == "this" else EIN, case, column)
        described = [row[1].split("/")[-1] + ending(table, case, column) for row in adjectives]
        de[case] = " ".join(filter(None, [article, *described, nouns[case]]))
    if number:
        article = number[0]
    elif determiner == "a":
        article = "" if plural else "an" if words[0][0] in "aeiou" else "a"
    else:
        article = "these" if plural and determiner == "this" else determiner
    english = " ".join(filter(None, [article, *words]))
    return Phrase(english, english, de, 5 if plural else 2, column=column)


class Sentences:
    """An endless source of sentence pairs; equal seeds give equal sentences on every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nouns = {kind: entries(table) for kind, table in tables.NOUNS.items()}
        self.verbs = [parse_verb(row) for row in entries(tables.VERBS)]
        self.adjectives = entries(tables.ADJECTIVES)
        self.pronouns = entries(tables.PRONOUNS)

    def __iter__(self) -> Iterator[Tuple[str, str]]:
        while True:
            yield self.sentence()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choose(self, options: Sequence[T]) -> T:
        # not Random.choice, whose use of random numbers has changed between versions of Python
        return options[int(self.random.random() * len(options))]

    def noun_phrase(self, kind: str, depth: int = 0) -> Phrase:
        """Determiner, adjectives, noun, perhaps a compound; perhaps with an owner or a relative clause."""
        if kind == "any":
            kind = self.choose(("person", "animal", "thing"))
        plural, noun = self.chance(0.3), self.choose(self.nouns[kind])
        first = self.choose(pairs(tables.FIRSTS[kind])) if kind in tables.FIRSTS and self.chance(0.3) else None
        if first and noun[1].lower().startswith(first[1][:4].lower()):
            first = None
        adjectives = [self.choose(self.adjectives) for _ in range(self.choose((0, 0, 1, 1, 2)))]
        if len(adjectives) == 2 and adjectives[0][0] == adjectives[1][0]:
            adjectives.pop()
        determiner = self.choose(tuple(tables.DETERMINERS))
        number = self.choose(pairs(tables.NUMBERS)) if plural and self.chance(0.3) else None
        return self.modified(decline(noun, determiner, adjectives, plural, number, first), kind, depth)

    def modified(self, phrase: Phrase, kind: str, depth: int) -> Phrase:
        """The phrase, sometimes with an owner in the genitive or a relative clause."""
        if depth == 0 and kind in ("thing", "animal") and self.chance(0.12):
            owner = self.noun_phrase("person", depth=1)
            english = f"{phrase.en} of {owner.en}"
            german = {case: f"{form} {owner.de['gen']}" for case, form in phrase.de.items()}
            return phrase._replace(en=english, en_object=english, de=german)
        if depth == 0 and kind in ("person", "animal") and self.chance(0.15):
            relative = phrase._replace(en="", de={"nom": ending(THE, "nom", phrase.column)})
            english, german = self.clause(subject=relative, order="last", depth=1)
            english = f"{phrase.en} who {english}"
            return phrase._replace(
                en=english, en_object=english, de={case: f"{form} , {german} ," for case, form in phrase.de.items()}
            )
        return phrase

    def pronoun(self) -> Phrase:
        row = self.choose(self.pronouns)
        return Phrase(row[0], row[1], dict(zip(CASES, row[2:5], strict=False)), int(row[5]), pronoun=True)

    def someone(self, depth: int) -> Phrase:
        if self.chance(0.4):
            return self.pronoun()
        return self.noun_phrase(self.choose(("person", "person", "animal")), depth)

    def objects(self, verb: Verb, depth: int) -> Tuple[str, List[str], List[str], List[str]]:
        """Objects of a verb: English; German pronouns, nouns, and what stands late in the clause."""
        if verb.takes == "-":
            return "", [], [], []
        if "-" in verb.takes:
            preposition, case = verb.takes.split("-")
            item = self.someone(1) if self.chance(0.7) else self.noun_phrase("any", depth)
            return item.en_object, [], [], [f"{preposition} {item.de[case]}"]
        if verb.takes == "give":
            receiver, gift = self.someone(1), self.noun_phrase("thing", depth)
            german = [receiver.de["dat"]]
            return (
                f"{receiver.en_object} {gift.en_object}", german if receiver.pronoun else [],
                [*([] if receiver.pronoun else german), gift.de["acc"]], [],
            )  # fmt: skip
        person = verb.takes in ("person", "dat") or (verb.takes == "any" and self.chance(0.3))
        item = self.someone(depth) if person else self.noun_phrase(verb.takes, depth)
        german = [item.de["dat" if verb.takes == "dat" else "acc"]]
        return item.en_object, german if item.pronoun else [], [] if item.pronoun else german, []

    def clause(self, subject: Optional[Phrase] = None, order: str = "second", depth: int = 0) -> Tuple[str, str]:
        """A clause in both languages; order: where the German finite verb stands: first, second or last."""
        subject = subject or self.someone(depth)
        verb = self.choose(self.verbs)
        tense = self.choose(("present", "present", "past", "past", "future", "can", "must", "may"))
        # "must not" is another verb in German
        negated, question = self.chance(0.12) and tense != "must", order == "first" and depth == 0
        third = subject.person == 2
        if tense in ("present", "past"):
            auxiliary = ("did" if tense == "past" else "does" if third else "do") if negated or question else ""
            bare = verb.past if tense == "past" else inflected(verb.en, "s") if third else verb.en
            bare = verb.en if auxiliary else bare
        else:
            auxiliary, bare = "will" if tense == "future" else tense, verb.en
        not_ = "not" if negated else ""
        if tense == "present":
            finite, prefix, end = verb.present[subject.person], verb.prefix, ""
        elif tense == "past":
            finite, prefix, end = tables.IRREGULAR[verb.auxiliary].split()[subject.person], "", verb.participle
        else:
            finite = tables.IRREGULAR["werden" if tense == "future" else tense].split()[subject.person]
            prefix, end = "", verb.infinitive

        english_objects, pronouns, nouns, late = self.objects(verb, max(depth, 1 if self.chance(0.6) else 0))
        kind = tense if tense in tables.TIMES else "future"
        time = self.choose(pairs(tables.TIMES[kind])) if self.chance(0.45) and depth == 0 else ("", "")
        place_en = place_de = ""
        if depth == 0 and self.chance(0.25):
            preposition, place = self.choose(pairs(tables.PREPOSITIONS)), self.noun_phrase("place", 1)
            place_en = f"{preposition[0]} {place.en}"
            place_de = re.sub("^in dem ", "im ", f"{preposition[1]} {place.de['dat']}")
        front = order == "second" and bool(time[1]) and self.chance(0.4)
        middle = [*pronouns, "" if front else time[1], *nouns, "nicht" if negated else "", place_de, *late]
        if time[1] and not front and self.chance(0.2):  # nouns before the time: as right
            middle = [*pronouns, *nouns, time[1], "nicht" if negated else "", place_de, *late]
        begin = {
            "first": [finite, subject.de["nom"]],
            "second": [time[1], finite, subject.de["nom"]] if front else [subject.de["nom"], finite],
            "last": [subject.de["nom"]],
        }[order]
        ends = [end, prefix + finite] if order == "last" else [prefix, end]
        english = [auxiliary, subject.en, not_] if question else [subject.en, auxiliary, not_]
        words = [*english, bare.replace("~", " "), english_objects, place_en, time[0]]
        return " ".join(filter(None, words)), " ".join(filter(None, [*begin, *middle, *ends]))

    def sentence(self) -> Tuple[str, str]:
        """A sentence of one or two clauses."""
        kind, end = self.random.random(), "."
        if kind < 0.12:
            (english, german), end = self.clause(order="first"), "?"
        elif kind < 0.32:
            link = self.choose(pairs(tables.LINKS))
            (first_en, first_de), main = self.clause(order="last", depth=1), self.clause(order="second")
            english, german = f"{main[0]} {link[0]} {first_en}", f"{main[1]} , {link[1]} {first_de}"
        elif kind < 0.42:
            subject, (english, german) = self.pronoun(), self.clause(order="last")
            think = self.choose((("think", "denken"), ("hope", "hoffen"), ("say", "sagen")))
            verb = parse_verb([think[0], think[1], "-", "-"])
            finite = inflected(think[0], "s") if subject.person == 2 else think[0]
            english = f"{subject.en} {finite} that {english}"
            german = f"{subject.de['nom']} {verb.present[subject.person]} , dass {german}"
        else:
            english, german = self.clause()
        return finish(english, end), finish(german, end)


def finish(text: str, end: str) -> str:
    """A capital at the start, commas without a blank before and never doubled, the mark at the end."""
    text = re.sub(r"( ,)+", ",", text).rstrip(",").replace("can not", "cannot") + end
    return text[0].upper() + text[1:]

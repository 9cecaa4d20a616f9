"""Noun phrases, places and times by chance."""

import random
from typing import Any, Dict, List, Optional, Sequence, Tuple, TypeVar

from toy_grammar import inflection, words
from toy_grammar.inflection import Noun, parse_verb
from toy_grammar.noun_phrases import Adjective, Fixed, Name, NounPhrase, Pronoun, prepositional

T = TypeVar("T")
Pair = Tuple[str, str]

PEOPLE = ("person", "kin")
_PLACES = (("in the kitchen", "in der Küche"), ("at school", "in der Schule"), ("at home", "zu Hause"),
           ("at the station", "am Bahnhof"), ("on the street", "auf der Straße"))  # fmt: skip
_POSSESSIVES = ("my", "your", "his", "her", "our", "their")


def _table(text: str) -> List[str]:
    return text.strip().splitlines()


class Phrases:
    """What sentences are made of; equal seeds give equal phrases on every version of Python."""

    def __init__(self, seed: int) -> None:
        # only random() itself is promised to stay the same between versions of Python
        self._random = random.Random(seed).random
        self._nouns: Dict[str, Tuple[List[Noun], List[Noun], List[Noun]]] = {}
        for noun in inflection.nouns():
            groups = self._nouns.setdefault(noun.kind, ([], [], []))
            simple = " " not in noun.en
            groups[0 if simple else 2 if "-" in noun.de else 1].append(noun)
        self._verbs = [parse_verb(line) for line in _table(words.VERBS)]
        self._other_verbs = [parse_verb(line) for line in _table(words.OTHER_VERBS)]
        self._adjectives: List[Tuple[Adjective, List[str]]] = []
        for line in _table(words.ADJECTIVES):
            en, form, classes = line.split()
            stem, _, plain = form.partition("/")
            self._adjectives.append((Adjective(en, stem, plain or stem), classes.split(",")))
        self._you = "du"

    # chance

    def _pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def _chance(self, share: float) -> bool:
        return self._random() < share

    def _weighted(self, items: Sequence[Tuple[int, T]]) -> T:
        at = self._random() * sum(weight for weight, _ in items)
        for weight, item in items:
            at -= weight
            if at < 0:
                return item
        return items[-1][1]

    # phrases

    def _noun(self, kinds: Sequence[str]) -> Noun:
        groups = self._nouns[self._pick(kinds)]
        return self._pick(self._weighted([(w, g) for w, g in zip((42, 28, 30), groups, strict=True) if g]))

    def _adjectives_for(self, kind: str, share: float) -> List[Adjective]:
        kinds = {kind, "people" if kind in PEOPLE else kind}
        fitting = [adjective for adjective, classes in self._adjectives if kinds & set(classes)]
        found = [self._pick(fitting)] if fitting and self._chance(share) else []
        if found and self._chance(0.12):
            second = self._pick(fitting)
            found += [second] if second.en != found[0].en else []
        return found

    def _determiner(self, weights: Sequence[Tuple[int, str]]) -> str:
        determiner = self._weighted(weights)
        if determiner == "possessive":
            determiner = self._pick(_POSSESSIVES)
        return f"your:{self._you}" if determiner == "your" else determiner

    def _noun_phrase(self, kinds: Sequence[str], subject: bool = False) -> NounPhrase:
        noun = self._noun(kinds)
        plural = self._chance(0.25)
        weights = [(34, "the"), (18 if subject else 32, "a"), (8, "this"), (18, "possessive"), (2, "no")]
        if noun.kind == "kin":
            weights = [(1, "the"), (12, "possessive")]
        determiner = self._determiner(weights)
        if plural and determiner in ("the", "a") and self._chance(0.3):
            determiner = self._pick(words.NUMBERS.split()).split("/")[0]
        phrase = NounPhrase(noun, determiner, plural, self._adjectives_for(noun.kind, 0.35))
        if not subject and noun.kind not in PEOPLE and determiner == "the" and self._chance(0.2):
            owner = self._noun(["person", "kin"])
            phrase.possessor = NounPhrase(owner, self._determiner([(1, "the"), (1, "possessive")]), self._chance(0.15))
        return phrase

    def _name(self) -> Name:
        if self._chance(0.35):
            return Name(self._pick(words.SURNAMES.split()), self._pick(("Herr", "Frau")))
        return Name(self._pick(words.NAMES.split()).split("/")[0])

    def _pronoun_for(self, phrase: Any) -> Pronoun:
        """The pronoun that takes up a phrase: by sex in English, by the noun's gender in German."""
        if isinstance(phrase, Pronoun):
            return phrase
        if isinstance(phrase, Name):
            female = phrase.title == "Frau" or f"{phrase.name}/f" in words.NAMES.split()
            return Pronoun("sie" if female else "er")
        if phrase.plural:
            return Pronoun("sie (plural)")
        noun = phrase.noun
        key = {"m": "er", "f": "sie", "n": "es"}[noun.gender]
        if noun.kind not in PEOPLE:
            return Pronoun(key, ("it", "it"))
        sex = noun.sex or self._pick("mf")
        if noun.gender == "n" and sex == "f" and noun.sex and self._chance(0.5):
            key = "sie"
        return Pronoun(key, ("he", "him") if sex == "m" else ("she", "her"))

    def _place(self) -> Pair:
        if self._chance(0.2):
            en, de = self._pick(words.CITIES.split()).split("/")
            return f"in {en}", f"in {de}"
        if self._chance(0.3):
            return self._pick(_PLACES)
        room = self._chance(0.5)
        noun = self._noun(["place"] if room else ["landmark", "place"])
        prepositions = [("in front of", "vor"), ("behind", "hinter"), ("next to", "neben"), ("near", "in der Nähe")]
        en, de = ("in", "in") if room else self._pick(prepositions)
        phrase = NounPhrase(noun, self._determiner([(6, "the"), (1, "a"), (2, "possessive")]))
        phrase.adjectives = self._adjectives_for(noun.kind, 0.25)
        return f"{en} {phrase.en()}", prepositional(de, phrase, "gen" if en == "near" else "dat")

    def _goal(self) -> Fixed:
        if self._chance(0.25):
            en, de = self._pick(words.CITIES.split()).split("/")
            return Fixed(f"to {en}", f"nach {de}")
        noun = self._noun(["place", "landmark"])
        phrase = NounPhrase(noun, self._determiner([(6, "the"), (1, "a"), (2, "possessive")]))
        phrase.adjectives = self._adjectives_for(noun.kind, 0.25)
        into = noun.kind == "place" and self._chance(0.5)
        de = prepositional("in", phrase, "acc") if into else prepositional("zu", phrase, "dat")
        return Fixed(f"to {phrase.en()}", de)

    def _time(self, tense: str) -> Pair:
        kind = {"progressive": "present", "perfect": "past"}.get(tense, tense)
        choice = self._weighted([(60, "plain"), (15, "day"), (25, "clock")])
        numbers = [item.split("/") for item in words.NUMBERS.split()]
        if choice == "clock" and tense != "progressive":
            at = int(self._random() * (len(numbers) - 1))
            if self._chance(0.5):
                return f"at half past {numbers[at][0]}", f"um halb {numbers[at + 1][1]}"
            return f"at {numbers[at][0]} o'clock", f"um {numbers[at][1]} Uhr"
        if choice == "day" and tense != "progressive":
            if kind == "past":
                en, de = self._pick(numbers)
                return f"{en} days ago", f"vor {de} Tagen"
            en, de = self._pick(words.WEEKDAYS.split()).split("/")
            return f"on {en}", f"am {de}"
        en, de = self._pick(["now/jetzt", "today/heute"] if tense == "progressive" else words.TIMES[kind]).split("/")
        return en, de

    def _predicate(self, kind: str) -> Optional[Pair]:
        found = self._adjectives_for(kind, 1.0)
        if not found:
            return None
        (en_degree, de_degree) = self._pick((("", ""), ("", ""), ("very ", "sehr "), ("too ", "zu ")))
        if "-year-" in found[0].en:
            return "five years old", "fünf Jahre alt"
        return en_degree + found[0].en, de_degree + found[0].plain

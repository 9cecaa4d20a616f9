"""Noun phrases, names and pronouns in both languages, and prepositions before them."""

from dataclasses import dataclass, field
from typing import List, Optional, Tuple, Union

from toy_grammar.inflection import (
    DETERMINERS,
    DU,
    ER,
    ICH,
    IHR,
    SIE,
    WIR,
    Noun,
    adjective_ending,
    german_determiner,
    indefinite_article,
)

#: German pronoun → English subject and object, person, accusative, dative
_PRONOUNS = {
    "ich": ("I", "me", ICH, "mich", "mir"),
    "du": ("you", "you", DU, "dich", "dir"),
    "er": ("he", "him", ER, "ihn", "ihm"),
    "sie": ("she", "her", ER, "sie", "ihr"),
    "es": ("it", "it", ER, "es", "ihm"),
    "wir": ("we", "us", WIR, "uns", "uns"),
    "ihr": ("you", "you", IHR, "euch", "euch"),
    "Sie": ("you", "you", SIE, "Sie", "Ihnen"),
    "sie (plural)": ("they", "them", SIE, "sie", "ihnen"),
}
#: preposition, article → one word; `an` and `von` with verbs only where both forms would do are contracted as well
CONTRACTIONS = {
    "in dem": "im", "an dem": "am", "von dem": "vom", "zu dem": "zum", "zu der": "zur", "bei dem": "beim",
    "in das": "ins",
}  # fmt: skip


@dataclass
class Adjective:
    """English word, German stem before endings and German form without ending."""

    en: str
    stem: str
    plain: str


@dataclass
class Pronoun:
    """A personal pronoun, by its German nominative. `english`: where English has another one, as for things."""

    key: str
    english: Optional[Tuple[str, str]] = None
    is_pronoun = True

    @property
    def person(self) -> int:
        return int(_PRONOUNS[self.key][2])

    @property
    def english_plural(self) -> bool:
        return self.key in ("du", "wir", "ihr", "Sie", "sie (plural)")

    def en(self, subject: bool = True) -> str:
        return str((self.english or _PRONOUNS[self.key])[0 if subject else 1])

    def de(self, case: str = "nom") -> str:
        return self.key.split()[0] if case == "nom" else str(_PRONOUNS[self.key][{"acc": 3, "dat": 4}[case]])


@dataclass
class Name:
    """A person's name; `title` is `Herr` (which is declined) or `Frau`."""

    name: str
    title: Optional[str] = None
    is_pronoun = False
    person = ER
    english_plural = False
    definite = True

    def en(self, subject: bool = True) -> str:
        return {None: "", "Herr": "Mr. ", "Frau": "Mrs. "}[self.title] + self.name

    def de(self, case: str = "nom") -> str:
        title = "Herrn" if self.title == "Herr" and case != "nom" else self.title
        return f"{title} {self.name}" if title else self.name


@dataclass
class Fixed:
    """Words without grammar of their own."""

    english: str
    german: str
    is_pronoun = False
    definite = False

    def en(self, subject: bool = True) -> str:
        return self.english

    def de(self, case: str = "nom") -> str:
        return self.german


@dataclass
class NounPhrase:
    """Determiner (see `DETERMINERS`, or a number), adjectives, noun; possessor or relative clause (both languages)."""

    noun: Noun
    determiner: str = "the"
    plural: bool = False
    adjectives: List[Adjective] = field(default_factory=list)
    possessor: Optional["NounPhrase"] = None
    relative: Optional[Tuple[str, str]] = None
    is_pronoun = False

    @property
    def person(self) -> int:
        return SIE if self.plural else ER

    @property
    def english_plural(self) -> bool:
        return self.plural

    @property
    def definite(self) -> bool:
        return self.determiner in DETERMINERS and self.determiner not in ("a", "no", "not a")

    def en(self, subject: bool = True) -> str:
        rest = " ".join([adjective.en for adjective in self.adjectives] + [self.noun.english(self.plural)])
        if self.possessor:
            owner = self.possessor.en()
            article = owner + ("'" if owner.endswith("s") else "'s")
        elif self.determiner in DETERMINERS:
            article = DETERMINERS[self.determiner][1 if self.plural else 0]
        else:
            article = self.determiner
        article = indefinite_article(rest) if article == "a" else article
        relative = f" {self.relative[0]}" if self.relative else ""
        return f"{article} {rest}".strip() + relative

    def de(self, case: str = "nom") -> str:
        gender = self.noun.gender
        article, endings = german_determiner(self.determiner, case, gender, self.plural)
        ending = adjective_ending(endings, case, gender, self.plural)
        parts = [article, *(f"{adjective.stem}{ending}" for adjective in self.adjectives)]
        parts.append(self.noun.german(case, self.plural))
        if self.possessor:
            parts.append(self.possessor.de("gen"))
        relative = f" , {self.relative[1]} ," if self.relative else ""
        return " ".join(part for part in parts if part) + relative


Phrase = Union[Pronoun, Name, NounPhrase]


def prepositional(preposition: str, phrase: Union[Phrase, Fixed], case: str) -> str:
    """German preposition and phrase, contracted with the article where German does."""
    text = f"{preposition} {phrase.de(case)}"
    article = isinstance(phrase, NounPhrase) and phrase.determiner == "the" and not phrase.relative
    for long, short in CONTRACTIONS.items():
        if article and text.startswith(long + " "):
            return short + text[len(long) :]
    return text

"""Forms of single words: German nouns, articles, adjectives and verbs, English nouns and verbs."""

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from toy_grammar import words

CASES = ("nom", "acc", "dat", "gen")
#: persons of the German verb, in this order wherever forms are listed
ICH, DU, ER, WIR, IHR, SIE = range(6)

# endings by case; columns masculine, feminine, neuter, plural
_DER = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
_STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}
_EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en", "gen": "es er es er"}
_WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
_MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"}
_BARE = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "en er en er"}


def _ending(table: Dict[str, str], case: str, gender: str, plural: bool) -> str:
    ending = table[case].split()[3 if plural else "mfn".index(gender)]
    return "" if ending == "-" else ending


@dataclass(frozen=True)
class Noun:
    """A noun of both languages. `kind` is its class; `sex` ("m", "f") where the word says it."""

    en: str
    de: str
    gender: str
    de_plural: str
    en_plural: str
    kind: str = "thing"
    weak: Optional[str] = None
    genitive: Optional[str] = None
    sex: Optional[str] = None

    def english(self, plural: bool) -> str:
        return self.en_plural if plural else self.en

    def german(self, case: str, plural: bool) -> str:
        """The form of a case: dative plurals end in -n, weak nouns and genitives have an ending in the singular too."""
        if plural:
            return self.de_plural + ("n" if case == "dat" and self.de_plural[-1] not in "ns" else "")
        if case == "gen" and self.gender != "f":
            return self.genitive or self.weak or self.de + _genitive_ending(self.de)
        return self.weak if self.weak and case != "nom" else self.de


def _genitive_ending(noun: str) -> str:
    if noun.endswith(("s", "ß", "z", "x", "sch")):
        return "es"
    one_syllable = len(re.findall(r"[aeiouyäöü]+", noun.lower())) == 1
    return "es" if one_syllable and not re.search("[aeiouyäöü]h?$", noun) else "s"


def parse_noun(line: str, kind: str) -> Noun:
    """One line of the tables in `words`."""
    en, de, gender, plural, *extra = line.replace("_", " ").split()
    more = dict(item.split("=") for item in extra)
    return Noun(
        en, de, gender, plural, more.get("pl") or english_plural(en), kind, more.get("weak"), more.get("gen"),
        more.get("sex"),
    )  # fmt: skip


def compound(first: str, head: Noun, kind: str, hyphen: bool) -> Noun:
    """A compound noun: gender and forms are its head's. With a hyphen where the first part is foreign or letters."""
    en_first, _, de_first = first.partition("/")

    def join(word: Optional[str]) -> Optional[str]:
        return word and (f"{de_first}-{word}" if hyphen else de_first + word[0].lower() + word[1:])

    return Noun(
        f"{en_first} {head.en}", join(head.de) or "", head.gender, join(head.de_plural) or "",
        f"{en_first} {head.en_plural}", kind, join(head.weak), join(head.genitive), head.sex,
    )  # fmt: skip


def english_plural(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x")) or noun in ("potato", "tomato"):
        return noun + "es"
    return noun[:-1] + "ies" if re.search("[^aeiou]y$", noun) else noun + "s"


def indefinite_article(following: str) -> str:
    """a or an, by the sound that follows."""
    vowel = following[0].lower() in "aeiou" and not re.match("US|U-|uni|eu|one", following)
    return "an" if vowel or following.startswith("X-") else "a"


#: determiner → English singular and plural, German stem; `your` is three words in German
DETERMINERS: Dict[str, Tuple[str, str, str]] = {
    "the": ("the", "the", "der"),
    "this": ("this", "these", "dies"),
    "a": ("a", "", "ein"),
    "no": ("no", "no", "kein"),
    "not a": ("a", "any", "kein"),  # after a verb that is negated in English
    "my": ("my", "my", "mein"),
    "your:du": ("your", "your", "dein"),
    "your:ihr": ("your", "your", "euer"),
    "your:Sie": ("your", "your", "Ihr"),
    "his": ("his", "his", "sein"),
    "her": ("her", "her", "ihr"),
    "our": ("our", "our", "unser"),
    "their": ("their", "their", "ihr"),
}


def german_determiner(name: str, case: str, gender: str, plural: bool) -> Tuple[str, Dict[str, str]]:
    """The determiner's form, and the table of endings of adjectives after it. A number word is its own form."""
    if name not in DETERMINERS:
        return words_of_numbers()[name], _BARE
    stem = DETERMINERS[name][2]
    if stem == "der":
        return _ending(_DER, case, gender, plural), _WEAK
    if stem == "dies":
        return "dies" + _ending(_STRONG, case, gender, plural), _WEAK
    if stem == "ein" and plural:
        return "", _BARE
    ending = _ending(_EIN, case, gender, plural)
    return ("eur" if stem == "euer" and ending else stem) + ending, _MIXED


def adjective_ending(table: Dict[str, str], case: str, gender: str, plural: bool) -> str:
    return _ending(table, case, gender, plural)


def relative_pronoun(case: str, gender: str, plural: bool) -> str:
    return "denen" if plural and case == "dat" else _ending(_DER, case, gender, plural)


def words_of_numbers() -> Dict[str, str]:
    """English number word → German."""
    pairs = [pair.partition("/") for pair in words.NUMBERS.split()]
    return {en: de for en, _, de in pairs}


@dataclass(frozen=True)
class Verb:
    """A verb of both languages and what it takes; see the docstring of `words` for the table it comes from."""

    prefix: str
    infinitive_: str
    changed: Optional[str]
    preterite_: str
    participle_: str
    auxiliary: str
    en: str
    en_past: str
    en_participle: str
    en_after: str
    particle: str
    progressive: bool
    frame: str
    case: str
    preposition: str
    takes: str
    reflexive: bool

    @property
    def infinitive(self) -> str:
        return self.prefix + self.infinitive_

    @property
    def participle(self) -> str:
        return self.prefix + self.participle_

    @property
    def zu_infinitive(self) -> str:
        return f"{self.prefix}zu{self.infinitive_}" if self.prefix else f"zu {self.infinitive_}"

    def present(self, person: int) -> str:
        """Present tense without the separable prefix."""
        stem = re.sub("e?n$", "", self.infinitive_)
        if person in (WIR, SIE):
            return self.infinitive_
        if person == ICH:
            return stem[:-2] + "le" if self.infinitive_.endswith("eln") else stem + "e"
        if person in (DU, ER) and self.changed:
            dental = self.changed.endswith("t")
            sibilant = self.changed[-1] in "sßzx"
            return self.changed + (("t" if sibilant else "st") if person == DU else "" if dental else "t")
        linking = "e" if re.search("(?:[td]|[bdfgkpstz][mn]|ch[mn])$", stem) else ""
        if person == DU:
            return stem + ("t" if stem[-1] in "sßzx" else f"{linking}st")
        return stem + linking + "t"

    def preterite(self, person: int) -> str:
        """Past tense without the separable prefix; not for du and ihr, who use the perfect here."""
        if person in (DU, IHR):
            raise ValueError("the preterite is formed for ich, er, wir and sie only")
        if person in (ICH, ER):
            return self.preterite_
        return self.preterite_ + ("n" if self.preterite_.endswith("e") else "en")


def parse_verb(line: str) -> Verb:
    """One line of the tables in `words`."""
    german, changed, preterite, participle, auxiliary, en, past, en_participle, *frame = line.split()
    prefix, _, infinitive = german.rpartition("+")
    base, *after = re.split(r"(?=[+~])", en.lstrip("="))
    reflexive = frame[0] == "refl"
    frame = frame[1:] if reflexive else frame
    preposition, case, takes = "", "acc", ""
    if frame[0] in ("acc", "dat"):
        case, takes = frame
    elif frame[0] == "ditr":
        takes = frame[1]
    elif len(frame) > 1:
        preposition, case, takes = frame
        frame = ["preposition"]
    return Verb(
        prefix, infinitive, None if changed == "-" else changed, preterite, participle, auxiliary, base,
        english_past(base) if past == "." else past, english_past(base) if en_participle == "." else en_participle,
        " ".join(item[1:] for item in after if item[0] == "+"), "".join(item[1:] for item in after if item[0] == "~"),
        not en.startswith("="), "object" if frame[0] in ("acc", "dat") else frame[0], case, preposition, takes,
        reflexive,
    )  # fmt: skip


def english_past(verb: str) -> str:
    if verb.endswith("e"):
        return verb + "d"
    return verb[:-1] + "ied" if re.search("[^aeiou]y$", verb) else verb + "ed"


def english_third_person(verb: str) -> str:
    if verb.endswith(("s", "sh", "ch", "x", "z", "o")):
        return verb + "es"
    return verb[:-1] + "ies" if re.search("[^aeiou]y$", verb) else verb + "s"


def english_progressive(verb: str) -> str:
    if verb in ("forget", "get", "put", "run"):
        return verb + verb[-1] + "ing"
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else verb) + "ing"


_IRREGULAR = {
    "haben": "habe hast hat haben habt haben",
    "sein": "bin bist ist sind seid sind",
    "werden": "werde wirst wird werden werdet werden",
    "war": "war warst war waren wart waren",
    "können": "kann kannst kann können könnt können",
    "müssen": "muss musst muss müssen müsst müssen",
    "wollen": "will willst will wollen wollt wollen",
    "sollen": "soll sollst soll sollen sollt sollen",
    "dürfen": "darf darfst darf dürfen dürft dürfen",
}
#: German modal verb → English
MODALS = {"können": "can", "müssen": "must", "wollen": "want to", "sollen": "should", "dürfen": "may"}


def irregular(verb: str, person: int) -> str:
    """Finite form of haben, sein, werden, the past of sein (war) and the modal verbs."""
    return _IRREGULAR[verb].split()[person]


def nouns() -> List[Noun]:
    """All simple nouns, then the compounds."""
    simple = [parse_noun(line, kind) for kind, table in words.NOUNS.items() for line in table.strip().splitlines()]
    heads = {noun.en: noun for noun in simple}
    heads.update((noun.en, noun) for noun in (parse_noun(line, "thing") for line in words.HEADS.strip().splitlines()))
    return simple + closed_compounds(heads) + hyphenated_compounds(heads)


def closed_compounds(heads: Dict[str, Noun]) -> List[Noun]:
    made = []
    for kind, (firsts, seconds) in words.CLOSED_COMPOUNDS.items():
        for first in firsts.split():
            made += [compound(first, heads[second], kind, hyphen=False) for second in seconds.split()]
    return made


def hyphenated_compounds(heads: Dict[str, Noun]) -> List[Noun]:
    made = []
    for line in words.HYPHENATED_COMPOUNDS.strip().splitlines():
        first, *seconds = line.split()
        made += [compound(first, heads[second], "thing", hyphen=True) for second in seconds]
    return made

"""A small synchronous grammar of English and German for `toy.py`: agreement, word order and compounds.

German nouns, articles, adjectives and verbs agree in gender, case, number and person. The finite verb is second in a
main clause and last in a subordinate clause. Separable prefixes, participles and infinitives are at the end. Nouns form
compounds. Where several translations are correct (you: du, ihr, Sie; synonyms; free word order), one is chosen at
random.
"""

import random
from typing import Dict, List, NamedTuple, Sequence, Tuple, TypeVar

T = TypeVar("T")
Pair = Tuple[str, str]  # English, German
CASES = ("nom", "acc", "dat")

# Tables: rows are separated by line breaks and |, cells by spaces; ~ represents a space.
# English[/plural] German gender plural
NOUNS = {
    "person": """
    man/men Mann m Männer | woman/women Frau f Frauen | child/children Kind n Kinder | girl Mädchen n Mädchen
    teacher Lehrer m Lehrer | teacher Lehrerin f Lehrerinnen | doctor Arzt m Ärzte | guest Gast m Gäste
    friend Freundin f Freundinnen | baker Bäcker m Bäcker | aunt Tante f Tanten | uncle Onkel m Onkel
    dog Hund m Hunde | cat Katze f Katzen | horse Pferd n Pferde | bird Vogel m Vögel | cow Kuh f Kühe""",
    "thing": """
    book Buch n Bücher | letter Brief m Briefe | lamp Lampe f Lampen | table Tisch m Tische | chair Stuhl m Stühle
    picture Bild n Bilder | clock Uhr f Uhren | car Auto n Autos | coat Mantel m Mäntel | shirt Hemd n Hemden
    key Schlüssel m Schlüssel | bottle Flasche f Flaschen | bicycle Fahrrad n Fahrräder | bag Tasche f Taschen""",
    "food": """
    apple Apfel m Äpfel | egg Ei n Eier | cake Kuchen m Kuchen | soup Suppe f Suppen | onion Zwiebel f Zwiebeln
    bread Brot n Brote | sausage Wurst f Würste | roll Brötchen n Brötchen""",
    "place": """
    garden Garten m Gärten | house Haus n Häuser | school Schule f Schulen | station Bahnhof m Bahnhöfe
    park Park m Parks | village Dorf n Dörfer | kitchen Küche f Küchen | town Stadt f Städte""",
}
# first parts of compounds, by the class of the noun
FIRSTS = {
    "person": "village/Dorf city/Stadt",
    "thing": "kitchen/Küchen garden/Garten winter/Winter glass/Glas wood/Holz music/Musik sport/Sport",
    "food": "fish/Fisch cheese/Käse winter/Winter",
    "place": "forest/Wald music/Musik holiday/Ferien",
}
# equal English words are synonyms
ADJECTIVES = """
    old alt | new neu | big groß | small klein | red rot | black schwarz | green grün | beautiful schön | cheap billig
    cheap günstig | strange seltsam | strange merkwürdig | quiet ruhig | dirty schmutzig | heavy schwer | famous berühmt
"""
# English/past German[/stem with du and er] participle[;s with sein] class of the object,
# [preposition~]case of the object; + separates a prefix
VERBS = """
    find/found finden gefunden thing acc | look~for/looked~for suchen gesucht person acc
    buy/bought kaufen gekauft food acc | sell/sold verkaufen verkauft thing acc
    repair/repaired reparieren repariert thing acc | see/saw sehen/sieh gesehen place acc
    read/read lesen/lies gelesen thing acc | forget/forgot vergessen/vergiss vergessen thing acc
    eat/ate essen/iss gegessen food acc | cook/cooked kochen gekocht food acc | love/loved lieben geliebt person acc
    meet/met treffen/triff getroffen person acc | ask/asked fragen gefragt person acc
    know/knew kennen gekannt person acc | draw/drew zeichnen gezeichnet place acc
    call/called an+rufen angerufen person acc | pick~up/picked~up ab+holen abgeholt person acc
    bring~along/brought~along mit+bringen mitgebracht food acc
    throw~away/threw~away weg+werfen/wirf weggeworfen thing acc | help/helped helfen/hilf geholfen person dat
    follow/followed folgen gefolgt;s person dat | thank/thanked danken gedankt person dat
    listen~to/listened~to zu+hören zugehört person dat | wait~for/waited~for warten gewartet person auf~acc
    think~of/thought~of denken gedacht person an~acc | talk~to/talked~to sprechen/sprich gesprochen person mit~dat
    laugh~at/laughed~at lachen gelacht person über~acc | sleep/slept schlafen/schläf geschlafen - -
    work/worked arbeiten gearbeitet - - | dance/danced tanzen getanzt - -
    arrive/arrived an+kommen angekommen;s - - | wake~up/woke~up auf+wachen aufgewacht;s - -
"""
# by person: ich, du, er, wir, ihr, sie
AUXILIARIES = {
    "haben": "habe hast hat haben habt haben",
    "sein": "bin bist ist sind seid sind",
    "will": "werde wirst wird werden werdet werden",
    "can": "kann kannst kann können könnt können",
    "must": "muss musst muss müssen müsst müssen",
}
# English subject and object; German by case; person
PRONOUNS = """
    I me ich mich mir 0 | you you du dich dir 1 | he him er ihn ihm 2 | she her sie sie ihr 2 | we us wir uns uns 3
    you you ihr euch euch 4 | you you Sie Sie Ihnen 5 | they them sie sie ihnen 5
"""
# English singular and plural; German articles and adjective endings by case: masculine, feminine, neuter, plural
WEAK, MIXED = ("e e e en", "en e e en", "en en en en"), ("er e es en", "en e es en", "en en en en")
DETERMINERS = [
    ("the", "the", ("der die das die", "den die das die", "dem der dem den"), WEAK),
    ("this", "these", ("dieser diese dieses diese", "diesen diese dieses diese", "diesem dieser diesem diesen"), WEAK),
    ("my", "my", ("mein meine mein meine", "meinen meine mein meine", "meinem meiner meinem meinen"), MIXED),
    ("our", "our", ("unser unsere unser unsere", "unseren unsere unser unsere", "unserem unserer unserem unseren"),
     MIXED),
    ("a", "two", ("ein eine ein zwei", "einen eine ein zwei", "einem einer einem zwei"),
     ("er e es e", "en e es e", "en en en en")),
]  # fmt: skip
TIMES = {
    "present": "today/heute every~day/jeden~Tag in~the~evening/am~Abend now/jetzt often/oft",
    "past": "yesterday/gestern last~week/letzte~Woche this~morning/heute~Morgen on~Monday/am~Montag",
    "later": "tomorrow/morgen next~year/nächstes~Jahr soon/bald on~Sunday/am~Sonntag",
}
PREPOSITIONS = "in/in near/neben behind/hinter in~front~of/vor"
LINKS = "because/weil although/obwohl while/während before/bevor"


def rows(table: str) -> List[List[str]]:
    return [[cell.replace("~", " ") for cell in row.split()] for row in table.strip().replace("\n", "|").split("|")]


def pairs(text: str) -> List[Pair]:
    """English and German of each item of a list."""
    items = [item.replace("~", " ").split("/") for item in text.split()]
    return [(english, german) for english, german in items]


def joined(*words: str) -> str:
    return " ".join(filter(None, words))


class Phrase(NamedTuple):
    """A noun phrase or pronoun: English as subject and object, German by case, person of its verb."""

    en: str
    en_object: str
    de: Dict[str, str]
    person: int
    pronoun: bool = False


NOTHING = Phrase("", "", dict.fromkeys(CASES, ""), 2)


def present(infinitive: str, changed: str = "") -> List[str]:
    """The forms of a verb by person; ``changed`` is its stem with du and er: nehmen, nimm."""
    stem = infinitive[:-2]
    e = "e" if stem.endswith(("t", "d", "chn")) else ""
    second = changed or stem + e
    st = "t" if second[-1] in "sßz" else "st"
    return f"{stem}e {second}{st} {second}t {infinitive} {stem}{e}t {infinitive}".split()


def decline(
    noun: Sequence[str], determiner: int, adjectives: Sequence[Sequence[str]], plural: bool, first: Pair
) -> Phrase:
    """A noun phrase from rows of the tables; ``first`` is the first part of a compound."""
    english, stem, gender, german_plural = noun
    en_noun, _, irregular_plural = english.partition("/")
    article, en_plural, articles, endings = DETERMINERS[determiner]
    column = "mfn".index(gender)
    if plural:
        en_noun = irregular_plural or en_noun + "s"
        article, stem, column = en_plural, german_plural, 3
    if first[1]:
        stem = first[1] + stem.lower()
    words = [row[0] for row in adjectives] + [joined(first[0], en_noun)]
    if article == "a" and words[0][0] in "aeiou":
        article = "an"
    de = {}
    for number, case in enumerate(CASES):
        ending = endings[number].split()[column]
        form = stem + ("n" if plural and case == "dat" and stem[-1] not in "ns" else "")
        de[case] = joined(articles[number].split()[column], *(row[1] + ending for row in adjectives), form)
    en = joined(article, *words)
    return Phrase(en, en, de, person=5 if plural else 2)


class Sentences:
    """An endless source of sentence pairs; equal seeds give equal sentences on every version of Python."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nouns = {kind: rows(table) for kind, table in NOUNS.items()}
        self.verbs, self.adjectives, self.pronouns = map(rows, (VERBS, ADJECTIVES, PRONOUNS))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def choose(self, options: Sequence[T]) -> T:
        # unlike Random.choice, this uses random numbers in the same way in all versions of Python
        return options[int(self.random.random() * len(options))]

    def phrase(self, kind: str) -> Phrase:
        """A pronoun, or a noun phrase with determiner, adjectives and noun."""
        if kind == "person" and self.chance(0.4):
            subject, object_, *german, person = self.choose(self.pronouns)
            return Phrase(subject, object_, dict(zip(CASES, german, strict=True)), int(person), pronoun=True)
        noun = self.choose(self.nouns[kind])
        first = self.choose(pairs(FIRSTS[kind])) if self.chance(0.3) else ("", "")
        adjectives = [self.choose(self.adjectives) for _ in range(self.choose((0, 0, 1, 1, 2)))]
        if len({row[0] for row in adjectives}) < len(adjectives):  # no `old old`
            adjectives.pop()
        return decline(noun, self.choose(range(len(DETERMINERS))), adjectives, self.chance(0.3), first)

    def clause(self, order: str) -> Pair:
        """A clause in both languages; ``order``: position of the German finite verb (first, second or last)."""
        subject = self.phrase("person")
        negated = "not" if self.chance(0.15) else ""
        english, german, participle, kind, how = self.choose(self.verbs)
        bare, past = english.split("/")
        infinitive, _, changed = german.partition("/")
        prefix, _, plain = infinitive.rpartition("+")
        participle, _, with_sein = participle.partition(";")
        tense = self.choose(("present", "present", "past", "past", "will", "can", "must"))
        singular = subject.person == 2
        helper = {"present": "does" if singular else "do", "past": "did"}.get(tense, tense)
        if tense == "present":
            finite, end = present(plain, changed)[subject.person], prefix
        elif tense == "past":
            auxiliary = "sein" if with_sein else "haben"
            finite, end = AUXILIARIES[auxiliary].split()[subject.person], participle
        else:
            finite, end = AUXILIARIES[tense].split()[subject.person], prefix + plain
        if helper != tense and not negated and order != "first":
            helper = ""
            head, *particle = bare.split()
            bare = past if tense == "past" else joined(head + "s" * singular, *particle)

        preposition, _, case = how.rpartition(" ")
        thing = NOTHING if kind == "-" else self.phrase(kind)
        object_ = "" if kind == "-" else joined(preposition, thing.de[case])
        time = self.choose(pairs(TIMES.get(tense, TIMES["later"]))) if self.chance(0.45) else ("", "")
        place, where = self.choose(pairs(PREPOSITIONS)), self.phrase("place")
        if not self.chance(0.25):
            place, where = ("", ""), NOTHING
        front = order == "second" and bool(time[1]) and self.chance(0.4)
        later = ["" if front else time[1], "" if preposition or thing.pronoun else object_]
        if self.chance(0.2):  # the object before the time is correct too
            later.reverse()
        middle = [object_ if thing.pronoun and not preposition else "", *later, "nicht" if negated else ""]
        middle += [joined(place[1], where.de["dat"]), object_ if preposition else ""]
        begin = [time[1], finite, subject.de["nom"]] if front else [subject.de["nom"], finite]
        if order == "first":
            begin.reverse()
        if order == "last":
            begin = begin[:1]
            end = end + finite if tense == "present" else joined(end, finite)  # the prefix is not separated
        words = [helper, subject.en, negated] if order == "first" else [subject.en, helper, negated]
        words += [bare, thing.en_object, place[0], where.en, time[0]]
        return joined(*words).replace("can not", "cannot"), joined(*begin, *middle, end)

    def sentence(self) -> Pair:
        """A sentence of one or two clauses."""
        kind, end = self.random.random(), "."
        if kind < 0.12:
            (english, german), end = self.clause("first"), "?"
        else:
            english, german = self.clause("second")
        if 0.12 <= kind < 0.37:
            link, clause = self.choose(pairs(LINKS)), self.clause("last")
            english, german = f"{english} {link[0]} {clause[0]}", f"{german}, {link[1]} {clause[1]}"
        return english[0].upper() + english[1:] + end, german[0].upper() + german[1:] + end

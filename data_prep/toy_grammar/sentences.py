"""Sentences by chance: what is said, and where one language leaves a choice that the other does not show."""

from typing import Any, Callable, Iterator, List, Optional, Sequence, Tuple

from toy_grammar import inflection, words
from toy_grammar.clauses import Clause, finish
from toy_grammar.inflection import DU, IHR, Verb, parse_noun, relative_pronoun
from toy_grammar.noun_phrases import Fixed, NounPhrase, Phrase, Pronoun
from toy_grammar.phrases import PEOPLE, Pair, Phrases

_SUBORDINATE = (("because", "weil"), ("because", "da"), ("although", "obwohl"), ("when", "wenn"), ("if", "wenn"))
_CUE_VERBS = ("suchen", "fotografieren", "zeichnen", "an+sehen", "finden", "sehen")


class Sentences(Phrases):
    """An endless supply of sentence pairs; equal seeds give equal sentences on every version of Python."""

    def __iter__(self) -> Iterator[Pair]:
        kinds: List[Tuple[int, Callable[[], Pair]]] = [
            (26, self._simple), (22, self._subordinate), (10, self._that), (10, self._question), (9, self._ambiguous),
            (8, self._purpose), (8, self._coordinated), (7, self._adjective),
        ]  # fmt: skip
        while True:
            self._you = self._pick(("du", "ihr", "Sie"))
            yield self._weighted(kinds)()

    def _subject(self, relative: float = 0.0) -> Phrase:
        kind = self._weighted([(36, "pronoun"), (14, "name"), (50, "noun")])
        if kind == "pronoun":
            return Pronoun(self._pick(("ich", self._you, "er", "sie", "wir", "sie (plural)")))
        if kind == "name":
            return self._name()
        phrase = self._noun_phrase(PEOPLE, subject=True)
        if relative and phrase.determiner in ("the", "a", "this") and self._chance(relative):
            phrase.relative = self._relative(phrase)
        return phrase

    def _relative(self, head: NounPhrase) -> Pair:
        gender, plural = head.noun.gender, head.plural
        if self._chance(0.5):
            clause = self._clause(NounPhrase(head.noun, plural=plural), tenses=("present", "past"), simple=True)
            pronoun = self._pick(("who", "that"))
            return clause.english(subject=pronoun), clause.german_final(relative_pronoun("nom", gender, plural))
        verb = self._pick([v for v in self._verbs if v.frame == "object" and head.noun.kind in self._kinds(v)])
        subject = self._subject()
        clause = Clause(subject, verb, tense=self._pick(("present", "past")))
        pronoun = self._pick(("that ", "who ", ""))
        first = f"{relative_pronoun(verb.case, gender, plural)} {subject.de()}"
        return pronoun + clause.english_without_object(), clause.german_final(first)

    # clauses

    def _kinds(self, verb: Verb) -> List[str]:
        return words.CLASSES.get(verb.takes, [verb.takes])

    def _clause(
        self,
        subject: Phrase,
        tenses: Sequence[str] = ("present", "present", "progressive", "past", "past", "perfect", "future", "modal"),
        verb: Optional[Verb] = None,
        simple: bool = False,
        target: Optional[Phrase] = None,
    ) -> Clause:
        """A clause about `subject`; `target` is a given object. `simple`: without time, place and negation."""
        verb = verb or self._pick(self._verbs)
        tense = self._pick(tenses)
        clause = Clause(subject, verb, target)
        if tense == "modal":
            clause.modal, tense = self._pick(list(inflection.MODALS)), "present"
        clause.tense = "present" if tense == "progressive" and not verb.progressive else tense
        if target is None:
            self._add_objects(clause, verb)
        clause.preterite = clause.tense == "past" and subject.person not in (DU, IHR) and self._chance(0.3)
        if not simple:
            self._add_circumstances(clause, verb)
        if clause.tense == "future":
            clause.plain_future = clause.time is not None and self._chance(0.35)
        return clause

    def _add_objects(self, clause: Clause, verb: Verb) -> None:
        if verb.frame == "goal":
            clause.object = self._goal()
        elif verb.takes:
            kinds = self._kinds(verb)
            people = set(kinds) <= {*PEOPLE, "animal"}
            if people and self._chance(0.3):
                pronouns = ("ich", self._you, "er", "sie", "wir", "sie (plural)")
                subject = clause.subject.key if isinstance(clause.subject, Pronoun) else ""
                same = {subject, "ich", "wir"} if subject in ("ich", "wir") else {subject}
                clause.object = Pronoun(self._pick([key for key in pronouns if key not in same]))
            elif people and self._chance(0.2):
                clause.object = self._name()
            else:
                clause.object = self._noun_phrase(kinds)
        if verb.frame == "ditr":
            clause.receiver = self._name() if self._chance(0.25) else self._noun_phrase(PEOPLE)
            if isinstance(clause.receiver, NounPhrase) and clause.receiver.determiner == "no":
                clause.receiver.determiner = "the"
            clause.receiver_with_to = self._chance(0.4)

    def _add_circumstances(self, clause: Clause, verb: Verb) -> None:
        item = clause.object
        indefinite = isinstance(item, NounPhrase) and not item.definite
        bare = isinstance(item, NounPhrase) and item.determiner == "a" and verb.frame == "object"
        no = isinstance(clause.subject, NounPhrase) and clause.subject.determiner == "no"
        may_negate = not (indefinite and not bare) and clause.modal != "müssen" and verb.frame != "ditr" and not no
        if may_negate and not (bare and verb.preposition) and self._chance(0.15):
            clause.negated, clause.contracted = True, self._chance(0.5)
            if bare and isinstance(item, NounPhrase):
                item.determiner = "not a"
        elif clause.tense == "present" and self._chance(0.15):
            en, de = self._pick(words.FREQUENCIES.split()).split("/")
            clause.frequency = (en, de)
        if clause.frequency is None and clause.tense != "perfect" and self._chance(0.45):
            clause.time = self._time(clause.tense if not clause.modal else "future")
            clause.front = self._chance(0.35)
            clause.german_front = clause.front or self._chance(0.2)
        if verb.frame != "goal" and not clause.negated and self._chance(0.22):
            clause.place = self._place()
        clause.object_first = self._chance(0.5)

    def _about(self, phrase: NounPhrase, past: bool) -> Clause:
        """A clause with an adjective about what a phrase names, taken up by a pronoun."""
        clause = Clause(self._pronoun_for(phrase), tense="past" if past else "present")
        clause.predicate = self._predicate(phrase.noun.kind)
        clause.negated = self._chance(0.12)
        clause.contracted = clause.negated and self._chance(0.5)
        return clause

    # sentences

    def _addressed(self, pair: Pair, subject: Any, end: str) -> Pair:
        """Often names whom `you` means, at the start or the end: only that tells du, ihr and Sie apart."""
        if isinstance(subject, Pronoun) and subject.key == self._you and self._chance(0.6):
            surname = self._pick(words.SURNAMES.split())
            first = self._pick(words.NAMES.split()).split("/")[0]
            en, de = {
                "du": (first, first),
                "ihr": ("children", "Kinder"),
                "Sie": self._pick(((f"Mr. {surname}", f"Herr {surname}"), (f"Mrs. {surname}", f"Frau {surname}"))),
            }[self._you]
            last = self._chance(0.5)
            pair = (f"{pair[0]} , {en}", f"{pair[1]} , {de}") if last else (f"{en} , {pair[0]}", f"{de} , {pair[1]}")
        return finish(pair[0], end), finish(pair[1], end)

    def _simple(self) -> Pair:
        subject = self._subject(relative=0.4)
        clause = self._clause(subject)
        return self._addressed((clause.english(), clause.german_main()), subject, ".")

    def _reason(self, main: Clause, past: bool) -> Clause:
        """A second clause that takes up the subject or the object of the first."""
        tenses = ("past", "perfect") if past else ("present", "present", "modal")
        item = main.object
        if isinstance(item, NounPhrase) and item.determiner not in ("no", "not a"):
            kind = item.noun.kind
            if self._chance(0.4) and self._predicate(kind):
                return self._about(item, past)
            verbs = [v for v in self._verbs if v.frame == "object" and kind in self._kinds(v)]
            if self._chance(0.5) and verbs:
                doer, target = self._pronoun_for(main.subject), self._pronoun_for(item)
                return self._clause(doer, tenses, self._pick(verbs), simple=True, target=target)
        subject = self._pronoun_for(main.subject) if self._chance(0.65) else self._subject()
        return self._clause(subject, tenses, simple=self._chance(0.5))

    def _subordinate(self) -> Pair:
        en, de = self._pick(_SUBORDINATE)
        past = de != "wenn" and self._chance(0.4)
        subject = self._subject(relative=0.15)
        while isinstance(subject, NounPhrase) and subject.determiner == "no":
            subject = self._subject()
        main = self._clause(subject, ("past",) if past else ("present", "present", "modal"))
        reason = self._reason(main, past)
        reason.front = reason.german_front = False
        if self._chance(0.75):
            pair = (f"{main.english()} {en} {reason.english()}", f"{main.german_main()} , {de} {reason.german_final()}")
        else:
            main.front = False
            pair = (
                f"{en} {reason.english()} , {main.english()}",
                f"{de} {reason.german_final()} , {main.german_main(fronted=True)}",
            )
        return self._addressed(pair, subject, ".")

    def _that(self) -> Pair:
        speaker = self._subject()
        verb = self._pick([verb for verb in self._other_verbs if verb.frame == "that"])
        matrix = self._clause(speaker, ("present", "past"), verb, simple=True)
        past = matrix.tense == "past"
        subject = self._pronoun_for(speaker) if self._chance(0.3) else self._subject()
        clause = self._clause(subject, ("past",) if past else ("present", "past", "future", "modal", "perfect"))
        clause.front = False
        that = self._pick(("that ", "that ", ""))
        pair = f"{matrix.english()} {that}{clause.english()}", f"{matrix.german_main()} , dass {clause.german_final()}"
        return self._addressed(pair, speaker, ".")

    def _question(self) -> Pair:
        subject = Pronoun(self._you) if self._chance(0.5) else self._subject()
        clause = self._clause(subject)
        clause.front = False
        if clause.negated:  # a question is not negated here; the object of a negation is an ordinary one again
            clause.negated = False
            if isinstance(clause.object, NounPhrase) and clause.object.determiner == "not a":
                clause.object.determiner = "a"
        en, de = self._pick((("", ""), ("", ""), ("why ", "warum "), ("when ", "wann "), ("where ", "wo ")))
        if de == "wann ":
            clause.time = clause.frequency = None
            clause.plain_future = False
        if de == "wo ":
            clause.place = None
            if clause.verb and clause.verb.frame == "goal":
                clause.verb = self._pick([verb for verb in self._verbs if verb.frame == "intr"])
                clause.object = None
        pair = en + clause.english_question(), de + clause.german_question()
        return self._addressed(pair, subject, "?")

    def _ambiguous(self) -> Pair:
        """A noun whose meaning the end of the sentence tells, or nothing."""
        word = self._pick(list(words.AMBIGUOUS))
        german, en_cue, de_cue = self._pick(words.AMBIGUOUS[word])
        determiner = self._determiner([(4, "the"), (2, "a"), (1, "this")])
        phrase = NounPhrase(parse_noun(f"{word} {german}", "thing"), determiner)
        phrase.plural = self._chance(0.15)
        subject = self._subject()
        while isinstance(subject, NounPhrase) and subject.determiner == "no":
            subject = self._subject()
        named = {f"{verb.prefix}+{verb.infinitive_}".lstrip("+"): verb for verb in self._verbs}
        main = self._clause(subject, ("present", "past", "perfect"), named[self._pick(_CUE_VERBS)], target=phrase)
        main.place = None
        if self._chance(0.7):
            base, thing = en_cue.split()
            german_thing, infinitive = de_cue.split()
            candidates = [v for v in self._verbs + self._other_verbs if v.en == base and v.infinitive == infinitive]
            cue = Clause(self._pronoun_for(subject), candidates[0], Fixed(thing, german_thing))
        else:
            cue = self._clause(self._pronoun_for(subject), ("present",), simple=True)
        pair = f"{main.english()} because {cue.english()}", f"{main.german_main()} , weil {cue.german_final()}"
        return self._addressed(pair, subject, ".")

    def _purpose(self) -> Pair:
        subject = self._subject()
        goal = self._pick([verb for verb in self._verbs if verb.frame == "goal"])
        main = self._clause(subject, ("present", "past", "future", "modal"), goal)
        main.negated = False
        verb = self._pick([v for v in self._verbs if v.frame in ("object", "ditr", "preposition") and not v.reflexive])
        purpose = self._clause(subject, ("present",), verb, simple=True)
        if main.time and not main.front:  # the time would seem to belong to the purpose
            main.time = None
            main.plain_future = False
        pair = f"{main.english()} {purpose.english_purpose()}", f"{main.german_main()} , {purpose.german_purpose()}"
        return self._addressed(pair, subject, ".")

    def _coordinated(self) -> Pair:
        subject = self._subject()
        while isinstance(subject, NounPhrase) and subject.determiner == "no":
            subject = self._subject()
        past = self._chance(0.4)
        first = self._clause(subject, ("past",) if past else ("present", "modal"))
        second = self._reason(first, past)
        second.front = False
        en, de, comma = self._pick((("and", "und", ""), ("but", "aber", " ,")))
        english = f"{first.english()}{comma} {en} {second.english()}"
        german = f"{first.german_main()}{comma} {de} {second.german_main()}"
        return self._addressed((english, german), subject, ".")

    def _adjective(self) -> Pair:
        phrase = self._noun_phrase(["thing", "food", "furniture", "device", "place", "person", "opening"], subject=True)
        if phrase.determiner == "no":
            phrase.determiner = "the"
        phrase.adjectives = []
        clause = self._about(phrase, past=self._chance(0.35))
        clause.subject = phrase
        if phrase.noun.kind != "place" and self._chance(0.5):
            clause.time = self._time(clause.tense)
        if self._chance(0.4):
            verbs = [v for v in self._verbs if v.frame == "object" and phrase.noun.kind in self._kinds(v)]
            doer = self._subject()
            if verbs and phrase.determiner in ("the", "this"):
                verb = self._pick(verbs)
                inner = Clause(doer, verb, tense="past")
                first = f"{relative_pronoun(verb.case, phrase.noun.gender, phrase.plural)} {doer.de()}"
                english = self._pick(("that ", "")) + inner.english_without_object()
                phrase.relative = (english, inner.german_final(first))
        return finish(clause.english()), finish(clause.german_main())

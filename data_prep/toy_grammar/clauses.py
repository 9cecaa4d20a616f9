"""Clauses and the order of their words in both languages. Nothing here is left to chance."""

from dataclasses import dataclass
from typing import List, Optional, Tuple, Union

from toy_grammar.inflection import (
    ER,
    ICH,
    MODALS,
    Verb,
    english_progressive,
    english_third_person,
    irregular,
)
from toy_grammar.noun_phrases import Fixed, Name, NounPhrase, Phrase, Pronoun, prepositional

_REFLEXIVE = ("mich", "dich", "sich", "uns", "euch", "sich")


@dataclass
class Clause:
    """A clause with a full verb, or with `be` and an adjective (`verb` None, `predicate` set).

    Attributes:
        tense: present, progressive, past, perfect, future; in German the past is the perfect or, with `preterite`, the
            preterite, and the future with `plain_future` the present.
        modal: German modal verb; the tense is the present then.
        time, frequency, place: English and German. `front` puts the time first in English, `german_front` in German.
        object_first: German definite noun objects before the time.
        contracted: don't and the like.
    """

    subject: Phrase
    verb: Optional[Verb] = None
    object: Union[Pronoun, Name, NounPhrase, Fixed, None] = None
    receiver: Optional[Phrase] = None
    predicate: Optional[Tuple[str, str]] = None
    tense: str = "present"
    modal: Optional[str] = None
    time: Optional[Tuple[str, str]] = None
    frequency: Optional[Tuple[str, str]] = None
    place: Optional[Tuple[str, str]] = None
    front: bool = False
    german_front: bool = False
    object_first: bool = False
    negated: bool = False
    preterite: bool = False
    plain_future: bool = False
    receiver_with_to: bool = False
    contracted: bool = False

    # German

    def _verbs(self) -> Tuple[str, str, List[str]]:
        """Finite verb in second place; its separable prefix; what follows the middle field besides."""
        person, verb = self.subject.person, self.verb
        if verb is None:
            return irregular("war" if self.tense == "past" else "sein", person), "", []
        if self.modal:
            return irregular(self.modal, person), "", [verb.infinitive]
        if self.tense == "future" and not self.plain_future:
            return irregular("werden", person), "", [verb.infinitive]
        if self.tense == "perfect" or (self.tense == "past" and not self.preterite):
            return irregular("haben" if verb.auxiliary == "h" else "sein", person), "", [verb.participle]
        return (verb.preterite if self.tense == "past" else verb.present)(person), verb.prefix, []

    def _middle(self, with_time: bool) -> List[str]:
        verb, early, late = self.verb, [], []
        if verb and verb.reflexive:
            early.append(_REFLEXIVE[self.subject.person])
        direct = self.object if verb and verb.frame in ("object", "ditr", "cue") else None
        case = verb.case if verb else "acc"
        # pronouns first, the accusative before the dative; nouns the other way round
        roles = [(direct, case), (self.receiver, "dat")]
        early += [item.de(case) for item, case in roles if item and item.is_pronoun]
        nouns = [(item, case) for item, case in reversed(roles) if item and not item.is_pronoun]
        times = [item[1] for item in (self.time if with_time else None, self.frequency) if item]
        definite = all(getattr(item, "definite", True) for item, _ in nouns)
        leading = nouns if self.object_first and definite else []
        early += [item.de(case) for item, case in leading] + times
        early += [item.de(case) for item, case in nouns if not leading]
        if self.negated and not any(getattr(item, "determiner", "") == "not a" for item, _ in nouns):
            early.append("nicht")
        if self.place:
            late.append(self.place[1])
        if verb and verb.preposition and self.object:
            late.append(prepositional(verb.preposition, self.object, verb.case))
        if verb and verb.frame == "goal" and self.object:
            late.append(self.object.de())
        if self.predicate:
            late.append(self.predicate[1])
        return early + late

    def german_main(self, fronted: bool = False) -> str:
        """Verb second. `fronted`: something outside, such as a subordinate clause, takes the first place."""
        finite, prefix, end = self._verbs()
        first = self.time is not None and self.german_front and not fronted
        middle = self._middle(with_time=not first)
        subject = self.subject.de()
        if fronted:
            parts = [finite, subject]
        elif first and self.time:
            parts = [self.time[1], finite, subject]
        else:
            parts = [subject, finite]
        return " ".join(part for part in [*parts, *middle, prefix, *end] if part)

    def german_question(self) -> str:
        return self.german_main(fronted=True)

    def german_final(self, first: Optional[str] = None) -> str:
        """Verb at the end. `first`, in the subject's place: a relative pronoun, with the subject unless it is that."""
        finite, prefix, end = self._verbs()
        start = [self.subject.de()] if first is None else [first]
        return " ".join([*start, *self._middle(True), *end, prefix + finite])

    def german_purpose(self) -> str:
        """um ... zu ..."""
        if self.verb is None:
            raise ValueError("a purpose needs a verb")
        return " ".join(["um", *self._middle(True), self.verb.zu_infinitive])

    # English

    def _third(self) -> bool:
        return self.subject.person == ER

    def _be(self, past: bool = False) -> str:
        subject = self.subject
        if past:
            return "was" if subject.person in (ICH, ER) else "were"
        return "am" if subject.person == ICH else "is" if subject.person == ER else "are"

    def _english_verbs(self) -> Tuple[str, str]:
        """Auxiliary ("" where the full verb is finite; "do" forms are added where needed) and the verb that follows."""
        verb = self.verb
        if verb is None:
            return self._be(past=self.tense == "past"), ""
        if self.modal and self.modal != "wollen":
            return MODALS[self.modal], verb.en
        if self.modal:
            return "", ("wants to " if self._third() else "want to ") + verb.en
        if self.tense == "progressive":
            return self._be(), english_progressive(verb.en)
        if self.tense == "perfect":
            return "has" if self._third() else "have", verb.en_participle
        if self.tense == "future":
            return "will", verb.en
        if self.tense == "past":
            return "", verb.en_past
        return "", english_third_person(verb.en) if self._third() else verb.en

    def _with_do(self) -> Tuple[str, str]:
        auxiliary, rest = self._english_verbs()
        if auxiliary or self.verb is None:
            return auxiliary, rest
        do = "did" if self.tense == "past" else "does" if self._third() else "do"
        return do, ("want to " if self.modal else "") + self.verb.en

    def _english_objects(self) -> List[str]:
        verb, item, receiver = self.verb, self.object, self.receiver
        if verb is None:
            return [self.predicate[0]] if self.predicate else []
        direct = item.en(subject=False) if item else ""
        if verb.particle:
            return [direct, verb.particle] if item and item.is_pronoun else [verb.particle, direct]
        if receiver is not None:
            to = self.receiver_with_to or (item is not None and item.is_pronoun)
            person = receiver.en(subject=False)
            return [direct, "to", person] if to else [person, direct]
        return [verb.en_after, direct]

    def english(self, subject: Optional[str] = None) -> str:
        """Statement; `subject` in the place of the subject, as in relative clauses."""
        front = self.front and self.time is not None and subject is None
        start = [f"{self.time[0]} ,"] if front and self.time else []
        start.append(self.subject.en() if subject is None else subject)
        frequency = self.frequency[0] if self.frequency else ""
        if self.negated:
            auxiliary, rest = self._with_do()
            middle = [_not(auxiliary, self.contracted), frequency, rest]
        else:
            auxiliary, rest = self._english_verbs()
            middle = [auxiliary, frequency, rest]
        return self._join([*start, *middle, *self._english_objects()], with_time=not front)

    def english_question(self) -> str:
        auxiliary, rest = self._with_do()
        frequency = self.frequency[0] if self.frequency else ""
        return self._join([auxiliary, self.subject.en(), frequency, rest, *self._english_objects()], with_time=True)

    def english_purpose(self) -> str:
        if self.verb is None:
            raise ValueError("a purpose needs a verb")
        return self._join(["to", self.verb.en, *self._english_objects()], with_time=True)

    def english_without_object(self) -> str:
        """Subject and verb, for relative clauses whose pronoun is the object."""
        auxiliary, rest = self._english_verbs()
        verb = self.verb
        return self._join([self.subject.en(), auxiliary, rest, verb.en_after or verb.particle if verb else ""], True)

    def _join(self, parts: List[str], with_time: bool) -> str:
        place = self.place[0] if self.place else ""
        time = self.time[0] if self.time and with_time else ""
        return " ".join(part for part in [*parts, place, time] if part)


def _not(auxiliary: str, contracted: bool) -> str:
    if auxiliary == "can":
        return "can't" if contracted else "cannot"
    if not contracted or auxiliary in ("am", "may"):
        return f"{auxiliary} not"
    return "won't" if auxiliary == "will" else f"{auxiliary}n't"


def finish(text: str, end: str = ".") -> str:
    """Words and commas to a sentence: one comma where several meet, none at the end, a capital at the start."""
    tokens: List[str] = []
    for token in text.split():
        if token == "," and (not tokens or tokens[-1] == ","):
            continue
        tokens.append(token)
    while tokens[-1] == ",":
        tokens.pop()
    line = " ".join(tokens).replace(" ,", ",") + end
    return line[0].upper() + line[1:]

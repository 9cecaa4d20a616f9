"""Heads that follow dependency relations: any parser's CoNLL-U output, aligned to the model's subwords.

Voita et al. (2019), section 5.2.2: for a relation and a direction, how often the head points from the one word (its
last subword) to the other (any of its subwords); beside it the same for the one offset that serves the relation best. A
head is called syntactic where it is right at least 10 % more often than that.
"""

import itertools
import os
import re
import unicodedata
from collections import Counter
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import head_name
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation import TrainedModel, batches

from . import HeadsError
from .attention_hooks import attention, argmax_keys

#: relations of Universal Dependencies and their names in older schemes
RELATIONS = {"nsubj": "nsubj", "obj": "obj", "dobj": "obj", "amod": "amod", "advmod": "advmod"}
MARGIN = 1.1
#: fewer instances of a relation tell nothing
ENOUGH = 20


class Word(NamedTuple):
    """A word of a parse: its form, the number of its head (0: the root) and its relation, without subtype."""

    form: str
    head: int
    relation: str


class Sentence(NamedTuple):
    """words, from 1; units: surface text, and the words (from 0) that it is (several for multiword tokens)."""

    words: List[Word]
    units: List[Tuple[str, List[int]]]


def read_conllu(path: PathLike) -> List[Sentence]:
    """The sentences of a CoNLL-U file (https://universaldependencies.org/format.html).

    Raises:
        HeadsError: a line that cannot be; the message says which and why. ScoringError: the file cannot be read.
    """
    name, lines = os.fspath(path), read_lines(path, "the parses")
    rows = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    blocks = itertools.groupby(rows, key=lambda row: bool(row[1].strip()))
    sentences = [_sentence(list(block), name) for words, block in blocks if words]
    if not sentences:
        raise HeadsError(f"{name} has no sentences, expected CoNLL-U")
    return sentences


def _sentence(block: Sequence[Tuple[int, str]], name: str) -> Sentence:
    words: List[Word] = []
    units: List[Tuple[str, List[int]]] = []
    for number, line in block:
        fields = line.split("\t")
        if len(fields) != 10:
            raise HeadsError(f"{name}, line {number}: expected 10 fields between tabs, got {len(fields)}")
        index, form, head, relation = fields[0], fields[1], fields[6], fields[7]
        if "." in index:  # an empty node, which is not in the text
            continue
        if "-" in index:
            ends = re.fullmatch(r"(\d+)-(\d+)", index)
            members = list(range(int(ends[1]) - 1, int(ends[2]))) if ends else []
            if not members or members[0] != len(words):
                raise HeadsError(f"{name}, line {number}: expected words from {len(words) + 1} on, got {index}")
            units.append((form, members))
            continue
        if index != str(len(words) + 1) or not head.isdecimal():
            raise HeadsError(
                f"{name}, line {number}: expected word {len(words) + 1} and its head's number, got {index}, {head!r}"
            )
        if not units or len(words) > units[-1][1][-1]:  # not part of a multiword token
            units.append((form, [len(words)]))
        words.append(Word(form, int(head), relation.split(":")[0]))
    if any(word.head > len(words) for word in words) or (units and units[-1][1][-1] >= len(words)):
        raise HeadsError(f"{name}, line {block[0][0]}: a number beyond the {len(words)} words of the sentence")
    return Sentence(words, units)


def _plain(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def align(sentence: Sentence, pieces: Sequence[str]) -> Optional[List[List[int]]]:
    """The subwords (positions, from 0) of every word; None where the texts differ.

    Args:
        pieces: subwords of SentencePiece (``▁``) or BPE (``@@``), without </s>.
    """
    texts = [_plain(piece.replace("▁", "").removesuffix("@@")) for piece in pieces]
    units = [(_plain(text), members) for text, members in sentence.units]
    if "".join(texts) != "".join(text for text, _ in units):
        return None
    owners = iter([place for place, text in enumerate(texts) for _ in text])  # of every character, the piece
    found: List[List[int]] = [[] for _ in sentence.words]
    for text, members in units:
        own = sorted({next(owners) for _ in text})
        for member in members:
            found[member] = own
    return found


def relations(sentence: Sentence) -> Iterator[Tuple[str, int, int]]:
    """Name, word that looks and word that is looked at (from 0), in both directions."""
    for number, word in enumerate(sentence.words):
        if word.relation in RELATIONS and word.head > 0:
            name = RELATIONS[word.relation]
            yield f"{name} dependent→head", number, word.head - 1
            yield f"{name} head→dependent", word.head - 1, number


def syntax(trained: TrainedModel, split: str, parses: Sequence[Sentence], *, max_tokens: int = 4000) -> Dict[str, Any]:
    """How well encoder heads follow relations on the first sentences of a split, of which these are the parses.

    Returns:
        ``heads``: encoder head → relation → its result (:func:`_result`); ``sentences``: how many were used;
        ``skipped``: how many were not, since their text is not that of the parse.

    Raises:
        HeadsError: none of the texts agree.
    """
    dictionary = trained.task.source_dictionary
    instances: Counter = Counter()
    hits: Counter = Counter()  # of relation, place and head
    offsets: Dict[str, Counter] = {}
    used = skipped = 0
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=len(parses)):
        seen = {place: s for place, s in attention(trained, sample).items() if place.startswith("encoder")}
        points = {}
        for place, layer in seen.items():
            _, keys, places = argmax_keys(layer)
            points[place] = {tuple(where): row for where, row in zip(places.tolist(), keys.tolist(), strict=True)}
        any_layer = next(iter(seen.values()))  # all see the same source
        for row, number in enumerate(sample["id"].tolist()):
            positions = any_layer.keys[row].nonzero().flatten().tolist()
            words = align(parses[number], [dictionary[token] for token in any_layer.tokens[row][positions].tolist()])
            if words is None:
                skipped += 1
                continue
            used += 1
            for name, source, target in relations(parses[number]):
                if not (words[source] and words[target]):
                    continue
                query, wanted = positions[words[source][-1]], {positions[place] for place in words[target]}
                instances[name] += 1
                offsets.setdefault(name, Counter()).update(place - query for place in wanted)
                for place, rows in points.items():
                    keys = rows.get((row, query), ())  # none where all weight is on </s>
                    hits.update((name, place, head) for head, key in enumerate(keys) if key in wanted)
    if not used:
        raise HeadsError(f"none of the {len(parses)} parses has the text of its sentence in {split}")
    best = {name: max(counts.items(), key=lambda pair: pair[1]) for name, counts in offsets.items()}
    heads = {
        head_name(place, head): {
            name: _result(hits[name, place, head], *best[name], instances[name]) for name in sorted(instances)
        }
        for place, layer in seen.items()
        for head in range(layer.weights.size(1))
    }
    return {"heads": heads, "sentences": used, "skipped": skipped}


def _result(hits: int, offset: int, offset_hits: int, instances: int) -> Dict[str, Any]:
    """``accuracy`` of a head, ``baseline`` of the best ``offset``, ``instances``, and whether it is ``syntactic``."""
    accuracy, baseline = hits / instances, offset_hits / instances
    found = {"accuracy": accuracy, "baseline": baseline, "offset": offset, "instances": instances}
    return {**found, "syntactic": instances >= ENOUGH and accuracy >= MARGIN * baseline}

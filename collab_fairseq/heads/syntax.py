"""Heads that follow dependency relations: any parser's CoNLL-U output, aligned to the model's subwords.

Voita et al. (2019), section 5.2.2: for a relation and a direction, how often the head points from the one word (its
last subword) to the other (any of its subwords), compared with the same for the one offset that serves the relation
best. A head is called syntactic where it is right at least 10 % more often than that.
"""

import itertools
import os
import re
import unicodedata
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import head_name
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation import TrainedModel, batches
from fairseq_modern.errors import UserError

from .attention_hooks import AttentionMaps, argmax_keys, attention

#: relations of Universal Dependencies and their names in older schemes
RELATIONS = {"nsubj": "nsubj", "obj": "obj", "dobj": "obj", "amod": "amod", "advmod": "advmod"}
MARGIN = 1.1
#: fewer instances of a relation show nothing
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
        UserError: a line that cannot be; the message says which and why. UserError: the file cannot be read.
    """
    name, lines = os.fspath(path), read_lines(path, "the parses")
    rows = [(number, line) for number, line in enumerate(lines, 1) if not line.startswith("#")]
    blocks = itertools.groupby(rows, key=lambda row: bool(row[1].strip()))
    sentences = [_sentence(list(block), name) for words, block in blocks if words]
    if not sentences:
        raise UserError(f"{name} has no sentences, expected CoNLL-U")
    return sentences


def _sentence(block: Sequence[Tuple[int, str]], name: str) -> Sentence:
    words: List[Word] = []
    units: List[Tuple[str, List[int]]] = []
    for number, line in block:
        fields = line.split("\t")
        if len(fields) != 10:
            raise UserError(f"{name}, line {number}: expected 10 fields between tabs, got {len(fields)}")
        index, form, head, relation = fields[0], fields[1], fields[6], fields[7]
        if "." in index:  # an empty node, which is not in the text
            continue
        if "-" in index:
            ends = re.fullmatch(r"(\d+)-(\d+)", index)
            members = list(range(int(ends[1]) - 1, int(ends[2]))) if ends else []
            if not members or members[0] != len(words):
                raise UserError(f"{name}, line {number}: expected words from {len(words) + 1} on, got {index}")
            units.append((form, members))
            continue
        if index != str(len(words) + 1) or not head.isdecimal():
            raise UserError(
                f"{name}, line {number}: expected word {len(words) + 1} and its head's number, got {index}, {head!r}"
            )
        if not units or len(words) > units[-1][1][-1]:  # not part of a multiword token
            units.append((form, [len(words)]))
        words.append(Word(form, int(head), relation.split(":")[0]))
    if any(word.head > len(words) for word in words) or (units and units[-1][1][-1] >= len(words)):
        raise UserError(f"{name}, line {block[0][0]}: a number beyond the {len(words)} words of the sentence")
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
    piece_of_character = iter([number for number, text in enumerate(texts) for _ in text])
    subwords: List[List[int]] = [[] for _ in sentence.words]
    for text, members in units:
        positions = sorted({next(piece_of_character) for _ in text})
        for member in members:
            subwords[member] = positions
    return subwords


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
        ``heads``: encoder head → relation → its result (:meth:`_Counts.results`); ``sentences``: how many were used;
        ``skipped``: how many were not, since their text is not that of the parse.

    Raises:
        UserError: none of the texts agree.
    """
    counts = _Counts()
    used = skipped = 0
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=len(parses)):
        maps = {name: m for name, m in attention(trained, sample).items() if name.startswith("encoder")}
        keys = {layer_id: _keys_by_query(of_layer) for layer_id, of_layer in maps.items()}
        any_layer = next(iter(maps.values()))  # all see the same source
        for row, number in enumerate(sample["id"].tolist()):
            positions = any_layer.keys[row].nonzero().flatten().tolist()
            tokens = any_layer.tokens[row][positions].tolist()
            words = align(parses[number], [trained.task.source_dictionary[token] for token in tokens])
            if words is None:
                skipped += 1
                continue
            used += 1
            for name, source, target in relations(parses[number]):
                if words[source] and words[target]:
                    query = positions[words[source][-1]]
                    counts.add(name, row, query, {positions[subword] for subword in words[target]}, keys)
    if not used:
        raise UserError(f"none of the {len(parses)} parses has the text of its sentence in {split}")
    heads = {}
    for layer_id, of_layer in maps.items():
        for head in range(of_layer.weights.size(1)):
            heads[head_name(layer_id, head)] = counts.results(layer_id, head)
    return {"heads": heads, "sentences": used, "skipped": skipped}


def _keys_by_query(maps: AttentionMaps) -> Dict[Tuple[int, int], List[int]]:
    """(sentence, position) of a query → the key that each head points to."""
    _, keys, positions = argmax_keys(maps)
    rows = zip(positions.tolist(), keys.tolist(), strict=True)
    return {(sentence, step): of_heads for (sentence, step), of_heads in rows}


class _Counts:
    """Of relations: how often they occur, at which offsets, and how often a head follows them."""

    def __init__(self) -> None:
        self.instances: Counter = Counter()
        self.hits: Counter = Counter()  # of relation, layer_id and head
        self.offsets: Dict[str, Counter] = {}

    def add(
        self,
        name: str,
        row: int,
        query: int,
        wanted: Set[int],
        keys: Mapping[str, Mapping[Tuple[int, int], Sequence[int]]],
    ) -> None:
        """Count one relation from the word at ``query`` in sentence ``row`` to the subwords ``wanted``."""
        self.instances[name] += 1
        self.offsets.setdefault(name, Counter()).update(position - query for position in wanted)
        for layer_id, by_query in keys.items():
            of_heads = by_query.get((row, query), ())  # none where all weight is on </s>
            self.hits.update((name, layer_id, head) for head, key in enumerate(of_heads) if key in wanted)

    def results(self, layer_id: str, head: int) -> Dict[str, Dict[str, Any]]:
        """Relation → ``accuracy`` of a head, ``baseline`` of the best ``offset``, ``instances``, and ``syntactic``."""
        results = {}
        for name, instances in sorted(self.instances.items()):
            offset, offset_hits = max(self.offsets[name].items(), key=lambda pair: pair[1])
            accuracy = self.hits[name, layer_id, head] / instances
            baseline = offset_hits / instances
            results[name] = {
                "accuracy": accuracy,
                "baseline": baseline,
                "offset": offset,
                "instances": instances,
                "syntactic": instances >= ENOUGH and accuracy >= MARGIN * baseline,
            }
        return results

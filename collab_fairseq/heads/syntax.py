"""Syntactic heads: heads that follow dependency relations, given parses in CoNLL-U.

Voita et al. (2019), https://arxiv.org/abs/1905.09418, section 5.2.2. The accuracy of a head for a relation and a
direction is the share of instances for which it points from one word (its last subword) to the other (any of its
subwords). The baseline always points to the offset that is best for the relation. A head is syntactic if its accuracy
is at least 10 % higher than the baseline.
"""

import os
import unicodedata
from collections import Counter
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.head_names import head_name
from collab_fairseq.scoring.references import read_lines
from collab_fairseq.translation import TrainedModel, batches
from fairseq_modern.errors import UserError

from .attention_hooks import AttentionMaps, argmax_keys, attention

#: relations of Universal Dependencies, and their names in older schemes → name in results
RELATIONS = {"nsubj": "nsubj", "obj": "obj", "dobj": "obj", "amod": "amod", "advmod": "advmod"}
#: smallest ratio of accuracy and baseline of a syntactic head, and smallest number of instances
MARGIN, MIN_INSTANCES = 1.1, 20


class Word(NamedTuple):
    """A word of a parse: form, number of its head (from 1; 0: root), and relation without subtype."""

    form: str
    head: int
    relation: str


class Sentence(NamedTuple):
    """A parse.

    Attributes:
        words: syntactic words. units: surface tokens and their words, from 0; multiword tokens have several.
    """

    words: List[Word]
    units: List[Tuple[str, List[int]]]


def read_conllu(path: PathLike) -> List[Sentence]:
    """The sentences of a CoNLL-U file (https://universaldependencies.org/format.html)."""
    name = os.fspath(path)
    sentences: List[Sentence] = []
    block: List[str] = []
    for number, line in enumerate([*read_lines(path, "the parses"), ""], 1):
        if line.strip():
            block.append(line)
        elif block:
            start = number - len(block)
            try:
                sentence = _sentence([row for row in block if not row.startswith("#")])
            except ValueError as error:
                raise UserError(
                    f"{name}: the sentence that starts in line {start} is not valid CoNLL-U: {error}"
                ) from error
            sentences += [sentence] if sentence.words else []
            block = []
    if not sentences:
        raise UserError(f"{name} has no sentences; it must be CoNLL-U")
    return sentences


def _sentence(rows: Sequence[str]) -> Sentence:
    """Rows of one parse; those that are not valid raise a ValueError."""
    words: List[Word] = []
    units: List[Tuple[str, List[int]]] = []
    end = 0  # of the last multiword token
    for row in rows:
        index, form, _, _, _, _, head, relation, _, _ = row.split("\t")
        if "." in index:  # an empty node, which is not part of the text
            continue
        first = int(index.partition("-")[0])
        if first != len(words) + 1:
            raise ValueError(f"expected word {len(words) + 1}, got {index}")
        if "-" in index:
            end = int(index.partition("-")[2])
            units.append((form, list(range(first - 1, end))))
            continue
        if first > end:
            units.append((form, [first - 1]))
        words.append(Word(form, int(head), relation.split(":")[0]))
    largest = max([end, *(word.head for word in words)])
    if largest > len(words):
        raise ValueError(f"it refers to word {largest} of {len(words)}")
    return Sentence(words, units)


def _normalise(text: str) -> str:
    return "".join(unicodedata.normalize("NFKC", text).casefold().split())


def align(sentence: Sentence, pieces: Sequence[str]) -> Optional[List[List[int]]]:
    """Positions of each word's subwords among SentencePiece (``▁``) or BPE (``@@``) units; None if the texts differ."""
    texts = [_normalise(piece.replace("▁", "").removesuffix("@@")) for piece in pieces]
    units = [(_normalise(form), members) for form, members in sentence.units]
    if "".join(texts) != "".join(form for form, _ in units):
        return None
    piece_of_character = iter([position for position, text in enumerate(texts) for _ in text])
    subwords: List[List[int]] = [[] for _ in sentence.words]
    for form, members in units:
        positions = sorted({next(piece_of_character) for _ in form})
        for member in members:
            subwords[member] = positions
    return subwords


def relations(sentence: Sentence) -> Iterator[Tuple[str, int, int]]:
    """Relation with its direction, query word and key word (from 0)."""
    for number, word in enumerate(sentence.words):
        if word.relation in RELATIONS and word.head > 0:
            name = RELATIONS[word.relation]
            yield f"{name} dependent→head", number, word.head - 1
            yield f"{name} head→dependent", word.head - 1, number


def syntax(trained: TrainedModel, split: str, parses: Sequence[Sentence], *, max_tokens: int = 4000) -> Dict[str, Any]:
    """Accuracy of the encoder heads for each relation, on the parsed first sentences of a split.

    Returns:
        ``heads``: head → relation → result (:meth:`_Counts.results`); ``sentences``: number of sentences;
        ``skipped``: number of sentences whose text differs from the parse.
    """
    counts = _Counts()
    aligned = skipped = 0
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=len(parses)):
        maps = attention(trained, sample)
        layers = {layer_id: layer for layer_id, layer in maps.items() if layer_id.startswith("encoder")}
        keys = {layer_id: _keys_by_query(layer) for layer_id, layer in layers.items()}
        source = layers["encoder.0"]
        for row, number in enumerate(sample["id"].tolist()):
            positions = source.keys[row].nonzero().flatten().tolist()
            tokens = source.tokens[row][positions].tolist()
            words = align(parses[number], [trained.task.source_dictionary[token] for token in tokens])
            if words is None:
                skipped += 1
                continue
            aligned += 1
            for name, query_word, key_word in relations(parses[number]):
                if words[query_word] and words[key_word]:
                    query = positions[words[query_word][-1]]
                    targets = {positions[subword] for subword in words[key_word]}
                    counts.add(name, (row, query), targets, keys)
    if not aligned:
        raise UserError(f"none of the {len(parses)} parses matches the text of its sentence in {split}")
    heads = {}
    for layer_id, layer in layers.items():
        for head in range(layer.weights.size(1)):
            heads[head_name(layer_id, head)] = counts.results(layer_id, head)
    return {"heads": heads, "sentences": aligned, "skipped": skipped}


#: (sentence, position) of a query → the key that each head points to
Keys = Mapping[Tuple[int, int], Sequence[int]]


def _keys_by_query(maps: AttentionMaps) -> Keys:
    _, keys, positions = argmax_keys(maps)
    return dict(zip(map(tuple, positions.tolist()), keys.tolist(), strict=True))


class _Counts:
    """Counts of relations, of their offsets, and of the heads that follow them."""

    def __init__(self) -> None:
        self.instances: Counter = Counter()
        self.hits: Counter = Counter()  # (relation, layer_id, head) → instances
        self.offsets: Dict[str, Counter] = {}

    def add(self, name: str, query: Tuple[int, int], targets: Set[int], keys: Mapping[str, Keys]) -> None:
        """Count an instance with a query (sentence, position) and the positions of the target word."""
        self.instances[name] += 1
        self.offsets.setdefault(name, Counter()).update(target - query[1] for target in targets)
        for layer_id, layer_keys in keys.items():
            head_keys = layer_keys.get(query, ())  # none if all weight is on </s>
            self.hits.update((name, layer_id, head) for head, key in enumerate(head_keys) if key in targets)

    def results(self, layer_id: str, head: int) -> Dict[str, Dict[str, Any]]:
        """Relation → ``accuracy``, ``baseline`` and its ``offset``, ``instances``, and ``syntactic``."""
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
                "syntactic": instances >= MIN_INSTANCES and accuracy >= MARGIN * baseline,
            }
        return results

"""What heads do, told from where they look (Voita et al. 2019, https://arxiv.org/abs/1905.09418, section 3).

All numbers are means over queries that are words, the decoder hooked the reference; </s> counts neither as a query nor
as a key. A head *points to* the word with its largest weight.

confidence   the largest weight
positional   points to one fixed offset (the most frequent one), of all queries that have a word at that offset
rare         points to the sentence's least frequent word, of all sentences whose least frequent word is not among the
             500 most frequent of the dictionary (encoder only)
"""

from collections import Counter
from typing import Any, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import head_name, in_model
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, batches

from .relevance import relevance
from .syntax import read_conllu, syntax
from .attention_hooks import AttentionMaps, attention, argmax_keys

#: from these shares on a head is called positional, as in the paper, or a head for rare words (one of theirs has 0.66)
POSITIONAL, RARE = 0.9, 0.5
COMMON = 500


class _Sums:
    """Of the H heads of one layer.

    Args:
        site: ``encoder``, ``cross`` or ``decoder``.
    """

    def __init__(self, heads: int, site: str) -> None:
        self.site, self.queries, self.rare_queries = site, 0, 0
        self.confidence, self.rare = (torch.zeros(heads, dtype=torch.float64) for _ in range(2))
        self.offsets: List[Counter] = [Counter() for _ in range(heads)]
        self.possible: Counter = Counter()

    def add(self, seen: AttentionMaps, frequency: Tensor) -> None:
        """Count a batch."""
        weights, keys, places = argmax_keys(seen)
        self.queries += len(places)
        self.confidence += weights.double().sum(0).cpu()
        if self.site != "cross":
            for offsets, distances in zip(self.offsets, (keys - places[:, 1:]).T.tolist(), strict=True):
                offsets.update(distances)
            words = [row.nonzero().flatten().tolist() for row in seen.keys]
            for row, step in places.tolist():
                self.possible.update(key - step for key in words[row] if self.site == "encoder" or key <= step)
        if self.site == "encoder":
            rarest, where = frequency[seen.tokens].masked_fill(~seen.keys, -1).max(dim=1)
            rows = places[:, 0]
            counted = rarest[rows] >= COMMON
            self.rare_queries += int(counted.sum())
            # the same word may stand in the sentence more than once
            hits = seen.tokens[rows[:, None], keys] == seen.tokens[rows, where[rows]][:, None]
            self.rare += hits[counted].sum(0).double().cpu()

    def result(self, head: int) -> Dict[str, Any]:
        """The numbers of one head."""
        found: Dict[str, Any] = {"confidence": float(self.confidence[head]) / max(1, self.queries)}
        if self.site != "cross":
            counts = self.offsets[head].items()
            offset, hits = max(counts, key=lambda pair: (pair[1], -abs(pair[0])), default=(0, 0))
            found.update(offset=offset, positional=hits / max(1, self.possible[offset]))
        if self.site == "encoder":
            found["rare"] = float(self.rare[head]) / self.rare_queries if self.rare_queries else None
        return found


def roles(trained: TrainedModel, split: str, **text: Any) -> Dict[str, Dict[str, Any]]:
    """Head → ``confidence``; ``offset`` and ``positional``, its share (encoder and decoder); ``rare`` (encoder).

    ``split``, ``text``: of :func:`collab_fairseq.translation.batches`.
    """
    frequency = frequencies(trained)
    layers = attention_layers(trained.model)
    sums = {place: _Sums(layer.num_heads, place.split(".")[0]) for place, layer in layers.items()}
    for sample in batches(trained, split, **text):
        for place, seen in attention(trained, sample).items():
            sums[place].add(seen, frequency)
    return {head_name(place, h): total.result(h) for place, total in sums.items() for h in range(len(total.rare))}


def frequencies(trained: TrainedModel) -> Tensor:
    """Rank of every source type by its count in the dictionary, 0 for the most frequent word; special symbols last."""
    dictionary = trained.task.source_dictionary
    counts = torch.tensor(dictionary.count, dtype=torch.int64)
    counts[: dictionary.nspecial] = -1
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    return ranks.to(trained.device)


def role_of(found: Mapping[str, Any]) -> str:
    """The roles of a head in words, from its numbers (those of :mod:`.syntax` under ``syntax``); ``–`` for none."""
    names: List[str] = []
    if found.get("positional", 0.0) >= POSITIONAL:
        names.append(f"position {found['offset']:+d}")
    if (found.get("rare") or 0.0) >= RARE:
        names.append("rare words")
    names += [name for name, relation in found.get("syntax", {}).items() if relation["syntactic"]]
    return ", ".join(names) or "–"


def measure(
    trained: TrainedModel,
    split: str,
    record: Record,
    *,
    parses: Optional[PathLike] = None,
    relevance_sentences: int = 100,
    max_tokens: int = 4000,
    sentences: Optional[int] = None,
) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers; fills the record with ``looks``, ``syntax`` and ``relevance``.

    Args:
        parses: CoNLL-U of the first sentences; None: no syntax. relevance_sentences: 0: no relevance.
    """
    looks = record.part("looks", lambda: roles(trained, split, max_tokens=max_tokens, sentences=sentences))
    found: Dict[str, Dict[str, Any]] = {head: dict(numbers) for head, numbers in looks.items()}
    if parses:
        record.part("syntax", lambda: syntax(trained, split, read_conllu(parses), max_tokens=max_tokens))
    if relevance_sentences:
        options: Dict[str, Any] = {"sentences": relevance_sentences, "max_tokens": min(1000, max_tokens)}
        record.part("relevance", lambda: relevance(trained, split, **options))
    for name in ("syntax", "relevance"):
        for head, value in record.parts.get(name, {}).get("heads", {}).items():
            found[head][name] = value
    return found


def rows(found: Mapping[str, Mapping[str, Any]], importance: Mapping[str, float]) -> List[List[str]]:
    """A row for each head below a header; ``importance``: head → normalised importance, as far as it is known."""
    table = [["head", "confidence", "offset", "rare words", "relevance", "importance", "role"]]
    for head in sorted(found, key=in_model):
        numbers = found[head]
        offset = f"{numbers['offset']:+d} ({numbers['positional']:.0%})" if "offset" in numbers else ""
        cells = [numbers.get("rare"), numbers.get("relevance"), importance.get(head)]
        shown = [f"{value:.3f}" if value is not None else "" for value in cells]
        table.append([head, f"{numbers['confidence']:.3f}", offset, *shown, role_of(numbers)])
    return table

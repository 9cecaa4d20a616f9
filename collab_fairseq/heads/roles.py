"""What heads do, told from where they look (Voita et al. 2019, https://arxiv.org/abs/1905.09418, section 3).

All numbers are means over queries that are words, the decoder reading the reference; </s> counts neither as a query nor
as a key. A head *points to* the word with its largest weight.

confidence   the largest weight
positional   points to one fixed offset (the most frequent one), of all queries that have a word at that offset
rare         points to the sentence's least frequent word, of all sentences whose least frequent word is not among the
             500 most frequent of the dictionary (encoder only)
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from collab_fairseq.attention import KeyValue
from collab_fairseq.modules.heads import head_name
from collab_fairseq.translation import TrainedModel, batches

from .taps import Attended, Read, layers_of, reading

#: from these shares on a head is called positional, as in the paper, or a head for rare words (one of theirs has 0.66)
POSITIONAL, RARE = 0.9, 0.5
COMMON = 500
#: site → which tokens its queries and its keys stand for: of the source, what the decoder reads, and what it predicts
SIDES = {"encoder": ("source", "source"), "cross": ("target", "source"), "decoder": ("input", "input")}


class Seen(NamedTuple):
    """What the heads of a layer look at in N sentences of T queries and S keys.

    Attributes:
        weights: (N, H, T, S). queries: (N, T), True where the query counts. keys: (N, S), True where the key counts.
        tokens: (N, S), of the keys.
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: Tensor


@torch.no_grad()
def attention(trained: TrainedModel, sample: Mapping[str, Any]) -> Dict[str, Seen]:
    """Place → what its heads look at in a batch."""
    found: Dict[str, Tensor] = {}

    def keep(
        place: str, read: Read, query: Tensor, entry: KeyValue, mask: Optional[Tensor], dropout: float, weights: bool
    ) -> Attended:
        context, kept = read(query, entry, mask, dropout, True)
        assert kept is not None
        found[place] = kept
        return context, kept

    with reading(layers_of(trained), keep):
        trained.model(**sample["net_input"])
    dictionary = trained.task.target_dictionary  # both dictionaries have these symbols at the same places
    inputs = sample["net_input"]
    sides = {"source": inputs["src_tokens"], "input": inputs["prev_output_tokens"], "target": sample["target"]}
    words = {name: tokens.ne(dictionary.pad()) & tokens.ne(dictionary.eos()) for name, tokens in sides.items()}
    seen = {}
    for place, weights in found.items():
        queries, keys = SIDES[place.split(".")[0]]
        seen[place] = Seen(weights, words[queries], words[keys], sides[keys])
    return seen


def pointed(seen: Seen) -> Tuple[Tensor, Tensor, Tensor]:
    """The largest weight of every query that counts and sees a key that counts, and the key that it is on.

    Returns:
        weights (n, H), keys (n, H), and (n, 2) sentence and position of the n queries.
    """
    hidden = ~seen.keys[:, None, None, :].expand_as(seen.weights)
    # the first query of a decoder sees </s> alone
    largest, keys = seen.weights.masked_fill(hidden, -1.0).max(dim=-1)
    counted = seen.queries & (seen.weights.masked_fill(hidden, 0.0).sum(dim=(1, 3)) > 0)
    places = counted.nonzero()
    rows, steps = places.unbind(1)
    return largest.clamp_min(0.0)[rows, :, steps], keys[rows, :, steps], places


@dataclass
class _Sums:
    """Of one layer."""

    heads: int
    queries: int = 0
    confidence: Any = 0.0
    offsets: List[Counter] = field(default_factory=list)
    possible: Counter = field(default_factory=Counter)
    rare: Any = 0.0
    rare_queries: int = 0

    def __post_init__(self) -> None:
        self.offsets = [Counter() for _ in range(self.heads)]


def roles(
    trained: TrainedModel, split: str, *, max_tokens: int = 4000, sentences: Optional[int] = None
) -> Dict[str, Dict[str, Any]]:
    """Head → ``confidence``; ``offset`` and ``positional``, its share (encoder and decoder); ``rare`` (encoder).

    For the arguments see :func:`collab_fairseq.translation.batches`.
    """
    frequency = frequencies(trained)
    sums: Dict[str, _Sums] = {}
    for sample in batches(trained, split, max_tokens=max_tokens, sentences=sentences):
        for place, seen in attention(trained, sample).items():
            total = sums.setdefault(place, _Sums(seen.weights.size(1)))
            weights, keys, places = pointed(seen)
            total.queries += len(places)
            total.confidence = total.confidence + weights.double().sum(0).cpu()
            site = place.split(".")[0]
            if site != "cross":
                _count_offsets(total, keys, places, seen, causal=site == "decoder")
            if site == "encoder":
                _count_rare(total, keys, places, seen, frequency)
    found = {}
    for place, total in sums.items():
        for head in range(total.heads):
            found[head_name(place, head)] = _of_head(total, head, place.split(".")[0])
    return found


def frequencies(trained: TrainedModel) -> Tensor:
    """Rank of every source type by its count in the dictionary, 0 for the most frequent word; special symbols last."""
    dictionary = trained.task.source_dictionary
    counts = torch.tensor(dictionary.count, dtype=torch.int64)
    counts[: dictionary.nspecial] = -1
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    return ranks.to(trained.device)


def _count_offsets(total: _Sums, keys: Tensor, places: Tensor, seen: Seen, causal: bool) -> None:
    distances = (keys - places[:, 1:]).tolist()
    for head in range(total.heads):
        total.offsets[head].update(row[head] for row in distances)
    words = [row.nonzero().flatten().tolist() for row in seen.keys]
    for row, step in places.tolist():
        total.possible.update(key - step for key in words[row] if not causal or key <= step)


def _count_rare(total: _Sums, keys: Tensor, places: Tensor, seen: Seen, frequency: Tensor) -> None:
    ranks = frequency[seen.tokens].masked_fill(~seen.keys, -1)
    rarest, where = ranks.max(dim=1)
    rows = places[:, 0]
    counted = rarest[rows] >= COMMON
    total.rare_queries += int(counted.sum())
    # the same word may stand in the sentence more than once
    tokens = seen.tokens[rows[:, None], keys]
    hits = tokens == seen.tokens[rows, where[rows]][:, None]
    total.rare = total.rare + hits[counted].sum(0).double().cpu()


def _of_head(total: _Sums, head: int, site: str) -> Dict[str, Any]:
    found: Dict[str, Any] = {"confidence": float(total.confidence[head]) / max(1, total.queries)}
    if site != "cross":
        offset, hits = max(total.offsets[head].items(), key=lambda pair: (pair[1], -abs(pair[0])), default=(0, 0))
        found.update(offset=offset, positional=hits / max(1, total.possible[offset]))
    if site == "encoder":
        found["rare"] = float(total.rare[head]) / total.rare_queries if total.rare_queries else None
    return found


def role_of(found: Mapping[str, Any]) -> str:
    """The roles of a head in words, from its numbers (those of :mod:`.syntax` under ``syntax``); ``–`` for none."""
    names: List[str] = []
    if found.get("positional", 0.0) >= POSITIONAL:
        names.append(f"position {found['offset']:+d}")
    if (found.get("rare") or 0.0) >= RARE:
        names.append("rare words")
    names += [name for name, relation in found.get("syntax", {}).items() if relation["syntactic"]]
    return ", ".join(names) or "–"

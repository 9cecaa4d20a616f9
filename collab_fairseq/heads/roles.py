"""What heads do, told from where they look (Voita et al. 2019, https://arxiv.org/abs/1905.09418, section 3).

All numbers are means over queries that are words, the decoder reading the reference; </s> counts neither as a query nor
as a key. A head *points to* the word with its largest weight.

confidence   the largest weight
positional   points to one fixed offset (the most frequent one), of all queries that have a word at that offset
rare         points to the sentence's least frequent word, of all sentences whose least frequent word is not among the
             500 most frequent of the dictionary (encoder only)
"""

from collections import Counter
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor

from collab_fairseq.modules.heads import head_name
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.translation import TrainedModel, batches

from .taps import Attended, reading

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

    def keep(place: str, read: Callable[..., Attended], *given: Any) -> Attended:
        context, kept = read(*given[:-1], True)
        assert kept is not None
        found[place] = kept
        return context, kept

    with reading(attention_layers(trained.model), keep):
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

    def add(self, seen: Seen, frequency: Tensor) -> None:
        """Count a batch."""
        weights, keys, places = pointed(seen)
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

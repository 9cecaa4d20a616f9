"""What heads do, inferred from their attention (Voita et al. 2019, https://arxiv.org/abs/1905.09418, section 3).

All numbers are means over queries that are words, the decoder reading the reference; </s> counts neither as a query nor
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
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, batches

from .attention_hooks import AttentionMaps, argmax_keys, attention
from .figures import Column, draw_grids
from .relevance import relevance
from .syntax import read_conllu, syntax

#: from these shares on a head is called positional, as in the paper, or a head for rare words (one of theirs has 0.66)
POSITIONAL, RARE = 0.9, 0.5
COMMON = 500


class _Sums:
    """Of the H heads of one layer.

    Args:
        site: ``encoder``, ``cross`` or ``decoder``.
    """

    def __init__(self, heads: int, site: str) -> None:
        self.site = site
        self.queries = 0
        self.rare_queries = 0
        self.confidence = torch.zeros(heads, dtype=torch.float64)
        self.rare = torch.zeros(heads, dtype=torch.float64)
        self.offsets: List[Counter] = [Counter() for _ in range(heads)]
        self.possible: Counter = Counter()

    def add(self, maps: AttentionMaps, frequency: Tensor) -> None:
        """Count a batch."""
        weights, keys, positions = argmax_keys(maps)
        self.queries += len(positions)
        self.confidence += weights.double().sum(0).cpu()
        if self.site != "cross":
            self._add_offsets(maps, keys, positions)
        if self.site == "encoder":
            self._add_rare(maps, keys, positions[:, 0], frequency)

    def _add_offsets(self, maps: AttentionMaps, keys: Tensor, positions: Tensor) -> None:
        distances = keys - positions[:, 1:]
        for offsets, of_head in zip(self.offsets, distances.T.tolist(), strict=True):
            offsets.update(of_head)
        words = [row.nonzero().flatten().tolist() for row in maps.keys]
        for row, step in positions.tolist():
            self.possible.update(key - step for key in words[row] if self.site == "encoder" or key <= step)

    def _add_rare(self, maps: AttentionMaps, keys: Tensor, rows: Tensor, frequency: Tensor) -> None:
        ranks = frequency[maps.tokens].masked_fill(~maps.keys, -1)
        rarest, position = ranks.max(dim=1)
        counted = rarest[rows] >= COMMON
        self.rare_queries += int(counted.sum())
        # the same word may stand in the sentence more than once
        hits = maps.tokens[rows[:, None], keys] == maps.tokens[rows, position[rows]][:, None]
        self.rare += hits[counted].sum(0).double().cpu()

    def result(self, head: int) -> Dict[str, Any]:
        """The numbers of one head."""
        numbers: Dict[str, Any] = {"confidence": float(self.confidence[head]) / max(1, self.queries)}
        if self.site != "cross":
            counts = self.offsets[head].items()
            offset, hits = max(counts, key=lambda pair: (pair[1], -abs(pair[0])), default=(0, 0))
            numbers.update(offset=offset, positional=hits / max(1, self.possible[offset]))
        if self.site == "encoder":
            numbers["rare"] = float(self.rare[head]) / self.rare_queries if self.rare_queries else None
        return numbers


def roles(trained: TrainedModel, split: str, **text: Any) -> Dict[str, Dict[str, Any]]:
    """Head → ``confidence``; ``offset`` and ``positional``, its share (encoder and decoder); ``rare`` (encoder).

    ``split``, ``text``: of :func:`collab_fairseq.translation.batches`.
    """
    frequency = frequencies(trained)
    layers = attention_layers(trained.model)
    sums = {layer_id: _Sums(layer.num_heads, layer_id.split(".")[0]) for layer_id, layer in layers.items()}
    for sample in batches(trained, split, **text):
        for layer_id, maps in attention(trained, sample).items():
            sums[layer_id].add(maps, frequency)
    results = {}
    for layer_id, total in sums.items():
        for head in range(layers[layer_id].num_heads):
            results[head_name(layer_id, head)] = total.result(head)
    return results


def frequencies(trained: TrainedModel) -> Tensor:
    """Rank of every source vocabulary entry by its count, 0 for the most frequent word; special symbols last."""
    dictionary = trained.task.source_dictionary
    counts = torch.tensor(dictionary.count, dtype=torch.int64)
    counts[: dictionary.nspecial] = -1
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    return ranks.to(trained.device)


def role_of(numbers: Mapping[str, Any]) -> str:
    """The roles of a head in words, from its numbers (those of :mod:`.syntax` under ``syntax``); ``–`` for none."""
    names: List[str] = []
    if numbers.get("positional", 0.0) >= POSITIONAL:
        names.append(f"position {numbers['offset']:+d}")
    if (numbers.get("rare") or 0.0) >= RARE:
        names.append("rare words")
    names += [name for name, relation in numbers.get("syntax", {}).items() if relation["syntactic"]]
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
    record.part("looks", lambda: roles(trained, split, max_tokens=max_tokens, sentences=sentences))
    if parses:
        record.part("syntax", lambda: syntax(trained, split, read_conllu(parses), max_tokens=max_tokens))
    if relevance_sentences:
        options: Dict[str, Any] = {"sentences": relevance_sentences, "max_tokens": min(1000, max_tokens)}
        record.part("relevance", lambda: relevance(trained, split, **options))
    return by_head(record.parts)


def by_head(parts: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers, from the parts of a record."""
    heads = {head: dict(numbers) for head, numbers in parts["looks"].items()}
    for name in ("syntax", "relevance"):
        for head, value in parts.get(name, {}).get("heads", {}).items():
            heads[head][name] = value
    return heads


def report(parts: Mapping[str, Any], importance: Mapping[str, float]) -> str:
    """A table of all heads in Markdown, and the size of what they were measured on.

    Args:
        importance: head → normalised importance, of the heads for which it is known.
    """
    rows = [["head", "confidence", "offset", "rare words", "relevance", "importance", "role"]]
    heads = by_head(parts)
    for head in sorted(heads, key=in_model):
        numbers = heads[head]
        offset = f"{numbers['offset']:+d} ({numbers['positional']:.0%})" if "offset" in numbers else ""
        values = [numbers.get("rare"), numbers.get("relevance"), importance.get(head)]
        cells = [f"{value:.3f}" if value is not None else "" for value in values]
        rows.append([head, f"{numbers['confidence']:.3f}", offset, *cells, role_of(numbers)])
    text = pages.table(rows) + "\n"
    if "relevance" in parts:
        text += f"\nrelevance: {parts['relevance']['steps']:,} generation steps\n"
    if "syntax" in parts:
        skipped = f"{parts['syntax']['skipped']:,} skipped, whose text is another"
        text += f"\nsyntax: {parts['syntax']['sentences']:,} parsed sentences; {skipped}\n"
    return text


def draw(parts: Mapping[str, Any], path: PathLike, model: str) -> None:
    """Heat maps of the heads' confidence; ``model``: its name. Raises UserError as :func:`.drawing` does."""
    values = {head: numbers["confidence"] for head, numbers in by_head(parts).items()}
    description = (
        "Confidence: the largest attention weight, mean over the words, one seed. Higher: the head looks at one word. "
        "The table has the other numbers that roles are inferred from."
    )
    draw_grids([Column("confidence", values, 1.0)], path, f"Confidence of the heads, {model}", description)

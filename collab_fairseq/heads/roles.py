"""Roles of heads, inferred from their attention.

Voita et al. (2019), https://arxiv.org/abs/1905.09418, sections 3 and 5. All numbers are means over queries
that are words, with the reference as decoder input. </s> is neither a query nor a key. A head *points to* the word with
its largest weight.

confidence   mean of the largest weight
positional   share of queries for which the head points to the word at one fixed offset, the most frequent one, among
             the queries that have a word at this offset
rare         share of queries for which the head points to the least frequent word of the sentence, among sentences
             in which this word is not one of the 500 most frequent of the dictionary (encoder only)
"""

from collections import Counter
from typing import Any, Dict, List, Mapping, Optional

import torch
from torch import Tensor

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.head_names import head_name, model_order
from collab_fairseq.modules.sites import attention_layers
from collab_fairseq.records import pages
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, batches

from .attention_hooks import AttentionMaps, argmax_keys, attention
from .figures import SITE_TITLES, Column, Panel, draw_grids, panels_of
from .relevance import relevance
from .syntax import read_conllu, syntax

#: smallest share of a positional head, as in the paper
POSITIONAL = 0.9
#: smallest share of a head for rare words; the paper's has 0.66
RARE = 0.5
#: number of most frequent words that are never rare
COMMON = 500


class _Counts:
    """Counts for the H heads of one layer of a site."""

    def __init__(self, heads: int, site: str) -> None:
        self.site = site
        self.queries = 0
        self.confidence = torch.zeros(heads, dtype=torch.float64)
        self.offsets: List[Counter] = [Counter() for _ in range(heads)]
        self.possible: Counter = Counter()  # offset → queries with a word there
        self.rare_queries = 0
        self.rare = torch.zeros(heads, dtype=torch.float64)

    def add(self, maps: AttentionMaps, ranks: Tensor) -> None:
        """Count a batch; ``ranks``: see :func:`frequency_ranks`."""
        weights, keys, positions = argmax_keys(maps)
        self.queries += len(positions)
        self.confidence += weights.double().sum(0).cpu()
        if self.site != "cross":
            self._add_offsets(maps, keys, positions)
        if self.site == "encoder":
            self._add_rare(maps, keys, positions[:, 0], ranks)

    def _add_offsets(self, maps: AttentionMaps, keys: Tensor, positions: Tensor) -> None:
        distances = keys - positions[:, 1:]
        for offsets, head_distances in zip(self.offsets, distances.T.tolist(), strict=True):
            offsets.update(head_distances)
        words = [row.nonzero().flatten().tolist() for row in maps.keys]
        for sentence, step in positions.tolist():
            self.possible.update(key - step for key in words[sentence] if self.site == "encoder" or key <= step)

    def _add_rare(self, maps: AttentionMaps, keys: Tensor, sentences: Tensor, ranks: Tensor) -> None:
        key_ranks = ranks[maps.tokens].masked_fill(~maps.keys, -1)
        rarest, position = key_ranks.max(dim=1)
        counted = rarest[sentences] >= COMMON
        self.rare_queries += int(counted.sum())
        # compare words: the rarest word can occur more than once
        rare_words = maps.tokens[sentences, position[sentences]]
        hits = maps.tokens[sentences[:, None], keys] == rare_words[:, None]
        self.rare += hits[counted].sum(0).double().cpu()

    def result(self, head: int) -> Dict[str, Any]:
        numbers: Dict[str, Any] = {"confidence": float(self.confidence[head]) / max(1, self.queries)}
        if self.site != "cross":
            counts = self.offsets[head].items()
            offset, hits = max(counts, key=lambda pair: (pair[1], -abs(pair[0])), default=(0, 0))
            numbers.update(offset=offset, positional=hits / max(1, self.possible[offset]))
        if self.site == "encoder":
            numbers["rare"] = float(self.rare[head]) / self.rare_queries if self.rare_queries else None
        return numbers


def roles(trained: TrainedModel, split: str, **batching: Any) -> Dict[str, Dict[str, Any]]:
    """Head → ``confidence``; ``offset`` and its share ``positional`` (encoder and decoder); ``rare`` (encoder).

    For ``batching``, see :func:`collab_fairseq.translation.batches`.
    """
    ranks = frequency_ranks(trained)
    layers = attention_layers(trained.model)
    counts = {layer_id: _Counts(layer.num_heads, layer_id.split(".")[0]) for layer_id, layer in layers.items()}
    for sample in batches(trained, split, **batching):
        for layer_id, maps in attention(trained, sample).items():
            counts[layer_id].add(maps, ranks)
    results = {}
    for layer_id, layer in layers.items():
        for head in range(layer.num_heads):
            results[head_name(layer_id, head)] = counts[layer_id].result(head)
    return results


def frequency_ranks(trained: TrainedModel) -> Tensor:
    """Rank of each source vocabulary entry by frequency, from 0 for the most frequent; special symbols are last."""
    dictionary = trained.task.source_dictionary
    counts = torch.tensor(dictionary.count, dtype=torch.int64)
    counts[: dictionary.nspecial] = -1
    ranks = torch.empty_like(counts)
    ranks[counts.argsort(descending=True, stable=True)] = torch.arange(len(counts))
    return ranks.to(trained.device)


def role_of(numbers: Mapping[str, Any]) -> str:
    """Names of the roles of a head, or ``–``; its numbers may include those of :mod:`.syntax`."""
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
) -> None:
    """Add ``syntax`` to the record if there are ``parses`` (CoNLL-U), ``relevance``, and ``looks`` (:func:`roles`).

    The first two have conditions, so that errors come early.
    """
    parsed = read_conllu(parses)[:sentences] if parses else []
    if parsed:
        record.part("syntax", lambda: syntax(trained, split, parsed, max_tokens=max_tokens))
    if relevance_sentences:
        batching: Dict[str, Any] = {"sentences": relevance_sentences, "max_tokens": min(1000, max_tokens)}
        record.part("relevance", lambda: relevance(trained, split, **batching))
    record.part("looks", lambda: roles(trained, split, max_tokens=max_tokens, sentences=sentences))


def by_head(parts: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers, from the parts of a record."""
    heads = {head: dict(numbers) for head, numbers in parts["looks"].items()}
    for name in ("syntax", "relevance"):
        for head, value in parts.get(name, {}).get("heads", {}).items():
            heads[head][name] = value
    return heads


def report(parts: Mapping[str, Any], importance: Mapping[str, float]) -> str:
    """Markdown table of all heads, with their normalised importance, and the size of the text."""
    rows = [["head", "confidence", "offset", "rare words", "relevance", "importance", "role"]]
    heads = by_head(parts)
    for head in sorted(heads, key=model_order):
        numbers = heads[head]
        offset = f"{numbers['offset']:+d} ({numbers['positional']:.0%})" if "offset" in numbers else ""
        values = [numbers.get("rare"), numbers.get("relevance"), importance.get(head)]
        cells = [f"{value:.3f}" if value is not None else "" for value in values]
        rows.append([head, f"{numbers['confidence']:.3f}", offset, *cells, role_of(numbers)])
    text = pages.table(rows) + "\n"
    if "relevance" in parts:
        text += f"\nrelevance: {parts['relevance']['steps']:,} generation steps\n"
    if "syntax" in parts:
        parsed, skipped = parts["syntax"]["sentences"], parts["syntax"]["skipped"]
        text += (
            f"\nsyntax: {parsed:,} parsed sentences; {skipped:,} skipped because their text differs from the parse\n"
        )
    return text


def draw(parts: Mapping[str, Any], path: PathLike, model: str) -> None:
    """Heat maps of the shares that roles are inferred from, and of confidence; ``model``: its name, for the title.

    A frame marks a head that has the role.
    """
    heads = by_head(parts)
    shares = _share_panels(heads)
    confidence = {head: numbers["confidence"] for head, numbers in heads.items()}
    columns = [
        Column("share of the words", "share (framed: the head has the role)", shares, 1.0),
        Column("confidence", "largest attention weight, mean", panels_of(confidence), 1.0),
    ]
    description = (
        "Position: share of the words from which a head points to one fixed offset, its most frequent one. Rare words: "
        "share from which it points to the least frequent word of the sentence."
        f"{' Syntax: accuracy for its best dependency relation.' * ('syntax' in parts)} Framed: the head has this "
        f"role (positions: at least {POSITIONAL:g}, rare words: at least {RARE:g}). Confidence: the largest attention "
        "weight, mean over the words; higher: the head looks at one word. One seed."
    )
    draw_grids(columns, path, f"Roles and confidence of the heads, {model}", description)


def _share_panels(heads: Mapping[str, Mapping[str, Any]]) -> List[Panel]:
    """One panel for each site and role for which the heads have shares."""
    position = {head: numbers["positional"] for head, numbers in heads.items() if "positional" in numbers}
    rare = {head: numbers["rare"] for head, numbers in heads.items() if numbers.get("rare") is not None}
    relations = {head: numbers["syntax"].values() for head, numbers in heads.items() if numbers.get("syntax")}
    best = {head: max(relation["accuracy"] for relation in of_head) for head, of_head in relations.items()}
    syntactic = [head for head, of_head in relations.items() if any(relation["syntactic"] for relation in of_head)]
    panels = [
        *panels_of(position, [head for head, share in position.items() if share >= POSITIONAL], "position"),
        *panels_of(rare, [head for head, share in rare.items() if share >= RARE], "rare words"),
        *panels_of(best, syntactic, "syntax"),
    ]
    sites = list(SITE_TITLES.values())
    return sorted(panels, key=lambda panel: sites.index(panel.title.partition(":")[0]))

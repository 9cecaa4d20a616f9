"""All that is known of what heads do, in one record, one table and pictures of sentences."""

import logging
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from fairseq import utils

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import LETTERS, head_name, in_model
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel, TranslationError
from collab_fairseq.translation.text import dataset

from .figures import SEQUENTIAL, SITE_TITLES, Panel, draw_panels
from .relevance import relevance
from .roles import SIDES, attention, role_of, roles
from .syntax import read_conllu, syntax

logger = logging.getLogger(__name__)

#: head → units of the queries, units of the keys, weights (T, S)
Maps = Dict[str, Tuple[List[str], List[str], Any]]


def measure(
    trained: TrainedModel,
    split: str,
    record: Record,
    *,
    parses: Optional[PathLike] = None,
    relevance_sentences: int = 100,
    epsilon: float = 0.0,
    max_tokens: int = 4000,
    sentences: Optional[int] = None,
) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers; fills the record with ``looks``, ``syntax`` and ``relevance``.

    Args:
        parses: CoNLL-U of the first sentences; None: no syntax.
        relevance_sentences: 0: no relevance. epsilon: of its ε-rule.
    """
    looks = record.part("looks", lambda: roles(trained, split, max_tokens=max_tokens, sentences=sentences))
    found: Dict[str, Dict[str, Any]] = {head: dict(numbers) for head, numbers in looks.items()}
    if parses:
        record.part("syntax", lambda: syntax(trained, split, read_conllu(parses), max_tokens=max_tokens))
    if relevance_sentences:
        options: Dict[str, Any] = {"sentences": relevance_sentences, "max_tokens": min(1000, max_tokens)}
        record.part("relevance", lambda: relevance(trained, split, epsilon=epsilon, **options))
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


def sentence_maps(trained: TrainedModel, split: str, number: int) -> Maps:
    """The attention of all heads for sentence ``number`` (from 0).

    Raises:
        TranslationError: there is no such sentence.
    """
    data = dataset(trained, split)
    if not 0 <= number < len(data):
        raise TranslationError(f"{split} has sentences 0 to {len(data) - 1}, but not {number}")
    sample = utils.apply_to_sample(lambda tensor: tensor.to(trained.device), data.collater([data[number]]))
    source, target, inputs = trained.task.source_dictionary, trained.task.target_dictionary, sample["net_input"]
    units = {
        "source": [source[token] for token in inputs["src_tokens"][0].tolist()],
        "input": [target[token] for token in inputs["prev_output_tokens"][0].tolist()],
        "target": [target[token] for token in sample["target"][0].tolist()],
    }
    found = {}
    for place, seen in attention(trained, sample).items():
        queries, keys = (units[side] for side in SIDES[place.split(".")[0]])
        found.update({head_name(place, h): (queries, keys, one) for h, one in enumerate(seen.weights[0].cpu())})
    return {name: found[name] for name in sorted(found, key=in_model)}


def draw_maps(maps: Maps, number: int, folder: PathLike) -> None:
    """``attention-NUMBER-SITE.svg`` for every site, a row for each layer. Raises PlotError as :func:`.drawing` does."""
    for letter, site in LETTERS.items():
        lines: Dict[str, List[Panel]] = {}
        for name, (queries, keys, weights) in maps.items():
            if name.startswith(letter):
                own = lines.setdefault(name.split(":")[1], [])
                own.append(Panel(name, weights.tolist(), rows=[] if own else queries, columns=keys))
        *above, last = lines.values()
        panels = [*([panel._replace(columns=[]) for panel in line] for line in above), last]
        path = os.path.join(folder, f"attention-{number}-{site}.svg")
        draw_panels(panels, path, limits=(0.0, 1.0), colours=SEQUENTIAL, cell=0.13, title=SITE_TITLES[site])
        logger.info("drew %s", path)

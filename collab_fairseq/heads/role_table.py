"""All that is known of what heads do, in one record and one table: looks, syntax, relevance, importance."""

from typing import Any, Callable, Dict, List, Mapping, Optional

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.heads import in_model
from collab_fairseq.records.record import Record
from collab_fairseq.translation import TrainedModel

from .relevance import relevance
from .roles import role_of, roles
from .syntax import read_conllu, syntax


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
    progress: Optional[Callable[[int], None]] = None,
) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers; fills the record with ``looks``, ``syntax`` and ``relevance``.

    Args:
        parses: CoNLL-U of the first sentences; None: no syntax.
        relevance_sentences: 0: no relevance. epsilon: of its ε-rule.
        progress: called with the number of sentences whose relevance is known.
    """
    record.part("looks", lambda: roles(trained, split, max_tokens=max_tokens, sentences=sentences))
    if parses:
        record.part("syntax", lambda: syntax(trained, split, read_conllu(parses), max_tokens=max_tokens)._asdict())
    if relevance_sentences:
        record.part("relevance", lambda: relevance(
            trained, split, epsilon=epsilon, sentences=relevance_sentences, max_tokens=min(1000, max_tokens),
            progress=progress,
        )._asdict())  # fmt: skip
    return gathered(record.parts)


def gathered(parts: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Head → all its numbers, of what :func:`measure` has recorded."""
    found: Dict[str, Dict[str, Any]] = {head: dict(numbers) for head, numbers in parts["looks"].items()}
    for name in ("syntax", "relevance"):
        for head, value in parts.get(name, {}).get("heads", {}).items():
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

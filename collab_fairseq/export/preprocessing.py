"""What a source dictionary reveals about the preprocessing of the training text."""

import logging
from typing import Any, Dict, Sequence

from collab_fairseq.scoring.text import HYPHENS

logger = logging.getLogger(__name__)

#: characters that Moses escapes; SentencePiece splits `&apos;` between its letters and the rest
_RAW, _ESCAPED, _PARTS = ("'", '"'), ("&apos;", "&quot;"), ("apos", "quot")
#: a dictionary with at least this many units with letters has capitals, unless the text was lower-cased
_MIN_LETTERS = 100


def infer(
    dictionary: Any, moses: bool, lowercase: bool, moses_no_dash_splits: bool, moses_no_escape: bool
) -> Dict[str, Any]:
    """The fields of a card that describe the preprocessing.

    Args:
        dictionary: fairseq's dictionary of the source.
        moses, lowercase, moses_no_dash_splits, moses_no_escape: as given by the user. False: whether the text was
            tokenised with Moses is never inferred, all others are. If the dictionary does not reveal them, Moses has
            fairseq's defaults, and the text was not lower-cased.
    """
    counts = dict(zip(dictionary.symbols, dictionary.count, strict=True))
    for symbol in dictionary.symbols[: dictionary.nspecial]:
        del counts[symbol]
    marks = [mark for mark in HYPHENS if any(mark in unit for unit in counts)]
    escaped = sum(n for unit, n in counts.items() if _has(unit, _ESCAPED) or unit.lstrip("▁") in _PARTS)
    letters = [unit for unit in counts if unit.lower() != unit.upper() and not unit.startswith("madeupword")]
    moses = moses or moses_no_dash_splits or moses_no_escape
    if len(letters) >= _MIN_LETTERS and all(unit == unit.lower() for unit in letters):
        lowercase = True
    if not moses:
        if marks or escaped:
            sign = f"the mark {marks[-1]}" if marks else "escapes such as &apos;"
            logger.warning("the source dictionary has %s of Moses, but --moses was not given", sign)
        return {"moses": False, "lowercase": lowercase}
    raw = sum(n for unit, n in counts.items() if _has(unit, _RAW))
    return {
        "moses": True,
        "lowercase": lowercase,
        "moses_no_dash_splits": moses_no_dash_splits or (not marks and any("-" in unit for unit in counts)),
        "moses_no_escape": moses_no_escape or raw > escaped,
        "hyphen": marks[-1] if marks else HYPHENS[0],
        "lowercase_last": lowercase,
    }


def _has(unit: str, parts: Sequence[str]) -> bool:
    return any(part in unit for part in parts)

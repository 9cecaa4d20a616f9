"""What the record of a training holds, in the envelope of record.py, and the check that it does."""

import re
from typing import Any, Dict

from collab_fairseq.records.record import RecordError, refuse_paths

_NULL = type(None)
_NUMBER = (int, float, _NULL)
_SHA256 = re.compile(r"[0-9a-f]{64}")

#: what `collab score --json` writes of a test set
_SCORES: Dict[str, Any] = {
    "scores": [{"metric": str, "score": (int, float), "*": object}],
    # of sacreBLEU, for the paired bootstrap; the first records lack it. One row per sentence, separated by `; `: length
    # of the hypothesis, of the reference, and the matched 1- to 4-grams; n tokens have max(0, n + 1 - k) k-grams
    "sentence_statistics?": {
        "metric": str,
        "references_sha256": _SHA256,  # of the references, one per line
        "rows": re.compile(r"(\d+( \d+){5})(; \d+( \d+){5})*"),
    },
    "*": object,
}
#: field → its type, or a pattern for texts, or [what each item is], or {name: what}; a `name?` may be absent or null,
#: and `*` stands for any name. Files are named without their folders
TRAINING: Dict[str, Any] = {
    "hardware": dict.fromkeys(("cpu", "cores", "memory_bytes", "gpus", "threads", "device"), object),
    "settings": {
        "seed": (int, _NULL),
        # model, optimization, optimizer, lr_scheduler, criterion and dataset settings of the checkpoint, and those of
        # common that say in which precision it was trained
        "config": (dict, _NULL),
        "data": {"*": _SHA256},  # of the prepared corpus, by file
        "averaged_from": (list, _NULL),  # [{file, sha256, num_updates}]
        "published?": str,  # only where others measured it: where it stands, such as "Cordonnier et al. 2020, Table 3"
    },
    "parts": {
        "parameters": (int, _NULL),  # of the model, shared ones once
        "training": {
            **dict.fromkeys(("updates", "wall_seconds", "train_seconds", "words_per_second"), _NUMBER),
            **dict.fromkeys(("peak_memory_bytes", "peak_gpu_bytes"), _NUMBER),
            "parts": list,  # [{wall_seconds, peak_memory_bytes, exit_status}]
        },
        "curves": {"*": [{"updates": int, "*": _NUMBER}]},  # train, valid and other subsets
        "scores": {"*": _SCORES},  # by test set
        # of the checkpoint in float32, by validation or test set: mean over its target tokens, base 2
        "losses?": {"*": {"loss": (int, float), "nll_loss": (int, float), "tokens": int}},
    },
}


def validate(record: Dict[str, Any]) -> None:
    """Check what a training's record holds in its envelope, and that there is no absolute path in it.

    Raises:
        RecordError: names the field, what was expected and what was found.
    """
    for field, expected in TRAINING.items():
        _check(record[field], expected, field)
    for test, scores in record["parts"]["scores"].items():
        rows = ((scores.get("sentence_statistics") or {}).get("rows", "")).count(";") + 1
        if scores.get("sentence_statistics") and rows != scores.get("sentences"):
            raise RecordError(f"parts.scores.{test}: expected {scores.get('sentences')} rows, got {rows}")
    refuse_paths(record)


def _check(value: Any, expected: Any, field: str) -> None:
    """See that ``value`` is as one of :data:`TRAINING` is described there."""
    if isinstance(expected, dict):
        _check(value, dict, field)
        missing = [name for name in expected if name[-1] not in "?*" and name not in value]
        unknown = [name for name in value if not {name, f"{name}?", "*"} & expected.keys()]
        if missing:
            raise RecordError(f"{field} must have {', '.join(missing)}, but has only {', '.join(value) or 'nothing'}")
        if unknown:
            raise RecordError(f"{field} has unknown fields: {', '.join(unknown)}")
        for name, item in value.items():
            kind = expected.get(name, expected.get(f"{name}?", expected.get("*")))
            if item is not None or f"{name}?" not in expected:
                _check(item, kind, f"{field}.{name}")
    elif isinstance(expected, list):
        _check(value, list, field)
        for item in value:
            _check(item, expected[0], field)
    elif isinstance(expected, re.Pattern):
        if not expected.fullmatch(str(value)):
            raise RecordError(f"{field} must be of the form {expected.pattern}, got {str(value)[:40]!r}")
    # to Python a bool is an int; no field of a number is meant to be one
    elif not isinstance(value, expected) or (isinstance(value, bool) and expected is not object):
        kinds = expected if isinstance(expected, tuple) else (expected,)
        names = " or ".join("null" if kind is _NULL else kind.__name__ for kind in kinds)
        raise RecordError(f"{field} must be {names}, got {type(value).__name__}")

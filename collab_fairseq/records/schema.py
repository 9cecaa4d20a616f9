"""What the record of a training holds, and the check that it does.

In the envelope of record.py; what a run does not have is null:

    name              of the run, unique within a results folder
    settings
      seed            integer
      config          model, optimization, optimizer, lr_scheduler, criterion and dataset settings of the checkpoint
      data            {file: sha256}, of the prepared corpus
      averaged_from   [{file, sha256, num_updates}]
      published       only where others measured it: where it stands, such as "Cordonnier et al. 2020, Table 3"
    parts
      parameters      number of the model's parameters, shared ones once
      training        {updates, wall_seconds, train_seconds, words_per_second, peak_memory_bytes, peak_gpu_bytes,
                       parts: [{wall_seconds, peak_memory_bytes, exit_status}]}
      curves          {train: [{updates, loss, ...}], valid: [...]}
      scores          {test set: what `collab score --json` wrote}

What `collab score --json` writes has the number of `sentences`, the `scores`, a list of {metric, score, signature,
...}, and `sentence_statistics` for the paired bootstrap, which the first records lack:

    metric              "sacreBLEU"
    references_sha256   of the references, one per line
    rows                one row per sentence, separated by `; `: length of the hypothesis, of the reference, and the
                        matched 1- to 4-grams; a hypothesis of n tokens has max(0, n + 1 - k) k-grams

Files are named without their folders.
"""

import re
from typing import Any, Dict

from collab_fairseq.records.record import SCHEMA, RecordError, refuse_paths

_SETTINGS: Dict[str, Any] = {
    "seed": (int, type(None)), "config": (dict, type(None)), "data": dict, "averaged_from": (list, type(None)),
}  # fmt: skip
_PARTS: Dict[str, Any] = {"parameters": (int, type(None)), "training": dict, "curves": dict, "scores": dict}
_ENVELOPE: Dict[str, Any] = {
    "schema": int, "kind": str, "name": str, "command": str, "created": str, "versions": dict, "commit": dict,
    "hardware": dict, "settings": dict, "parts": dict,
}  # fmt: skip
_OPTIONAL = {"published": str}
_NESTED = {
    "commit": ("id", "modified"),
    "hardware": ("cpu", "cores", "memory_bytes", "gpus", "threads", "device"),
    "training": (
        "updates", "wall_seconds", "train_seconds", "words_per_second", "peak_memory_bytes", "peak_gpu_bytes", "parts",
    ),
}  # fmt: skip
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROWS = re.compile(r"(\d+( \d+){5})(; \d+( \d+){5})*")


def upgraded(record: Any) -> Any:
    """A record of a training as it was written before all records had one envelope, in that envelope."""
    if not isinstance(record, dict) or "kind" in record or not _SETTINGS.keys() | _PARTS.keys() <= record.keys():
        return record
    own = {"settings": (*_SETTINGS, *_OPTIONAL), "parts": tuple(_PARTS)}
    moved = {place: {name: record[name] for name in names if name in record} for place, names in own.items()}
    rest = {name: value for name, value in record.items() if not any(name in names for names in own.values())}
    order = {"kind": "training", **rest, **moved}
    return {name: order[name] for name in (*_ENVELOPE, *order) if name in order}


def validate(record: Any) -> None:
    """Check a training record's fields and that it holds no absolute path.

    Raises:
        RecordError: names the field, what was expected and what was found.
    """
    if not isinstance(record, dict):
        raise RecordError(f"a record must be a JSON object, got {type(record).__name__}")
    if (record.get("schema"), record.get("kind")) != (SCHEMA, "training"):
        raise RecordError(
            f"schema and kind must be {SCHEMA} and 'training', got {record.get('schema')!r} and {record.get('kind')!r}"
        )
    _check_fields(record, _ENVELOPE)
    settings, parts = record["settings"], record["parts"]
    _check_fields(settings, _SETTINGS, "settings.", _OPTIONAL)
    _check_fields(parts, _PARTS, "parts.")
    for field, names in _NESTED.items():
        found = {**record, **parts}[field]
        absent = [name for name in names if name not in found]
        if absent:
            raise RecordError(f"{field} must have {', '.join(names)}, but has no {', '.join(absent)}")
    for name, value in parts["training"].items():
        _expect(value, list if name == "parts" else (int, float, type(None)), f"training.{name}")
    for file, digest in settings["data"].items():
        if not _SHA256.fullmatch(str(digest)):
            raise RecordError(f"data: the SHA-256 of {file} must be 64 hexadecimal digits, got {digest!r}")
    for name, points in parts["curves"].items():
        for point in points:
            if "updates" not in point:
                raise RecordError(f"curves.{name}: every point needs updates, got {point}")
    for test, scores in parts["scores"].items():
        _check_scores(scores, f"scores.{test}")
    refuse_paths(record)


def _check_fields(found: Dict[str, Any], types: Dict[str, Any], where: str = "", optional: Any = ()) -> None:
    missing, unknown = types.keys() - found.keys(), found.keys() - types.keys() - {*optional}
    if missing or unknown:
        names = [sorted(where + name for name in some) or "none" for some in (missing, unknown)]
        raise RecordError(f"fields missing: {names[0]}, fields unknown: {names[1]}")
    for name, kind in {**types, **dict(optional)}.items():
        if name in found:
            _expect(found[name], kind, where + name)


def _expect(value: Any, kind: Any, field: str) -> None:
    # to Python a bool is an int; no field of a record is meant to be one
    if isinstance(value, kind) and not isinstance(value, bool):
        return
    kinds = kind if isinstance(kind, tuple) else (kind,)
    expected = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
    raise RecordError(f"{field} must be {expected}, got {type(value).__name__}")


def _check_scores(scores: Any, field: str) -> None:
    _expect(scores, dict, field)
    _expect(scores.get("scores"), list, f"{field}.scores")
    for score in scores["scores"]:
        _expect(score, dict, f"{field}.scores")
        _expect(score.get("metric"), str, f"{field}.scores: metric")
        _expect(score.get("score"), (int, float), f"{field}.scores: score")
    statistics = scores.get("sentence_statistics")
    if statistics is None:  # the first records, and text that has no sacreBLEU
        return
    _expect(statistics, dict, f"{field}.sentence_statistics")
    if not _SHA256.fullmatch(str(statistics.get("references_sha256"))):
        raise RecordError(
            f"{field}.sentence_statistics: references_sha256 must be 64 hexadecimal digits, "
            f"got {statistics.get('references_sha256')!r}"
        )
    rows = str(statistics.get("rows"))
    if not _ROWS.fullmatch(rows):
        raise RecordError(
            f"{field}.sentence_statistics: rows must be six whole numbers per sentence separated by '; ', "
            f"got {rows[:40]!r}"
        )
    if rows.count(";") + 1 != scores.get("sentences"):
        raise RecordError(
            f"{field}.sentence_statistics: expected {scores.get('sentences')} rows, got {rows.count(';') + 1}"
        )

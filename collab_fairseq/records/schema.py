"""The fields of a record, and the check that a record has them.

Fields (schema 1); what a run does not have is null:

    schema            1
    name              of the run, unique within a results folder
    command           as typed, without this machine's paths
    seed              integer
    config            model, optimization, optimizer, lr_scheduler, criterion and dataset settings of the checkpoint
    parameters        number of the model's parameters, shared ones once
    data              {file: sha256}, of the prepared corpus
    versions          {package: version} of Python and the packages
    commit            {id, modified}
    hardware          {cpu, cores, memory_bytes, gpus: [{name, memory_bytes}], threads, device: "cpu" or "gpu"}
    training          {updates, wall_seconds, train_seconds, words_per_second, peak_memory_bytes, peak_gpu_bytes,
                       parts: [{wall_seconds, peak_memory_bytes, exit_status}]}
    curves            {train: [{updates, loss, ...}], valid: [...]}
    averaged_from     [{file, sha256, num_updates}]
    scores            {test set: what `collab score --json` wrote}
    created           date and time, UTC
    published         only where others measured it: where it stands, such as "Cordonnier et al. 2020, Table 3"

What `collab score --json` writes has the number of `sentences`, the `scores`, a list of {metric, score, signature,
...}, and `sentence_statistics` for the paired bootstrap, which the first records lack:

    metric              "sacreBLEU"
    references_sha256   of the references, one per line
    rows                one row per sentence, separated by `; `: length of the hypothesis, of the reference, and the
                        matched 1- to 4-grams; a hypothesis of n tokens has max(0, n + 1 - k) k-grams

Files are named without their folders.
"""

import os
import re
from typing import Any, Dict

SCHEMA = 1

_TYPES: Dict[str, Any] = {
    "schema": int, "name": str, "command": str, "seed": (int, type(None)), "config": (dict, type(None)),
    "parameters": (int, type(None)), "data": dict, "versions": dict, "commit": dict, "hardware": dict, "training": dict,
    "curves": dict, "averaged_from": (list, type(None)), "scores": dict, "created": str,
}  # fmt: skip
_OPTIONAL = {"published": str}
_NESTED = {
    "commit": ("id", "modified"),
    "hardware": ("cpu", "cores", "memory_bytes", "gpus", "threads", "device"),
    "training": (
        "updates", "wall_seconds", "train_seconds", "words_per_second", "peak_memory_bytes", "peak_gpu_bytes", "parts",
    ),
    "curves": (),
}  # fmt: skip
_SHA256 = re.compile(r"[0-9a-f]{64}")
_ROWS = re.compile(r"(\d+( \d+){5})(; \d+( \d+){5})*")

# a slash at the start of a word, and something after it
_PATH = re.compile(r"(?:^|(?<=[\s='\":,\[(]))~?/[\w.-][^\s'\",\])]*")


class RecordError(ValueError):
    """A record, or what it is made from, is not as it must be."""

    user_error = True


def validate(record: Any) -> None:
    """Check a record's fields and that it holds no absolute path.

    Raises:
        RecordError: names the field, what was expected and what was found.
    """
    if not isinstance(record, dict):
        raise RecordError(f"a record must be a JSON object, got {type(record).__name__}")
    if record.get("schema") != SCHEMA:
        raise RecordError(f"schema must be {SCHEMA}, got {record.get('schema')!r}")
    missing, unknown = _TYPES.keys() - record.keys(), record.keys() - _TYPES.keys() - _OPTIONAL.keys()
    if missing or unknown:
        raise RecordError(f"fields missing: {sorted(missing) or 'none'}, fields unknown: {sorted(unknown) or 'none'}")
    for field, kind in {**_TYPES, **_OPTIONAL}.items():
        if field in record:
            _expect(record[field], kind, field)
    for field, names in _NESTED.items():
        absent = [name for name in names if name not in record[field]]
        if absent:
            raise RecordError(f"{field} must have {', '.join(names)}, but has no {', '.join(absent)}")
    for name, value in record["training"].items():
        _expect(value, list if name == "parts" else (int, float, type(None)), f"training.{name}")
    for file, digest in record["data"].items():
        if not _SHA256.fullmatch(str(digest)):
            raise RecordError(f"data: the SHA-256 of {file} must be 64 hexadecimal digits, got {digest!r}")
    for name, points in record["curves"].items():
        for point in points:
            if "updates" not in point:
                raise RecordError(f"curves.{name}: every point needs updates, got {point}")
    for test, scores in record["scores"].items():
        _check_scores(scores, f"scores.{test}")
    _no_paths(record, "")


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


def _no_paths(value: Any, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _no_paths(key, f"{where}.{key}")
            _no_paths(item, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            _no_paths(item, where)
    elif isinstance(value, str) and _PATH.search(value):
        raise RecordError(f"{where.lstrip('.')} holds a path of this machine: {value!r}")


def without_paths(text: str) -> str:
    """Replace each absolute path by its last component after `.../`."""
    return _PATH.sub(lambda match: ".../" + os.path.basename(match.group().rstrip("/")), text)

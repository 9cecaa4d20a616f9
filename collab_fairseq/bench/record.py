"""Records of benchmarks: one JSON per run of ``collab bench``, from which tables and figures are made.

Fields (schema 1):

    schema, kind   1, "bench"
    name           layer, decode or train
    command        as typed, without this machine's paths
    created        date and time, UTC
    versions, commit, hardware   as in the records of trainings; hardware.device is "cpu" or "gpu", .threads a number
    dtype, seed, quick, clock    of the run; clock is "wall", or "processor" for processor time
    peaks          {copy: bytes per second, matmul: operations per second}, measured in the run
    rows           [{id, title, unit: "s" or "bytes", values, ratios: {contestant: {median, q1, q3, rounds}},
                   limits: {contestant: seconds}}]; ratios are of "ours" to the others
    goals          [{row, text, to, limit, headline, device, baseline, measured, q1, q3, met}]
    profile        [{row, contestant, operators: [{name, calls, seconds, share}]}], empty without --profile
"""

import json
import os
from dataclasses import asdict
from typing import Any, Dict, List, Optional, Sequence

from collab_fairseq.reporting import environment
from collab_fairseq.reporting.files import PathLike
from collab_fairseq.reporting.schema import RecordError, without_paths

from .cases import Options, Row
from .goals import judge
from .roofline import Peaks

SCHEMA = 1
_TYPES: Dict[str, Any] = {
    "schema": int, "kind": str, "name": str, "command": str, "created": str, "versions": dict, "commit": dict,
    "hardware": dict, "dtype": str, "clock": str, "seed": int, "quick": bool, "peaks": dict,
    "rows": list, "goals": list, "profile": list,
}  # fmt: skip
_ROW: Dict[str, Any] = {"id": str, "title": str, "unit": str, "values": dict, "ratios": dict, "limits": dict}
_SPREAD: Dict[str, Any] = {"median": (int, float), "q1": (int, float), "q3": (int, float), "rounds": int}
_GOAL: Dict[str, Any] = {
    "row": str, "text": str, "to": list, "limit": (int, float), "headline": bool, "device": str, "baseline": str,
    "measured": (int, float), "q1": (int, float), "q3": (int, float), "met": bool,
}  # fmt: skip


def make(
    name: str,
    command: str,
    options: Options,
    threads: int,
    rows: Sequence[Row],
    peaks: Peaks,
    profile: Optional[List[Dict[str, Any]]] = None,
) -> Dict[str, Any]:
    """A valid record of what was measured."""
    record = {
        "schema": SCHEMA,
        "kind": "bench",
        "name": name,
        "command": without_paths(command),
        **environment.circumstances(
            os.path.dirname(os.path.abspath(__file__)),
            device="gpu" if options.device.type == "cuda" else "cpu",
            threads=threads,
        ),
        "dtype": str(options.dtype).removeprefix("torch."),
        "clock": options.clock,
        "seed": options.seed,
        "quick": options.quick,
        "peaks": asdict(peaks),
        "rows": [asdict(row) for row in rows],
        "goals": judge(rows, options.device.type, options.dtype),
        "profile": profile or [],
    }
    validate(record, "the record")
    return record


def validate(record: Any, where: str) -> None:
    """Check the fields of a record.

    Raises:
        RecordError: names the file, the field, what was expected and what was found.
    """
    _fields(record, _TYPES, where)
    if record["schema"] != SCHEMA or record["kind"] != "bench":
        raise RecordError(
            f"{where} must have schema {SCHEMA} and kind bench, got {record['schema']!r} and {record['kind']!r}"
        )
    for number, row in enumerate(record["rows"]):
        place = f"{where}: rows[{number}]"
        _fields(row, _ROW, place)
        for part in ("values", "ratios"):
            for contestant, spread in row[part].items():
                _fields(spread, _SPREAD, f"{place}.{part}.{contestant}")
    for number, goal in enumerate(record["goals"]):
        _fields(goal, _GOAL, f"{where}: goals[{number}]")
        if goal["met"] != (goal["measured"] <= goal["limit"]):
            raise RecordError(f"{where}: goals[{number}].met contradicts measured {goal['measured']}")


def _fields(value: Any, types: Dict[str, Any], where: str) -> None:
    if not isinstance(value, dict):
        raise RecordError(f"{where} must be a JSON object, got {type(value).__name__}")
    missing, unknown = types.keys() - value.keys(), value.keys() - types.keys()
    if missing or unknown:
        raise RecordError(f"{where}: fields missing: {sorted(missing) or 'none'}, unknown: {sorted(unknown) or 'none'}")
    for field, kind in types.items():
        # to Python a bool is an int
        if not isinstance(value[field], kind) or (isinstance(value[field], bool) and kind is not bool):
            raise RecordError(f"{where}.{field} has the wrong type: {type(value[field]).__name__}")


def load(path: PathLike) -> Dict[str, Any]:
    """Read and check a record.

    Raises:
        RecordError: it cannot be read or is not valid.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            record = json.load(stream)
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    validate(record, os.fspath(path))
    return record  # type: ignore[no-any-return]

"""From records to the rows of a table: which runs make a row, and what a column shows of them.

A row is a configuration; its runs differ in the seed alone.
"""

import json
import logging
import os
import statistics
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from collab_fairseq.records.files import PathLike
from collab_fairseq.records.schema import RecordError, validate

logger = logging.getLogger(__name__)

SITES = ("encoder", "cross", "decoder")
#: scores of a test set: name of the column → metric in the record
METRICS = {"tokenised": "tokenised BLEU", "compound_split": "compound-split BLEU", "sacrebleu": "sacreBLEU"}


@dataclass
class Run:
    """A valid record and the file that it came from."""

    record: Dict[str, Any]
    path: str

    @property
    def name(self) -> str:
        """The run's name, which is in its record."""
        return str(self.record["name"])


@dataclass
class Row:
    """Runs of one configuration, by seed; `key` has the values of the fields that they were grouped by."""

    key: Tuple[Any, ...]
    runs: List[Run]


def load_run(path: PathLike) -> Run:
    """Read and check a record.

    Raises:
        RecordError: the file cannot be read or is not a valid record.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            record = json.load(stream)
        validate(record)
    except RecordError as error:
        raise RecordError(f"{os.fspath(path)} is not a valid record: {error}") from error
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    return Run(record, os.fspath(path))


def model_setting(record: Dict[str, Any], name: str) -> Any:
    """A setting of the model, None where it has none."""
    return ((record["config"] or {}).get("model") or {}).get(name)


def heads(record: Dict[str, Any]) -> str:
    """In words, what kind of attention heads the model has, and whether the result is somebody else's."""
    sites = model_setting(record, "collaborative_heads")
    named = [site for site in SITES if site in (sites or "none").split("_")]
    if not named:
        kind = "standard" if sites else "standard (fairseq's transformer)"
    else:
        kind = "collaborative" if len(named) == len(SITES) else f"collaborative in {', '.join(named)}"
    return f"{kind}, as published" if "published" in record else kind


def key_dim(record: Dict[str, Any]) -> Optional[int]:
    """The key dim of all sites: the embedding width where it is not given, as in fairseq's transformer."""
    given = model_setting(record, "key_dim")
    return model_setting(record, "encoder_embed_dim") if given is None else given


def last_loss(record: Dict[str, Any]) -> Optional[float]:
    """Loss of the last validation, of the last checkpoint itself rather than the average."""
    losses = [point["loss"] for point in record["curves"].get("valid", []) if "loss" in point]
    return losses[-1] if losses else None


def peak_gib(record: Dict[str, Any]) -> Optional[float]:
    """Peak memory of the training in GiB: the GPU's where it ran on one, else the processes'."""
    training = record["training"]
    peak = training["peak_gpu_bytes" if record["hardware"]["device"] == "gpu" else "peak_memory_bytes"]
    return None if peak is None else peak / 2**30


def hours(record: Dict[str, Any]) -> Optional[float]:
    """Wall time of the training, over all its parts."""
    seconds = record["training"]["wall_seconds"]
    return None if seconds is None else seconds / 3600


#: what rows can be grouped by: header and value
KEYS: Dict[str, Tuple[str, Callable[[Dict[str, Any]], Any]]] = {
    "heads": ("heads", heads),
    "key_dim": ("key dim", key_dim),
    "updates": ("updates", lambda record: record["training"]["updates"]),
}
#: what is averaged over the seeds: header, value, decimals
NUMBERS: Dict[str, Tuple[str, Callable[[Dict[str, Any]], Any], int]] = {
    "parameters": ("parameters", lambda record: record["parameters"], 0),
    "valid_loss": ("validation loss", last_loss, 3),
    "words_per_second": ("words/s", lambda record: record["training"]["words_per_second"], 0),
    "wall_time": ("training (h)", hours, 2),
    "peak_memory": ("peak memory (GiB)", peak_gib, 2),
}
#: numbers that belong to a machine, and mean nothing over different ones
OF_HARDWARE = ("words_per_second", "wall_time", "peak_memory")


def score(record: Dict[str, Any], test: str, metric: str) -> Optional[float]:
    """A score of a test set; None where the record has none."""
    for entry in record["scores"].get(test, {}).get("scores", []):
        if entry["metric"] == metric:
            return float(entry["score"])
    return None


def test_sets(rows: Sequence[Row]) -> List[str]:
    """All test sets, in order of their names."""
    return sorted({test for row in rows for run in row.runs for test in run.record["scores"]})


def lookup(record: Dict[str, Any], field: str) -> Any:
    """A field that rows are grouped by: one of `KEYS`, or a path into the record such as config.model.dropout."""
    if field in KEYS:
        return KEYS[field][1](record)
    value: Any = record
    for part in field.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else value


def hardware(record: Dict[str, Any]) -> str:
    """The machine in words."""
    about = record["hardware"]
    if about["device"] == "gpu":
        names = [str(gpu["name"]) for gpu in about["gpus"]]
        counts = {name: names.count(name) for name in names}  # keeps the order
        return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in counts.items()) or "a GPU"
    threads = about["threads"]
    return f"{about['cpu']}, " + ("threads unknown" if threads is None else f"{threads} thread{'s' * (threads != 1)}")


def make_rows(runs: Sequence[Run], group_by: Sequence[str]) -> List[Row]:
    """Group runs into rows, in an order that does not depend on theirs: standard heads first, then large numbers first.

    Raises:
        RecordError: two records have one name; or runs of a row have the same seed, or other settings that differ.
    """
    by_name: Dict[str, Run] = {}
    for run in runs:
        if run.name in by_name:
            raise RecordError(f"{by_name[run.name].path} and {run.path} are both named {run.name}")
        by_name[run.name] = run
    for field in group_by:
        if field not in KEYS and all(lookup(run.record, field) is None for run in runs):
            raise RecordError(
                f"no record has {field}; expected {', '.join(KEYS)} or a path into a record such as "
                "config.model.dropout"
            )
    groups: Dict[Tuple[Any, ...], List[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(lookup(run.record, field) for field in group_by), []).append(run)
    rows = [Row(key, sorted(group, key=_by_seed)) for key, group in groups.items()]
    for row in rows:
        _check_row(row)
    return sorted(rows, key=lambda row: [_order(value) for value in row.key])


def _by_seed(run: Run) -> Tuple[bool, int, str]:
    seed = run.record["seed"]
    return (seed is None, seed or 0, run.name)


def _order(value: Any) -> Tuple[int, float, bool, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, -value, False, "")
    # "standard" before "collaborative"
    return (1, 0.0, not str(value).startswith("standard"), str(value))


def _check_row(row: Row) -> None:
    first = row.runs[0]
    seen: Dict[Any, Run] = {}
    for run in row.runs:
        different = differences(first.record["config"], run.record["config"], "config")
        if different:
            raise RecordError(
                f"{first.name} and {run.name} would be one row, but differ in {', '.join(different[:4])}; "
                f"group by that too (--group-by ...,{different[0]})"
            )
        seed = run.record["seed"]
        if seed in seen:
            raise RecordError(
                f"{seen[seed].name} and {run.name} would be one row and have the same seed {seed}: a mean over "
                "repeated runs is none over seeds; leave one out or group by what they differ in (--group-by)"
            )
        seen[seed] = run
        if run.record["data"] != first.record["data"]:
            logger.warning("%s and %s are one row, but were trained on different data", first.name, run.name)


def differences(one: Any, other: Any, where: str) -> List[str]:
    """Paths to what differs between two configurations."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted(one.keys() | other.keys())
        return [path for key in keys for path in differences(one.get(key), other.get(key), f"{where}.{key}")]
    return [] if one == other else [where]


def mean_and_deviation(values: Sequence[float]) -> Tuple[float, Optional[float]]:
    """Mean and sample standard deviation, None for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None

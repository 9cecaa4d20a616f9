"""The page of a results folder: what was run on what, and what was not, from a list of studies and the records.

The list is YAML, one study after the other::

    - title: Multi30k, 8,000 updates, key dim 128, 64, 32, 16
      records: runs/multi30k-*-u8000.json   # glob, from the folder of the list
      count: 24                             # how many there are when the study is done (default: 1)
      device: gpu                           # only records from such a machine count (default: any)
      command: recipes/multi30k/sweep.sh --updates 8000 --seeds 1,2,3
      remark: free text                     # optional

A record is a JSON file with `hardware`, `versions` and `commit`: of a run (:mod:`.schema`), a benchmark, a study.
"""

import glob
import json
import os
from dataclasses import MISSING, dataclass, fields
from typing import Any, Dict, List, Optional, Sequence

import yaml

from collab_fairseq.reporting import pages
from collab_fairseq.reporting.files import PathLike
from collab_fairseq.reporting.rows import hardware
from collab_fairseq.reporting.schema import RecordError


@dataclass(frozen=True)
class Study:
    """One entry of the list; see the top of this file."""

    title: str
    records: str
    command: str
    count: int = 1
    device: Optional[str] = None
    remark: str = ""


def load_studies(path: PathLike) -> List[Study]:
    """Read the list of studies.

    Raises:
        RecordError: it is not YAML, or an entry has a field that is missing, unknown or of another type.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            entries = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as YAML: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RecordError(f"{os.fspath(path)} must be a list of studies, each with title, records and command")
    return [_study(entry, f"{os.fspath(path)}, study {number}") for number, entry in enumerate(entries, 1)]


def _study(entry: Dict[str, Any], where: str) -> Study:
    known = {f.name: f for f in fields(Study)}
    unknown = [str(name) for name in entry if name not in known]
    missing = [name for name, f in known.items() if f.default is MISSING and name not in entry]
    if unknown or missing:
        wrong = f"has an unknown field {unknown[0]}" if unknown else f"lacks {', '.join(missing)}"
        raise RecordError(f"{where} {wrong}; expected {', '.join(known)}")
    for name, value in entry.items():
        kind = int if name == "count" else str
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RecordError(f"{where}: {name} must be {kind.__name__}, got {value!r}")
    if entry.get("device", "cpu") not in ("cpu", "gpu"):
        raise RecordError(f"{where}: device must be cpu or gpu, got {entry['device']!r}")
    if entry.get("count", 1) < 1:
        raise RecordError(f"{where}: count must be positive, got {entry['count']}")
    return Study(**entry)


def index(studies: Sequence[Study], folder: PathLike) -> str:
    """Two Markdown tables: studies with records and what they ran on, then what waits, with the command for each.

    Args:
        studies: in the order of the page.
        folder: where the records' globs start.

    Raises:
        RecordError: a file that a glob names is not a record.
    """
    done: List[List[str]] = []
    waiting: List[List[str]] = []
    for study in studies:
        found = _records(study, folder)
        if found:
            done.append([_with_remark(study), _count(study, found), *_circumstances(list(found.values()))])
        if len(found) < study.count:
            what = study.title + (f" ({len(found)} of {study.count} are there)" if found else "")
            waiting.append([what, "a GPU" if study.device == "gpu" else "time", f"`{study.command}`"])
    parts = []
    if done:
        header = ["What", "records", "on", "versions", "commit"]
        parts.append("## What was run\n\n" + pages.table([header, *done]))
    if waiting:
        parts.append("## What was not\n\n" + pages.table([["What", "waits for", "command"], *waiting]))
    return "\n\n".join(parts) + "\n"


def _records(study: Study, folder: PathLike) -> Dict[str, Dict[str, Any]]:
    """Path from the folder → record, of those that count."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, study.records))):
        try:
            with open(path, encoding="utf-8") as stream:
                record = json.load(stream)
        except (OSError, ValueError) as error:
            raise RecordError(f"cannot read {path} as JSON: {error}") from error
        absent = [name for name in ("hardware", "versions", "commit") if name not in record]
        if absent:
            raise RecordError(f"{path} is not a record: it has no {', '.join(absent)}")
        if study.device in (None, record["hardware"]["device"]):
            found[os.path.relpath(path, folder).replace(os.sep, "/")] = record
    return found


def _with_remark(study: Study) -> str:
    return study.title + (f"; {study.remark}" if study.remark else "")


def _count(study: Study, found: Dict[str, Any]) -> str:
    number = str(len(found)) if len(found) >= study.count else f"{len(found)} of {study.count}"
    return f"[{number}]({next(iter(found))})" if len(found) == 1 else f"{number} in `{study.records}`"


def _circumstances(records: Sequence[Dict[str, Any]]) -> List[str]:
    """Machines, versions and commits, each once."""
    versions = [record["versions"] for record in records]
    named = [
        ", ".join(f"{'Python' if p == 'python' else p} {v[p]}" for p in ("python", "torch") if v.get(p))
        for v in versions
    ]
    commits = [
        str(record["commit"]["id"])[:7] + (" (modified)" if record["commit"]["modified"] else "")
        for record in records
        if record["commit"]["id"]
    ]
    return ["; ".join(sorted(set(texts) - {""})) or "–" for texts in (map(hardware, records), named, commits)]

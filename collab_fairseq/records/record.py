"""The one format of results: training runs, benchmarks, analyses, conversions and studies, one JSON file each.

Fields (schema 1):

    schema, kind   1, and one of "training", "bench", "heads", "conversion", "study"
    name           of the run, benchmark or analysis
    command        as typed, without this machine's paths
    created        date and time, UTC
    versions       {package: version} of Python and the packages
    commit         {id, modified}
    hardware       {cpu, cores, memory_bytes, gpus: [{name, memory_bytes}], threads, device: "cpu" or "gpu"}
    settings       what the result depends on, by name: checkpoint (file name and SHA-256), split, seed, …
    parts          the result, by name

A record may grow part by part and is saved after each part. Command and settings name no folder of the machine: paths
in them are shortened.
"""

import argparse
import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from collab_fairseq.records import environment
from collab_fairseq.records.files import PathLike, write_json
from fairseq_modern.errors import UserError

SCHEMA = 1

# a word in quotes, since it has spaces, that is a path or ends in one after =
_QUOTED = re.compile(r"'([^'/]*=)?(~?/[\w.-][^']*)'")
# a slash at the start of a word, and something after it
_PATH = re.compile(r"(?:^|(?<=[\s='\":,\[(]))~?/[\w.-][^\s'\",\])]*")


class Record:
    """A result that grows part by part; with a path, parts that the file has are not computed again.

    Args:
        kind, name, command, settings: see the top of this file.
        path: its file; None: it is not saved.
        device, threads: that it is computed on.
        repository: the folder whose commit is noted (default: that of this package, if it is a checkout).
        fixed: further fields that a result must share to be continued, such as ``hardware`` if times are compared.

    Attributes:
        content: all fields. parts: name → JSON data.

    Raises:
        UserError: the file is no such record, or has other settings.
    """

    def __init__(
        self, kind: str, name: str, command: str, settings: Dict[str, Any], path: Optional[PathLike] = None, *,
        device: str = "cpu", threads: Optional[int] = None, repository: Optional[PathLike] = None,
        fixed: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.path = path
        folder = os.fspath(repository or os.path.dirname(os.path.abspath(__file__)))
        self.content: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "command": without_paths(command),
            **environment.circumstances(folder, device=device, threads=threads),
            "settings": plain(settings),
            "parts": {},
        }
        if path is not None and os.path.exists(path):
            self._continue(load(path, kind, name), os.fspath(path), fixed)
        self.parts: Dict[str, Any] = self.content["parts"]
        self._group = ""

    def _continue(self, earlier: Dict[str, Any], path: str, fixed: Sequence[str]) -> None:
        before, now = ({**{f: c[f] for f in fixed}, **c["settings"]} for c in (earlier, self.content))
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                raise UserError(
                    f"{path} holds a result with another {key} ({_short(before.get(key))} there, "
                    f"{_short(now.get(key))} asked for); choose another file"
                )
        self.content = earlier

    def part(self, key: str, compute: Callable[[], Any]) -> Any:
        """The part; it is computed and saved if the record does not have it."""
        key = self._group + key
        if key not in self.parts:
            self.parts[key] = compute()
            self.save()
        return self.parts[key]

    @contextlib.contextmanager
    def within(self, group: str) -> Iterator[None]:
        """Prefix the names of all parts with ``group``."""
        self._group, before = group, self._group
        try:
            yield
        finally:
            self._group = before

    def save(self) -> None:
        """Write the file atomically."""
        if self.path is not None:
            write_json(self.content, self.path)


def load(path: PathLike, kind: str, name: Optional[str] = None) -> Dict[str, Any]:
    """Read a record.

    Raises:
        UserError: it is no record of this kind and ``name``.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    if not isinstance(content, dict) or (content.get("schema"), content.get("kind")) != (SCHEMA, kind):
        raise UserError(f"{os.fspath(path)} is no record of kind {kind} (schema {SCHEMA})")
    if name is not None and content["name"] != name:
        raise UserError(f"{os.fspath(path)} is the {kind} record {content['name']}, expected one of {name}")
    return content


def plain(value: Any) -> Any:
    """Settings as JSON data, in which absolute paths are shortened."""
    if isinstance(value, argparse.Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return {without_paths(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return without_paths(str(value))


def without_paths(text: str) -> str:
    """Replace each absolute path by its last component after `.../`."""
    text = _QUOTED.sub(lambda match: f"'{match[1] or ''}.../{os.path.basename(match[2].rstrip('/'))}'", text)
    return _PATH.sub(lambda match: ".../" + os.path.basename(match.group().rstrip("/")), text)


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['file']}, SHA-256 {value['sha256'][:8]}…"
    return str(value)

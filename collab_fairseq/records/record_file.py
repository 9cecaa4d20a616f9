"""Results that grow part by part: one JSON file each, on the disk as far as it has come.

Fields (schema 1):

    schema, kind   1, and what made it: "heads", "bench"
    name           of the analysis or benchmark: prune, layer, …
    command        as typed, without this machine's paths
    created, versions, commit, hardware   as in the records of trainings
    settings       what the result depends on, by name: checkpoint (file name and SHA-256), split, seed, …
    parts          the result, by name
"""

import contextlib
import json
import os
from typing import Any, Callable, Dict, Iterator, Optional, Sequence

from collab_fairseq.records import environment
from collab_fairseq.records.files import PathLike, write_json
from collab_fairseq.records.schema import RecordError, without_paths

SCHEMA = 1
_FIELDS = {"schema", "kind", "name", "command", "created", "versions", "commit", "hardware", "settings", "parts"}


class Record:
    """A result that grows part by part; with a path, what is there already is not computed again.

    Args:
        kind, name, command, settings: see the top of this file; ``settings`` is JSON data.
        path: where it is kept; None: nowhere.
        device, threads: what it is computed on.
        fixed: further fields that a result must share to be continued, such as ``hardware`` where times are compared.

    Attributes:
        content: all fields. parts: name → JSON data.

    Raises:
        RecordError: the file holds something else, or a result of other settings.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        command: str,
        settings: Dict[str, Any],
        path: Optional[PathLike] = None,
        *,
        device: str = "cpu",
        threads: Optional[int] = None,
        fixed: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.content: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "command": without_paths(command),
            **environment.circumstances(os.path.dirname(os.path.abspath(__file__)), device=device, threads=threads),
            "settings": json.loads(json.dumps(settings)),
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
                raise RecordError(
                    f"{path} holds a result with another {key} ({_short(before.get(key))} there, "
                    f"{_short(now.get(key))} asked for); choose another --output"
                )
        self.content = earlier

    def part(self, key: str, compute: Callable[[], Any]) -> Any:
        """The part, computed and saved unless it is there."""
        key = self._group + key
        if key not in self.parts:
            self.parts[key] = compute()
            self.save()
        return self.parts[key]

    @contextlib.contextmanager
    def within(self, group: str) -> Iterator[None]:
        """Put ``group`` before the names of all parts."""
        self._group, before = group, self._group
        try:
            yield
        finally:
            self._group = before

    def save(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is not None:
            write_json(self.content, self.path)


def load(path: PathLike, kind: str, name: Optional[str] = None) -> Dict[str, Any]:
    """Read a result.

    Raises:
        RecordError: it is no result of `collab KIND`, or not of the analysis or benchmark ``name``.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    known = isinstance(content, dict) and content.keys() == _FIELDS and isinstance(content["parts"], dict)
    if not known or content["kind"] != kind or content["schema"] != SCHEMA:
        raise RecordError(f"{os.fspath(path)} is no result of collab {kind} (schema {SCHEMA})")
    if name is not None and content["name"] != name:
        raise RecordError(f"{os.fspath(path)} is a result of collab {kind} {content['name']}, expected one of {name}")
    return content  # type: ignore[no-any-return]


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['file']}, SHA-256 {value['sha256'][:8]}…"
    return str(value)

"""Results of `collab heads`: one JSON file each, on the disk as far as it has come.

Fields (schema 1):

    schema, kind   1, "heads"
    name           redundancy, importance, ablate, prune, gates or roles
    command        as typed, without this machine's paths
    created, versions, commit, hardware   as in the records of trainings
    settings       what the result depends on, by name: checkpoint (file name and SHA-256), split, …
    parts          the result, by name
"""

import contextlib
import hashlib
import json
import os
from typing import Any, Callable, Dict, Iterator, Optional

from collab_fairseq.checkpoints import PathLike, sha256
from collab_fairseq.reporting import environment
from collab_fairseq.reporting.files import write_json
from collab_fairseq.reporting.schema import without_paths

from .errors import HeadsError

SCHEMA = 1


class Record:
    """A result that grows part by part; with a path, what is there already is not computed again.

    Args:
        name, command, settings: see the top of this file; ``settings`` is JSON data.
        path: where it is kept; None: nowhere.
        device, threads: what it is computed on.

    Attributes:
        parts: name → JSON data.

    Raises:
        HeadsError: the file holds something else, or a result of other settings.
    """

    def __init__(
        self,
        name: str,
        command: str,
        settings: Dict[str, Any],
        path: Optional[PathLike] = None,
        *,
        device: str = "cpu",
        threads: Optional[int] = None,
    ) -> None:
        self.path = path
        self.content: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": "heads",
            "name": name,
            "command": without_paths(command),
            **environment.circumstances(os.path.dirname(os.path.abspath(__file__)), device=device, threads=threads),
            "settings": json.loads(json.dumps(settings)),
            "parts": {},
        }
        if path is not None and os.path.exists(path):
            self._continue(load(path, name), os.fspath(path))
        self.parts: Dict[str, Any] = self.content["parts"]
        self._group = ""

    def _continue(self, earlier: Dict[str, Any], path: str) -> None:
        before, now = earlier["settings"], self.content["settings"]
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                raise HeadsError(
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


def load(path: PathLike, name: Optional[str] = None) -> Dict[str, Any]:
    """Read a result.

    Raises:
        HeadsError: it is no result of `collab heads`, or not of the analysis ``name``.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError) as error:
        raise HeadsError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != "heads" or content.get("schema") != SCHEMA:
        raise HeadsError(f"{os.fspath(path)} is no result of collab heads (schema {SCHEMA})")
    if name is not None and content["name"] != name:
        raise HeadsError(f"{os.fspath(path)} is a result of collab heads {content['name']}, expected one of {name}")
    return content


def file_setting(path: PathLike) -> Dict[str, str]:
    """A file as a setting: its name and SHA-256; of a folder, that of its weights' and config's sums."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    if not os.path.isdir(path):
        return {"file": name, "sha256": sha256(path)}
    files = sorted(file for file in os.listdir(path) if file.endswith((".safetensors", ".bin", "config.json")))
    sums = "\n".join(f"{sha256(os.path.join(path, file))}  {file}" for file in files)
    return {"file": name, "sha256": hashlib.sha256(sums.encode()).hexdigest()}


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['file']}, SHA-256 {value['sha256'][:8]}…"
    return str(value)

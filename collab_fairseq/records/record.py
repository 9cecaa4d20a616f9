"""The JSON format of results: training runs, benchmarks, head analyses, conversions and studies.

Fields (schema 1):

    schema, kind   1, and one of "training", "bench", "heads", "conversion", "study"
    name           of the run, benchmark or analysis
    command        as typed, without this machine's paths
    created        date and time, UTC
    versions       {package: version} of Python and the packages
    commit         {id, modified}
    hardware       {cpu, cores, memory_bytes, gpus: [{name, memory_bytes}], threads, device: "cpu" or "gpu"}
    settings       {name: value} that the result depends on: checkpoint (file name and SHA-256), split, seed, …
    parts          {name: value} of the result

A record may grow part by part and is saved after each part. Absolute paths in command and settings are shortened.
"""

import argparse
import json
import math
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Optional, Sequence

from collab_fairseq.files import PathLike, check_writable, write_json
from collab_fairseq.records import environment
from fairseq_modern.errors import UserError

SCHEMA = 1

# a quoted word with spaces that is a path, or ends in one after =
_QUOTED = re.compile(r"'([^'/]*=)?(~?/[\w.-][^']*)'")
# a path at the start of a word
_PATH = re.compile(r"(?:^|(?<=[\s='\":,\[(]))~?/[\w.-][^\s'\",\])]*")


class Record:
    """A result that grows part by part; parts that the file already has are not computed again.

    Args:
        kind, name, command, settings: see the module's docstring.
        path: of the JSON file; None: the record is not saved.
        device: of torch, used for the computation.
        threads: used for the computation (default: torch's number).
        repository: folder whose commit is recorded (default: that of this package, if it is a checkout).
        fixed: further fields that must be equal to continue a record, such as ``hardware`` if times are compared.

    Attributes:
        content: all fields.
        parts: name → JSON data.

    Raises:
        UserError: the file cannot be written, is not such a record, or has different settings.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        command: str,
        settings: Dict[str, Any],
        path: Optional[PathLike] = None,
        *,
        device: Any = "cpu",
        threads: Optional[int] = None,
        repository: Optional[PathLike] = None,
        fixed: Sequence[str] = (),
    ) -> None:
        check_writable(path)
        self.path = path
        folder = os.fspath(repository or os.path.dirname(os.path.abspath(__file__)))
        self.content: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "command": without_paths(command),
            **environment.provenance(folder, device=device, threads=threads),
            "settings": plain(settings),
            "parts": {},
        }
        if path is not None and os.path.exists(path):
            self._continue(load(path, kind, name), os.fspath(path), fixed)
        self.parts: Dict[str, Any] = self.content["parts"]

    def _continue(self, earlier: Dict[str, Any], path: str, fixed: Sequence[str]) -> None:
        before, now = ({**{f: c[f] for f in fixed}, **c["settings"]} for c in (earlier, self.content))
        for key in sorted({*before, *now}):
            if before.get(key) != now.get(key):
                raise UserError(
                    f"{path} was made with {key} = {_short(before.get(key))}; got {_short(now.get(key))}: "
                    "choose another file"
                )
        if earlier["parts"]:  # otherwise, nothing has been measured on its machine
            self.content = earlier

    def part(self, key: str, compute: Callable[[], Any]) -> Any:
        """Return a part; compute and save it if the record does not have it."""
        if key not in self.parts:
            self.parts[key] = compute()
            self.save()
        return self.parts[key]

    def save(self) -> None:
        """Write the file atomically."""
        if self.path is not None:
            write_json(self.content, self.path)

    def discard(self) -> None:
        """Remove the file, if any."""
        if self.path is not None:
            Path(self.path).unlink(missing_ok=True)


def load(path: PathLike, kind: str, name: Optional[str] = None) -> Dict[str, Any]:
    """Read a record; raise UserError unless it is one of this kind and, if given, ``name``."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {os.fspath(path)} as JSON: {error}") from error
    schema, other = (content.get("schema"), content.get("kind")) if isinstance(content, dict) else (None, None)
    if (schema, other) != (SCHEMA, kind):
        got = f"{other} record (schema {schema})" if schema and other else "no record"
        raise UserError(f"{os.fspath(path)} must be a {kind} record (schema {SCHEMA}); got {got}")
    if name is not None and content["name"] != name:
        raise UserError(f"{os.fspath(path)} must be the {kind} record {name}; got {content['name']}")
    return content


def plain(value: Any) -> Any:
    """Settings as JSON data with shortened paths."""
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
    """Replace each absolute path by `.../` and its last component."""
    text = _QUOTED.sub(lambda match: f"'{match[1] or ''}.../{os.path.basename(match[2].rstrip('/'))}'", text)
    return _PATH.sub(lambda match: ".../" + os.path.basename(match.group().rstrip("/")), text)


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['file']}, SHA-256 {value['sha256'][:8]}…"
    return str(value)

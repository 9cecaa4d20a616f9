"""The one format of results: trainings, benchmarks, analyses, conversions and studies, one JSON file each.

Fields (schema 1):

    schema, kind   1, and what it is of: "training", "bench", "heads", "conversion", "study"
    name           of the run, benchmark or analysis
    command        as typed, without this machine's paths
    created        date and time, UTC
    versions       {package: version} of Python and the packages
    commit         {id, modified}
    hardware       {cpu, cores, memory_bytes, gpus: [{name, memory_bytes}], threads, device: "cpu" or "gpu"}
    settings       what the result depends on, by name: checkpoint (file name and SHA-256), split, seed, …
    parts          the result, by name

A record may grow part by part, and is on the disk as far as it has come. It holds no path of the machine.
"""

import contextlib
import json
import os
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from collab_fairseq.records import environment
from collab_fairseq.records.files import PathLike, write_json

SCHEMA = 1
_FIELDS = {"schema", "kind", "name", "command", "created", "versions", "commit", "hardware", "settings", "parts"}

# a slash at the start of a word, and something after it
_PATH = re.compile(r"(?:^|(?<=[\s='\":,\[(]))~?/[\w.-][^\s'\",\])]*")


class RecordError(ValueError):
    """A record, or what it is made from, is not as it must be."""

    user_error = True


class Record:
    """A result that grows part by part; with a path, what is there already is not computed again.

    Args:
        kind, name, command, settings: see the top of this file; ``settings`` is JSON data. Paths in the command are
            shortened.
        path: where it is kept; None: nowhere.
        device, threads: what it is computed on.
        repository: the folder whose commit is noted (default: that of this package, where it is a checkout).
        fixed: further fields that a result must share to be continued, such as ``hardware`` where times are compared.

    Attributes:
        content: all fields. parts: name → JSON data.

    Raises:
        RecordError: the file holds something else, or a result of other settings; or a setting is a path.
    """

    def __init__(
        self, kind: str, name: str, command: str, settings: Dict[str, Any], path: Optional[PathLike] = None, *,
        device: str = "cpu", threads: Optional[int] = None, repository: Optional[PathLike] = None,
        fixed: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.path = path
        refuse_paths(settings, f"the settings of {name}")
        folder = os.fspath(repository or os.path.dirname(os.path.abspath(__file__)))
        self.content: Dict[str, Any] = {
            "schema": SCHEMA,
            "kind": kind,
            "name": name,
            "command": without_paths(command),
            **environment.circumstances(folder, device=device, threads=threads),
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
                    f"{_short(now.get(key))} asked for); choose another file"
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
    """Read a record.

    Raises:
        RecordError: it is no record of this kind, or not of the analysis or benchmark ``name``.
    """
    content = read_json(path)
    known = isinstance(content, dict) and content.keys() == _FIELDS and isinstance(content["parts"], dict)
    if not known or content["kind"] != kind or content["schema"] != SCHEMA:
        raise RecordError(f"{os.fspath(path)} is no record of kind {kind} (schema {SCHEMA})")
    if name is not None and content["name"] != name:
        raise RecordError(f"{os.fspath(path)} is the {kind} record {content['name']}, expected one of {name}")
    return content  # type: ignore[no-any-return]


def read_json(path: PathLike) -> Any:
    """The content of a JSON file.

    Raises:
        RecordError: it cannot be read, or is no JSON.
    """
    with reading(path, "JSON") as lines:
        return json.loads("\n".join(lines))


@contextlib.contextmanager
def reading(path: PathLike, form: str) -> Iterator[List[str]]:
    """The lines of a text file that are not blank, with a RecordError for what cannot be read as ``form``."""
    try:
        with open(path, encoding="utf-8", newline="\n") as stream:
            lines = [line.rstrip("\n") for line in stream]
        yield [line for line in lines if line.strip()]
    except (OSError, ValueError) as error:
        raise RecordError(f"cannot read {os.fspath(path)} as {form}: {error}") from error


def refuse_paths(value: Any, what: str) -> None:
    """See that JSON data holds no absolute path; ``what`` is what errors call it.

    Raises:
        RecordError: names the path.
    """
    found = _PATH.search(json.dumps(value, ensure_ascii=False))
    if found:
        raise RecordError(f"{what} holds a path of this machine: {found.group()}")


def without_paths(text: str) -> str:
    """Replace each absolute path by its last component after `.../`."""
    return _PATH.sub(lambda match: ".../" + os.path.basename(match.group().rstrip("/")), text)


def _short(value: Any) -> str:
    if isinstance(value, dict) and "sha256" in value:
        return f"{value['file']}, SHA-256 {value['sha256'][:8]}…"
    return str(value)

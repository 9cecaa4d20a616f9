"""Atomic writing of small files, and checks that files can be written."""

import json
import os
import tempfile
from typing import Any, Optional

from fairseq_modern.errors import UserError
from fairseq_modern.files import PathLike, atomic_write


def check_writable(*paths: Optional[PathLike]) -> None:
    """Raise UserError unless a file can be written to each path; None passes."""
    for path in paths:
        if path is None:
            continue
        name, folder = os.fspath(path), os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise UserError(f"cannot write {name}: there is no folder {folder}")
        if os.path.exists(name) and not os.path.isfile(name):
            kind = "a folder" if os.path.isdir(name) else "not a regular file"
            raise UserError(f"cannot write {name}: it is {kind}")
        try:  # permissions do not reveal read-only disks and quotas
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            raise UserError(f"cannot write {name}: cannot create files in {folder} ({error.strerror})") from error


def check_new_folder(path: PathLike) -> None:
    """Raise UserError if the path exists, unless it is an empty folder."""
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path) or os.listdir(path)):
        raise UserError(f"{os.fspath(path)} already exists and is not an empty folder; choose another output")


def write_bytes(data: bytes, path: PathLike) -> None:
    """Write a file atomically: if this fails, `path` remains unchanged."""
    with atomic_write(os.fspath(path)) as stream:
        stream.write(data)


def write_text(text: str, path: PathLike) -> None:
    """Write UTF-8 text atomically, with its own line ends."""
    write_bytes(text.encode("utf-8"), path)


def write_json(data: Any, path: PathLike) -> None:
    """Write indented JSON atomically; NaN and infinity, which JSON lacks, raise an error."""
    write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)

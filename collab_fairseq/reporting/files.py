"""Writing small files whole or not at all."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any, Union

PathLike = Union[str, "os.PathLike[str]"]


def write_bytes(data: bytes, path: PathLike) -> None:
    """Write a file: a whole new one takes the place of `path`, or `path` stays as it was."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def write_text(text: str, path: PathLike) -> None:
    """Write UTF-8 text with the line ends that it has, as `write_bytes` does."""
    write_bytes(text.encode("utf-8"), path)


def write_json(data: Any, path: PathLike) -> None:
    """Write data as indented JSON, as `write_text` does; NaN and infinity, which JSON lacks, are an error."""
    write_text(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n", path)

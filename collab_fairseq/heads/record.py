"""Results of `collab heads`: redundancy, importance, ablate, prune, gates and roles, each a growing record."""

import hashlib
import os
from typing import Any, Dict, Optional

from collab_fairseq.checkpoints import PathLike, sha256
from collab_fairseq.records import record_file


class Record(record_file.Record):
    """See :class:`collab_fairseq.records.record_file.Record`."""

    def __init__(self, name: str, command: str, settings: Dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super().__init__("heads", name, command, settings, *args, **kwargs)


def load(path: PathLike, name: Optional[str] = None) -> Dict[str, Any]:
    """As :func:`collab_fairseq.records.record_file.load`."""
    return record_file.load(path, "heads", name)


def file_setting(path: PathLike) -> Dict[str, str]:
    """A file as a setting: its name and SHA-256; of a folder, that of its weights' and config's sums."""
    path = os.path.abspath(path)
    name = os.path.basename(path)
    if not os.path.isdir(path):
        return {"file": name, "sha256": sha256(path)}
    files = sorted(file for file in os.listdir(path) if file.endswith((".safetensors", ".bin", "config.json")))
    sums = "\n".join(f"{sha256(os.path.join(path, file))}  {file}" for file in files)
    return {"file": name, "sha256": hashlib.sha256(sums.encode()).hexdigest()}

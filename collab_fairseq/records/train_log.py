"""Loss curves and speed from the log of fairseq-train with `--log-format json`."""

import contextlib
import io
import json
import math
import os
import re
import shlex
import statistics
from typing import Any, Dict, List

from collab_fairseq.files import PathLike
from fairseq_modern.errors import UserError

# the prefix names the curve; lines within an epoch, which belong to "train", have none
_UPDATES = re.compile(r"((?:valid\w*_)?)num_updates")
_COLUMNS = ("loss", "nll_loss", "ppl", "lr", "gnorm")


def read_train_log(path: PathLike, size: int = 0) -> Dict[str, Any]:
    """Parse a training log. A missing log has no lines.

    Args:
        size: bytes that it had at the end of training.

    Returns:
        - `curves`: {"train": [...], "valid": [...]}, and one more per further subset of `--valid-subset`; each a
          list of {"updates": int, "loss": float, ...} ordered by updates, without numbers that are not finite. If
          several lines have the same update (fairseq's --log-file repeats lines; a resumed run repeats updates), the
          last one counts.
        - `words_per_second`: target tokens, median over the training lines, or over the epochs' lines in a run too
          short for training lines; None if the log has neither.
        - `gb_free`: minimum of free GPU memory in GiB; None on a CPU.

    Raises:
        UserError: the log is shorter than `size` or has none of its lines, so that the last loss would be another one.
    """
    points: Dict[str, Dict[float, Dict[str, float]]] = {"train": {}, "valid": {}}
    speeds: Dict[str, List[float]] = {"": [], "train_": []}
    free: List[float] = []
    with open(path, "rb") if os.path.exists(path) else io.BytesIO() as stream:
        for line in stream:
            entry = _numbers(line.decode("utf-8", "replace"))
            for prefix in (match.group(1) for match in map(_UPDATES.fullmatch, entry) if match):
                values = {column: entry[prefix + column] for column in _COLUMNS if prefix + column in entry}
                updates = entry[f"{prefix}num_updates"]
                points.setdefault(prefix.rstrip("_") or "train", {})[updates] = {"updates": int(updates), **values}
            prefix = "train_" if "train_num_updates" in entry else ""
            if entry.get(f"{prefix}wps"):
                speeds[prefix].append(entry[f"{prefix}wps"])
            if f"{prefix}gb_free" in entry:
                free.append(entry[f"{prefix}gb_free"])
        if size and os.path.exists(path) and (stream.tell() < size or not any(points.values())):
            moved = f"mv {shlex.quote(os.fspath(path))} {shlex.quote(f'{path}.damaged')}"
            raise UserError(
                f"{path} is damaged: it must have {size} bytes and lines of training; got {stream.tell()} bytes; "
                f"restore it, or, for a record without a learning curve, run: {moved} and then the same command"
            )
    return {
        "curves": {name: [curve[updates] for updates in sorted(curve)] for name, curve in points.items()},
        "words_per_second": statistics.median(speeds[""] or speeds["train_"] or [0.0]) or None,
        "gb_free": min(free, default=None),
    }


def _numbers(line: str) -> Dict[str, float]:
    """The finite numbers of the JSON object in a line; fairseq writes them as strings."""
    try:
        entry = json.loads(line[line.index("{") :])
    except ValueError:  # no object, the printed configuration, or a line truncated by a kill
        return {}
    numbers = {}
    for key, value in entry.items():
        with contextlib.suppress(TypeError, ValueError):
            numbers[key] = float(value)
    return {key: value for key, value in numbers.items() if math.isfinite(value)}

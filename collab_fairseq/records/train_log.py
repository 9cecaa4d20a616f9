"""Loss curves and speed from the log of fairseq-train with `--log-format json`."""

import bisect
import contextlib
import json
import math
import re
import statistics
from typing import Any, Dict, List, Sequence

from collab_fairseq.records.files import PathLike

# the prefix names the curve; lines within an epoch, which belong to "train", have none
_UPDATES = re.compile(r"((?:valid\w*_)?)num_updates")
_COLUMNS = ("loss", "nll_loss", "ppl", "lr", "gnorm")


def read_train_log(path: PathLike, starts: Sequence[int] = ()) -> Dict[str, Any]:
    """Parse a training log of one or, for a resumed run, several parts.

    Args:
        starts: the first byte of each part (default: the log is one part).

    Returns:
        - `curves`: {"train": [...], "valid": [...]}, and one more per further subset of `--valid-subset`; each a
          list of {"updates": int, "loss": float, ...} ordered by updates. If several lines have the same update
          (fairseq's --log-file repeats lines; a resumed run repeats updates), the last one counts.
        - `words_per_second`: target tokens, median over the training lines, or over the epochs' lines in a run too
          short for training lines; None if the log has neither.
        - `part_seconds`: fairseq's wall clock in the last line of each part that has it, else 0. A part that was
          killed ran slightly longer.
        - `gb_free`: minimum of free GPU memory in GiB; None on a CPU.
    """
    points: Dict[str, Dict[float, Dict[str, float]]] = {"train": {}, "valid": {}}
    speeds: Dict[str, List[float]] = {"": [], "train_": []}
    free: List[float] = []
    starts = sorted(starts) or [0]
    part_seconds = [0.0] * len(starts)
    position = 0
    with open(path, "rb") as stream:
        for line in stream:
            part = bisect.bisect_right(starts, position) - 1
            position += len(line)
            entry = _numbers(line.decode("utf-8", "replace"))
            for prefix in (match.group(1) for match in map(_UPDATES.fullmatch, entry) if match):
                values = {column: entry[prefix + column] for column in _COLUMNS if prefix + column in entry}
                updates = entry[f"{prefix}num_updates"]
                points.setdefault(prefix.rstrip("_") or "train", {})[updates] = {"updates": int(updates), **values}
            # at the end of an epoch `train_wall` is the wall clock; in other lines it is the time spent in updates
            prefix = "train_" if "train_num_updates" in entry else ""
            if entry.get(f"{prefix}wps"):
                speeds[prefix].append(entry[f"{prefix}wps"])
            if f"{prefix}gb_free" in entry:
                free.append(entry[f"{prefix}gb_free"])
            part_seconds[part] = entry.get(f"{prefix}wall", part_seconds[part])
    return {
        "curves": {name: [curve[updates] for updates in sorted(curve)] for name, curve in points.items()},
        "words_per_second": statistics.median(speeds[""] or speeds["train_"] or [0.0]) or None,
        "part_seconds": part_seconds,
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

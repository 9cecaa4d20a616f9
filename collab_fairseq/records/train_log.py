"""Loss curves and speed from what fairseq-train prints with `--log-format json`."""

import json
import os
import statistics
from typing import Any, Dict, List, Union

PathLike = Union[str, "os.PathLike[str]"]

# curve -> prefix of the keys in the log; "" for the lines within an epoch
_CURVES = {"train": "", "valid": "valid_"}
_COLUMNS = ("loss", "nll_loss", "ppl", "lr", "gnorm")


def read_train_log(path: PathLike) -> Dict[str, Any]:
    """Parse a training log, from one process or several parts of a resumed run.

    Returns:
        - `curves`: {"train": [...], "valid": [...]}, each a list of {"updates": int, "loss": float, ...} ordered by
          updates. Of several lines for one update (fairseq's --log-file repeats lines; a resumed run redoes updates)
          the last counts.
        - `words_per_second`: median over the training lines, target tokens; over the epochs' lines in a run too short
          for training lines; None where the log has neither.
        - `train_seconds`: fairseq's own wall clock, which resumed runs continue; None where the log has none.
        - `gb_free`: the least free GPU memory in GiB; None on a CPU.
    """
    points: Dict[str, Dict[int, Dict[str, float]]] = {name: {} for name in _CURVES}
    speeds: Dict[str, List[float]] = {"": [], "train_": []}
    free: List[float] = []
    wall = None
    with open(path, encoding="utf-8", errors="replace", newline="\n") as stream:
        for line in stream:
            entry = _json_of(line)
            for name, prefix in _CURVES.items():
                updates = _number(entry.get(f"{prefix}num_updates"))
                if updates is None:
                    continue
                values = {column: _number(entry.get(prefix + column)) for column in _COLUMNS}
                points[name][int(updates)] = {
                    "updates": int(updates),
                    **{column: value for column, value in values.items() if value is not None},
                }
            # in the line of an epoch `train_wall` is the clock; in others it is the time spent in updates
            prefix = "train_" if "train_num_updates" in entry else ""
            speed, gb, seconds = (_number(entry.get(prefix + key)) for key in ("wps", "gb_free", "wall"))
            speeds[prefix] += [speed] if speed else []
            free += [gb] if gb is not None else []
            wall = seconds if seconds is not None else wall
    return {
        "curves": {name: [points[name][updates] for updates in sorted(points[name])] for name in _CURVES},
        "words_per_second": statistics.median(speeds[""] or speeds["train_"] or [0.0]) or None,
        "train_seconds": wall,
        "gb_free": min(free) if free else None,
    }


def _json_of(line: str) -> Dict[str, Any]:
    start = line.find("{")
    if start < 0:
        return {}
    try:
        entry = json.loads(line[start:])
    except ValueError:  # the printed configuration, or a line cut off by a kill
        return {}
    return entry if isinstance(entry, dict) else {}


def _number(value: Any) -> Any:
    """fairseq writes numbers as strings; None for what is no finite number."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if number - number == 0 else None

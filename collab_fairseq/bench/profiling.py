"""Where the time of a step goes, operator by operator."""

from typing import Any, Dict, List, Sequence

import torch

from .cases import Case, Options
from .timing import Step

#: operators whose time is the matrix products that no way of computing avoids
_ARITHMETIC = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addbmm")


def profile(cases: Sequence[Case], options: Options, largest: int = 20) -> List[Dict[str, Any]]:
    """Own time of the costliest operators of one step of every contestant, the first part of a case.

    Returns:
        For every case and contestant ``row``, ``contestant`` and ``operators``: ``name``, ``calls``, ``seconds``,
        ``share`` of all, ``kind`` ("product" or "other").
    """
    found = []
    for case in cases:
        for contestant, step in case.prepare(options)[0].items():
            step()
            found.append({"row": case.id, "contestant": contestant, "operators": operators(step, options, largest)})
    return found


def operators(step: Step, options: Options, largest: int) -> List[Dict[str, Any]]:
    """The costliest operators of a step, and the rest in one line."""
    cuda = options.device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        if cuda:
            torch.cuda.synchronize()
    events = profiler.key_averages()
    own = [(e.key, e.count, (e.self_device_time_total if cuda else e.self_cpu_time_total) / 1e6) for e in events]
    own.sort(key=lambda entry: -entry[2])
    total = sum(seconds for _, _, seconds in own) or 1.0
    rest = own[largest:]
    shown = [*own[:largest], *([("all others", sum(r[1] for r in rest), sum(r[2] for r in rest))] if rest else [])]
    return [
        {
            "name": name,
            "calls": calls,
            "seconds": seconds,
            "share": seconds / total,
            "kind": "product" if name in _ARITHMETIC else "other",
        }
        for name, calls, seconds in shown
    ]

"""Peak memory of one step."""

from typing import Any, Callable

import torch


def peak_bytes(step: Callable[[], Any], device: torch.device) -> int:
    """Most bytes that torch's allocator holds at any moment of a step, above what it holds at its start.

    On the CPU the exact running sum of the profiler's memory events; on a GPU torch's own counter. What the step
    returns counts while it runs.
    """
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda pair: pair[0]):
        held += change
        peak = max(peak, held)
    return peak

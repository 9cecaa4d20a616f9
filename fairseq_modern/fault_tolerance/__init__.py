"""Fault tolerance: stopped and killed training runs resume, also with different settings.

Off by default. A --user-dir enables it with `enable()`, and the environment variable FAIRSEQ_MODERN_FAULT_TOLERANCE=1
enables it for any run; FAIRSEQ_MODERN_FAULT_TOLERANCE=0 disables it in any case. `is_on()` is checked at each call
of a wrapped function of fairseq, so that the order of imports does not matter.
"""

import os

_enabled = False


def is_on() -> bool:
    """Whether fault tolerance is enabled."""
    setting = os.environ.get("FAIRSEQ_MODERN_FAULT_TOLERANCE", "")
    return setting != "0" and (_enabled or setting != "")


def enable() -> None:
    """Enable fault tolerance in this process, unless the environment variable disables it."""
    global _enabled
    _enabled = True

"""Fault tolerance: stopped and killed training runs resume, also with different settings.

Off by default. A --user-dir enables it with `enable()`, and the environment variable FAIRSEQ_MODERN_FAULT_TOLERANCE=1
enables it for any run; FAIRSEQ_MODERN_FAULT_TOLERANCE=0 disables it in any case. The wrapped functions of fairseq check
`is_on()` at each call, so that the order of imports does not matter.
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

"""What changes how trainings behave, so that they survive being killed, stopped, starved or continued elsewhere.

It is off unless it is asked for: by `enable()`, which a --user-dir may call, or by the environment variable
FAIRSEQ_MODERN_SURVIVAL=1. FAIRSEQ_MODERN_SURVIVAL=0 keeps it off in any case. The functions of fairseq that are wrapped
ask at each call, so that it does not matter what is imported first. README.md one folder up says what each file does.
"""

import os

_enabled = False


def is_on() -> bool:
    """Whether trainings are to behave as described above."""
    setting = os.environ.get("FAIRSEQ_MODERN_SURVIVAL", "")
    return setting != "0" and (_enabled or setting != "")


def enable() -> None:
    """From now on let trainings of this process behave as described above, unless the environment forbids it."""
    global _enabled
    _enabled = True

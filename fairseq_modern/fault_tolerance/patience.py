"""Defect: a resumed run forgets for how many validations the score has not improved, and stops later with --patience.

Check: the attributes in which fairseq counts these validations. They are stored in checkpoints. Like the best score,
they are not restored with --reset-optimizer or --reset-meters.
"""

import sys
from typing import Any, Dict, Optional

from fairseq_modern.patching import names, step

COUNTERS = ("best", "num_runs")  # attributes of the function `should_stop_early`
KEY = "early_stopping"


def counters() -> Dict[str, Any]:
    """Return the attributes of the function; empty if the training program is not imported, or different."""
    function = getattr(sys.modules.get("fairseq_cli.train"), "should_stop_early", None)
    return vars(function) if function and names(function).issuperset(COUNTERS) else {}


@step()
def save(extra_state: Dict[str, Any]) -> None:
    """Add the counters to a checkpoint."""
    present = counters()
    if not present.keys().isdisjoint(COUNTERS):
        extra_state[KEY] = {name: present[name] for name in COUNTERS if name in present}


@step()
def restore(extra_state: Optional[Dict[str, Any]], reset_optimizer: bool, reset_meters: bool) -> None:
    """Restore the counters when a trainer has loaded a checkpoint."""
    if not reset_optimizer and not reset_meters:
        counters().update((extra_state or {}).get(KEY, {}))

"""A setting or section that an unknown one probably stands for."""

import difflib
from typing import Any, Iterable

#: what users call a setting → fairseq's name, or ours
ALIASES = {
    "learning_rate": "optimization.lr",
    "batch_size": "recipe.batch_tokens",
    "epochs": "optimization.max_epoch",
    "max_epochs": "optimization.max_epoch",
    "steps": "optimization.max_update",
    "max_steps": "optimization.max_update",
    "warmup": "lr_scheduler.warmup_updates",
    "warmup_steps": "lr_scheduler.warmup_updates",
}


def suggestion(name: str, known: Iterable[Any], prefix: str = "") -> str:
    """The end of an error message about an unknown name; empty if no known name is similar.

    Args:
        name: the last part of the unknown name. known: the names at its place. prefix: what stands before them.
    """
    similar = difflib.get_close_matches(name, [str(each) for each in known], n=1)
    meant = ALIASES.get(name) or (f"{prefix}{similar[0]}" if similar else None)
    return f"; did you mean {meant}?" if meant else ""

"""Defect: one validation whose loss is NaN corrupts the record of the best checkpoint, and the count of --patience.

No number is better or worse than NaN, so that the next score becomes the best one.

Check: the score is NaN or infinite. Training then goes on as if this validation had not taken place.
"""

import logging
import math
from typing import Any, List

from fairseq_modern.patching import step

logger = logging.getLogger(__name__)


@step()
def leave_out_others(trainer: Any, scores: List[Any]) -> None:
    """After a validation: replace scores that are not finite by None. fairseq uses the first one."""
    for i, score in enumerate(scores):
        if score is not None and not math.isfinite(score):
            logger.warning(f"ignored the score {score} of the validation after update {trainer.get_num_updates()}")
            scores[i] = None

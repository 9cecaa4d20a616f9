"""Defect: an error while fairseq handles an error of a training step hides that one.

fairseq then writes crash.pt and, if gradients are not finite, repeats the step with hooks on all layers to find the
first NaN. This fails with layers that allow no hooks, on a full disk, and with current versions of torch.

Check: both errors have passed through `Trainer.train_step`. The first one is then raised, and the other one logged.
"""

import inspect
import logging
import math
import traceback
from types import FrameType, ModuleType
from typing import Any, Optional

from fairseq_modern.error_messages import ADVICE, EXPLANATION, chain
from fairseq_modern.patching import wrap

logger = logging.getLogger(__name__)


def frame_of(error: BaseException, function: Any) -> Optional[FrameType]:
    """Return the innermost frame of a function through which an error has passed; None if there is none."""
    code = inspect.unwrap(function).__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    return frames[-1] if frames else None


def explain(error: FloatingPointError, trainer: Any, step: FrameType) -> None:
    """Attach a sentence to the error if the loss of the update is NaN or Inf. `step`: frame of `Trainer.train_step`."""
    loss = sum(float(output.get("loss", 0.0)) for output in step.f_locals.get("logging_outputs", []))
    if not math.isfinite(loss):
        name = "NaN" if math.isnan(loss) else "Inf"
        reason = f"the loss is {name} at update {trainer.get_num_updates() + 1}"
        setattr(error, EXPLANATION, f"training diverged: {reason}; {ADVICE}")


def patch(module: ModuleType) -> None:
    """Wrap `fairseq.trainer.Trainer.train_step`."""

    @wrap(module.Trainer)
    def train_step(original, self, *args, **options):
        try:
            return original(self, *args, **options)
        except Exception as error:
            first: BaseException = error
            step = frame_of(error, original)
            for cause in chain(error):  # errors within layers do not pass through `train_step`
                frame = frame_of(cause, original)
                if frame is not None:
                    first, step = cause, frame
            if isinstance(first, FloatingPointError) and step is not None:
                explain(first, self, step)
            if first is error:
                raise
            logger.info(f"{type(error).__name__} while handling {type(first).__name__}: {error}")
        first.__context__ = None
        raise first

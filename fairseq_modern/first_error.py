"""Defect: an error while fairseq handles an error of a training step hides that one.

fairseq then writes crash.pt and, if gradients are not finite, repeats the step with hooks on all layers to find the
first NaN. This fails with layers that allow no hooks, on a full disk, and with current versions of torch.

Check: both errors have passed through `Trainer.train_step`. The first one is then raised, and the other one logged.
"""

import contextlib
import inspect
import logging
import math
import traceback
from types import FrameType
from typing import Any, Iterator, Optional

from fairseq_modern.error_messages import ADVICE, EXPLANATION, chain
from fairseq_modern.patching import step

logger = logging.getLogger(__name__)


def frame_of(error: BaseException, function: Any) -> Optional[FrameType]:
    """Return the innermost frame of a function through which an error has passed; None if there is none."""
    code = inspect.unwrap(function).__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code is code]
    return frames[-1] if frames else None


def explain(error: FloatingPointError, trainer: Any, frame: FrameType) -> None:
    """Attach a sentence to the error if the loss of the update is NaN or Inf. `frame`: of `Trainer.train_step`."""
    loss = sum(float(output.get("loss", 0.0)) for output in frame.f_locals.get("logging_outputs", []))
    if not math.isfinite(loss):
        name = "NaN" if math.isnan(loss) else "Inf"
        reason = f"the loss is {name} at update {trainer.get_num_updates() + 1}"
        setattr(error, EXPLANATION, f"training diverged: {reason}; {ADVICE}")


@step(contextlib.nullcontext())
@contextlib.contextmanager
def raised(train_step: Any, trainer: Any) -> Iterator[None]:
    """Raise the first error of `Trainer.train_step`, which the block calls."""
    try:
        yield
    except Exception as error:
        first: BaseException = error
        frame = frame_of(error, train_step)
        for cause in chain(error):  # errors within layers do not pass through `train_step`
            of_cause = frame_of(cause, train_step)
            if of_cause is not None:
                first, frame = cause, of_cause
        if isinstance(first, FloatingPointError) and frame is not None:
            explain(first, trainer, frame)
        if first is error:
            raise
        logger.info(f"{type(error).__name__} while handling {type(first).__name__}: {error}")
        raise first from None

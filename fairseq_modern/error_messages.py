"""Defect: errors that may end a training run after hours do not state what to do.

Check: the error matches one of `PATTERNS`, or `first_error` has attached a sentence. `errors` prints it instead of a
traceback.
"""

import re
from typing import Iterator, List, Optional

from fairseq_modern.patching import step

ADVICE = "lower --lr, raise --warmup-updates or clip gradients (--clip-norm)"
# Message of fairseq or its libraries -> message to print; {0} is the first group.
PATTERNS = (
    (
        "^(?:OutOfMemory|Runtime)Error: .*out of memory",
        "out of GPU memory; lower --max-tokens or --batch-size and, in training, raise --update-freq in proportion",
    ),
    (  # gloo and NCCL if another process has ended
        r"(?s)^(?:Runtime|Dist\w+)Error: .*(?:[Cc]onnection (?:closed|reset)|[Bb]roken pipe|remote process exit)",
        "another process of this training run has ended; see its message",
    ),
    (
        "^FloatingPointError: .*(gradients are Nan/Inf|Minimum loss scale reached)",
        f"training diverged ({{0}}); {ADVICE}",
    ),
)
EXPLANATION = "fairseq_modern_explanation"  # attribute of an exception


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes."""
    seen: List[BaseException] = []
    cause: Optional[BaseException] = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


@step()
def explain(error: BaseException) -> Optional[str]:
    """Return the sentence to print instead of a traceback; None for other errors."""
    if not isinstance(error, Exception):  # such as KeyboardInterrupt
        return None
    for cause in chain(error):
        if hasattr(cause, EXPLANATION):
            return str(getattr(cause, EXPLANATION))
        for pattern, message in PATTERNS:
            match = re.search(pattern, f"{type(cause).__name__}: {cause}")
            if match is not None:
                return message.format(*match.groups())
    return None

"""The error of this package."""


class ScoringError(ValueError):
    """A log or a reference cannot be scored. The message is one sentence: the file, what is wrong, what is expected."""

    user_error = True  # shown to users without a traceback

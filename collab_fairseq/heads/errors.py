"""The error of this room."""


class HeadsError(ValueError):
    """An analysis cannot be made. The message is one sentence: what is wrong and what is expected."""

    user_error = True  # shown to users without a traceback

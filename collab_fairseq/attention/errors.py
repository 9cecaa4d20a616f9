"""The error of this package for mistakes that users can correct."""


class AttentionError(ValueError):
    """Settings, heads, sizes or tensors are invalid. The message is one sentence."""

    user_error = True  # see fairseq_modern.errors.UserError

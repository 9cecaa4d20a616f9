"""Which heads share features, which matter, which can go, and what the rest do: `collab heads`.

Heads are named as in :mod:`collab_fairseq.modules.heads`: ``E:1:3`` is the third head of the first encoder layer.
"""

from fairseq_modern.errors import UserError


class HeadsError(UserError):
    """An analysis cannot be made. The message is one sentence: what is wrong and what is expected."""

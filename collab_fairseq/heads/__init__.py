"""Which heads share features, which matter, which can go, and what the rest do: `collab heads`.

Heads are named as in :mod:`collab_fairseq.modules.heads`: ``E:1:3`` is the third head of the first encoder layer.
"""

"""Head analyses: redundancy, importance, ablation, pruning, gates and roles (`collab heads`).

Heads are named as in :mod:`collab_fairseq.modules.head_names`: ``E:1:3`` is the third head of the first encoder layer.
"""

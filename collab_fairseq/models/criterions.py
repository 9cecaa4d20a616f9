"""Criterions of the project, registered with fairseq by their import."""

from collab_fairseq.heads.gates import LabelSmoothedCrossEntropyWithGates

__all__ = ["LabelSmoothedCrossEntropyWithGates"]

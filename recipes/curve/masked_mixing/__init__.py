"""Collaborative heads without sharing: fairseq-train --user-dir recipes/curve/masked_mixing --mixing-init blocks

For training only. The mixing matrix (H, D̃k) of a collaborative layer with H heads and key dimension D̃k starts as
blocks. Here its gradient is zero outside the blocks, so that Adam without weight decay leaves these entries at 0: each
head keeps its own D̃k/H key dimensions and learns a gain for each. The checkpoints have ordinary collaborative heads:
average, translate and score them with the --user-dir of collab_fairseq. Used by design B of convergence.md.
"""

from typing import Any

from torch import Tensor

from collab_fairseq.models import TransformerCollabModel
from collab_fairseq.modules.sites import attention_layers
from fairseq_modern.errors import UserError

check_training = TransformerCollabModel.check_training


def keep_blocks(mixing: Tensor) -> None:
    """Zero the gradient of a mixing matrix (H, D̃k) where the matrix is 0."""
    blocks = mixing.detach() != 0
    mixing.register_hook(lambda gradient: gradient * blocks)


def check_masked_training(self: TransformerCollabModel, trainer: Any) -> None:
    """Mask the gradients of a new model; called by fairseq_modern before a checkpoint is loaded."""
    check_training(self, trainer)
    weight_decay = getattr(trainer.cfg.optimizer, "weight_decay", 0.0)
    if weight_decay:
        raise UserError(f"masked_mixing: --weight-decay must be 0; got {weight_decay}")
    for layer_id, layer in attention_layers(self).items():
        mixing = getattr(layer, "mixing", None)
        if mixing is None or not bool(((mixing != 0).sum(dim=0) == 1).all()):
            raise UserError(f"masked_mixing: {layer_id} must have a mixing matrix of blocks (--mixing-init)")
        keep_blocks(mixing)


TransformerCollabModel.check_training = check_masked_training  # type: ignore[method-assign]

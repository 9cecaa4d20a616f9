"""Collaborative heads that cannot share: fairseq-train --user-dir recipes/curve/masked_mixing --mixing-init blocks

For training only. The mixing matrix m (H, D̃k) of a collaborative layer starts as blocks. Here its gradient outside the
blocks is zero, so that Adam without weight decay leaves these entries at 0: head i keeps its own D̃k/H key dimensions
and learns a gain for each. The checkpoints are those of collaborative heads: average, translate and score them with
collab_fairseq's own --user-dir. Used by design B of convergence.md.
"""

from typing import Any

from torch import Tensor

from collab_fairseq.models import TransformerCollabModel
from collab_fairseq.modules.settings import ConfigurationError
from collab_fairseq.modules.sites import attention_layers

check_training = TransformerCollabModel.check_training


def keep_blocks(mixing: Tensor) -> None:
    """Zero the gradient of a mixing matrix (H, D̃k) where the matrix is 0."""
    blocks = mixing.detach() != 0
    mixing.register_hook(lambda gradient: gradient * blocks)


def check_masked_training(self: TransformerCollabModel, trainer: Any) -> None:
    """Mask the gradients of a new model. fairseq_modern calls this before a checkpoint is loaded.

    Raises:
        ConfigurationError: a mixing matrix that is not made of blocks, or weight decay.
    """
    check_training(self, trainer)
    weight_decay = getattr(trainer.cfg.optimizer, "weight_decay", 0.0)
    if weight_decay:
        raise ConfigurationError(f"masked_mixing: --weight-decay must be 0; got {weight_decay}")
    for layer_id, layer in attention_layers(self).items():
        mixing = getattr(layer, "mixing", None)
        if mixing is None or not bool(((mixing != 0).sum(dim=0) == 1).all()):
            raise ConfigurationError(f"masked_mixing: {layer_id} must have a mixing matrix of blocks (--mixing-init)")
        keep_blocks(mixing)


TransformerCollabModel.check_training = check_masked_training

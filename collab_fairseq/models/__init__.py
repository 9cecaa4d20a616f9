"""What ``--user-dir`` imports, and all that importing it switches on.

fairseq imports every file here by itself; a program without ``--user-dir`` imports this package.

- Registered with fairseq: the model ``transformer_collab`` with its presets, the optimizer ``fused_adam``, and the
  criterions ``label_smoothed_cross_entropy_chunked`` and ``label_smoothed_cross_entropy_with_gates``.
- Models of this kind are translated with a beam search of their own, ``TransformerCollabModel.sequence_generator``.
- Trainings survive being stopped and killed: fairseq_modern/README.md says how, and how to leave that off.
"""

from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.training import chunked_loss, fused_adam, gated_loss  # noqa: F401  (registered)
from fairseq_modern import fault_tolerance

from . import presets  # noqa: F401  (the model, then its presets)
from .transformer_collab import TransformerCollabModel

__all__ = ["TransformerCollabModel", "as_transformer_collab"]

fault_tolerance.enable()

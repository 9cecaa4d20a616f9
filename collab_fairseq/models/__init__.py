"""Everything that ``--user-dir`` imports, and what importing it enables.

fairseq imports every file in this package; a program without ``--user-dir`` imports the package itself.

- It registers the model ``transformer_collab`` with its presets, the optimizer ``fused_adam``, and the criteria
  ``label_smoothed_cross_entropy_chunked`` and ``label_smoothed_cross_entropy_with_gates``.
- These models translate with their own beam search, ``TransformerCollabModel.sequence_generator``.
- Training runs survive interruptions; fairseq_modern/README.md explains how, and how to disable that.
"""

from collab_fairseq.modules.fairseq_compat import as_transformer_collab
from collab_fairseq.training import chunked_loss, fused_adam, gated_loss  # noqa: F401  (registered)
from fairseq_modern import fault_tolerance

from . import presets  # noqa: F401  (registers the model, then its presets)
from .transformer_collab import TransformerCollabModel

__all__ = ["TransformerCollabModel", "as_transformer_collab"]

fault_tolerance.enable()

"""What ``--user-dir`` imports: registers ``transformer_collab``, its presets and criterions with fairseq.

fairseq imports every file here by itself; whoever uses the model without ``--user-dir`` imports this package.
"""

from collab_fairseq.modules.stock import as_transformer_collab
from fairseq_modern import survival

from . import chunked_loss, criterions, presets  # noqa: F401  (registers the model, then the presets)
from .beam_search import use_for_our_models
from .transformer_collab import TransformerCollabModel

__all__ = ["TransformerCollabModel", "as_transformer_collab"]

use_for_our_models()
survival.enable()  # trainings with this --user-dir resume and stop as fairseq_modern/README.md says

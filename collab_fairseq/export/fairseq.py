"""``--to fairseq``: a model folder whose checkpoint is of fairseq's own ``transformer``, for whoever has only fairseq.

Exact wherever every head fits into fairseq's: E / H dimensions for keys (the key dim, and one more with a content bias)
and values, with the scale (E / H)^-0.5. It gives up the small key cache.
"""

import os

from collab_fairseq import checkpoints
from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped
from collab_fairseq.translation.torch_engine import MODEL

from .folder import portable, readme
from .source import Source, new_folder, write_text_side
from .standard_heads import standard_layers


def export(source: Source, output: PathLike, *, half: bool = False) -> None:
    """Write the folder, whole or not at all.

    Args:
        half: weights in half precision.

    Raises:
        ExportError: heads that do not fit, by the name of their layer; or the folder cannot be written.
    """
    model = source.model
    with swapped(model, standard_layers(model, source.config)):
        state = portable(source, half, arch="transformer")
    with new_folder(output) as folder:
        checkpoints.save(state, os.path.join(folder, MODEL))
        write_text_side(source, folder, "torch", readme(source, half, arch="transformer"))

"""``--to fairseq``: a model folder whose checkpoint is of fairseq's own ``transformer``, for whoever has only fairseq.

Exact wherever every head fits into fairseq's: E / H dimensions for keys (the key dim, and one more with a content bias)
and values, with the scale (E / H)^-0.5. It gives up the small key cache.
"""

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped

from .folder import portable, write
from .source import Source
from .standard_heads import standard_layers


def export(source: Source, output: PathLike, *, half: bool = False) -> None:
    """Write the folder; ``half``: weights in half precision."""
    model = source.model
    with swapped(model, standard_layers(model, source.config)):
        state = portable(source, half, arch="transformer")
    write(source, state, output)

"""``--to fairseq``: a model folder whose checkpoint is of fairseq's own ``transformer``, which fairseq alone can load.

Exact wherever every head fits into fairseq's: E / H dimensions for keys (the key dim, and one more with a content bias)
and values, with the scale (E / H)^-0.5. It gives up the small key cache.
"""

from typing import Any, Dict

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped

from .folder import portable, write
from .source import Source, UnsupportedError
from .standard_heads import standard_layers


def check(source: Source) -> Dict[str, Any]:
    """The attention that is written, by place.

    Raises:
        UnsupportedError: heads do not fit, or weights are rounded, which are other ones afterwards.
    """
    if source.config.quant_noise.scalar > 0:
        raise UnsupportedError("the model has --quant-noise-scalar, which standard heads would round otherwise")
    return standard_layers(source.model, source.config)


def export(source: Source, output: PathLike, *, half: bool = False) -> None:
    """Write the folder; ``half``: weights in half precision."""
    with swapped(source.model, check(source)):
        state = portable(source, half, arch="transformer")
    write(source, state, output)

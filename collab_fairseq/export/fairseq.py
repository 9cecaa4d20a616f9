"""``--to fairseq``: a model folder whose checkpoint is fairseq's own ``transformer``.

The export is exact if every head fits fairseq's: at most E / H dimensions for keys (the key dimension, plus one for a
content bias) and values, with the scale (E / H)^-0.5. It does not keep the smaller key cache. E: embedding width, H:
heads.
"""

from typing import Any, Dict

from collab_fairseq.checkpoints import PathLike
from collab_fairseq.modules.sites import swapped
from fairseq_modern.errors import UserError

from .folder import portable, write
from .readme import Written
from .source import Source
from .standard_heads import standard_layers


def check(source: Source) -> Dict[str, Any]:
    """``site.layer`` → the standard attention to write."""
    if source.config.quant_noise.scalar > 0:  # rounds the weights, and standard heads have different weights
        raise UserError("the model has --quant-noise-scalar, which rounds standard heads differently")
    return standard_layers(source.model, source.config)


def export(source: Source, layers: Dict[str, Any], output: PathLike, *, half: bool = False) -> None:
    """Write the folder; ``half``: weights in half precision."""
    with swapped(source.model, layers):
        state = portable(source, half, arch="transformer")
    write(source, state, output, Written(layers, half=half))

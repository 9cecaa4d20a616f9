"""Collaborative multi-head attention for neural machine translation with fairseq.

``fairseq-train --user-dir "$(collab user-dir)"`` imports this package and then every file in ``models/``. The package
itself imports neither torch nor fairseq, so that ``collab --help`` starts quickly.
"""

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collab_fairseq.translation import Translator

__version__ = "0.1.0"


def load(
    folder: str, *, device: str = "auto", precision: str = "float32", threads: Optional[int] = None
) -> "Translator":
    """Load a trained model that translates raw text.

    >>> translator = collab_fairseq.load("DIR")
    >>> translator.translate(["A man is riding a bike."], beam=4)
    ['Ein Mann fährt Fahrrad.']

    Args:
        folder: created by ``collab export CHECKPOINT --to folder`` or, for faster translation on a CPU,
            ``--to ctranslate2``.
        device: ``cpu``, ``cuda``, …, or ``auto`` for a GPU if available.
        precision: ``float32``, ``float16`` or ``bfloat16``; with CTranslate2 also ``int8``.
        threads: number of CPU threads; default: the engine's.

    Returns:
        A :class:`.Translator`; its method ``search`` also returns scores and several translations per sentence.

    Raises:
        UserError: the folder does not contain a model, or a file is damaged.
    """
    from collab_fairseq.translation.translator import open_folder

    return open_folder(folder, device, precision, threads)

"""Collaborative multi-head attention for neural machine translation with fairseq.

`fairseq-train --user-dir "$(collab user-dir)"` imports this package and then every file of `models/`. Importing it
alone pulls in neither torch nor fairseq, so that `collab --help` is quick and fairseq decides when it is loaded.
"""

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collab_fairseq.translation import Translator

__version__ = "0.1.0"


def load(
    folder: str, *, device: str = "auto", precision: str = "float32", threads: Optional[int] = None
) -> "Translator":
    """A trained model that translates raw text.

    >>> translator = collab_fairseq.load("DIR")
    >>> translator.translate(["A man is riding a bike."], beam=4)
    ['Ein Mann fährt Fahrrad.']

    Args:
        folder: made by ``collab export CHECKPOINT --to folder``, or, faster on a CPU, ``--to ctranslate2``.
        device: ``cpu``, ``cuda``, …, or ``auto``: a GPU if there is one.
        precision: ``float32``, ``float16`` or ``bfloat16``; of CTranslate2 also ``int8``.
        threads: of the CPU; default: the engine's.

    Returns:
        A :class:`.Translator`; its method ``search`` gives scores and several translations, too.

    Raises:
        TranslationError, CheckpointError: the folder is no model's, or damaged.
    """
    from collab_fairseq.translation.translator import open_folder

    return open_folder(folder, device, precision, threads)

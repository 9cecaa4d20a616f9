"""Collaborative multi-head attention for neural machine translation with fairseq.

`fairseq-train --user-dir "$(collab user-dir)"` imports this package and then every file of `models/`. Importing it
alone pulls in neither torch nor fairseq, so that `collab --help` is quick and fairseq decides when it is loaded.
"""

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from collab_fairseq.translation import Translator

__version__ = "0.1.0"


def load(
    folder: str, *, engine: str = "torch", device: str = "auto", precision: str = "float32",
    threads: Optional[int] = None,
) -> "Translator":  # fmt: skip
    """A trained model that translates raw text.

    >>> translator = collab_fairseq.load("DIR")
    >>> translator.translate(["A man is riding a bike."], beam=4)
    ['Ein Mann fährt Fahrrad.']

    Args:
        folder: made by ``collab export CHECKPOINT --to folder``, or to ``ctranslate2``.
        engine: ``torch`` or, faster on a CPU, ``ctranslate2``, which a model folder is converted for the first time; a
            folder of another engine has its own.
        device: ``cpu``, ``cuda``, …, or ``auto``: a GPU if there is one.
        precision: ``float32``, ``float16`` or ``bfloat16``; of CTranslate2 also ``int8``.
        threads: of the CPU; default: the engine's.

    Returns:
        A :class:`.Translator`; its method ``search`` gives scores, several translations and alignments too.

    Raises:
        TranslationError, CheckpointError: the folder is no model's, or damaged.
    """
    from collab_fairseq.translation.open import open_folder

    def convert(model: str, output: str) -> None:
        from collab_fairseq.export import ctranslate2, source

        ctranslate2.export(source.read_source(model), output)

    return open_folder(folder, engine=engine, device=device, precision=precision, convert=convert, threads=threads)

"""From an exported folder to a translator; torch is imported where that is missing."""

import hashlib
import importlib
import logging
import os
from typing import Optional

from collab_fairseq.translation.translator import Engine, Translator
from collab_fairseq.translation.units import CARD, Card, PathLike, TextUnits, TranslationError, read_card, sha256_of

logger = logging.getLogger(__name__)

_ENGINES = {"torch": "TorchEngine", "ctranslate2": "CTranslate2Engine"}
#: changes with what a conversion writes
_VERSION = "3"


def open_folder(
    folder: PathLike, *, engine: str, device: str, precision: str, threads: Optional[int] = None
) -> Translator:
    """See :func:`collab_fairseq.load`."""
    if engine not in _ENGINES:
        raise TranslationError(f"the engine must be one of {', '.join(_ENGINES)}, but is {engine!r}")
    if threads is not None and threads < 1:
        raise TranslationError(f"threads must be at least 1, but are {threads}")
    card = read_card(folder)
    if engine == "ctranslate2" and card.engine != engine:
        folder = _for_ctranslate2(os.fspath(folder), card)
        card = read_card(folder)
    if card.engine not in _ENGINES:
        raise TranslationError(f"{folder} is for {card.engine}, which does not translate here")
    home = importlib.import_module(f"collab_fairseq.translation.{card.engine}_engine")
    computes: Engine = getattr(home, _ENGINES[card.engine])(folder, device, precision, threads)
    return Translator(computes, TextUnits(folder, card), card)


def _for_ctranslate2(folder: str, card: Card) -> str:
    """The conversion of a folder, in float32, made once and kept.

    Conversions are in ``$XDG_CACHE_HOME/collab_fairseq``, by default ``~/.cache``, and may be deleted at any time.

    Raises:
        TranslationError, ExportError, CheckpointError: as of reading and exporting the folder.
    """
    if card.engine != "torch":
        raise TranslationError(f"{folder} is for {card.engine}, not for ctranslate2")
    files = [os.path.join(folder, file) for file in (CARD, "model.pt")]
    if not os.path.isfile(files[1]):
        raise TranslationError(f"{folder} has no model.pt")
    digest = hashlib.sha256(" ".join([_VERSION, *map(sha256_of, files)]).encode())
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    target = os.path.join(home, "collab_fairseq", f"ctranslate2-{digest.hexdigest()[:16]}")
    if not os.path.isdir(target):
        logger.info("converting %s for CTranslate2, once, to %s", folder, target)
        from .ctranslate2 import export
        from .source import ExportError, read_source

        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            export(read_source(folder), target)
        except ExportError:
            if not os.path.isdir(target):  # else another process was quicker
                raise
    return target

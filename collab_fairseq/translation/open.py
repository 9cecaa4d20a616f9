"""From a model folder to a translator; torch is imported only where it computes."""

import hashlib
import importlib
import logging
import os
from typing import Callable, Optional

from .translator import Engine, Translator
from .units import CARD, Card, PathLike, TextUnits, TranslationError, read_card, sha256_of

logger = logging.getLogger(__name__)

_ENGINES = {"torch": "TorchEngine", "ctranslate2": "CTranslate2Engine"}
#: changes with what a conversion writes
_VERSION = "3"

#: a model folder of torch, and the folder that its conversion goes to
Convert = Callable[[str, str], None]


def open_folder(
    folder: PathLike, *, engine: str, device: str, precision: str, convert: Convert, threads: Optional[int] = None
) -> Translator:
    """See :func:`collab_fairseq.load`.

    Args:
        convert: writes what CTranslate2 reads, whole or not at all.
    """
    if engine not in _ENGINES:
        raise TranslationError(f"the engine must be one of {', '.join(_ENGINES)}, but is {engine!r}")
    if threads is not None and threads < 1:
        raise TranslationError(f"threads must be at least 1, but are {threads}")
    card = read_card(folder)
    if engine == "ctranslate2" and card.engine != engine:
        folder = _for_ctranslate2(os.fspath(folder), card, convert)
        card = read_card(folder)
    if card.engine not in _ENGINES:
        raise TranslationError(f"{folder} is for {card.engine}, which does not translate here")
    home = importlib.import_module(f".{card.engine}_engine", __package__)
    computes: Engine = getattr(home, _ENGINES[card.engine])(folder, device, precision, threads)
    return Translator(computes, TextUnits(folder, card), card)


def _for_ctranslate2(folder: str, card: Card, convert: Convert) -> str:
    """The conversion of a folder, in float32, made once and kept.

    Conversions are in ``$XDG_CACHE_HOME/collab_fairseq``, by default ``~/.cache``, and may be deleted at any time.

    Raises:
        TranslationError: another engine's folder, or no model in it; what ``convert`` raises.
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
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            convert(folder, target)
        except Exception:
            if not os.path.isdir(target):  # else another process was quicker
                raise
    return target

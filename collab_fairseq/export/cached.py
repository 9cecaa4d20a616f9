"""A model folder converted once for CTranslate2, kept in the user's cache; torch is imported where that is missing."""

import hashlib
import logging
import os

from collab_fairseq.translation.units import CARD, PathLike, TranslationError, read_card

logger = logging.getLogger(__name__)

#: changes with what a conversion writes
_VERSION = "1"


def for_ctranslate2(folder: PathLike) -> str:
    """The folder itself if it is CTranslate2's, else its conversion, in float32.

    Conversions are in ``$XDG_CACHE_HOME/collab_fairseq``, by default ``~/.cache``, and may be deleted at any time.

    Raises:
        TranslationError, ExportError, CheckpointError: as of reading and exporting the folder.
    """
    name = os.fspath(folder)
    card = read_card(name)
    if card.engine == "ctranslate2":
        return name
    if card.engine != "torch":
        raise TranslationError(f"{name} is for {card.engine}, not for ctranslate2")
    digest = hashlib.sha256(_VERSION.encode())
    for file in (CARD, "model.pt"):
        path = os.path.join(name, file)
        if not os.path.isfile(path):
            raise TranslationError(f"{name} has no {file}")
        with open(path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    target = os.path.join(home, "collab_fairseq", f"ctranslate2-{digest.hexdigest()[:16]}")
    if not os.path.isdir(target):
        logger.info("converting %s for CTranslate2, once, to %s", name, target)
        from .ctranslate2 import export
        from .source import ExportError, read_source

        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            export(read_source(name), target)
        except ExportError:
            if not os.path.isdir(target):  # else another process was quicker
                raise
    return target

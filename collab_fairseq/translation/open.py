"""From an exported folder to a translator."""

from typing import Optional

from .translator import Engine, Translator
from .units import PathLike, TextUnits, TranslationError, read_card

ENGINES = ("torch", "ctranslate2")


def open_folder(
    folder: PathLike,
    *,
    engine: str = "torch",
    device: str = "auto",
    precision: str = "float32",
    threads: Optional[int] = None,
) -> Translator:
    """See :func:`collab_fairseq.load`."""
    if engine not in ENGINES:
        raise TranslationError(f"the engine must be one of {', '.join(ENGINES)}, but is {engine!r}")
    card = read_card(folder)
    computes: Engine
    if card.engine == "torch" and engine == "torch":
        from .torch_engine import TorchEngine

        computes = TorchEngine(folder, device, precision, threads)
    elif card.engine == "ctranslate2":
        from .ctranslate2_engine import CTranslate2Engine

        computes = CTranslate2Engine(folder, device, precision, threads)
    elif card.engine == "onnx":
        from .onnx_engine import OnnxEngine

        computes = OnnxEngine(folder, card, device, precision, threads)
    else:
        raise TranslationError(f"{folder} is for {card.engine}, which does not translate here")
    return Translator(computes, TextUnits(folder, card), card)

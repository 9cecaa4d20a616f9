"""Patches: resuming from, generating with and averaging checkpoints, which torch >= 2.6 refuses to load.

torch unpickles nothing but tensors and plain containers unless a class is allowed. What fairseq's own checkpoints hold
beyond that is allowed while one is loaded, and not otherwise: `argparse.Namespace`, and NumPy's arrays and numbers,
which training with `--eval-bleu` keeps in its meters (their names differ between NumPy 1 and 2). Everything else stays
refused, whatever TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD says, and is reported with the name of the file and of what was
refused. FAIRSEQ_MODERN_SKIP=loading gives fairseq torch's own `load` back, with all its variables.

torch does not compare data with their checksums; here a file with a changed byte is refused.
"""

import _codecs
import argparse
import inspect
import re
import zipfile
from types import ModuleType
from typing import Any, List, Tuple

import numpy
import torch

from fairseq_modern.errors import CheckpointError
from fairseq_modern.patching import StandIn


def allowed_globals() -> List[Any]:
    """The classes and functions, beyond torch's own, that a checkpoint may name: none of them runs code given to it."""
    array = numpy.zeros(1)
    reconstruct = array.__reduce__()[0]
    scalar = numpy.float64(0).__reduce__()[0]
    allowed: List[Any] = [argparse.Namespace, _codecs.encode, numpy.dtype, numpy.ndarray]
    named: List[Tuple[Any, str]] = []
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        named += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    kinds = [kind for kind in vars(numpy.dtypes).values() if inspect.isclass(kind) and issubclass(kind, numpy.dtype)]
    return allowed + named + [kind for kind in kinds if kind is not numpy.dtypes.ObjectDType]


def unpickle(f: Any, *args: Any, **options: Any) -> Any:
    """As `torch.load`, but it never runs code."""
    own = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in allowed_globals() if each not in own]):
        # Stated explicitly: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD only changes the default.
        return torch.load(f, *args, **{**options, "weights_only": True})


def load(f: Any, *args: Any, **options: Any) -> Any:
    """As `torch.load`, but it never runs code, and refuses an archive whose data do not match their checksums.

    Raises:
        CheckpointError: the file is damaged, is not a checkpoint, or would run code.
    """
    try:
        check_sums(f)
        return unpickle(f, *args, **options)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a damaged file makes torch raise nearly anything
        # torch's advice to load it unsafely is not passed on
        cause = None if "weights_only" in str(error) else error
        raise CheckpointError(_explain(getattr(f, "name", f), error)) from cause


def check_sums(f: Any) -> None:
    """Compare the data of an archive, a path or an open file, with their checksums, if it has any.

    Raises:
        BadZipFile: they do not match.
    """
    start, damaged = f.tell() if hasattr(f, "tell") else 0, None
    if zipfile.is_zipfile(f):  # else of torch < 1.6, or damaged
        with zipfile.ZipFile(f) as archive:
            # all zero: written with torch.serialization.set_crc32_options(False)
            damaged = archive.testzip() if any(part.CRC for part in archive.infolist()) else None
    if hasattr(f, "seek"):
        f.seek(start)
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} does not match its checksum")


def load_dictionary(f: Any, *args: Any, **options: Any) -> Any:
    """As `load`; anything but a dictionary is a CheckpointError."""
    state = load(f, *args, **options)
    if not isinstance(state, dict):
        name = getattr(f, "name", f)
        raise CheckpointError(f"{name} is no checkpoint: expected a dictionary, got a {type(state).__name__}.")
    return state


def _explain(file: Any, error: Exception) -> str:
    """One sentence about a file that could not be loaded."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused is not None:
        return (
            f"{file} was not loaded: expected a checkpoint of tensors, numbers, strings and settings, "
            f"got one that calls {refused.group(1)}, which may run code when it is loaded."
        )
    reason = type(error).__name__
    if "weights_only" not in str(error):  # torch would advise to load it unsafely
        reason = f"{reason}: {error}".split("\n")[0].split(". ")[0].rstrip(": .")
    return f"{file} was not loaded: expected a whole checkpoint, got a damaged file or something else ({reason})."


def patch(module: ModuleType) -> None:
    """Give the module a `torch` with the safe `load`, if it has a `torch`."""
    if "torch" in vars(module):
        safe = load_dictionary if module.__name__ == "fairseq.checkpoint_utils" else load
        module.torch = StandIn(torch, load=safe, __version__=torch.__version__)  # type: ignore[attr-defined]

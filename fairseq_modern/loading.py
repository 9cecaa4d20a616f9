"""Patches: resuming from, generating with and averaging checkpoints, which torch >= 2.6 refuses to load.

torch unpickles nothing but tensors and plain containers unless a class is allowed. What fairseq's own checkpoints hold
beyond that is allowed while one is loaded, and not otherwise: `argparse.Namespace`, and NumPy's arrays and numbers,
which training with `--eval-bleu` keeps in its meters (their names differ between NumPy 1 and 2). Everything else stays
refused, whatever TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD says, and is reported with the name of the file and of what was
refused. FAIRSEQ_MODERN_SKIP=loading gives fairseq torch's own `load` back, with all its variables.

torch does not compare data with their checksums; here a file with a changed byte is refused.

fairseq reads the settings of a checkpoint through OmegaConf, which would replace `${oc.env:NAME}` by the value of that
variable. Settings are plain values here: a reference to another setting, `${dataset.max_tokens}`, is replaced by it
when the checkpoint is loaded, and any other expression is an error.
"""

import _codecs
import argparse
import inspect
import itertools
import re
import zipfile
from types import ModuleType
from typing import Any, Dict, List, Tuple

import numpy
import torch

from fairseq_modern.errors import CheckpointError
from fairseq_modern.patching import StandIn

_REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")
#: of settings within settings, and of all settings: far above those of fairseq, which are 4 deep and some 500
_DEEPEST, _MOST = 20, 100_000


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
    """As `load`, of a checkpoint, whose settings become plain values.

    Raises:
        CheckpointError: see `load` and `make_plain`; it is not a dictionary.
    """
    state, name = load(f, *args, **options), getattr(f, "name", f)
    if not isinstance(state, dict):
        raise CheckpointError(f"{name} is no checkpoint: expected a dictionary, got a {type(state).__name__}.")
    make_plain(state, name)
    return state


def make_plain(state: Dict[str, Any], file: Any) -> None:
    """Replace references between the settings of a checkpoint, `cfg` or `args`, by the values that they refer to.

    Raises:
        CheckpointError: the settings or one of their parts are not a mapping, are too many or too deeply nested, or
            hold another expression than a reference to a value.
    """
    cfg = state.get("cfg")
    kinds = {"cfg": dict, "args": argparse.Namespace}
    places = {name: state.get(name) for name in kinds}
    if isinstance(cfg, dict):
        places.update((f"cfg.{part}", cfg.get(part)) for part in ("model", "task", "criterion"))
    for place, value in places.items():
        if not isinstance(value, (kinds.get(place, (dict, argparse.Namespace)), type(None))):
            raise CheckpointError(f"{file}: {place} must be settings by name; got a {type(value).__name__}.")
    number = itertools.count(1)

    def plain(value: Any, place: str, depth: int) -> Any:
        if depth > _DEEPEST or next(number) > _MOST:
            raise CheckpointError(
                f"{file}: the settings in {place} must be at most {_MOST:,} and nested at most {_DEEPEST} deep."
            )
        if isinstance(value, str) and "${" in value:
            return plain(referent(value, place), place, depth + 1)
        if isinstance(value, (list, tuple)):
            return type(value)(plain(each, place, depth + 1) for each in value)
        settings = vars(value) if isinstance(value, argparse.Namespace) else value
        if isinstance(settings, dict):
            for name, each in settings.items():
                settings[name] = plain(each, f"{place}.{name}", depth + 1)
        return value

    def referent(text: str, place: str) -> Any:
        reference, found = _REFERENCE.fullmatch(text), cfg
        for name in reference[1].split(".") if reference else [""]:
            settings = vars(found) if isinstance(found, argparse.Namespace) else found
            if not isinstance(settings, dict) or name not in settings:
                raise CheckpointError(
                    f"{file}: {place} must be a value or refer to another setting of the checkpoint; got {text[:80]!r}."
                )
            found = settings[name]
        return found

    for place in kinds:
        plain(state.get(place), place, 0)


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

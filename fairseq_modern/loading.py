"""Defect: torch ≥ 2.6 rejects fairseq's checkpoints, and fairseq evaluates `${oc.env:NAME}` in their settings.

Check: the module imports torch. It gets a `torch` whose `load` differs as follows.

- Loading never runs code from a file, whatever TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD says. Besides tensors and plain
  containers, checkpoints may contain `argparse.Namespace`, NumPy's arrays and numbers (meters of `--eval-bleu`), and
  fairseq's `Dictionary` (tasks such as audio_finetuning), whose attributes are plain containers.
- The data are compared with the checksums in the file.
- Tensors are dense, on the CPU, and not larger than their data; all together, they take at most a few times the memory
  of the file.
- References to other settings, such as `${dataset.max_tokens}`, become values. Other expressions are errors.
"""

import _codecs
import argparse
import inspect
import itertools
import os
import re
import sys
import zipfile
from types import ModuleType
from typing import Any, Dict, List, Optional

import numpy
import torch

from fairseq_modern.errors import UserError
from fairseq_modern.patching import StandIn

_REFERENCE = re.compile(r"\$\{(\w+(?:\.\w+)*)\}")
#: depth and number of settings: far above those of fairseq, which has about 500, nested 4 deep
_MAX_DEPTH, _MAX_SETTINGS = 20, 100_000
#: size of all tensors of a checkpoint, relative to its file: 1 unless views of the same data overlap
_MAX_SHARING = 4


def allowed_globals() -> List[Any]:
    """Return the classes and functions, none of which runs code from a file, that checkpoints may name."""
    reconstruct = numpy.zeros(1).__reduce__()[0]
    scalar = numpy.float64(0).__reduce__()[0]
    allowed: List[Any] = [argparse.Namespace, _codecs.encode, numpy.dtype, numpy.ndarray]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # of NumPy 1 and 2
        allowed += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    for dtype in vars(numpy.dtypes).values():
        if inspect.isclass(dtype) and issubclass(dtype, numpy.dtype) and dtype is not numpy.dtypes.ObjectDType:
            allowed.append(dtype)
    dictionary = sys.modules.get("fairseq.data.dictionary")  # not imported for checkpoints without one
    return [*allowed, dictionary.Dictionary] if dictionary else allowed


def unpickle(f: Any, *args: Any, **options: Any) -> Any:
    """Call `torch.load` without running code from the file."""
    present = torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([each for each in allowed_globals() if each not in present]):
        # TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD changes the default only
        return torch.load(f, *args, **{**options, "weights_only": True})


def load(f: Any, *args: Any, **options: Any) -> Any:
    """Call `torch.load` without running code from the file, and verify its checksums; raise UserError."""
    try:
        verify_checksums(f)
        return unpickle(f, *args, **options)
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # torch raises almost any exception for a damaged file
        # torch's message may advise the user to load the file unsafely
        cause = None if "weights_only" in str(error) else error
        raise UserError(_explain(getattr(f, "name", f), error)) from cause


def verify_checksums(f: Any) -> None:
    """Verify the checksums in a checkpoint, a path or an open file, if it has any; raise BadZipFile."""
    start = f.tell() if hasattr(f, "tell") else 0
    damaged = None
    if zipfile.is_zipfile(f):  # otherwise written by torch < 1.6, or damaged
        with zipfile.ZipFile(f) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise zipfile.BadZipFile("it is compressed, which torch.save never does")
            # all are zero after torch.serialization.set_crc32_options(False)
            if any(part.CRC for part in archive.infolist()):
                damaged = archive.testzip()
    if hasattr(f, "seek"):
        f.seek(start)
    if damaged is not None:
        raise zipfile.BadZipFile(f"{damaged} does not match its checksum")


def load_dictionary(f: Any, *args: Any, **options: Any) -> Any:
    """Call `load` for a checkpoint, which must be a dictionary, `check_arrays`, and `make_plain` for its settings."""
    state, name = load(f, *args, **options), getattr(f, "name", f)
    if not isinstance(state, dict):
        raise UserError(f"{name}: a checkpoint must be a dictionary; got a {type(state).__name__}")
    check_arrays(state, f)
    make_plain(state, name)
    return state


def check_arrays(state: Dict[str, Any], f: Any) -> None:
    """Raise UserError unless the tensors of a checkpoint are dense CPU tensors whose elements are in the file `f`.

    Tied weights, which are the same view of the same data, count once.
    """
    name, total, counted = getattr(f, "name", f), 0, set()
    limit = _MAX_SHARING * (os.path.getsize(f) if isinstance(f, (str, os.PathLike)) else f.seek(0, os.SEEK_END))
    values, visited = [("", state)], set()
    while values:  # not recursive: containers may be nested deeply or contain themselves
        entry, value = values.pop()
        members = _mapping(value)
        if isinstance(members, (dict, list, tuple, set)) and id(members) not in visited:
            visited.add(id(members))
            pairs = members.items() if isinstance(members, dict) else enumerate(members)
            values += [(f"{entry}.{key}"[:200], member) for key, member in pairs]
            continue
        problem, place = None, id(value)
        if isinstance(value, torch.Tensor):
            problem = _unusual(value)
            if problem is None:
                size = value.numel() * value.element_size()
                data = value.untyped_storage()
                place = (data.data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
                if size > data.nbytes():
                    problem = f"{size:,} bytes from {data.nbytes():,} bytes of data"
        elif isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
            size = value.nbytes()
        elif isinstance(value, numpy.ndarray):
            size = value.nbytes
        elif isinstance(value, (bytes, bytearray)):
            size = len(value)
        else:
            continue
        if problem is None and place not in counted:
            counted.add(place)
            total += size
            if total > limit:
                problem = f"more data than the file has, {total:,} bytes"
        if problem is not None:
            raise UserError(
                f"{name}: {entry[1:]} must be an array in the file, a dense tensor on the CPU; got {problem}"
            )


def _unusual(tensor: torch.Tensor) -> Optional[str]:
    """What a tensor is other than dense and on the CPU; None if it is that."""
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.is_quantized:
        return "a quantised tensor"
    return None if tensor.device.type == "cpu" else f"a tensor on the device {tensor.device.type}"


def make_plain(state: Dict[str, Any], file: Any) -> None:
    """Replace references between the settings of a checkpoint, `cfg` or `args`, by values; raise UserError."""
    cfg = state.get("cfg")
    types: Dict[str, Any] = {"cfg": dict, "args": argparse.Namespace}
    sections = {name: state.get(name) for name in types}
    if isinstance(cfg, dict):
        sections.update((f"cfg.{part}", cfg.get(part)) for part in ("model", "task", "criterion"))
    for name, section in sections.items():
        expected = types.get(name, (dict, argparse.Namespace))
        if section is not None and not isinstance(section, expected):
            raise UserError(f"{file}: {name} must be a mapping of settings; got a {type(section).__name__}")
    counter = itertools.count(1)

    def plain(value: Any, name: str, depth: int) -> Any:
        if depth > _MAX_DEPTH or next(counter) > _MAX_SETTINGS:
            raise UserError(
                f"{file}: {name} must have at most {_MAX_SETTINGS:,} settings, nested at most {_MAX_DEPTH} deep"
            )
        if isinstance(value, str) and "${" in value:
            return plain(_referent(value, cfg, f"{file}: {name}"), name, depth + 1)
        if isinstance(value, (list, tuple)):
            return type(value)(plain(element, name, depth + 1) for element in value)
        settings = _mapping(value)
        if isinstance(settings, dict):
            for key, element in settings.items():
                settings[key] = plain(element, f"{name}.{key}", depth + 1)
        return value

    for name in types:
        plain(state.get(name), name, 0)


def _mapping(value: Any) -> Any:
    return vars(value) if isinstance(value, argparse.Namespace) else value


def _referent(text: str, cfg: Any, name: str) -> Any:
    """Return the value that `${section.key}` refers to."""
    reference, value = _REFERENCE.fullmatch(text), cfg
    for key in reference[1].split(".") if reference else [""]:
        settings = _mapping(value)
        if not isinstance(settings, dict) or key not in settings:
            raise UserError(
                f"{name} must be a value or a reference to another setting of the checkpoint; got {text[:80]!r}"
            )
        value = settings[key]
    return value


def _explain(file: Any, error: Exception) -> str:
    """Say in one sentence why a file could not be loaded."""
    rejected = re.search(r"GLOBAL (\S+)", str(error))
    if rejected is not None:
        return (
            f"{file} was not loaded: it must hold only tensors, numbers, strings and settings; "
            f"got a call of {rejected.group(1)}, which could run code"
        )
    reason = type(error).__name__
    if "weights_only" not in str(error):  # torch's advice to load the file unsafely
        reason = f"{reason}: {error}".split("\n")[0].split(". ")[0].rstrip(": .")
    return f"{file} was not loaded: it must be a complete checkpoint; got a damaged file or another format ({reason})"


def patch(module: ModuleType) -> None:
    """Replace `torch` in the module."""
    if "torch" in vars(module):
        safe_load = load_dictionary if module.__name__ == "fairseq.checkpoint_utils" else load
        module.torch = StandIn(torch, load=safe_load, __version__=torch.__version__)  # type: ignore[attr-defined]

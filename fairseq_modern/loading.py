"""Mends: resuming from, generating with and averaging checkpoints, which torch >= 2.6 refuses to load.

torch unpickles nothing but tensors and plain containers unless a class is allowed. What fairseq's own checkpoints hold
beyond that is allowed here: `argparse.Namespace`, and NumPy's arrays and numbers, which training with `--eval-bleu`
keeps in its meters (their names differ between NumPy 1 and 2). Everything else stays refused, whatever the environment
says, and is reported with the name of the file and of what was refused.
"""

import _codecs
import argparse
import inspect
import re
from types import ModuleType
from typing import Any, List, Tuple

import numpy
import torch

from fairseq_modern.errors import CheckpointError


def allowed_globals() -> List[Any]:
    """The classes and functions, beyond torch's own, that a checkpoint may name: none of them runs code given to it."""
    array = numpy.zeros(1)
    reconstruct = array.__reduce__()[0]
    scalar = numpy.float64(0).__reduce__()[0]
    allowed: List[Any] = [argparse.Namespace, _codecs.encode, numpy.dtype, numpy.ndarray]
    named: List[Tuple[Any, str]] = []
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        named += [(reconstruct, f"{module}._reconstruct"), (scalar, f"{module}.scalar")]
    kinds = vars(numpy.dtypes).values()
    return allowed + named + [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, numpy.dtype)]


class SafeTorch(ModuleType):
    """Stands for the name `torch` in a module of fairseq: all of torch, with a `load` that never runs code."""

    def __init__(self, dictionaries_only: bool) -> None:
        super().__init__("torch", "torch, with a load that never runs code")
        vars(self).update(dictionaries_only=dictionaries_only, __version__=torch.__version__)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def load(self, f: Any, *args: Any, **options: Any) -> Any:
        """As `torch.load`, always with `weights_only=True`.

        Raises:
            CheckpointError: the file is damaged, is not a checkpoint, or would run code.
        """
        file = getattr(f, "name", f)
        # Stated explicitly: TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD only changes the default.
        options["weights_only"] = True
        try:
            state = torch.load(f, *args, **options)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a damaged file makes torch raise nearly anything
            raise CheckpointError(_explain(file, error)) from error
        if self.dictionaries_only and not isinstance(state, dict):
            raise CheckpointError(f"{file} is no checkpoint: expected a dictionary, got a {type(state).__name__}.")
        return state


def _explain(file: Any, error: Exception) -> str:
    """One sentence about a file that could not be loaded."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if refused is not None:
        return (
            f"{file} was not loaded: expected a checkpoint of tensors, numbers, strings and settings, "
            f"got one that calls {refused.group(1)}, which may run code when it is loaded."
        )
    reason = f"{type(error).__name__}: {error}".split("\n")[0].rstrip(": .")
    return f"{file} was not loaded: expected a whole checkpoint, got a damaged file or something else ({reason})."


def mend(module: ModuleType) -> None:
    """Allow what fairseq's checkpoints hold, and give the module the safe `torch`."""
    torch.serialization.add_safe_globals(allowed_globals())
    module.torch = SafeTorch(module.__name__ == "fairseq.checkpoint_utils")  # type: ignore[attr-defined]

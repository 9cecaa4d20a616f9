"""Quietens warnings of current Hydra and torch that fairseq's code causes and that no user can act upon.

fairseq's configuration files are written for Hydra 1.0. Hydra 1.3 reads them, with five warnings that fill a page at
the start of every tool. torch adds up to three, which are kept quiet, each by its own words, in fairseq's console
programs only, and behind whatever `python -W` or PYTHONWARNINGS ask for.

Two tasks configure logging as they are imported, for every program that imports fairseq; outside fairseq's console
programs, whose messages go where they always went, it stays as it was.
"""

import logging
import warnings
from types import ModuleType
from typing import Any, Dict, List, Tuple

from fairseq_modern.errors import tool_name
from fairseq_modern.patching import wrap

OF_TORCH = (
    (UserWarning, "'pin_memory' argument is set as true but no accelerator is found"),
    (UserWarning, "Support for mismatched key_padding_mask and attn_mask is deprecated"),
    (FutureWarning, r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated"),
    (FutureWarning, r"`torch\.nn\.utils\.weight_norm` is deprecated"),
)


def patch(module: ModuleType) -> None:
    """Before fairseq is imported: ignore these warnings of torch, if this is one of fairseq's console programs."""
    if tool_name() is not None:
        for category, message in OF_TORCH:
            warnings.filterwarnings("ignore", message, category, append=True)


_root: Dict[str, Tuple[List[logging.Handler], int]] = {}


def remember_root(module: ModuleType) -> None:
    """Before a module that configures logging is executed."""
    root = logging.getLogger()
    _root[module.__name__] = [*root.handlers], root.level


def restore_root(module: ModuleType) -> None:
    """Afterwards: the root logger as it was."""
    handlers, level = _root.pop(module.__name__)
    if tool_name() is None:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)


def patch_hydra(module: ModuleType) -> None:
    """Wrap `fairseq.dataclass.utils.convert_namespace_to_omegaconf`."""

    @wrap(module)
    def convert_namespace_to_omegaconf(original: Any, *args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return original(*args, **options)

"""Quietens warnings of current Hydra and torch that fairseq's code causes and that no user can act upon.

fairseq's configuration files are written for Hydra 1.0. Hydra 1.3 reads them, with five warnings that fill a page at
the start of every tool. torch adds up to three, which are kept quiet, each by its own words, in fairseq's console
programs only, and behind whatever `python -W` or PYTHONWARNINGS ask for.
"""

import warnings
from types import ModuleType
from typing import Any

from fairseq_modern.errors import tool_name
from fairseq_modern.patching import wrap

OF_TORCH = (
    (UserWarning, "'pin_memory' argument is set as true but no accelerator is found"),
    (UserWarning, "Support for mismatched key_padding_mask and attn_mask is deprecated"),
    (FutureWarning, r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated"),
)


def patch(module: ModuleType) -> None:
    """Before fairseq is imported: ignore these warnings of torch, if this is one of fairseq's console programs."""
    if tool_name() is not None:
        for category, message in OF_TORCH:
            warnings.filterwarnings("ignore", message, category, append=True)


def patch_hydra(module: ModuleType) -> None:
    """Wrap `fairseq.dataclass.utils.convert_namespace_to_omegaconf`."""

    @wrap(module)
    def convert_namespace_to_omegaconf(original: Any, *args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return original(*args, **options)

"""Defect: fairseq's code causes warnings of Hydra and torch that users cannot act on.

Check: the category and text of each warning of torch, in fairseq's command-line tools only; `python -W` and
PYTHONWARNINGS take precedence. Hydra 1.3 adds five warnings about fairseq's configuration files for Hydra 1.0.
"""

import warnings
from types import ModuleType

from fairseq_modern.errors import tool_name
from fairseq_modern.patching import wrap

TORCH_WARNINGS = (
    (UserWarning, "'pin_memory' argument is set as true but no accelerator is found"),
    (UserWarning, "Support for mismatched key_padding_mask and attn_mask is deprecated"),
    (FutureWarning, r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated"),
)


def patch(module: ModuleType) -> None:
    """Before fairseq is imported: ignore these warnings of torch."""
    if tool_name() is not None:
        for category, message in TORCH_WARNINGS:
            warnings.filterwarnings("ignore", message, category, append=True)


def patch_hydra(module: ModuleType) -> None:
    """Wrap `fairseq.dataclass.utils.convert_namespace_to_omegaconf`."""

    @wrap(module)
    def convert_namespace_to_omegaconf(original, *args, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return original(*args, **options)

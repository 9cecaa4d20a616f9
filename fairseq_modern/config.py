"""Quietens Hydra while fairseq composes its configuration.

fairseq's configuration files are written for Hydra 1.0. Hydra 1.3 reads them, with five warnings that fill a page at
the start of every tool and that no user can act upon.
"""

import functools
import warnings
from types import ModuleType
from typing import Any


def mend(module: ModuleType) -> None:
    """Wrap `fairseq.dataclass.utils.convert_namespace_to_omegaconf`."""
    published = module.convert_namespace_to_omegaconf

    @functools.wraps(published)
    def convert_namespace_to_omegaconf(*args: Any, **options: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return published(*args, **options)

    module.convert_namespace_to_omegaconf = convert_namespace_to_omegaconf  # type: ignore[attr-defined]

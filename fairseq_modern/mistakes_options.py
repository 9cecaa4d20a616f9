"""Mistakes on fairseq's command line: a forgotten `--user-dir`, `fairseq-validate` without `--task`."""

import argparse
import functools
from types import ModuleType
from typing import Any, Optional

from fairseq_modern.errors import UserError
from fairseq_modern.mistakes import OURS, USER_DIR
from fairseq_modern.patching import wrap


@functools.lru_cache(maxsize=1)
def task_of(path: str) -> Optional[str]:
    """The task that a checkpoint was trained for."""
    from fairseq.checkpoint_utils import load_checkpoint_to_cpu

    task = load_checkpoint_to_cpu(path)["cfg"]["task"]
    return getattr(task, "_name", None) or getattr(task, "task", None)


def default_task() -> Optional[str]:
    """That of the checkpoint of this command line (`--path`), unless it names one itself (`--task`)."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--path", "--task"):
        parser.add_argument(flag)
    given = parser.parse_known_args()[0]
    return task_of(given.path) if given.task is None and given.path is not None else None


def patch(module: ModuleType) -> None:
    """Wrap the parsers of `fairseq.options`."""

    @wrap(module)
    def get_parser(original: Any, *args: Any, **options: Any) -> Any:
        parser = original(*args, **options)
        original_error = parser.error

        def error(message: str) -> None:
            from fairseq.models import ARCH_MODEL_REGISTRY

            chosen = OURS.search(message.partition("(choose from")[0])
            if chosen is not None and "transformer_collab" not in ARCH_MODEL_REGISTRY:
                raise UserError(f"fairseq has no {chosen[0]}; {USER_DIR}.")
            original_error(message)

        parser.error = error
        return parser

    @wrap(module)
    def get_validation_parser(original: Any, task: Optional[str] = None) -> Any:
        return original(task or default_task())

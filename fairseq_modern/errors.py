"""Errors that a user can act upon, shown as one line.

An exception with the attribute `user_error = True` (this package's and those of plugins alike) says in one sentence
what was expected and what was got. fairseq's command-line tools print that sentence after the tool's name and exit
with status 1, without a traceback. Set FAIRSEQ_MODERN_TRACEBACK=1 to see it nevertheless. Every other exception, and
every other program, is left alone.
"""

import os
import sys
from types import ModuleType, TracebackType
from typing import Any, Optional, Type

from fairseq_modern import mistakes
from fairseq_modern.patching import wrap


class UserError(RuntimeError):
    """Something that the user can put right. Its message is one complete sentence."""

    user_error = True


class CheckpointError(UserError):
    """A checkpoint cannot be read or written."""


def tool_name() -> Optional[str]:
    """The name of the fairseq tool that is running (`fairseq-train`, `fairseq_cli.train`), or None."""
    directory, file = os.path.split(sys.argv[0] if sys.argv else "")
    name, _ = os.path.splitext(file)
    if name.startswith("fairseq-"):
        return name
    if os.path.basename(directory) == "fairseq_cli":
        return "fairseq_cli." + name
    return None


def sentence(error: BaseException) -> Optional[str]:
    """What fairseq's tools print in place of a traceback; None in other programs and for errors no one can act on."""
    if os.environ.get("FAIRSEQ_MODERN_TRACEBACK", "0") not in ("", "0") or tool_name() is None:
        return None
    return str(error) if getattr(error, "user_error", False) is True else mistakes.sentence(error)


def show(told: str) -> None:
    """Print it as one line on standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"{tool_name()}: error: {' '.join(told.split())}\n")


def show_user_errors(module: ModuleType) -> None:
    """Before fairseq's console programs import fairseq: show errors for the user as one line, all others as before."""
    if tool_name() is None:
        return
    previous = sys.excepthook

    def excepthook(kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        told = sentence(error)
        if told is None:
            previous(kind, error, traceback)
        else:
            show(told)

    sys.excepthook = excepthook


def patch_hydra_train(module: ModuleType) -> None:
    """Hydra prints exceptions itself; let fairseq-hydra-train show those for the user in its place."""

    @wrap(module)
    def _hydra_main(original: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except Exception as error:
            told = sentence(error)
            if told is None:
                raise
            show(told)
            sys.exit(1)

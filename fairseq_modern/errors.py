"""Errors that a user can act upon, shown as one line.

The message of a `UserError` says in one sentence what was expected and what was got. fairseq's command-line tools print
it after the tool's name and exit with status 1, without a traceback; FAIRSEQ_MODERN_TRACEBACK=1 shows the traceback.
Every other exception, and every other program, is left alone.
"""

import os
import sys
from types import ModuleType, TracebackType
from typing import Any, Optional, Type

from fairseq_modern import error_messages
from fairseq_modern.patching import wrap


class UserError(Exception):
    """Something that the user can correct. The message is one complete sentence.

    Packages that import nothing but torch cannot derive from it: their errors have its attribute instead.
    """

    user_error = True


class CheckpointError(UserError):
    """A checkpoint cannot be read or written."""


def is_user_error(error: BaseException) -> bool:
    """Whether the message of an error is for the user, and its traceback is not."""
    return getattr(error, "user_error", False) is True


def tool_name() -> Optional[str]:
    """The name of the fairseq tool that is running (`fairseq-train`, `fairseq_cli.train`), or None."""
    directory, file = os.path.split(sys.argv[0] if sys.argv else "")
    name, _ = os.path.splitext(file)
    if name.startswith("fairseq-"):
        return name
    if os.path.basename(directory) == "fairseq_cli":
        return "fairseq_cli." + name
    return None


def explain(error: BaseException) -> Optional[str]:
    """What fairseq's tools print in place of a traceback; None in other programs and for errors no one can act on."""
    if os.environ.get("FAIRSEQ_MODERN_TRACEBACK", "0") not in ("", "0") or tool_name() is None:
        return None
    return str(error) if is_user_error(error) else error_messages.explain(error)


def show(message: str) -> None:
    """Print it as one line on standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"{tool_name()}: error: {' '.join(message.split())}\n")


def show_user_errors(module: ModuleType) -> None:
    """Before fairseq's console programs import fairseq: show errors for the user as one line, all others as before."""
    if tool_name() is None:
        return
    previous = sys.excepthook

    def excepthook(kind: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        message = explain(error)
        if message is None:
            previous(kind, error, traceback)
        else:
            show(message)

    sys.excepthook = excepthook


def patch_hydra_train(module: ModuleType) -> None:
    """Hydra prints exceptions itself; let fairseq-hydra-train show those for the user in its place."""

    @wrap(module)
    def _hydra_main(original: Any, *args: Any, **options: Any) -> Any:
        try:
            return original(*args, **options)
        except Exception as error:
            message = explain(error)
            if message is None:
                raise
            show(message)
            sys.exit(1)

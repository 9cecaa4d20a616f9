"""Errors that users can correct, printed as one line.

Defect: fairseq's command-line tools print a traceback. Check: the error is a `UserError`, or `error_messages` explains
it. Other errors and programs are unaffected. FAIRSEQ_MODERN_TRACEBACK=1 restores the traceback.
"""

import os
import sys
from types import ModuleType, TracebackType
from typing import Optional, Type

from fairseq_modern import error_messages
from fairseq_modern.patching import step


class UserError(Exception):
    """An error that the user can correct. The message is one sentence.

    Modules that import nothing but torch cannot derive from it; their errors set `user_error = True` instead.
    """

    user_error = True


def is_user_error(error: BaseException) -> bool:
    """Whether to print the message of an error without a traceback."""
    return getattr(error, "user_error", False) is True


def tool_name() -> Optional[str]:
    """Return the name of the running fairseq program (`fairseq-train`, `fairseq_cli.train`), or None."""
    directory, file = os.path.split(sys.argv[0] if sys.argv else "")
    name, _ = os.path.splitext(file)
    if name.startswith("fairseq-"):
        return name
    if os.path.basename(directory) == "fairseq_cli":
        return "fairseq_cli." + name
    return None


@step()
def explain(error: BaseException) -> Optional[str]:
    """Return the message to print instead of a traceback; None to print the traceback."""
    wants_traceback = os.environ.get("FAIRSEQ_MODERN_TRACEBACK", "0") not in ("", "0")
    if wants_traceback or tool_name() is None:
        return None
    return str(error) if is_user_error(error) else error_messages.explain(error)


def show(message: str) -> None:
    """Print a message to standard error, on one line."""
    sys.stdout.flush()
    sys.stderr.write(f"{tool_name()}: error: {' '.join(message.split())}\n")


def show_user_errors(module: ModuleType) -> None:
    """Before a command-line tool imports fairseq: replace `sys.excepthook`."""
    if tool_name() is None:
        return
    previous = sys.excepthook

    def excepthook(cls: Type[BaseException], error: BaseException, traceback: Optional[TracebackType]) -> None:
        message = explain(error)
        if message is None:
            previous(cls, error, traceback)
        else:
            show(message)

    sys.excepthook = excepthook


def end_hydra_run(message: str) -> None:
    """Show a message and end a run of fairseq-hydra-train, since Hydra prints exceptions itself."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    show(message)
    if HydraConfig.initialized() and HydraConfig.get().mode is RunMode.MULTIRUN:
        # Hydra keeps it, starts the other runs, then exits with status 1
        raise UserError(message)
    sys.exit(1)

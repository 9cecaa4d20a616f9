"""The folder of a run, and the processes that work in it."""

import contextlib
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Collection, Dict, Iterator, List, Optional, Sequence

from omegaconf import OmegaConf

from collab_fairseq.records.files import write_text

from .settings import RecipeError

logger = logging.getLogger("recipe")

#: status of what was stopped as asked and saved (EX_TEMPFAIL: try again)
STOPPED = 75


def kept_settings(folder: Path) -> Dict[str, Any]:
    """Of the run that a folder holds; empty where there is none."""
    kept = folder / "settings.yaml"
    return OmegaConf.to_container(OmegaConf.load(kept)) if kept.is_file() else {}  # type: ignore[return-value]


def keep_settings(folder: Path, wanted: Dict[str, Any]) -> None:
    """Note what makes the run; one that is in the folder already must be the same.

    Raises:
        RecipeError: other settings, which are named, or a run of an earlier release.
    """
    if (folder / "settings.txt").exists():
        raise RecipeError(
            f"{folder} holds a run of an earlier release, which cannot be continued; choose another --output"
        )
    text = OmegaConf.to_yaml(OmegaConf.create(wanted))
    there, wanted = kept_settings(folder), OmegaConf.to_container(OmegaConf.create(text))  # type: ignore[assignment]
    if not there:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(text, folder / "settings.yaml")
    elif there != wanted:
        names = [name for name in {**there, **wanted} if there.get(name) != wanted.get(name)]
        differ = ", ".join(f"{name} is {there.get(name)}, not {wanted.get(name)}" for name in names)
        raise RecipeError(f"{folder} holds a run with other settings: {differ}; choose another --output")


@contextlib.contextmanager
def handing_on(processes: Collection["subprocess.Popen[Any]"]) -> Iterator[List[int]]:
    """While this lasts SIGINT and SIGTERM end the processes instead of this one; gives the signals that came.

    Args:
        processes: those to end, as they are when a signal comes.
    """
    came: List[int] = []

    def hand_on(number: int, frame: Any) -> None:
        came.append(number)
        for process in list(processes):
            if process.poll() is None:
                process.terminate()

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start(command: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that Ctrl-C in a terminal does not reach: it is told by SIGTERM, once."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return subprocess.Popen([str(word) for word in command], **options)
    finally:
        signal.signal(signal.SIGINT, before)


def attend(command: Sequence[Any], log: Optional[Path] = None, **options: Any) -> int:
    """Run a command to its end; SIGINT and SIGTERM to this process ask it to stop.

    Args:
        command: its words. log: a file that its output is appended to, beside being shown.
        options: of `subprocess.Popen`.

    Returns:
        Its exit status.

    Raises:
        SystemExit: it was asked to stop, by a signal to this process or to itself; the status is 75.
    """
    processes: List[subprocess.Popen[Any]] = []
    with handing_on(processes) as came:
        if log:
            options.update(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process = start(command, **options)
        processes.append(process)
        if came:
            process.terminate()
        if log and process.stdout:
            with open(log, "ab") as kept:
                for line in process.stdout:
                    kept.write(line)
                    kept.flush()
                    with contextlib.suppress(OSError):  # the log has it, whether or not it is seen
                        sys.stdout.buffer.write(line)
                        sys.stdout.buffer.flush()
        status = process.wait()
    if status == STOPPED or (came and status):
        logger.info("stopped as asked; the same command resumes it")
        raise SystemExit(STOPPED)
    return status

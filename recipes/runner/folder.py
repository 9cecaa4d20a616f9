"""The folder of a run, and the processes that work in it."""

import contextlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

from omegaconf import OmegaConf

from .settings import RecipeError

#: status of what was stopped as asked and saved (EX_TEMPFAIL: try again)
STOPPED = 75


class Folder:
    """A folder that holds one run: its settings, and which of its steps an earlier command has finished."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def settings(self) -> Dict[str, Any]:
        """Of the run that is here; empty where there is none."""
        kept = self.path / "settings.yaml"
        return OmegaConf.to_container(OmegaConf.load(kept)) if kept.is_file() else {}  # type: ignore[return-value]

    def keep_settings(self, wanted: Dict[str, Any]) -> None:
        """Note what makes the run; one that is here already must be the same.

        Raises:
            RecipeError: other settings, which are named, or a run of an earlier release.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if (self.path / "settings.txt").exists():
            raise RecipeError(
                f"{self.path} holds a run of an earlier release, which cannot be continued; choose another --output"
            )
        wanted = OmegaConf.to_container(OmegaConf.create(wanted))  # type: ignore[assignment]
        there = self.settings
        if not there:
            unfinished = self.path / "settings.yaml.tmp"
            unfinished.write_text(OmegaConf.to_yaml(OmegaConf.create(wanted)), encoding="utf-8")
            unfinished.replace(self.path / "settings.yaml")
        elif there != wanted:
            names = [name for name in {**there, **wanted} if there.get(name) != wanted.get(name)]
            differ = ", ".join(f"{name} is {there.get(name)}, not {wanted.get(name)}" for name in names)
            raise RecipeError(f"{self.path} holds a run with other settings: {differ}; choose another --output")

    def finished(self, step: str) -> bool:
        return (self.path / ".done" / step).exists()

    def finish(self, step: str) -> None:
        (self.path / ".done").mkdir(exist_ok=True)
        (self.path / ".done" / step).touch()


@contextlib.contextmanager
def handing_on(processes: List["subprocess.Popen[Any]"]) -> Iterator[List[int]]:
    """While this lasts SIGINT and SIGTERM end the processes instead of this one; gives the signals that came."""
    came: List[int] = []

    def hand_on(number: int, frame: Any) -> None:
        came.append(number)
        for process in processes:
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
        # locks that are marked so are inherited
        return subprocess.Popen([str(word) for word in command], close_fds=False, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def attend(command: Sequence[Any], log: Optional[Path] = None, **options: Any) -> int:
    """Run a command to its end; SIGINT and SIGTERM to this process ask it to stop.

    Args:
        command: its words. log: a file that its output is appended to, beside being shown.
        options: of `subprocess.Popen`.

    Returns:
        Its exit status; 75 where it was asked to stop and did not end well.
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
    return STOPPED if came and status != 0 else status

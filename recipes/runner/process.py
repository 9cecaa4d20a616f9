"""Child processes of a recipe: signals to the recipe are forwarded to them, and they do not outlive it."""

import contextlib
import ctypes
import functools
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence

from fairseq_modern.errors import UserError

logger = logging.getLogger("recipe")

#: exit status of a process that stopped on request and saved its state (EX_TEMPFAIL: try again)
STOPPED = 75
POLL_SECONDS = 0.05
#: environment variables with which torchrun and other launchers describe their processes to fairseq and torch. Those of
#: a launcher around a recipe do not describe the processes of the recipe
OUTER_JOB = re.compile("MASTER_ADDR|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|TORCHELASTIC_.*|PET_.*")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def _prepare(parent: int) -> None:
    """In the child: ignore Ctrl-C and SIGUSR1, which the parent forwards as SIGTERM, and die with the parent.

    A terminal sends the one, srun the other, to all processes.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def start(command: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that does not outlive this one, even if this one is killed (on Linux).

    Args:
        command: program and arguments, converted to strings. It does not see the `OUTER_JOB` of this process.
        options: for `subprocess.Popen`.
    """
    words = [str(word) for word in command]
    environment = options.get("env") or os.environ
    options["env"] = {name: value for name, value in environment.items() if not OUTER_JOB.fullmatch(name)}
    return subprocess.Popen(words, preexec_fn=functools.partial(_prepare, os.getpid()), **options)


@contextlib.contextmanager
def forward_signals(processes: Collection["subprocess.Popen[Any]"]) -> Iterator[List[int]]:
    """Within the block, forward SIGINT, SIGTERM and SIGUSR1 as SIGTERM. Yields the list of received signals.

    Slurm repeats signals, but a second one could interrupt a process while it saves: only the first SIGTERM or SIGUSR1
    is forwarded.

    Args:
        processes: read when a signal arrives, so that later ones are included.
    """
    received: List[int] = []

    def forward(number: int, frame: Any) -> None:
        is_repeated = bool(received) and number != signal.SIGINT
        received.append(number)
        for process in list(processes):
            if not is_repeated:
                send(process)

    earlier = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def send(process: "subprocess.Popen[Any]") -> None:
    """Send SIGTERM. Unlike Popen.terminate, do not reap the process: its resource usage is still to be read."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def run_logged(
    command: Sequence[Any],
    log: Optional[Path] = None,
    usage: Optional[Path] = None,
    about: Optional[Dict[str, Any]] = None,
    check: Callable[[], None] = lambda: None,
    **options: Any,
) -> int:
    """Run a command and wait for its end. Signals to this process are forwarded to it.

    Args:
        command: program and arguments, converted to strings.
        log: file for its output, which is also copied to standard output. The command writes to it directly, so that
            nothing is lost if this process is killed.
        usage: file for the measurements, see `Usage`. Needs `log`.
        about: further fields for the first of these lines.
        check: called again and again if there is a log. If it raises a UserError, the command is stopped first. The
            error is ignored if a signal has stopped it already.
        options: for `subprocess.Popen`.

    Returns:
        Exit status of the command; -N if signal N ended it.

    Raises:
        SystemExit: with status 75, if a signal stopped this process or the command.
    """
    processes: List[subprocess.Popen[Any]] = []
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(forward_signals(processes))
        shown: Optional[IO[bytes]] = None
        if log:
            options.update(stdout=stack.enter_context(open(log, "ab")), stderr=subprocess.STDOUT)
            shown = stack.enter_context(open(log, "rb"))
            shown.seek(0, os.SEEK_END)
        measured = None
        if usage and shown:
            usage.touch()
            measured = Usage(stack.enter_context(open(usage, "r+b", buffering=0)), shown, about or {})
        process = start(command, **options)
        processes.append(process)
        if received:  # before the process was in the list
            send(process)
        try:
            peak = _wait(process, shown, measured, check)
        except UserError as error:
            if not received:  # otherwise it is stopping: a second signal could interrupt it while it saves
                logger.info("stopping: %s", error)
                send(process)
            peak = _wait(process, shown, measured, lambda: None)
            if not received:
                raise
        if measured:
            measured.write(peak_memory_bytes=peak, exit_status=process.returncode)
    if process.returncode == STOPPED or (received and process.returncode):
        logger.info("stopped as requested; the same command resumes")
        raise SystemExit(STOPPED)
    return int(process.returncode)


class Usage:
    """Measurements of a command, as two JSON lines in a file: one from its start, `{"log_from", …}`, and one that is
    replaced until its end, `{"wall_seconds", "train_seconds", "log_to", "peak_memory_bytes", "exit_status"}`.

    `log_from` and `log_to` are the sizes of the log in bytes before and after the command. `train_seconds` excludes the
    time before its first output, in which it imports packages. The last two are added at its end; the peak of memory
    includes children that it waited for. If this process is killed, the line is at most `SECONDS` old.
    """

    SECONDS = 0.5
    WIDTH = 160  # of the second line, so that it is replaced by a single write

    def __init__(self, file: IO[bytes], log: IO[bytes], about: Dict[str, Any]) -> None:
        self.file, self.log, self.log_from = file, log, log.tell()
        self.begin = self.first_output = time.monotonic()
        text = json.dumps({"log_from": self.log_from, **about}) + "\n"
        with contextlib.suppress(OSError):  # of an empty file
            self.file.seek(-1, os.SEEK_END)
        if self.file.read() not in (b"", b"\n"):
            text = f"\n{text}"  # the last line is incomplete
        self.file.write(text.encode())
        self.position, self.written = self.file.tell(), -math.inf

    def write(self, **more: Any) -> None:
        """Replace the second line, at most every `SECONDS` unless there is more to write."""
        now, log_to = time.monotonic(), self.log.tell()
        if log_to == self.log_from:
            self.first_output = now
        if not more and now - self.written < self.SECONDS:
            return
        self.written = now
        seconds = {"wall_seconds": round(now - self.begin, 3), "train_seconds": round(now - self.first_output, 3)}
        line = json.dumps({**seconds, "log_to": log_to, **more}).ljust(self.WIDTH - 1) + "\n"
        with contextlib.suppress(OSError):  # a measurement must not end training
            self.file.seek(self.position)
            self.file.write(line.encode())


def _wait(
    process: "subprocess.Popen[Any]", shown: Optional[IO[bytes]], measured: Optional[Usage], check: Callable[[], None]
) -> int:
    """Wait for the end and copy new output from the log. Returns the peak of resident memory in bytes."""
    while True:
        pid, status, resources = os.wait4(process.pid, os.WNOHANG if shown else 0)
        if shown:
            _show(shown)
        if measured:
            measured.write()
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return resources.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        check()
        time.sleep(POLL_SECONDS)


def _show(log: IO[bytes]) -> None:
    """Copy new output from the log to standard output. Errors are ignored: the log has everything."""
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(log.read())
        sys.stdout.buffer.flush()

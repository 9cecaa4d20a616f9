"""Processes that a recipe starts. They stop when the recipe is asked to stop, and they die with it."""

import contextlib
import ctypes
import functools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Collection, Dict, Iterator, List, Optional, Sequence

logger = logging.getLogger("recipe")

#: exit status of a process that was asked to stop and has saved its state (EX_TEMPFAIL: try again)
STOPPED = 75
SECONDS_BETWEEN_LOOKS = 0.05
PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>
LIBC = ctypes.CDLL(None) if sys.platform.startswith("linux") else None


def _prepare(parent: int) -> None:
    """In a new process: ignore Ctrl-C, which the parent forwards as SIGTERM, and be killed when the parent dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the call
        os.kill(os.getpid(), signal.SIGKILL)


def start(command: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that does not outlive this one, even if this one is killed (on Linux).

    Args:
        command: its words. options: of `subprocess.Popen`.
    """
    words = [str(word) for word in command]
    return subprocess.Popen(words, preexec_fn=functools.partial(_prepare, os.getpid()), **options)


@contextlib.contextmanager
def forward_signals(processes: Collection["subprocess.Popen[Any]"]) -> Iterator[List[int]]:
    """Meanwhile SIGINT and SIGTERM stop the processes instead of this one; yields the list of signals received.

    Args:
        processes: looked up when a signal arrives.
    """
    received: List[int] = []

    def forward(number: int, frame: Any) -> None:
        received.append(number)
        for process in list(processes):
            terminate(process)

    earlier = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def terminate(process: "subprocess.Popen[Any]") -> None:
    """Send SIGTERM. Unlike Popen.terminate it does not reap the process, whose resource usage is still to be read."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)


def run_logged(command: Sequence[Any], log: Optional[Path] = None, usage: Optional[Path] = None, **options: Any) -> int:
    """Run a command to its end. SIGINT and SIGTERM to this process ask the command to stop.

    Args:
        command: its words.
        log: a file that its output is appended to, and shown from. The command itself writes there, so that nothing
            is lost when this process is killed.
        usage: a file of JSON lines, two for each call: `{"log_from"}`, the size of the log in bytes at the start, and
            `{"wall_seconds", "peak_memory_bytes", "exit_status"}` at the end. The peak includes programs that the
            command waited for.
        options: of `subprocess.Popen`.

    Returns:
        Its exit status; -N if signal N ended it.

    Raises:
        SystemExit: it was asked to stop, by a signal to this process or to itself; the status is 75.
    """
    processes: List[subprocess.Popen[Any]] = []
    with contextlib.ExitStack() as stack:
        received = stack.enter_context(forward_signals(processes))
        shown: Optional[IO[bytes]] = None
        if log:
            options.update(stdout=stack.enter_context(open(log, "ab")), stderr=subprocess.STDOUT)
            shown = stack.enter_context(open(log, "rb"))
            shown.seek(0, os.SEEK_END)
        if usage:
            _append(usage, {"log_from": shown.tell() if shown else 0})
        begin = time.monotonic()
        process = start(command, **options)
        processes.append(process)
        if received:  # before there was a process
            terminate(process)
        peak = _wait(process, shown)
        if usage:
            seconds = round(time.monotonic() - begin, 3)
            _append(usage, {"wall_seconds": seconds, "peak_memory_bytes": peak, "exit_status": process.returncode})
    if process.returncode == STOPPED or (received and process.returncode):
        logger.info("stopped as requested; the same command resumes")
        raise SystemExit(STOPPED)
    return int(process.returncode)


def _wait(process: "subprocess.Popen[Any]", shown: Optional[IO[bytes]]) -> int:
    """Wait for the end, showing what is appended to the log; the peak of its resident memory in bytes."""
    while True:
        pid, status, resources = os.wait4(process.pid, os.WNOHANG if shown else 0)
        if shown:
            _show(shown)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return resources.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _show(log: IO[bytes]) -> None:
    """Copy what has been appended to the log to standard output. The log has it, even if it cannot be shown."""
    with contextlib.suppress(OSError):
        sys.stdout.buffer.write(log.read())
        sys.stdout.buffer.flush()


def _append(usage: Path, entry: Dict[str, Any]) -> None:
    with open(usage, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry) + "\n")

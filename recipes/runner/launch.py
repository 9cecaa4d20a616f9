"""Processes of a recipe: commands, their GPUs, signals and exit statuses.

Children get all signals to the recipe as SIGTERM, and do not outlive it. Training processes handle SIGTERM as described
in `fairseq_modern.fault_tolerance.stopping`.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence

from collab_fairseq.progress import outside_bars
from fairseq_modern.errors import UserError
from fairseq_modern.processes import STOPPED, die_with_parent

from .usage import Usage

logger = logging.getLogger("recipe")

POLL_SECONDS = 0.05
#: environment variables with which torchrun and other launchers describe their processes to fairseq and torch. Those of
#: a launcher around a recipe do not describe the processes of the recipe
OUTER_JOB = re.compile("MASTER_ADDR|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|TORCHELASTIC_.*|PET_.*")
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


def _prepare(parent: int) -> None:
    """In the child: ignore Ctrl-C and SIGUSR1, which the parent forwards as SIGTERM, and die with the parent.

    A terminal sends the one, srun the other, to all processes.
    """
    for number in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent)


def start(command: Sequence[Any], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that does not outlive this one, even if this one is killed (on Linux).

    It does not see the `OUTER_JOB` of this process, and writes UTF-8 in any locale. `options`: for `subprocess.Popen`.
    """
    words = [str(word) for word in command]
    environment = options.get("env") or os.environ
    options["env"] = {name: value for name, value in environment.items() if not OUTER_JOB.fullmatch(name)}
    options["env"]["PYTHONIOENCODING"] = "utf-8"
    return subprocess.Popen(words, preexec_fn=functools.partial(_prepare, os.getpid()), **options)


@contextlib.contextmanager
def forward_signals(processes: Collection["subprocess.Popen[Any]"]) -> Iterator[List[int]]:
    """Within the block, forward SIGINT, SIGTERM and SIGUSR1 as SIGTERM. Yields the list of received signals.

    Slurm repeats signals, but a second one could interrupt a process while it saves: only the first SIGTERM or SIGUSR1
    is forwarded. `processes` is read when a signal arrives, so that later ones are included.
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
        log: file for its output, which is also copied to standard output. The command writes to it directly, so that
            nothing is lost if this process is killed.
        usage: file for the measurements, see `Usage`. Needs `log`.
        about: further fields for the first of these lines.
        check: called again and again. If it raises a UserError, the command is stopped first. The error is ignored if a
            signal has stopped it already.
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


def _wait(
    process: "subprocess.Popen[Any]", shown: Optional[IO[bytes]], measured: Optional[Usage], check: Callable[[], None]
) -> int:
    """Wait for the end and copy new output from the log. Returns the peak of resident memory in bytes."""
    while True:
        pid, status, resources = os.wait4(process.pid, os.WNOHANG)
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
    text = log.read()
    if text:
        with contextlib.suppress(OSError), outside_bars():
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def gpu_shares(jobs: int, per_job: int, gpus: int) -> List[str]:
    """CUDA_VISIBLE_DEVICES of each of the jobs: separate ones of the visible GPUs if possible; empty without GPUs."""
    if not gpus:
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(n) for n in range(gpus)]
    firsts = [job * per_job for job in range(jobs)]
    return [",".join(names[(first + n) % gpus] for n in range(min(per_job, gpus))) for first in firsts]

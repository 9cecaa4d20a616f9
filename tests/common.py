"""Helpers for all tests: command-line tools, devices and tolerances."""

import contextlib
import importlib
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Dict, Optional, Tuple
from unittest import mock

import pytest

from tests import warm

BIN = Path(sys.executable).parent
ROOT = Path(__file__).resolve().parent.parent
#: prefixes of variables that Python, fairseq or torch read at start-up or import
STARTING = ("PYTHON", "FAIRSEQ_MODERN", "TORCH", "CXX")

# The smallest useful model and its training on a CPU; data, length and --save-dir must be added.
SIZES = "--{0}-layers 1 --{0}-embed-dim 16 --{0}-ffn-embed-dim 32 --{0}-attention-heads 2"
TINY_MODEL = ["--arch", "transformer_tiny", "--share-all-embeddings"]
TINY_MODEL += [word for side in ("encoder", "decoder") for word in SIZES.format(side).split()]
TINY_TRAINING = [
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--lr", "0.005", "--max-tokens", "400"),
    *("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--cpu", "--no-progress-bar"),
]

#: devices for tests of layers: the CPU, and CUDA if available
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

#: tolerance for float64 compared with the float64 reference: rounding of a few hundred operations
FLOAT64 = 1e-12
#: tolerance for two implementations of a whole model in float32
FLOAT32 = 1e-5


def mostly_slow(values, *fast):
    """Cases of a test; those that are not among the `fast` ones are slow."""
    return [value if value in fast else pytest.param(value, marks=pytest.mark.slow) for value in values]


def run(
    *argv: object,
    check: bool = True,
    env: Optional[Dict[str, str]] = None,
    timeout: float = 300,
    fresh: bool = False,
    **options,
) -> subprocess.CompletedProcess:
    """Run a console script of this Python environment, or a shell script.

    Tools, and tools that a shell script starts, are forked from a process that has imported torch and fairseq.

    Args:
        argv: name of the tool (`fairseq-train`, `collab`, `python`, `torchrun`) and its arguments.
        check: raise AssertionError with the output of the tool if its exit status is not 0.
        env: variables that are added to the environment. Each process has one thread by default, since starting
            threads takes longer than tiny models.
        timeout: in seconds. After it, the processes are aborted, and new interpreters print their stacks.
        fresh: use new interpreters, for tests of start-up, installation or signals to process groups.
        options: further arguments of `subprocess.run`, such as `cwd` or `input`.
    """
    fresh = fresh or "preexec_fn" in options or any(name.startswith(STARTING) for name in env or {})
    folder = BIN if fresh else warm.start()
    tool, *arguments = [str(folder / "python") if a == sys.executable else str(a) for a in argv]
    command = [str(folder / tool) if (folder / tool).exists() else tool, *arguments]
    path = os.pathsep.join([str(folder), str(BIN), os.environ.get("PATH", "")])  # also for tools that the tool starts
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": str(folder / "python"), "PATH": path}
    environment = {**environment, "PYTHONFAULTHANDLER": "1", **(env or {})}
    given = options.pop("input", None)
    options.update(stdin=subprocess.PIPE if given is not None else None, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process = subprocess.Popen(command, env=environment, text=True, **options)
    problem = ""
    try:
        stdout, stderr = process.communicate(given, timeout)
    except subprocess.TimeoutExpired:
        problem = f"more than {timeout} s"
        stdout, stderr = abort(process)
    if check and process.returncode != 0:
        problem = problem or f"exit status {process.returncode}"
    if problem:
        output = f"--- stdout\n{stdout[-6000:]}\n--- stderr\n{stderr[-6000:]}"
        raise AssertionError(f"{problem} from: {' '.join(command)}\n{output}")
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def abort(process: subprocess.Popen) -> Tuple[str, str]:
    """End a process and its descendants; return its output. Python prints the stacks of the youngest descendants."""
    family = descendants(process.pid)
    youngest = {process.pid, *family} - {parent for parent, _ in family.values()}
    for number, pids in ((signal.SIGABRT, youngest), (signal.SIGKILL, [process.pid, *family])):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=10)
    return process.communicate()


def descendants(ancestor: int) -> Dict[int, Tuple[int, int]]:
    """Process id → parent and process group of the running descendants of a process."""
    output = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], text=True)
    rows = [line.split() for line in output.splitlines()]
    running = {int(pid): (int(ppid), int(pgid)) for pid, ppid, pgid, state in rows if not state.startswith("Z")}
    family: Dict[int, Tuple[int, int]] = {}
    while new := {p: ids for p, ids in running.items() if p not in family and ids[0] in (ancestor, *family)}:
        family.update(new)
    return family


def program(package: str, *words: object) -> subprocess.CompletedProcess:
    """`python -m PACKAGE WORDS` in this process, for what ends before any work."""
    main = importlib.import_module(f"{package}.__main__").main
    patches = [mock.patch.object(sys, "argv", [package, *map(str, words)]), mock.patch.dict(os.environ)]
    patches += [mock.patch("logging.basicConfig"), mock.patch("signal.signal")]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        printed = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        messages = stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        try:
            status = main()
        except SystemExit as stop:
            status = stop.code
    return subprocess.CompletedProcess(words, status or 0, printed.getvalue(), messages.getvalue())


def collab(*words: object, status: int = 0) -> str:
    """Run `collab` in this process; return what it prints or, if it has to fail, its error, which is one line."""
    from collab_fairseq.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.redirect_stderr(io.StringIO()) as messages:
        assert main([*map(str, words)]) == status, messages.getvalue()
    if status == 0:
        return printed.getvalue()
    (error,) = [line for line in messages.getvalue().split("\n") if "error: " in line]
    assert error.startswith(f"collab {words[0]}")
    return error


def rejected(done, *messages, status=1):
    """Assert that a script failed with this status and one error with these messages; return the error."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    (error,) = [line for line in done.stderr.split("\n") if "error:" in line]
    assert all(message in error for message in messages), error
    return error


def content(folder: Path) -> Dict[str, bytes]:
    """The bytes of all files in a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def free_port() -> int:
    """A TCP port that is currently free."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]

"""A warm parent for command-line tests: a process that has imported torch and fairseq, and forks to run a tool.

Importing both takes seconds, and most tests of a tool need no interpreter of their own. :func:`start` makes a folder in
which `python`, `collab`, `fairseq-train` and every other console script of the virtual environment are small programs
(tests/warm_client.py) that have the warm parent run the real one in a forked child: with their arguments, environment,
working directory and streams, and their exit status; signals are handed on, and a tool that is killed takes the child
with it. What depends on how an interpreter starts (the start-up hook, installation, signals to process groups, limits
of resources) is tested with real ones: `tests.common.run(..., fresh=True)`.
"""

import atexit
import contextlib
import fcntl
import importlib.util
import io
import logging
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import traceback
import types
from pathlib import Path
from typing import Dict, List, Tuple

import fairseq_modern

ROOT = Path(__file__).resolve().parent.parent
CLIENT = Path(__file__).with_name("warm_client.py")
#: where the folder is, for the processes of a parallel run of the tests
VARIABLE = "COLLAB_TESTS_WARM"
#: what children find imported: nothing of the project, whose import belongs to what is tested, and none of fairseq's
#: scripts, which set up logging as they are imported
IMPORTS = (
    "torch", "numpy", "sacrebleu", "sacremoses", "sentencepiece", "hydra", "omegaconf",
    "fairseq", "fairseq.checkpoint_utils", "fairseq.trainer", "fairseq.options", "fairseq.tasks.translation",
    "fairseq.models.transformer", "fairseq.sequence_generator", "fairseq.data.indexed_dataset", "fairseq.binarizer",
)  # fmt: skip


def start() -> Path:
    """Start the warm parent, or find the one that is there; return the folder of the stand-ins.

    The parent ends with the process that started it.
    """
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    text = CLIENT.read_text(encoding="utf-8").replace("#!SHEBANG", f"#!{sys.executable} -IS", 1)
    for script in Path(sys.executable).parent.iterdir():
        if script.name == "python" or (script.is_file() and script.read_bytes()[:2] == b"#!"):
            (folder / script.name).write_text(text, encoding="utf-8")
            (folder / script.name).chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)  # tools that are run before the imports are through wait
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.warm", str(listening.fileno()), str(folder)], cwd=ROOT,
        pass_fds=[listening.fileno()], stdin=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    listening.close()
    os.environ[VARIABLE] = str(folder)
    atexit.register(stop, parent, folder)
    return folder


def seconds() -> float:
    """Processor time of this process, of what it has run, and of what the warm parent has run for it."""
    own = os.times()
    spent = Path(os.environ.get(VARIABLE, ""), "seconds" + os.environ.get("PYTEST_XDIST_WORKER", ""))
    warm = sum(map(float, spent.read_text(encoding="ascii").split())) if spent.is_file() else 0.0
    return own.user + own.system + own.children_user + own.children_system + warm


def stop(parent: "subprocess.Popen[bytes]", folder: Path) -> None:
    """End the warm parent and what it has running."""
    parent.terminate()
    parent.wait()
    shutil.rmtree(folder)


#: tool, arguments, environment, working directory, numbers of the open files that come with it
Request = Tuple[str, List[str], Dict[str, str], str, List[int]]


def receive(connection: socket.socket) -> Tuple[Request, List[int]]:
    """A request, and the open files that came with it under numbers of this process."""
    data, streams, _, _ = socket.recv_fds(connection, 8, 64)
    length, parts = int.from_bytes(data, "big"), b""
    while len(parts) < length:
        parts += connection.recv(length - len(parts))
    return marshal.loads(parts), streams


def work(tool: str, arguments: List[str]) -> None:
    """Do what `tool` does, in this process."""
    script = os.path.join(os.path.dirname(sys.executable), tool)
    if tool != "python":
        kind, target = "file", script
        sys.argv = [script, *arguments]
    elif arguments[0] in ("-c", "-m"):
        kind, target = arguments[0], arguments[1]
        sys.argv = [arguments[0], *arguments[2:]]
    else:
        kind, target = ("stdin" if arguments[0] == "-" else "file"), arguments[0]
        sys.argv = arguments
    if kind == "-m":
        spec = importlib.util.find_spec(target)
        sys.argv[0] = (spec and spec.origin) or target
    # what depends on the program as fairseq is imported
    fairseq_modern._call(fairseq_modern.BEFORE["fairseq"], sys.modules["fairseq"])
    sys.path.insert(0, os.path.dirname(os.path.abspath(target)) if kind == "file" else os.getcwd())
    if kind == "-m":
        sys.modules.pop(target, None)  # imported by the warm parent
        runpy._run_module_as_main(target)  # type: ignore[attr-defined]  # what python -m calls
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if kind == "file":
        main.__file__ = target
    source = {"-c": lambda: target, "stdin": sys.stdin.read, "file": Path(target).read_bytes}[kind]()
    exec(compile(source, target if kind == "file" else "<string>", "exec"), vars(main))


def run_child(folder: str, request: Request, streams: List[int]) -> None:
    """Become the tool; never returns."""
    status: object = 1
    try:
        tool, arguments, environment, cwd, numbers = request
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        above = max(*numbers, *streams) + 1  # so that none is overwritten before it is moved
        moved = [fcntl.fcntl(stream, fcntl.F_DUPFD, above) for stream in streams]
        for target, stream in zip(numbers, moved, strict=True):
            os.dup2(stream, target)
            os.close(stream)
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(cwd)
        original = sysconfig.get_path
        sysconfig.get_path = lambda name, *rest, **more: (  # recipes look for console scripts there
            folder if name == "scripts" else original(name, *rest, **more)
        )
        if tool != "fairseq-generate":  # others set up logging before they import fairseq, a module of which does too
            logging.root.handlers.clear()
            logging.root.setLevel(logging.WARNING)
        work(tool, arguments)
        status = 0
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt:
        traceback.print_exc()
        status = 130
    except BaseException:
        sys.excepthook(*sys.exc_info())
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    if status is not None and not isinstance(status, int):
        sys.stderr.write(f"{status}\n")
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit((status or 0) & 0xFF)


def serve(listening: socket.socket, folder: str) -> None:
    """Fork a child for each request, tell its number and its end; end with SIGTERM or with who started this process."""
    for name in IMPORTS:
        __import__(name)
    import torch

    torch.set_num_threads(1)
    atexit._clear()  # what is registered from here on is the child's own
    selector = selectors.DefaultSelector()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: Dict[int, socket.socket] = {}
    askers: Dict[int, str] = {}
    signal.signal(signal.SIGTERM, lambda *_: end(running))
    for source in (listening, wake, sys.stdin):
        selector.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                end(running)
            elif key.fileobj is listening:
                connection, _ = listening.accept()
                try:
                    request, streams = receive(connection)
                except (OSError, EOFError, ValueError):
                    connection.close()
                    continue
                child = os.fork()
                if child == 0:
                    selector.close()
                    for other in (listening, connection, *running.values()):
                        other.close()
                    os.close(wake)
                    run_child(folder, request, streams)
                for stream in streams:
                    os.close(stream)
                running[child], askers[child] = connection, request[2].get("PYTEST_XDIST_WORKER", "")
                selector.register(connection, selectors.EVENT_READ)
                tell(connection, child)
            elif key.fileobj == wake:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            else:  # a tool is gone: so is its child
                for child, connection in running.items():
                    if connection is key.fileobj:
                        os.kill(child, signal.SIGKILL)
                selector.unregister(key.fileobj)
        while running:
            child, status, usage = os.wait4(-1, os.WNOHANG)
            if child == 0:
                break
            with open(os.path.join(folder, "seconds" + askers.pop(child)), "a", encoding="ascii") as spent:
                spent.write(f"{usage.ru_utime + usage.ru_stime}\n")
            connection = running.pop(child)
            tell(connection, os.waitstatus_to_exitcode(status))
            with contextlib.suppress(KeyError):
                selector.unregister(connection)
            connection.close()


def tell(connection: socket.socket, number: int) -> None:
    """Send a number to a tool that may be gone."""
    with contextlib.suppress(OSError):
        connection.sendall(number.to_bytes(8, "big", signed=True))


def end(running: Dict[int, socket.socket]) -> None:
    """End this process and its children."""
    for child in running:
        os.kill(child, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])

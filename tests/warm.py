"""Fork server for command-line tools: it has imported torch and fairseq, which would take each tool seconds.

:func:`start` creates a folder with stand-ins for `python` and all console scripts of the virtual environment. A
stand-in (tests/warm_client.py) asks the server to run the real tool in a forked child, with the same arguments,
environment, working directory, streams and signals, and returns its exit status. Shell scripts, recipes and torchrun
start tools too, and find the stand-ins on their PATH: multiprocessing's forkserver cannot serve them, as it forks
functions for its parent process only. If a stand-in is killed, so is the child. Tests of interpreter start-up,
installation, process groups and resource limits use real interpreters: `tests.common.run(..., fresh=True)`.
"""

import atexit
import contextlib
import gc
import importlib.util
import logging
import marshal
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import types
from pathlib import Path
from typing import Dict, List

ROOT = Path(__file__).resolve().parent.parent
BIN = os.path.dirname(sys.executable)
#: environment variable with the path of the folder, for parallel test processes
VARIABLE = "COLLAB_TESTS_WARM"
#: imports of the server: nothing of this project, since its import is tested; none of fairseq's scripts, since they
#: configure logging; torch._dynamo (with sympy), since optimizers import it
IMPORTS = (
    "torch torch._dynamo numpy sacrebleu sacremoses sentencepiece hydra omegaconf fairseq fairseq.checkpoint_utils "
    "fairseq.trainer fairseq.options fairseq.tasks.translation fairseq.models.transformer fairseq.sequence_generator "
    "fairseq.data.indexed_dataset fairseq.binarizer pandas matplotlib.figure scipy.stats"
)


def start() -> Path:
    """Start the server unless it is running, until this process ends; return the folder of the stand-ins."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    client = Path(__file__).with_name("warm_client.py").read_text(encoding="utf-8")
    client = client.replace("#!SHEBANG", f"#!{sys.executable} -IS", 1)
    for script in Path(BIN).iterdir():
        if script.name == "python" or (script.is_file() and script.read_bytes()[:2] == b"#!"):
            (folder / script.name).write_text(client, encoding="utf-8")
            (folder / script.name).chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen(64)  # tools wait until the server has imported everything
    number = listening.fileno()
    command = [sys.executable, "-m", "tests.warm", str(number), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, cwd=ROOT, pass_fds=[number], stdin=subprocess.PIPE, env=environment)
    listening.close()
    os.environ[VARIABLE] = str(folder)
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.communicate)  # called first: closes the server's standard input, so that it ends
    return folder


def seconds() -> float:
    """Return the CPU time of this process, its children, and the tools that the server has run for it."""
    times = os.times()
    log = Path(os.environ.get(VARIABLE, ""), "seconds" + os.environ.get("PYTEST_XDIST_WORKER", ""))
    tools = sum(map(float, log.read_text(encoding="ascii").split())) if log.is_file() else 0.0
    return times.user + times.system + times.children_user + times.children_system + tools


def serve(listening: socket.socket, folder: str) -> None:
    """Fork for each request until the parent process ends."""
    for name in IMPORTS.split():
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    atexit._clear()  # functions that children register are their own
    gc.freeze()  # otherwise each collection in a child would copy the memory of all imports
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # leaves no zombies
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            with contextlib.suppress(OSError):  # the stand-in has ended
                handle(connection, folder)
            os._exit(0)
        connection.close()
    os._exit(0)


def handle(connection: socket.socket, folder: str) -> None:
    """Run a tool in a child: forward signals, send its exit status and log its CPU time."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, 8, 3)
    request = marshal.loads(connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
    child = os.fork()
    if child == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os._exit(run_child(folder, *request))
    for stream in streams:
        os.close(stream)
    threading.Thread(target=forward_signals, args=(connection, child), daemon=True).start()
    _, status, usage = os.wait4(child, 0)
    worker = request[2].get("PYTEST_XDIST_WORKER", "")
    with open(f"{folder}/seconds{worker}", "a", encoding="ascii") as log:
        log.write(f"{usage.ru_utime + usage.ru_stime}\n")
    connection.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def forward_signals(connection: socket.socket, child: int) -> None:
    """Send each byte from the stand-in as a signal to the child, and SIGKILL when the connection closes."""
    with contextlib.suppress(ProcessLookupError):
        while number := connection.recv(1):
            os.kill(child, number[0])
        os.kill(child, signal.SIGKILL)


def run_child(folder: str, tool: str, arguments: List[str], environment: Dict[str, str], cwd: str) -> int:
    """Run a tool in this process and return its exit status."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    original = sysconfig.get_path  # recipes look for console scripts there
    sysconfig.get_path = lambda name, *rest, **scheme: folder if name == "scripts" else original(name, *rest, **scheme)
    if tool != "fairseq-generate":  # the others configure logging before fairseq does
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
    try:
        run_tool(arguments if tool == "python" else [os.path.join(BIN, tool), *arguments])
        status: object = 0
    except SystemExit as error:
        status = error.code or 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 130 if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    with contextlib.suppress(OSError, ValueError):  # closed streams
        atexit._run_exitfuncs()
        sys.stderr.flush()
        sys.stdout.flush()
    return status & 0xFF


def run_tool(arguments: List[str]) -> None:
    """Do what `python ARGUMENTS` does."""
    import fairseq_modern

    first = arguments[0]
    sys.argv = arguments[1:] if first == "-m" else [first, *arguments[2:]] if first == "-c" else arguments
    sys.path.insert(0, os.getcwd() if first[0] == "-" else os.path.dirname(os.path.abspath(first)))
    if first == "-m":
        spec = importlib.util.find_spec(arguments[1])
        sys.argv[0] = (spec and spec.origin) or arguments[1]
    # patches that depend on the program
    fairseq_modern._call(fairseq_modern.BEFORE["fairseq"], sys.modules["fairseq"])
    if first == "-m":
        sys.modules.pop(arguments[1], None)  # imported by the server
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif first[0] == "-":
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(arguments[1] if first == "-c" else sys.stdin.read(), vars(main))
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])

"""A server that has imported torch and fairseq, and forks to run command-line tools: importing both takes seconds.

:func:`start` makes a folder in which `python`, `collab`, `fairseq-train` and every other console script of the virtual
environment are small programs (tests/warm_client.py) that have the server run the real one in a forked child: with
their arguments, environment, working directory, streams and signals, and their exit status. A stand-in that is killed
takes the child with it. (The forkserver of multiprocessing passes on none of these.) What depends on how an
interpreter starts (the start-up hook, installation, signals to process groups, limits of resources) is tested with
real ones: `tests.common.run(..., fresh=True)`.
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
#: where the folder is, for the processes of a parallel run of the tests
VARIABLE = "COLLAB_TESTS_WARM"
#: what children find imported: nothing of the project, whose import belongs to what is tested, and none of fairseq's
#: scripts, which set up logging as they are imported; optimizers import torch._dynamo, with sympy
IMPORTS = (
    "torch torch._dynamo numpy sacrebleu sacremoses sentencepiece hydra omegaconf fairseq fairseq.checkpoint_utils "
    "fairseq.trainer fairseq.options fairseq.tasks.translation fairseq.models.transformer fairseq.sequence_generator "
    "fairseq.data.indexed_dataset fairseq.binarizer"
)


def start() -> Path:
    """Start the server unless it is running; return the folder of the stand-ins. It ends with this process."""
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
    listening.listen(64)  # tools that are run before the imports are through wait
    number = listening.fileno()
    command = [sys.executable, "-m", "tests.warm", str(number), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(command, cwd=ROOT, pass_fds=[number], stdin=subprocess.PIPE, env=environment)
    listening.close()
    os.environ[VARIABLE] = str(folder)
    atexit.register(shutil.rmtree, folder)
    atexit.register(server.communicate)  # the first of the two to be called: its standard input ends, and so does it
    return folder


def seconds() -> float:
    """CPU time of this process, of what it has run, and of what the server has run for it."""
    own = os.times()
    spent = Path(os.environ.get(VARIABLE, ""), "seconds" + os.environ.get("PYTEST_XDIST_WORKER", ""))
    warm = sum(map(float, spent.read_text(encoding="ascii").split())) if spent.is_file() else 0.0
    return own.user + own.system + own.children_user + own.children_system + warm


def serve(listening: socket.socket, folder: str) -> None:
    """Fork for each request; end when the process that started this one does."""
    for name in IMPORTS.split():
        importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    atexit._clear()  # what is registered from here on is the child's own
    gc.freeze()  # or every collection in a child would copy the pages of all that is imported
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no child stays as a zombie
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
    """Have a child run a tool, forward signals to it, report its exit status and note its CPU time."""
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
    with open(f"{folder}/seconds{worker}", "a", encoding="ascii") as spent:
        spent.write(f"{usage.ru_utime + usage.ru_stime}\n")
    connection.send(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def forward_signals(connection: socket.socket, child: int) -> None:
    """Each byte of a stand-in is a signal; its end is SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        while number := connection.recv(1):
            os.kill(child, number[0])
        os.kill(child, signal.SIGKILL)


def run_child(folder: str, tool: str, arguments: List[str], environment: Dict[str, str], cwd: str) -> int:
    """Run a tool in this process, for which no interpreter has to start or to end; its exit status."""
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    original = sysconfig.get_path  # recipes look for console scripts there
    sysconfig.get_path = lambda name, *rest, **scheme: folder if name == "scripts" else original(name, *rest, **scheme)
    if tool != "fairseq-generate":  # others set up logging before they import fairseq, a module of which does too
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
    try:
        run_tool(arguments if tool == "python" else [os.path.join(BIN, tool), *arguments])
        status: object = 0
    except SystemExit as end:
        status = end.code or 0
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
    """What `python ARGUMENTS` does."""
    import fairseq_modern

    first = arguments[0]
    sys.argv = arguments[1:] if first == "-m" else [first, *arguments[2:]] if first == "-c" else arguments
    sys.path.insert(0, os.getcwd() if first[0] == "-" else os.path.dirname(os.path.abspath(first)))
    if first == "-m":
        spec = importlib.util.find_spec(arguments[1])
        sys.argv[0] = (spec and spec.origin) or arguments[1]
    # what depends on the program as fairseq is imported
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

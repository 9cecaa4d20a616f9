#!SHEBANG
# What stands in the place of `python` and of each console script while the tests run: hands its arguments, environment,
# folder and streams to the warm parent (tests/warm.py), which forks a child that does the work, and ends as that does.
# Its first line is filled in by tests/warm.py: an interpreter that imports nothing, so that it starts in 10 ms.
import _signal as signal
import _socket as socket
import marshal
import os
import sys

FOLDER, PYTHON, TOOL = os.path.dirname(os.path.abspath(__file__)), sys.executable, os.path.basename(__file__)
arguments = sys.argv[1:]
if TOOL == "python" and (not arguments or (arguments[0][0] == "-" and arguments[0] not in ("-", "-c", "-m"))):
    os.execv(PYTHON, [PYTHON, *arguments])  # flags of the interpreter itself

server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(os.path.join(FOLDER, "socket"))
numbers = []
for name in os.listdir("/proc/self/fd"):
    number = int(name)
    try:
        os.fstat(number)
    except OSError:  # of the list itself
        continue
    if number != server.fileno():
        numbers.append(number)
request = marshal.dumps((TOOL, arguments, dict(os.environ), os.getcwd(), numbers))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
while request:
    request = request[server.send(request) :]


def answer():
    data = b""
    while len(data) < 8:
        more = server.recv(8 - len(data))
        if not more:
            os.write(2, b"the warm parent of the tests is gone\n")
            os._exit(70)
        data += more
    return int.from_bytes(data, "big", signed=True)


child = answer()


def hand_on(number, frame):
    try:  # noqa: SIM105  (contextlib takes longer to import than all the rest)
        os.kill(child, number)
    except ProcessLookupError:
        pass


for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_DFL or number == signal.SIGINT:
        signal.signal(number, hand_on)
status = answer()
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)

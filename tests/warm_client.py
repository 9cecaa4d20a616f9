#!SHEBANG
# Stands for `python` and each console script while the tests run: has the server of tests/warm.py run the tool, with
# these arguments, environment, folder and streams, forwards signals, and exits as the tool does. The first line is
# filled in by tests/warm.py: an interpreter that imports nothing but modules in C, so that it starts in 10 ms.
import _signal as signal
import _socket as socket
import marshal
import os
import sys

FOLDER, TOOL = os.path.split(os.path.abspath(__file__))
arguments = sys.argv[1:]
if TOOL == "python" and (not arguments or (arguments[0][0] == "-" and arguments[0] not in ("-", "-c", "-m"))):
    os.execv(sys.executable, [sys.executable, *arguments])  # flags of the interpreter itself

server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect(os.path.join(FOLDER, "socket"))
request = marshal.dumps((TOOL, arguments, dict(os.environ), os.getcwd()))
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([len(request).to_bytes(8, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
server.sendall(request)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, lambda number, frame: server.send(bytes([number])))
answer = server.recv(4, socket.MSG_WAITALL)
status = int.from_bytes(answer, "big", signed=True) if answer else 70  # the server has ended
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)

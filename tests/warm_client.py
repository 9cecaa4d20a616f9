#!SHEBANG
# Stand-in for `python` and all console scripts in tests: asks the server of tests/warm.py to run the tool with the same
# arguments, environment, working directory and streams, forwards signals, and exits with the same status. tests/warm.py
# replaces the first line. Only C modules are imported, so that it starts in 10 ms.
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

"""The nodes of one run, each with its own runner: they wait for each other, are compared, and train together.

Every node runs the same command. The first one prepares the data and starts each stage of training on all nodes, which
then verify their data and compare settings and data with its own. If a node fails, all end. torchrun alone would wait
for a missing node for ten minutes, its processes for those of a failed node up to half an hour, and different settings
or data would train a wrong model.
"""

import contextlib
import json
import logging
import socket
import time
from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, Optional

from fairseq_modern.errors import UserError

from .launch import STOPPED, free_port
from .machine import Machine

logger = logging.getLogger("recipe")

HEADER = 8  # bytes before each message: its length, or 0 before a connection is closed by a node that has not failed


@dataclass
class Stage:
    """A stage of training, as the first node starts it on all others."""

    end: int  # update
    resumes: bool
    port: str  # of torchrun
    identity: Dict[str, Any]  # setting → value; must be the same on all nodes


class Connections:
    """Of the first node to all others, or of another node to the first one: node → socket."""

    def __init__(self, machine: Machine, sockets: Dict[int, socket.socket]) -> None:
        self.machine, self.sockets = machine, sockets
        self.names = {node: f"node {node} ({sockets[node].getpeername()[0]})" for node in sockets}

    def start(self, end: int, resumes: bool, identity: Dict[str, Any]) -> None:
        """On the first node: start a stage on all others, and set `machine.torchrun_port`.

        Raises:
            UserError: names the setting that is different on a node, or what is wrong with its data.
        """
        if not self.sockets:
            return
        self.machine.torchrun_port = free_port()
        for connection in self.sockets.values():
            send(connection, asdict(Stage(end, resumes, self.machine.torchrun_port, identity)))
        for node, error in {node: self._receive(node) for node in self.sockets}.items():
            if error != "":
                raise UserError(error or f"{self.names[node]} has ended")

    def next_stage(self, identity: Callable[[], Dict[str, Any]]) -> Optional[Stage]:
        """On another node: the next stage, once its identity has been compared; None at the end of training.

        `identity` is called when the first node has prepared its data; a UserError is reported to it.
        """
        message = self._receive(0)
        if message is None:
            return None
        stage, node = Stage(**message), self.machine.node_rank
        self.machine.torchrun_port = stage.port
        try:
            error = difference(stage.identity, identity(), node)
        except UserError as raised:
            error = f"node {node}: {raised}"
        send(self.sockets[0], error)
        if error:
            raise UserError(error)
        return stage

    def check(self) -> None:
        """Raise UserError if a connected node has failed."""
        for node, connection in self.sockets.items():
            try:
                received = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                received = b""
            if not received:
                raise self._failed(node)

    def close(self) -> None:
        """Tell the other nodes that this one has not failed, and wait until they have received it."""
        for connection in self.sockets.values():
            with contextlib.suppress(OSError):
                connection.settimeout(60)
                connection.sendall(b"0".rjust(HEADER))
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1024):
                    pass

    def _receive(self, node: int) -> Any:
        try:
            return receive(self.sockets[node])
        except (OSError, ValueError) as error:
            raise self._failed(node) from error

    def _failed(self, node: int) -> UserError:
        return UserError(
            f"{self.names[node]} has failed, see its messages; correct the cause, then start all nodes again"
        )


def difference(first: Dict[str, Any], other: Dict[str, Any], node: int) -> str:
    """What is different on a node, as an error message; empty if nothing is."""
    other = json.loads(json.dumps(other))  # lists for tuples, as in `first`
    for name in {**first, **other}:
        if first.get(name) != other.get(name):
            values = f"{first.get(name)} on node 0 and {other.get(name)} on node {node}"
            return f"{name} must be the same on all nodes; got {values}"
    return ""


def send(connection: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    connection.sendall(str(len(data)).rjust(HEADER).encode() + data)


def receive(connection: socket.socket) -> Any:
    """The next message; None if the node has closed the connection without failing. Raises OSError or ValueError."""
    length = int(connection.recv(HEADER, socket.MSG_WAITALL))
    return json.loads(connection.recv(length, socket.MSG_WAITALL)) if length else None


@contextlib.contextmanager
def joined(machine: Machine, timeout: int) -> Iterator[Connections]:
    """Within the block, this node is connected with the others. On one node, there are no connections.

    Raises:
        UserError: a node is missing after `timeout` seconds.
    """
    with contextlib.ExitStack() as stack:
        sockets: Dict[int, socket.socket] = {}
        if machine.nodes > 1:
            connect = wait_for_first if machine.node_rank else wait_for_others
            sockets = connect(machine, timeout, stack)
        connections = Connections(machine, sockets)
        try:
            yield connections
        except SystemExit as request:
            if request.code == STOPPED:
                connections.close()
            raise
        connections.close()


def wait_for_others(machine: Machine, timeout: int, stack: contextlib.ExitStack) -> Dict[int, socket.socket]:
    """Accept the connections of all other nodes."""
    sockets: Dict[int, socket.socket] = {}
    deadline = time.monotonic() + timeout
    port, dual = machine.first_node()[1], socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = stack.enter_context(socket.create_server(("", port), family=family, dualstack_ipv6=dual))
    except OSError as error:
        raise UserError(f"--master must name a free port of this node; got {port} ({error.strerror})") from error
    logger.info("waiting for %d other node(s) at %s", machine.nodes - 1, machine.master)
    while missing := {*range(1, machine.nodes)} - {*sockets}:
        server.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            connection = stack.enter_context(server.accept()[0])
        except TimeoutError as error:
            names = ", ".join(map(str, sorted(missing)))
            raise UserError(
                f"node {names} must connect to {machine.master} within {timeout} s (recipe.node_timeout), but did not; "
                "its own messages name the cause"
            ) from error
        with contextlib.suppress(OSError, ValueError, TypeError):  # another program
            connection.settimeout(5)
            node = receive(connection)
            connection.settimeout(None)
            if node in missing:
                sockets[node] = connection
    return sockets


def wait_for_first(machine: Machine, timeout: int, stack: contextlib.ExitStack) -> Dict[int, socket.socket]:
    """Connect to the first node."""
    deadline = time.monotonic() + timeout
    logger.info("waiting for the first node at %s", machine.master)
    while True:
        try:
            connection = stack.enter_context(socket.create_connection(machine.first_node(), timeout=5))
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"the first node must be reached at {machine.master} within {timeout} s (recipe.node_timeout), but "
                    f"was not ({error.strerror or error}); its own messages name the cause"
                ) from error
            time.sleep(0.5)
            continue
        if connection.getsockname() != connection.getpeername():  # of a port on this machine that nobody listens to
            connection.settimeout(None)
            send(connection, machine.node_rank)
            return {0: connection}
        connection.close()

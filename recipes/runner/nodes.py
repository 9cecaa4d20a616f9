"""Connections between the runners of several nodes outside Slurm: all start together, and if one fails, all end.

torchrun alone would wait for a missing node for ten minutes, and its processes for those of a node that has failed for
up to half an hour.
"""

import contextlib
import logging
import socket
import time
from typing import Dict, Iterator

from fairseq_modern.errors import UserError

from .machine import Machine, free_port
from .process import STOPPED

logger = logging.getLogger("recipe")

DONE = b"D"  # sent before a connection is closed, unless the node has failed


class Connections:
    """Of the first node to all others, or of another node to the first one: node → socket."""

    def __init__(self, machine: Machine, sockets: Dict[int, socket.socket]) -> None:
        self.machine, self.sockets = machine, sockets
        self.names = {node: f"node {node} ({sockets[node].getpeername()[0]})" for node in sockets}

    def start(self) -> None:
        """Wait until the first node begins to train, and set `machine.torchrun_port`."""
        if self.sockets and self.machine.node_rank == 0:
            self.machine.torchrun_port = free_port()
            for connection in self.sockets.values():
                connection.sendall(f"{self.machine.torchrun_port:>5}".encode())
        for connection in self.sockets.values() if self.machine.node_rank else ():
            port = connection.recv(5, socket.MSG_WAITALL)
            if len(port) < 5:
                raise self.failed(0)
            self.machine.torchrun_port = port.decode().strip()
        for connection in self.sockets.values():
            connection.setblocking(False)

    def check(self) -> None:
        """Raise UserError if a connected node has failed."""
        for node, connection in list(self.sockets.items()):
            received = b""
            try:
                received = connection.recv(1)
            except BlockingIOError:
                continue
            except OSError:
                pass
            connection = self.sockets.pop(node)
            if received != DONE:
                raise self.failed(node)

    def close(self) -> None:
        """Tell the other nodes that this one has not failed, and wait until they have received it."""
        for connection in self.sockets.values():
            with contextlib.suppress(OSError):
                connection.settimeout(60)
                connection.sendall(DONE)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(16):
                    pass

    def failed(self, node: int) -> UserError:
        return UserError(
            f"{self.names[node]} has failed, see its messages; correct the cause, then start all nodes again"
        )


@contextlib.contextmanager
def joined(machine: Machine, timeout: int) -> Iterator[Connections]:
    """Within the block, this node is connected with the others. On one node and in Slurm, there are no connections.

    Args:
        timeout: seconds to wait for the others.

    Raises:
        UserError: a node is missing after this time.
    """
    with contextlib.ExitStack() as stack:
        sockets: Dict[int, socket.socket] = {}
        if machine.nodes > 1 and not machine.in_slurm_job():
            connect = wait_for_first if machine.node_rank else wait_for_others
            sockets = connect(machine, time.monotonic() + timeout, timeout, stack)
        connections = Connections(machine, sockets)
        try:
            yield connections
        except SystemExit as request:
            if request.code == STOPPED:
                connections.close()
            raise
        connections.close()


def wait_for_others(
    machine: Machine, deadline: float, timeout: int, stack: contextlib.ExitStack
) -> Dict[int, socket.socket]:
    """Accept the connections of all other nodes."""
    sockets: Dict[int, socket.socket] = {}
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
        with contextlib.suppress(OSError, ValueError):  # another program
            connection.settimeout(5)
            node = int(connection.recv(5, socket.MSG_WAITALL))
            connection.settimeout(None)
            if node in missing:
                sockets[node] = connection
    return sockets


def wait_for_first(
    machine: Machine, deadline: float, timeout: int, stack: contextlib.ExitStack
) -> Dict[int, socket.socket]:
    """Connect to the first node."""
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
            connection.sendall(f"{machine.node_rank:>5}".encode())
            return {0: connection}
        connection.close()

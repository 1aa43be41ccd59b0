"""A TCP proxy to a server, which a test makes fail as a network does."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from laneway.testing.postgres_server import PostgresServer

WINDOW = 65_536
"""How many bytes the server can send before somebody has to read them."""


class Network:
    """
    Forwards bytes between clients and a server. After a cut it neither forwards them nor ends a
    connection, so both sides wait. `url`: that of the server through this network.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._port = server.port
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"{server.url.replace(f':{server.port}/', f':{port}/')}?connect_timeout=2"
        self._sockets = [self._listener]
        self._gates: list[tuple[threading.Event, threading.Event]] = []
        """Of each connection: set while requests, and while answers, are forwarded."""
        self._is_up = threading.Event()
        self._is_up.set()
        self._holds_back = False

    def cut(self, *, requests: bool = True) -> None:
        """Forward nothing more. `requests`: False: the server still gets the requests."""
        self._is_up.clear()
        for gates in self._gates:
            for gate in gates if requests else gates[1:]:
                gate.clear()

    def cut_inside_an_answer(self) -> None:
        """Forward no last byte of an answer, so that the client waits for the rest."""
        self._holds_back = True
        self.cut(requests=False)

    def restore(self, *, loses: bool = False) -> None:
        """Forward again. `loses`: only new connections; the present ones are forgotten."""
        if not loses:
            for gate in [gate for gates in self._gates for gate in gates]:
                gate.set()
        self._gates.clear()
        self._holds_back = False
        self._is_up.set()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                self._is_up.wait()
                server = socket.socket()
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
                self._sockets.append(server)
                gates = threading.Event(), threading.Event()
                self._gates.append(gates)
                ways = ((client, server), (server, client))
                try:
                    server.connect(("127.0.0.1", self._port))
                except OSError:  # the server is away
                    client.close()
                    continue
                for gate, way in zip(gates, ways, strict=True):
                    gate.set()
                    threading.Thread(target=self._forward, args=(gate, *way), daemon=True).start()

    def _forward(self, gate: threading.Event, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(WINDOW):
                if self._holds_back:
                    target.sendall(data[:-1])
                    data = data[-1:]
                gate.wait()
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Network:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.restore()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

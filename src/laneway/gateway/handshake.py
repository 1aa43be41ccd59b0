"""
TLS handshakes of new connections: counted with the connections, and bounded.

asyncio tells a server of a TLS connection only when its handshake is complete. Until then a client
that sends nothing would hold a socket that no limit counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any, Protocol

HANDSHAKE_SECONDS = 10.0
"""How long a client may take for its handshake."""

MAX_BEYOND = 100
"""
How many connections above the limit may complete their handshakes, because only then they can be
told why they are refused. Those above are closed.
"""


class Connection(Protocol):
    """The protocol of a connection, as its handshake sees it."""

    def is_refused(self, beyond: int = 0) -> bool:
        """Whether the server has as many connections as it may have, and `beyond`."""

    def connection_made(self, transport: Any) -> None:
        """The handshake is complete."""

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""


class Handshakes(set["_Handshake"]):
    """The connections of a server that are in their handshakes."""

    def accept(self, connection: Connection, context: ssl.SSLContext) -> asyncio.Protocol:
        """The protocol of an accepted socket, which becomes `connection`."""
        return _Handshake(self, context, connection)

    def end(self) -> None:
        """End all of them."""
        for handshake in list(self):
            handshake.end()


class _Handshake(asyncio.Protocol):
    """A connection until its handshake is complete; then its `connection` has it."""

    def __init__(self, others: Handshakes, context: ssl.SSLContext, connection: Connection) -> None:
        self._others = others
        self._context = context
        self._connection = connection
        self._arrived: list[bytes] = []
        """What came with the end of the handshake, for the connection."""
        self._is_lost = False
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._connection.is_refused(MAX_BEYOND):
            assert isinstance(transport, asyncio.Transport)
            transport.abort()
            return
        self._transport = transport  # type: ignore[assignment]
        self._others.add(self)
        self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))

    async def _shake_hands(self, transport: Any) -> None:
        encrypted = None
        try:
            with contextlib.suppress(OSError):  # the client's: it has gone, or speaks no TLS
                encrypted = await asyncio.get_running_loop().start_tls(
                    transport,
                    self,
                    self._context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_SECONDS,
                )
        finally:
            self._others.discard(self)
        if encrypted is None or self._is_lost:
            return
        encrypted.set_protocol(self._connection)  # type: ignore[arg-type]
        self._connection.connection_made(encrypted)
        for data in self._arrived:
            if not encrypted.is_closing():  # it was refused
                self._connection.data_received(data)

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._is_lost = True

    def end(self) -> None:
        """Close the connection, even if its handshake has not begun."""
        self._others.discard(self)
        if self._task is not None and self._transport is not None:
            self._task.cancel()
            self._transport.abort()

"""Subscriptions: connections that receive what is published on channels."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

import hiredis
from redis import exceptions as refusals

from laneway.engines.valkey.nodes import Nodes
from laneway.engines.valkey.wire import packed

RECONNECT_AFTER = 0.25
"""Seconds between two attempts to connect."""

READ_BYTES = 1 << 16
"""How many bytes are read at once."""


class Subscription:
    """
    Receives the messages of one channel; for `select`.

    A lost connection is opened again. Messages may have been missed meanwhile: `poll` says so.
    """

    def __init__(self, nodes: Nodes, channel: str) -> None:
        self._nodes = nodes
        self._channel = channel
        self._connection: Any = None
        self._reader: hiredis.Reader | None = None
        """Reads the connection's socket, once the client's own reader has nothing left."""
        self._tried = 0.0
        self._silence, self._other_end = socket.socketpair()
        self.generation = 0
        """Grows with each connection and with its end."""
        self._connect()

    def fileno(self) -> int:
        """Readable when a message has arrived."""
        connection = self._connection
        return (
            connection._sock.fileno()  # noqa: SLF001
            if connection is not None and connection._sock is not None  # noqa: SLF001
            else self._silence.fileno()
        )

    @property
    def is_connected(self) -> bool:
        """Whether `fileno` is that of a connection."""
        return self._connection is not None

    def poll(self) -> list[bytes] | None:
        """
        The messages since the last call. None: the connection was lost, or opened again, and
        messages may have been missed.
        """
        if self._connection is None:
            return None if self._connect() else []
        return self.receive()

    def receive(self) -> list[bytes] | None:
        """As `poll`, without connecting, which may take long."""
        if self._connection is None:
            return []
        messages = self._read()
        if messages:
            return [payload for kind, _, payload in messages if kind == b"message"]
        return messages  # type: ignore[return-value]  # empty, or None

    def _read(self) -> list[tuple[bytes, bytes, Any]] | None:
        """All messages: kind, channel and payload. None: the connection was lost."""
        messages: list[tuple[bytes, bytes, Any]] = []
        try:
            if self._reader is not None:
                self._read_socket(self._connection._sock, self._reader, messages)  # noqa: SLF001
            else:
                while self._connection.can_read(timeout=0):
                    messages.append(tuple(self._connection.read_response(disable_decoding=True)))
                self._reader = self._own_reader()
        except (
            refusals.RedisError,
            OSError,
            hiredis.HiredisError,
            AttributeError,
        ):  # the last: another thread closed it
            self._drop()
            # What came before the end counts; the next call says that something may be missing.
            return messages or None
        return messages

    def _own_reader(self) -> hiredis.Reader | None:
        """
        A reader for the socket itself: the client's calls are a third of the time from a message to
        its handler. None: the socket is not read directly.
        """
        connection = self._connection
        if connection is None or isinstance(connection._sock, ssl.SSLSocket):  # noqa: SLF001
            return None
        connection._sock.setblocking(False)  # noqa: SLF001  # nothing more is sent
        return hiredis.Reader()

    @staticmethod
    def _read_socket(
        connected: socket.socket,
        reader: hiredis.Reader,
        messages: list[tuple[bytes, bytes, Any]],
    ) -> None:
        """Add what has arrived to `messages`. Raises OSError, ConnectionError, HiredisError."""
        size = READ_BYTES
        while size == READ_BYTES:  # less: the rest makes the socket readable again
            try:
                content = connected.recv(READ_BYTES)
            except BlockingIOError:
                return
            if not content:
                raise refusals.ConnectionError("closed by the server")
            size = len(content)
            reader.feed(content)
            while (message := reader.gets()) is not False:
                if not isinstance(message, list):
                    raise refusals.ConnectionError(f"unexpected message {message!r:.80}")
                messages.append(tuple(message))

    def _connect(self) -> bool:
        now = time.monotonic()
        if now - self._tried < RECONNECT_AFTER:
            return False
        self._tried = now
        try:
            connection = self._nodes.pool("").make_connection()
            connection.connect()
            self._subscribe(connection)
        except (refusals.RedisError, OSError, hiredis.HiredisError):
            return False
        self._connection = connection
        self.generation += 1
        return True

    def _subscribe(self, connection: Any) -> None:
        connection.send_packed_command([packed("SUBSCRIBE", self._channel)])
        connection.read_response(disable_decoding=True)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = self._reader = None
            self.generation += 1

    def close(self) -> None:
        """Stop listening."""
        self._drop()
        self._silence.close()
        self._other_end.close()


class Subscriptions(Subscription):
    """
    Receives the messages of many channels, which come and go. Their names are given and returned
    without their common prefix.
    """

    def __init__(self, nodes: Nodes, prefix: str) -> None:
        self._prefix = prefix
        self._wanted: set[str] = set()
        self._sending = threading.Lock()
        super().__init__(nodes, prefix)

    def change(self, command: str, channels: Sequence[str]) -> None:
        """SUBSCRIBE or UNSUBSCRIBE. May be called from any thread."""
        with self._sending:
            if command == "SUBSCRIBE":
                self._wanted |= set(channels)
            else:
                self._wanted -= set(channels)
            connection = self._connection
            if connection is not None:  # else `_subscribe` does it after the reconnect
                with contextlib.suppress(refusals.RedisError, OSError):
                    connection.send_packed_command(
                        [packed(command, *(self._prefix + channel for channel in channels))]
                    )

    def read(self) -> list[str] | None:
        """
        The payloads since the last call, and the name of each channel whose subscription has become
        active. None: messages may have been missed.
        """
        if self._connection is None:
            self._connect()
            return None
        messages = self._read()
        if messages is None:
            return None
        begin = len(self._prefix)
        return [
            (payload if kind == b"message" else channel[begin:]).decode()
            for kind, channel, payload in messages
            if kind in (b"message", b"subscribe") and len(channel) > begin
        ]

    def _own_reader(self) -> hiredis.Reader | None:
        return None  # `change` sends

    def _subscribe(self, connection: Any) -> None:
        with self._sending:
            names = [self._prefix, *(self._prefix + channel for channel in self._wanted)]
            connection.send_packed_command([packed("SUBSCRIBE", *names)])
        for _ in names:
            connection.read_response(disable_decoding=True)

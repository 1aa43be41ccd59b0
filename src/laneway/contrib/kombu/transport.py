"""The transport: connections to a store."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import defaultdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from kombu.transport import base, virtual

from laneway import Delivery, EngineUnavailable, Laneway
from laneway.contrib.kombu import channel
from laneway.contrib.kombu.apps import PREFIX, app_of
from laneway.contrib.kombu.inbox import Inbox
from laneway.printable import redacted

if TYPE_CHECKING:
    from kombu import Connection


BAD_DATA = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""The errors of a consumer that reads a message which Celery cannot have published."""


class State(virtual.BrokerState):
    """What the process knows of a store's exchanges, queues and bindings."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: dict[str, dict[str, Any]] = {}
        """By name: the arguments of the declaration."""


_states: defaultdict[Laneway, State] = defaultdict(State)


class Transport(virtual.Transport):
    """
    Connections of kombu to a store of Laneway.

    Pumps lease messages in threads of their own; `drain_events`, or the event loop of a worker of
    Celery, takes them from an inbox and calls the consumers.
    """

    Channel = channel.Channel
    can_parse_url = True
    driver_type = "laneway"
    driver_name = "laneway"
    default_port = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )
    connection_errors = (*base.Transport.connection_errors, EngineUnavailable, OSError)
    channel_errors = virtual.Transport.channel_errors

    def __init__(self, client: Connection, **options: Any) -> None:
        super().__init__(client, **options)
        self.app = app_of(client.hostname or "", client.transport_options)
        self.state = _states[self.app]
        self.inbox: Inbox[tuple[channel.Channel, Delivery]] = Inbox()
        self._loop: Any = None

    def driver_version(self) -> str:
        """The version of Laneway."""
        return metadata.version("laneway")

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL for people."""
        del mask
        uri = uri.removeprefix(PREFIX)
        return PREFIX + (uri if include_password else redacted(uri))

    def establish_connection(self) -> Transport:
        """Reach the store. Raises EngineUnavailable."""
        self.app.values.get("kombu")
        super().establish_connection()
        return self

    def close_connection(self, connection: Transport) -> None:
        """Close the channels, and release what they hold."""
        if self._loop is not None:
            with contextlib.suppress(KeyError, ValueError, OSError):
                self._loop.remove_reader(self.inbox.open_file())
            self._loop = None
        super().close_connection(connection)
        self.inbox.close()

    # Receiving

    def drain_events(self, connection: Transport, timeout: float | None = None) -> None:
        """
        Call the consumers of the messages that have arrived; wait for the first one. Raises
        TimeoutError if none comes within `timeout`.
        """
        del connection
        deadline = None if timeout is None else time.monotonic() + timeout
        is_received = False
        while not is_received:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            entry = self.inbox.take(left)
            if entry is None:
                raise socket.timeout  # noqa: UP041  # kombu's name of TimeoutError
            others = len(self.inbox)
            is_received = self._receive(entry)
            for _ in range(others):
                if (entry := self.inbox.take()) is not None:
                    is_received |= self._receive(entry)

    def _receive(self, entry: tuple[channel.Channel, Delivery], *, in_loop: bool = False) -> bool:
        """
        Call the consumer of a message. Returns whether it was called.

        An error would end a worker of Celery, so a message that it cannot read becomes a dead
        letter. Other programs get the errors of their consumers. `in_loop`: the caller is the event
        loop of such a worker.
        """
        receiver, delivery = entry
        try:
            return receiver.receive(delivery)
        except BAD_DATA as error:
            if not (in_loop or receiver.is_of_celery(delivery)):
                raise
            receiver.refuse(delivery, error)
            return False

    def register_with_event_loop(self, connection: Transport, loop: Any) -> None:
        """Let the event loop of a worker of Celery call the consumers."""
        del connection
        self._loop = loop
        loop.add_reader(self.inbox.open_file(), self.on_readable)

    def on_readable(self, *_: object) -> None:
        """Call the consumer of one message; the loop calls it again while there are others."""
        entry = self.inbox.take()
        if entry is not None:
            self._receive(entry, in_loop=True)

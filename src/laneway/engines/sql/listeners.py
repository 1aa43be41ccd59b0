"""
Listeners of one process to arrivals and results, which a store's wakeup notifies.

Each has a pair of sockets, so that `poll` sleeps without holding anything and `wake` is one byte.
A wakeup that is notified of other processes by a datagram socket attaches it to the listener.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from laneway.engines.base import ABORT, PING
from laneway.engines.sql.wakeup import LEAST_STARTABLE, LOOK_AGAIN, SENT_LEASE_SECONDS, Wakeup
from laneway.message import Batch
from laneway.units import SECOND


class StoreWorkListener(ABC):
    """
    Is notified of what can be leased. `looks_always`: `poll` returns only if it has seen something
    to lease itself; a notification may be about what is due soon.
    """

    def __init__(
        self, wakeup: Wakeup, pool: str, topics: Sequence[str] | None, *, looks_always: bool = False
    ) -> None:
        self.pool, self.topics = pool, topics
        self.max_lease_us: int | None = None
        """As in `Queue.lease`."""
        self.generation = 0
        self.is_watched = False
        self._looks_always = looks_always
        self._looks_never = topics is not None and not topics
        """Its caller looks itself, once it is notified, see `base.Wakeup`."""
        self._listeners, self._notify = wakeup.waiting, wakeup.notify
        self._listeners.append(self)

    def takes_leases(self, startable: int) -> bool:
        """
        Whether messages may be leased to it: it serves all topics, can start many messages, and its
        leases end no sooner than those that are sent to it.
        """
        longest = self.max_lease_us
        return (
            self.topics is None
            and startable >= LEAST_STARTABLE
            and (longest is None or longest >= SENT_LEASE_SECONDS * SECOND)
        )

    def _look(self, wakeup: Wakeup, *, is_first: bool) -> float:
        """
        In how many seconds its caller should lease; 0: now. `is_first`: it was not notified before.
        """
        if is_first and self._looks_never:
            return 0.0
        return wakeup.look(self.pool, self.topics)

    @abstractmethod
    def poll(self, timeout: float, startable: int = 0) -> Batch | bool: ...

    @abstractmethod
    def wake(self) -> None: ...

    @abstractmethod
    def pause(self) -> Batch | bool: ...

    def pass_on(self) -> bool:
        self._notify(self.pool, has_arrivals=True)
        return True

    def close(self) -> None:
        self.pause()
        with contextlib.suppress(ValueError):
            self._listeners.remove(self)


class _Listener:
    """One of `listeners` until it is closed."""

    def __init__(self, listeners: list[Any]) -> None:
        self._listeners = listeners
        self._inner, self._waker = socket.socketpair()
        self._outer: socket.socket | None = None
        self._path = ""
        """Of the datagram socket, "" without one."""
        for each in (self._inner, self._waker):
            each.setblocking(False)
        listeners.append(self)

    def attach(self, outer: socket.socket, path: str) -> None:
        """Receive datagrams of other processes by a socket that is bound to this path."""
        self._outer, self._path = outer, path

    @property
    def name(self) -> str:
        """The name of its datagram socket, "" without one."""
        return os.path.basename(self._path)

    def _wait(self, timeout: float) -> tuple[bool, bool]:
        """Whether this process notified it, and whether another one has sent something."""
        poll = select.poll()
        for each in (self._inner, self._outer):
            if each is not None:
                poll.register(each, select.POLLIN)
        ready = {file for file, _ in poll.poll(timeout * 1000)}
        was_woken = self._inner.fileno() in ready
        if was_woken:
            with contextlib.suppress(BlockingIOError):
                self._inner.recv(4096)
        return was_woken, self._outer is not None and self._outer.fileno() in ready

    def _received(self) -> Iterator[bytes]:
        """The datagrams of other processes."""
        if self._outer is not None:
            with contextlib.suppress(BlockingIOError):
                while True:
                    yield self._outer.recv(1 << 17)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._listeners.remove(self)
        for each in (self._inner, self._waker, self._outer):
            if each is not None:
                each.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))


class StoreArrivalListener(_Listener):
    """Is notified of arrivals in a pool. It is one of `listeners` until it is closed."""

    def __init__(self, listeners: list[StoreArrivalListener], pool: str) -> None:
        super().__init__(listeners)
        self.pool = pool
        self._notified = False

    def notify(self, pool: str) -> None:
        """Messages came to a pool."""
        if pool == self.pool:
            self._notified = True
            self.wake()

    def poll(self, timeout: float) -> bool:
        _, has_received = self._wait(timeout)
        notified, self._notified = self._notified, False
        received = list(self._received()) if has_received else []
        return notified or bool(received)


class StoreResultListener(_Listener):
    """
    Is notified of stored outcomes and progress. It is one of `listeners` until it is closed.

    A notification of another process may be lost, so `poll` asks its caller to read all again
    (None) after a second without notifications.
    """

    def __init__(self, listeners: list[StoreResultListener]) -> None:
        super().__init__(listeners)
        self._subscribed: set[str] = set()
        self._notified: deque[str] = deque()
        self.look_again = LOOK_AGAIN
        """Seconds without notifications after which the caller reads all."""

    def subscribe(self, *names: str) -> None:
        self._subscribed.update(names)
        self.notify(names)

    def unsubscribe(self, *names: str) -> None:
        self._subscribed.difference_update(names)

    def notify(self, names: Sequence[str]) -> None:
        """Something was stored under these names."""
        self._notified.extend(names)
        self.wake()

    def poll(self, timeout: float) -> list[str] | None:
        was_woken, has_received = self._wait(min(timeout, self.look_again))
        if not (was_woken or has_received) and timeout >= self.look_again:
            return None
        notified: list[str] = []
        while was_woken and self._notified:
            notified.append(self._notified.popleft())
        if has_received:
            for datagram in self._received():
                notified += datagram.decode(errors="replace").split("\n")
        subscribed = self._subscribed
        prefixes = tuple({ABORT, PING} & subscribed)
        return [each for each in notified if each in subscribed or each.startswith(prefixes)]

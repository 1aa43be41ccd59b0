"""
Wakeup: how a process that makes a lane runnable wakes a worker that waits, without polling.

Each waiter binds a Unix datagram socket in a folder that belongs to the store, only while it waits;
the socket's name says which pool it serves. A process that makes a lane runnable sends a byte to
one waiter of its pool, and to all waiters that serve some topics only, because they may not be able
to lease it. A worker that leased a full batch wakes the next one. If no worker waits, one arrival
listener is notified: a busy worker, with a socket of the same kind.

A store in memory, and systems without Unix sockets, use a condition within the process; across
processes such systems look again every few milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import secrets
import select
import socket
import tempfile
import threading
import time
import zlib
from collections import deque
from typing import TYPE_CHECKING

from laneway.engines.base import ABORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from laneway.engines.base import ArrivalListener, ResultListener
    from laneway.engines.shared.interrupt import Interrupt

LOOK_AGAIN = 1.0
"""
Seconds after which a waiter looks by itself, in case a notification was lost: the socket was full,
or a container has another /tmp.
"""

POLL = 0.02
"""Seconds between looks where there are no Unix sockets."""

BIND_TRIES = 20

SERVES_ALL, SERVES_SOME, IS_BUSY = "a", "r", "n"
"""The kind of listener, in a socket's name after the pool."""

LISTENER = "listen-"
"""The names of result listeners' sockets begin with this."""

IDS_AT_ONCE = 200
"""Ids in one datagram."""

log = logging.getLogger("laneway.engine")


class Wakeup:
    """
    Waits and notifications of one store. `look`: in how many seconds a pool may have something to
    lease; 0: now.
    """

    def __init__(
        self, path: str | None, look: Callable[[str, Sequence[str] | None], float]
    ) -> None:
        self._look = look
        self._across = path is not None and hasattr(socket, "AF_UNIX")
        self._alone = path is None
        self._folder = _folder(path) if path is not None and self._across else ""
        self._condition = threading.Condition()
        self._notified = 0
        self._interrupted = 0
        self._has_warned = False
        self._waiting: dict[str, socket.socket] = {}
        self.listeners: list[StoreResultListener] = []
        self.busy: list[StoreArrivalListener] = []

    def arrival_listener(self, pool: str) -> ArrivalListener:
        """A listener that is notified of arrivals in a pool."""
        return StoreArrivalListener(self, pool, self._folder)

    def result_listener(self) -> ResultListener:
        """A listener that is notified of stored outcomes and progress."""
        return StoreResultListener(self, self._folder)

    def notify_results(self, ids: Sequence[str]) -> None:
        """Notify all result listeners that something was stored under these ids."""
        for listener in list(self.listeners):
            listener.notify(ids)
        if not self._across:
            return
        try:
            names = [name for name in os.listdir(self._folder) if name.startswith(LISTENER)]
        except OSError:
            return
        own = {listener.name for listener in self.listeners}
        for name in names:
            if name not in own:
                for start in range(0, len(ids), IDS_AT_ONCE):
                    self._send(name, "\n".join(ids[start : start + IDS_AT_ONCE]).encode())

    def notify(self, pool: str, *, has_arrivals: bool = False) -> None:
        """Wake one waiter of the pool; if none waits and messages came, one arrival listener."""
        if not self._across:
            with self._condition:
                self._notified += 1
                self._condition.notify_all()
            if has_arrivals:
                for each in list(self.busy):
                    each.notify(pool)
            return
        try:
            names = os.listdir(self._folder)
        except OSError:
            return
        if not names:
            return
        mine = _pool_mark(pool)
        waiters = [name for name in names if name.startswith(mine)]
        random.shuffle(waiters)
        for name in [name for name in waiters if name[len(mine)] == SERVES_SOME]:
            self._send(name)
        for kind in (SERVES_ALL, IS_BUSY) if has_arrivals else (SERVES_ALL,):
            for name in waiters:
                if name[len(mine)] == kind and self._send(name):
                    return

    def _send(self, name: str, content: bytes = b"!") -> bool:
        """Send to a socket of the folder; False: its owner died, and it is removed."""
        path = f"{self._folder}/{name}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
            wakeup.setblocking(False)
            try:
                wakeup.sendto(content, path)
            except BlockingIOError:
                return True  # the socket is full, so its owner is awake
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # a waiter that died
                return False
        return True

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        """Sleep until notified, at most `timeout` s; True: there may be something to lease."""
        deadline = time.monotonic() + timeout
        if not self._across:
            return self._wait_in_process(deadline, pool, topics, interrupt)
        before = self._interrupted
        serves = SERVES_ALL if topics is None else SERVES_SOME
        name = f"{_pool_mark(pool)}{serves}{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
            try:
                self.bind(wakeup, name)
            except OSError as error:
                if not self._has_warned:
                    self._has_warned = True
                    log.warning(
                        "%s: cannot create a wakeup socket (%s); this process polls every %g s"
                        " instead",
                        self._folder,
                        error,
                        POLL,
                    )
                return self._wait_in_process(deadline, pool, topics, interrupt)
            self._waiting[name] = wakeup
            try:
                # Look only after the socket is bound: later publishes send to it.
                with interrupt.waking(lambda: self._wake(name)):
                    while self._interrupted == before and not interrupt.is_set:
                        soon = self._look(pool, topics)
                        if soon <= 0:
                            return True
                        left = deadline - time.monotonic()
                        if left <= 0:
                            return False
                        if select.select([wakeup], [], [], min(left, soon, LOOK_AGAIN))[0]:
                            wakeup.recv(16)
            finally:
                self._waiting.pop(name, None)
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._folder}/{name}")
                    os.rmdir(self._folder)  # unless others wait too
        return False

    def bind(self, wakeup: socket.socket, name: str) -> None:
        """Bind the socket. The last waiter removes the folder, so it may vanish in between."""
        for _ in range(BIND_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                wakeup.bind(f"{self._folder}/{name}")
                return
        raise FileNotFoundError(f"{self._folder} vanishes again and again")

    def _wake(self, name: str) -> None:
        """End one wait of this process."""
        self._send(name)

    def _wait_in_process(
        self, deadline: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        before = self._interrupted
        with interrupt.waking(self._notify):
            while self._interrupted == before and not interrupt.is_set:
                seen = self._notified
                soon = self._look(pool, topics)
                if soon <= 0:
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with self._condition:
                    if (
                        self._notified == seen
                        and self._interrupted == before
                        and not interrupt.is_set
                    ):
                        self._condition.wait(
                            min(left, soon) if self._alone else min(left, soon, POLL)
                        )
        return False

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def interrupt(self) -> None:
        """End all waits of this process."""
        self._interrupted += 1
        self._notify()
        for name in list(self._waiting):
            self._send(name)


class _Listener:
    """
    A datagram socket in the store's folder, for notifications of other processes, and a pair of
    sockets for those of this process.
    """

    def __init__(self) -> None:
        self._inner, self._waker = socket.socketpair()
        self._outer: socket.socket | None = None
        self._path = ""
        for each in (self._inner, self._waker):
            each.setblocking(False)

    def _bind(self, wakeup: Wakeup, folder: str, name: str) -> None:
        """Bind the datagram socket. Raises OSError."""
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        outer.setblocking(False)
        try:
            wakeup.bind(outer, name)
        except OSError:
            outer.close()
            raise
        self._outer, self._path = outer, f"{folder}/{name}"

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
        for each in (self._inner, self._waker, self._outer):
            if each is not None:
                each.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
                os.rmdir(os.path.dirname(self._path))


class StoreArrivalListener(_Listener):
    """Is notified of arrivals in a pool; without Unix sockets only of those of this process."""

    def __init__(self, wakeup: Wakeup, pool: str, folder: str) -> None:
        super().__init__()
        self._wakeup = wakeup
        self._pool = pool
        self._notified = False
        if folder:
            with contextlib.suppress(OSError):  # `Wakeup.wait` warns of it
                self._bind(wakeup, folder, f"{_pool_mark(pool)}{IS_BUSY}{secrets.token_hex(8)}")
        wakeup.busy.append(self)

    def notify(self, pool: str) -> None:
        """Messages came to a pool, in this process."""
        if pool == self._pool:
            self._notified = True
            self.wake()

    def poll(self, timeout: float) -> bool:
        _, has_received = self._wait(timeout)
        notified, self._notified = self._notified, False
        received = list(self._received()) if has_received else []
        return notified or bool(received)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._wakeup.busy.remove(self)
        super().close()


class StoreResultListener(_Listener):
    """
    Is notified of stored outcomes and progress: by this process through a list, by others through
    a datagram socket.

    A notification that does not fit into the socket is lost, so `poll` asks its caller to read all
    ids again (None) after a second without notifications.
    """

    def __init__(self, wakeup: Wakeup, folder: str) -> None:
        super().__init__()
        self._wakeup = wakeup
        self._subscribed: set[str] = set()
        self._notified: deque[str] = deque()
        self.name = f"{LISTENER}{secrets.token_hex(8)}"
        if folder:
            try:
                self._bind(wakeup, folder, self.name)
            except OSError as error:
                log.warning(
                    "%s: cannot create a wakeup socket (%s); this process looks for results every"
                    " second instead",
                    folder,
                    error,
                )
        wakeup.listeners.append(self)

    def subscribe(self, *ids: str) -> None:
        self._subscribed.update(ids)
        self.notify(ids)

    def unsubscribe(self, *ids: str) -> None:
        self._subscribed.difference_update(ids)

    def notify(self, ids: Sequence[str]) -> None:
        """Something was stored under these ids, in this process."""
        self._notified.extend(ids)
        self.wake()

    def poll(self, timeout: float) -> list[str] | None:
        was_woken, has_received = self._wait(min(timeout, LOOK_AGAIN))
        if not (was_woken or has_received) and timeout >= LOOK_AGAIN:
            return None
        notified: list[str] = []
        while was_woken and self._notified:
            notified.append(self._notified.popleft())
        if has_received:
            for datagram in self._received():
                notified += datagram.decode(errors="replace").split("\n")
        subscribed = self._subscribed
        aborts = ABORT in subscribed
        return [
            each for each in notified if each in subscribed or (aborts and each.startswith(ABORT))
        ]

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._wakeup.listeners.remove(self)
        super().close()


def _folder(path: str) -> str:
    """A path that all processes on the file compute; short, as sockets allow about 100 bytes."""
    digest = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    owner = os.stat(path).st_uid if os.path.exists(path) else os.getuid()
    return f"{tempfile.gettempdir()}/laneway-{owner}/{digest}"


def _pool_mark(pool: str) -> str:
    return f"{zlib.crc32(pool.encode()):08x}"

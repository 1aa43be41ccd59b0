"""
How a process that makes something runnable wakes one that waits, without anybody polling.

Each waiter binds a Unix datagram socket in a folder that belongs to the store, only while it waits;
the name says which pool it serves. Whoever makes a lane runnable sends a byte to one waiter of that
pool (and to those that serve only some topics: they may not be able to take it). A waiter that was
handed a full batch rings the next one. Where nobody waits, one of those who are busy is told of
what has just come; he has a socket of the same kind. A store in memory, and systems without Unix
sockets, use a condition within the process; across processes such systems look again every few
milliseconds.
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
Seconds after which a waiter looks by itself, in case a bell was lost (a full socket, another /tmp
in a container).
"""

POLL = 0.02
"""Seconds between looks where there are no Unix sockets."""

PUT_UP_TRIES = 20

SERVES_ALL, SERVES_SOME, IS_BUSY = "a", "r", "n"
"""What stands in a socket's name behind the pool."""

LISTENER = "ear-"
"""How the names of sockets begin whose owners hear of what is kept."""

TOLD_AT_ONCE = 200
"""Ids in one datagram."""

log = logging.getLogger("laneway.engine")


class Wakeup:
    """
    The bell of one store. `look` tells in how many seconds there is something to do in a pool (0:
    now).
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
        self._is_deaf = False
        self._waiting: dict[str, socket.socket] = {}
        self.listeners: list[StoreResultListener] = []
        self.busy: list[StoreArrivalListener] = []

    def arrival_listener(self, pool: str) -> ArrivalListener:
        """Something to hear with of what comes to a pool."""
        return StoreArrivalListener(self, pool, self._folder)

    def result_listener(self) -> ResultListener:
        """Something to hear with of what is kept."""
        return StoreResultListener(self, self._folder)

    def tell(self, ids: Sequence[str]) -> None:
        """Something is kept of these messages: whoever listens hears of it."""
        for listener in list(self.listeners):
            listener.told(ids)
        if not self._across:
            return
        try:
            names = [name for name in os.listdir(self._folder) if name.startswith(LISTENER)]
        except OSError:
            return
        own = {listener.name for listener in self.listeners}
        for name in names:
            if name not in own:
                for start in range(0, len(ids), TOLD_AT_ONCE):
                    self._send(name, "\n".join(ids[start : start + TOLD_AT_ONCE]).encode())

    def notify(self, pool: str, *, has_arrivals: bool = False) -> None:
        """
        Wake one waiter of the pool, if there is one; if not, tell one who is busy that something
        came.
        """
        if not self._across:
            with self._condition:
                self._notified += 1
                self._condition.notify_all()
            if has_arrivals:
                for each in list(self.busy):
                    each.told(pool)
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

    def _send(self, name: str, said: bytes = b"!") -> bool:
        path = f"{self._folder}/{name}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
            wakeup.setblocking(False)  # the standard library's own signature
            try:
                wakeup.sendto(said, path)
            except BlockingIOError:
                return True  # its socket is full of bells: it is awake
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(path)  # a waiter that died
                return False
        return True

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        """Sleep until rung, at most `timeout` seconds; True: there may be something to lease."""
        deadline = time.monotonic() + timeout
        if not self._across:
            return self._wait_in_process(deadline, pool, topics, interrupt)
        before = self._interrupted
        serves = SERVES_ALL if topics is None else SERVES_SOME
        name = f"{_pool_mark(pool)}{serves}{secrets.token_hex(8)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wakeup:
            try:
                self.put_up(wakeup, name)
            except OSError as error:
                if not self._is_deaf:
                    self._is_deaf = True
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
                # Look only after the socket stands: what is published from here on rings it.
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

    def put_up(self, wakeup: socket.socket, name: str) -> None:
        """Bind the socket; the folder goes with the last who waits, so it may vanish in between."""
        for _ in range(PUT_UP_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                wakeup.bind(f"{self._folder}/{name}")
                return
        raise FileNotFoundError(f"{self._folder} vanishes again and again")

    def _wake(self, name: str) -> None:
        """End one wait."""
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
        """End the waits of this process."""
        self._interrupted += 1
        self._notify()
        for name in list(self._waiting):
            self._send(name)


class _Listener:
    """
    A datagram socket beside those of the waiters, for other processes, and a pair of sockets by
    which this one wakes it.
    """

    def __init__(self) -> None:
        self._inner, self._waker = socket.socketpair()
        self._outer: socket.socket | None = None
        self._path = ""
        for each in (self._inner, self._waker):
            each.setblocking(False)

    def _put_up(self, wakeup: Wakeup, folder: str, name: str) -> None:
        """Raises OSError where that cannot be."""
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        outer.setblocking(False)
        try:
            wakeup.put_up(outer, name)
        except OSError:
            outer.close()
            raise
        self._outer, self._path = outer, f"{folder}/{name}"

    def _wait(self, timeout: float) -> tuple[bool, bool]:
        """Whether it was woken, and whether another process has said something."""
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

    def _said(self) -> Iterator[bytes]:
        """What other processes have said."""
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
    """
    Hears of what comes to a pool: through a datagram socket, or, where there are none, of this
    process alone.
    """

    def __init__(self, wakeup: Wakeup, pool: str, folder: str) -> None:
        super().__init__()
        self._wakeup = wakeup
        self._pool = pool
        self._told = False
        if folder:
            with contextlib.suppress(OSError):  # whoever waits has warned of it
                self._put_up(wakeup, folder, f"{_pool_mark(pool)}{IS_BUSY}{secrets.token_hex(8)}")
        wakeup.busy.append(self)

    def told(self, pool: str) -> None:
        """Something came, in this process."""
        if pool == self._pool:
            self._told = True
            self.wake()

    def poll(self, timeout: float) -> bool:
        _, is_said = self._wait(timeout)
        told, self._told = self._told, False
        said = list(self._said()) if is_said else []
        return told or bool(said)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._wakeup.busy.remove(self)
        super().close()


class StoreResultListener(_Listener):
    """
    Hears of what is kept: from this process through a list, from others through a datagram socket
    beside those of the waiters.

    What does not fit into the socket is missed, so it looks at all every second.
    """

    def __init__(self, wakeup: Wakeup, folder: str) -> None:
        super().__init__()
        self._wakeup = wakeup
        self._expected: set[str] = set()
        self._notified: deque[str] = deque()
        self.name = f"{LISTENER}{secrets.token_hex(8)}"
        if folder:
            try:
                self._put_up(wakeup, folder, self.name)
            except OSError as error:
                log.warning(
                    "%s: nothing can be heard of other processes here (%s); this one looks every"
                    " second instead",
                    folder,
                    error,
                )
        wakeup.listeners.append(self)

    def subscribe(self, *ids: str) -> None:
        self._expected.update(ids)
        self.told(ids)

    def unsubscribe(self, *ids: str) -> None:
        self._expected.difference_update(ids)

    def told(self, ids: Sequence[str]) -> None:
        """Called by whoever keeps something, in this process."""
        self._notified.extend(ids)
        self.wake()

    def poll(self, timeout: float) -> list[str] | None:
        was_woken, is_said = self._wait(min(timeout, LOOK_AGAIN))
        if not (was_woken or is_said) and timeout >= LOOK_AGAIN:
            return None
        notified: list[str] = []
        while was_woken and self._notified:
            notified.append(self._notified.popleft())
        if is_said:
            for said in self._said():
                notified += said.decode(errors="replace").split("\n")
        expected = self._expected
        aborts = ABORT in expected
        return [
            each for each in notified if each in expected or (aborts and each.startswith(ABORT))
        ]

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            self._wakeup.listeners.remove(self)
        super().close()


def _folder(path: str) -> str:
    """
    A short path (a socket's is limited to some 100 bytes) that all processes on the file agree on.
    """
    digest = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    owner = os.stat(path).st_uid if os.path.exists(path) else os.getuid()
    return f"{tempfile.gettempdir()}/laneway-{owner}/{digest}"


def _pool_mark(pool: str) -> str:
    return f"{zlib.crc32(pool.encode()):08x}"

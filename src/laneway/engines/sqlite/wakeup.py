"""
Wakeup: how a process that makes a lane runnable wakes a worker that waits, without polling.

Each waiter binds a Unix datagram socket in a folder that belongs to the store, as long as it has
room for messages; the socket's name says which pool it serves. A process that makes a lane runnable
sends a byte to one waiter of its pool, and to all waiters that serve some topics only, because they
may not be able to lease it. A worker that leases by patterns is one of the latter, and looks for
messages itself. A worker that leased a full batch wakes the next one. If no worker waits, one
arrival listener is notified: a busy worker, with a socket of the same kind.

A process that publishes one message may lease it to a worker with many free slots, in the same
transaction (see `inbox`), and sends the lease to that worker's socket.

A store in memory, and systems without Unix sockets, use a condition within the process; across
processes such systems look again every few milliseconds.

For example, the workers A, B and C wait with room for 10 messages each, and a process publishes
15 in one call. It sends one byte, to A. A leases 10: a full batch, so it sends a byte to B. B
leases the other 5: no full batch, so C sleeps on. Two bytes woke the two workers that were needed.

Why this is correct. A waiter binds its socket before it looks for messages, so a message is either
in the store when it looks, or its publisher finds the socket. A byte says only that something may
have changed, so one too many costs a look. One too few, of a process that died between its commit
and the byte, costs `LOOK_AGAIN`: a waiter looks at least that often.
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
from collections.abc import Callable, Sequence

import msgspec

from laneway.engines.base import ArrivalListener, ResultListener
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.replaced_files import is_settled
from laneway.engines.sql import listeners, wakeup as sql_wakeup
from laneway.engines.sql.listeners import StoreArrivalListener, StoreResultListener
from laneway.engines.sql.wakeup import LOOK_AGAIN, SENT_LEASE_SECONDS
from laneway.message import Batch, Lease
from laneway.units import SECOND

POLL = 0.02
"""Seconds between looks where there are no Unix sockets."""

BIND_TRIES = 20

SERVES_ALL, TAKES_LEASES, SERVES_SOME, IS_BUSY = "a", "l", "r", "n"
"""
The kind of listener, in a socket's name after the pool. One that takes leases serves all topics.
"""

MOST_CONNECTED = 64
"""To how many workers a process is connected at most."""

MOST_DATAGRAMS = 1_000
"""How many datagrams are read at once at most."""

MOST_BYTES = 1 << 16
"""The most bytes of a datagram that a work listener receives."""

LISTENER = "listen-"
"""The names of result listeners' sockets begin with this."""

NOTIFICATION, WAKE = b"!", b"w"
"""What a work listener's socket receives: of any process, and of `wake`."""

SENT_LEASE = b"+"
"""What a datagram with a lease begins with; then `_SentLease` as MessagePack."""

IDS_AT_ONCE = 200
"""Ids in one datagram."""

log = logging.getLogger("laneway.engine")

_SentLease = tuple[float, int, Lease]
"""When the lease ends (monotonic seconds), the store's time when it began, and the lease."""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(_SentLease).decode


class Wakeup(sql_wakeup.Wakeup):
    """`path`: the file, or None in memory; `may_lease`: publishers may lease to listeners."""

    def __init__(
        self,
        path: str | None,
        look: Callable[[str, Sequence[str] | None], float],
        *,
        may_lease: bool = False,
    ) -> None:
        super().__init__(look)
        self._across = path is not None and hasattr(socket, "AF_UNIX")
        self.may_lease = may_lease and self._across
        self.is_alone = path is None
        self._folder = _folder(path) if path is not None and self._across else ""
        self._names = _Names(self._folder)
        self._workers: dict[str, socket.socket] = {}
        """
        Connected to workers that take leases, by name, while the names in the folder stay the same:
        to connect takes as long as all else that a publish does before its transaction.
        """
        self._waiting: dict[str, list[str]] = {}
        """The names of the workers that take leases, by pool; also while the names stay."""
        self._names_of_workers: list[str] = []
        self._condition = threading.Condition()
        self._notified = 0
        self.came = 0
        """How many times lanes have become runnable; counted only without sockets."""
        self._has_warned = False

    def arrival_listener(self, pool: str) -> ArrivalListener:
        listener = StoreArrivalListener(self.busy, pool)
        with contextlib.suppress(OSError):  # `wait` warns of it
            self._attach(listener, f"{_pool_mark(pool)}{IS_BUSY}{secrets.token_hex(8)}")
        return listener

    def result_listener(self) -> ResultListener:
        listener = StoreResultListener(self.listeners)
        name = f"{LISTENER}{secrets.token_hex(8)}"
        try:
            self._attach(listener, name)
        except OSError as error:
            log.warning(
                "%s: cannot create a wakeup socket (%s); this process looks for results every"
                " second instead",
                self._folder,
                error,
            )
        return listener

    def _attach(self, listener: StoreArrivalListener | StoreResultListener, name: str) -> None:
        """Give it a datagram socket for notifications of other processes. Raises OSError."""
        if not self._folder:
            return
        outer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        outer.setblocking(False)
        try:
            self.bind(outer, name)
        except OSError:
            outer.close()
            raise
        listener.attach(outer, f"{self._folder}/{name}")

    def notify_results(self, ids: Sequence[str]) -> None:
        super().notify_results(ids)
        if not self._across:
            return
        names = [name for name in self._names.read() if name.startswith(LISTENER)]
        own = {listener.name for listener in list(self.listeners)}
        for name in names:
            if name not in own:
                for start in range(0, len(ids), IDS_AT_ONCE):
                    self._send(name, "\n".join(ids[start : start + IDS_AT_ONCE]).encode())

    def notify(
        self, pool: str, *, has_arrivals: bool = False, only_one: bool = False, shard: int = 0
    ) -> None:
        self.changed.add(shard)
        if not self._across:
            with self._condition:
                self._notified += 1
                self.came += not only_one
                self._condition.notify_all()
            if has_arrivals:
                for each in list(self.busy):
                    each.notify(pool)
            return
        names = self._names.read()
        if not names:
            return
        mine = _pool_mark(pool)
        waiters = [name for name in names if name.startswith(mine)]
        random.shuffle(waiters)
        if not only_one:
            for name in [name for name in waiters if name[len(mine)] == SERVES_SOME]:
                self._send(name)
        all_topics = SERVES_ALL + TAKES_LEASES
        for kinds in (all_topics, IS_BUSY) if has_arrivals else (all_topics,):
            for name in waiters:
                if name[len(mine)] in kinds and self._send(name):
                    return

    def find_worker(self, pool: str) -> socket.socket | None:
        """
        A socket that is connected to a waiting worker to which messages may be leased; do not close
        it. None: there is none.
        """
        if not self.may_lease:
            return None
        names = self._names.read()
        if names is not self._names_of_workers:  # the folder may have changed
            self.forget_workers()
            self._names_of_workers = names
        waiting = self._waiting.get(pool)
        if waiting is None:
            mine = _pool_mark(pool) + TAKES_LEASES
            waiting = self._waiting[pool] = [name for name in names if name.startswith(mine)]
        while waiting:
            name = waiting[0] if len(waiting) == 1 else random.choice(waiting)
            worker = self._workers.get(name) or self._connected(name)
            if worker is not None:
                return worker
            waiting.remove(name)
        return None

    def _connected(self, name: str) -> socket.socket | None:
        """A socket that is connected to a worker, and kept. None: the worker died."""
        worker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            worker.connect(f"{self._folder}/{name}")
        except OSError:
            worker.close()
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{name}")
            return None
        worker.setblocking(False)
        if len(self._workers) >= MOST_CONNECTED:
            self.forget_workers()
        self._workers[name] = worker
        return worker

    def send_lease(self, worker: socket.socket, lease: Lease, began: float) -> bool:
        length = (lease.deadline_us - lease.published_us) / SECOND
        until = began + min(length, SENT_LEASE_SECONDS)
        content = SENT_LEASE + _pack((until, lease.published_us, lease))
        try:
            worker.send(content)
        except OSError:
            return False
        return True

    def forget_workers(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()
        self._waiting.clear()

    def _send(self, name: str, content: bytes = NOTIFICATION) -> bool:
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

    def work_listener(
        self,
        pool: str,
        topics: Sequence[str] | None,
        *,
        max_lease_us: int | None = None,
        looks_always: bool = False,
    ) -> StoreWorkListener:
        listener = StoreWorkListener(self, pool, topics, self._folder, looks_always=looks_always)
        listener.max_lease_us = max_lease_us
        return listener

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        if not self._across:
            return self.wait_in_process(timeout, pool, topics, interrupt)
        return super().wait(timeout, pool, topics, interrupt)

    def bind(self, wakeup: socket.socket, name: str) -> None:
        """Bind the socket. The last waiter removes the folder, so it may vanish in between."""
        for _ in range(BIND_TRIES):
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                wakeup.bind(f"{self._folder}/{name}")
                return
        raise FileNotFoundError(f"{self._folder} vanishes again and again")

    def warn(self, error: OSError) -> None:
        """Warn once that this process has to poll."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s: cannot create a wakeup socket (%s); this process polls every %g s instead",
                self._folder,
                error,
                POLL,
            )

    def wait_in_process(
        self,
        timeout: float,
        pool: str,
        topics: Sequence[str] | None,
        interrupt: Interrupt,
        came: int | None = None,
    ) -> bool:
        """As `wait`, without a socket; True as well once `self.came` is not `came`."""
        deadline, before = time.monotonic() + timeout, self.interrupted
        with interrupt.waking(self._notify):
            while self.interrupted == before and not interrupt.is_set:
                seen = self._notified
                soon = self.look(pool, topics)
                if soon <= 0 or came not in (None, self.came):
                    return True
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with self._condition:
                    if (
                        self._notified == seen
                        and self.interrupted == before
                        and not interrupt.is_set
                    ):
                        self._condition.wait(
                            min(left, soon) if self.is_alone else min(left, soon, POLL)
                        )
        return False

    def _notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def interrupt(self) -> None:
        super().interrupt()
        self._notify()


class _Names:
    """The names in a folder, which are listed again only where its modification time says so."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._listed: list[str] = []
        self._quiet: tuple[int, int] | None = None
        """The folder and its modification time at which these were listed, if that was long ago."""

    def read(self) -> list[str]:
        try:
            status = os.stat(self._folder)
            now = status.st_ino, status.st_mtime_ns
            if now != self._quiet:
                self._listed = os.listdir(self._folder)
                self._quiet = now if is_settled(status.st_mtime_ns) else None
        except OSError:
            return []
        return self._listed


class StoreWorkListener(listeners.StoreWorkListener):
    """
    Is notified through a datagram socket that is bound while it listens; without such sockets
    `poll` waits within the process.

    While the worker has `LEAST_STARTABLE` free slots, the socket's name says that it takes leases.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        pool: str,
        topics: Sequence[str] | None,
        folder: str,
        *,
        looks_always: bool = False,
    ) -> None:
        self._wakeup = wakeup
        self._folder = folder
        self._name = ""
        self._socket: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._reading = threading.Lock()
        """Held while a thread reads the socket."""
        self._look_at = 0.0
        """When to look for something to lease without a notification (monotonic seconds)."""
        self._was_notified = False
        """Whether a notification came together with a lease."""
        self._interrupt = Interrupt()
        self._came = -1
        """How many times lanes had become runnable when `poll` said so; -1: it did not yet."""
        super().__init__(wakeup, pool, topics, looks_always=looks_always)

    def poll(self, timeout: float, startable: int = 0) -> Batch | bool:
        deadline = time.monotonic() + timeout
        bound = self._bound(takes_leases=self.takes_leases(startable))
        if bound is None:
            return self._poll_in_process(timeout)
        while not self._interrupt.is_set:
            now = time.monotonic()
            if now >= self.look_at:
                self._was_notified = False
                # The socket is bound: later publishes send to it.
                soon = self._look(self._wakeup, is_first=self._look_at == 0)
                self._look_at = now + min(soon, LOOK_AGAIN) if soon > 0 else now + LOOK_AGAIN
                if soon <= 0:
                    return True
            found = self._received(bound, min(deadline, self.look_at) - time.monotonic())
            if found is not False:
                if not self._looks_always:
                    return found
                self._look_at = 0.0
            elif time.monotonic() >= deadline:
                return False
        self._interrupt = Interrupt()
        return False

    def _poll_in_process(self, timeout: float) -> bool:
        wakeup, came = self._wakeup, self._came if self._looks_never else None
        polls = self._looks_never and not wakeup.is_alone  # other processes notify nobody
        timeout = min(timeout, POLL) if polls else timeout
        found = wakeup.wait_in_process(timeout, self.pool, self.topics, self._interrupt, came)
        found |= polls
        if found:
            self._came = self._wakeup.came
        if self._interrupt.is_set:
            self._interrupt = Interrupt()
        return found

    def _bound(self, *, takes_leases: bool) -> socket.socket | None:
        """The socket, bound to a name that says what the worker takes now."""
        kind = SERVES_ALL if self.topics is None else SERVES_SOME
        if takes_leases and self._wakeup.may_lease:
            kind = TAKES_LEASES
        mark = _pool_mark(self.pool) + kind
        if self._socket is None or self._name.startswith(mark):
            return self._socket or self._bind(mark)
        name = mark + self._name[len(mark) :]
        with contextlib.suppress(OSError):  # the folder was emptied
            os.rename(f"{self._folder}/{self._name}", f"{self._folder}/{name}")
        self._name = name
        return self._socket

    def _bind(self, mark: str) -> socket.socket | None:
        if not self._folder:
            return None
        name = mark + secrets.token_hex(8)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._wakeup.bind(bound, name)
        except OSError as error:
            bound.close()
            self._wakeup.warn(error)
            return None
        bound.setblocking(False)
        self._name, self._look_at = name, 0.0
        waker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        waker.setblocking(False)
        with contextlib.suppress(OSError):  # the folder was emptied
            waker.connect(f"{self._folder}/{name}")
        self._socket, self._waker = bound, waker
        self.generation += 1
        return bound

    @property
    def look_at(self) -> float:
        return 0.0 if self._was_notified else self._look_at

    def duplicate_file(self) -> int:
        if self._socket is None or not self._wakeup.may_lease:
            return -1
        return os.dup(self._socket.fileno())

    def receive(self) -> Batch | bool:
        if not self._reading.acquire(blocking=False):
            return False
        try:
            # One datagram: if there are others, the event loop sees that the socket is readable.
            return self._socket is not None and self._read(self._socket, most=1)
        finally:
            self._reading.release()

    def _received(self, bound: socket.socket, seconds: float) -> Batch | bool:
        """What is received within so many seconds; ends early after `wake`."""
        if seconds > 0 and not self._interrupt.is_set:
            poll = select.poll()
            poll.register(bound, select.POLLIN)
            poll.poll(seconds * 1000)
        with self._reading:
            return self._read(bound)

    def _read(self, bound: socket.socket, most: int = MOST_DATAGRAMS) -> Batch | bool:
        is_notified, batch = False, None
        with contextlib.suppress(BlockingIOError):
            for _ in range(most):
                if not (content := bound.recv(MOST_BYTES)):
                    break
                if content.startswith(SENT_LEASE):
                    until, now_us, lease = _unpack(content[len(SENT_LEASE) :])
                    if batch is None:
                        batch = Batch([], now_us, until=until)
                    if self.max_lease_us is not None:
                        lease.deadline_us = min(lease.deadline_us, now_us + self.max_lease_us)
                    batch.leases.append(lease)
                else:
                    is_notified |= content != WAKE
        if batch is None:
            return is_notified
        self._was_notified |= is_notified
        return batch

    def wake(self) -> None:
        self._interrupt.set()
        waker = self._waker
        if waker is not None:
            with contextlib.suppress(OSError):  # full, so `poll` returns anyway; or just closed
                waker.send(WAKE)

    def pause(self) -> Batch | bool:
        self._came = -1
        bound, waker, self._socket, self._waker = self._socket, self._waker, None, None
        if bound is None or waker is None:
            return False
        self.generation += 1
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/{self._name}")
            os.rmdir(self._folder)  # unless others wait too
        # A lease is either received now, or its sender learns that it is not.
        with contextlib.suppress(OSError):
            bound.shutdown(socket.SHUT_RD)
        found = self._received(bound, 0.0)
        waker.close()
        bound.close()
        if found is True or self._was_notified:
            # This worker is about to be busy: it would keep the message for itself.
            self._was_notified = False
            self.pass_on()
        return found if isinstance(found, Batch) else False


def _folder(path: str) -> str:
    """A path that all processes on the file compute; short, as sockets allow about 100 bytes."""
    digest = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16]
    owner = os.stat(path).st_uid if os.path.exists(path) else os.getuid()
    return f"{tempfile.gettempdir()}/laneway-{owner}/{digest}"


def _pool_mark(pool: str) -> str:
    return f"{zlib.crc32(pool.encode()):08x}"

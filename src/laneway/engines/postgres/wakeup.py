"""
Wakeup by LISTEN and NOTIFY: how a process that makes a lane runnable wakes a worker that waits.

Each process has one connection that listens to a channel of its own, and a row in `sleeper` for
each pool in which one of its listeners waits. After a commit that made something runnable, the
publisher reads these rows and notifies one waiter, and all waiters that serve some topics only,
because they may not be able to lease it. A notification names the shard, and a look begins with
it. If nobody waits it notifies nobody, because a NOTIFY takes a lock of the whole server.

For example, the workers A, B and C wait with room for 10 messages each, and a process publishes
15 in one call. It notifies A. A leases 10: a full batch, so it notifies B. B leases the other 5: no
full batch, so C sleeps on.

Why this is correct. A waiter's row is committed before it looks for messages, and a publisher reads
the rows after its commit. So a message is either seen when the waiter looks, or its publisher sees
the row. A notification says only that something may have changed, so one too many costs a look. One
too few costs a waiter's next look: a second after it began to wait or was notified, then after
longer and longer pauses, up to `LONGEST_PAUSE`. One waiter is notified of what is due before that.
Choosing and notifying are one statement, so a publisher waits for one answer.
A process whose connection breaks looks now, every second, and when it has another connection.
A publisher sends its notification again through another connection; it opens one a second at most.

A publish of one message may lease it to a worker of another process, in the same statement (see
`inbox`): it chooses a row of a worker with many free slots, and the notification has the lease. It
is in the transaction of the put, which does not wait for the disk. A listening connection holds an
advisory lock as long as it lives, so nothing is leased to a process that was killed. A lease that
comes after its worker stopped waiting is released.

A connection through a pooler notifies, and is not notified: its process has no rows, and a waiter
looks after 20 ms, then after longer and longer pauses, up to 250 ms.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import select
import socket
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from laneway.engines.base import ArrivalListener, ResultListener
from laneway.engines.postgres.connecting import ServerConnection
from laneway.engines.postgres.pipeline import forget
from laneway.engines.postgres.statements import LISTEN_CLASS
from laneway.engines.shared import forking
from laneway.engines.shared.naming import generated_id
from laneway.engines.sql import listeners, wakeup as sql_wakeup
from laneway.engines.sql.listeners import StoreArrivalListener, StoreResultListener
from laneway.engines.sql.wakeup import LOOK_AGAIN, SENT_LEASE_SECONDS
from laneway.message import Batch, Lease
from laneway.units import SECOND

BEAT_SECONDS = 3.0
"""How often a listening process says that it still does."""

DEAD_SECONDS = 10
"""A row that is older belongs to a process that died or has stopped."""

LONGEST_PAUSE, LONGEST_PAUSE_A_SHARD = 5.0, 0.02
"""
How long a waiter that is notified sleeps at most before it looks again in all shards, in seconds
and in seconds for each shard, whichever is longer.
"""

FIRST_PAUSE, LAST_PAUSE = 0.02, 0.25
"""How long a waiter that is not notified sleeps before it looks again."""

ANSWER_SECONDS = 5.0
"""How long a publisher waits for the server to take a notification."""

MOST_BYTES = 7_000
"""Of ids, or of a lease, in one notification; the server takes 8,000."""

ALL, SOME, BUSY, RESULTS, TAKES_LEASES = "a", "s", "b", "r", "l"
"""
What a row of `sleeper` is of: a worker that serves all topics, or some; a busy worker; a process
that waits for results. A worker that takes leases has a row of its own for that.
"""

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Lease).decode

log = logging.getLogger("laneway.engine")


class Wakeup(sql_wakeup.Wakeup):
    """`connect` opens a connection to the store; `schema`: its own."""

    waiting: list[StoreWorkListener]
    names_shards = True

    def __init__(
        self,
        connect: Callable[[], ServerConnection],
        schema: str,
        look: Callable[[str, Sequence[str] | None], float],
        take_back: Callable[[Lease], None],
        clock: Callable[[], int],
    ) -> None:
        """
        `take_back`: called with a lease that no worker here takes. `clock`: the store's time.
        """
        super().__init__(look)
        self._take_back, self._clock = take_back, clock
        self.serve(shards=1)
        self._random = random.Random()
        self._presence = _Presence(connect, schema, self._receive, self._look_now)

    def serve(self, shards: int) -> None:
        """A waiter's look is at this many shards."""
        self.look_again = max(LONGEST_PAUSE, LONGEST_PAUSE_A_SHARD * shards)
        self._shards = {str(shard): shard for shard in range(shards)}

    @property
    def is_notified(self) -> bool:
        """Whether other processes can notify this one."""
        return self._presence.is_notified

    @property
    def pauses(self) -> tuple[float, float]:
        """The first and the longest pause between two looks of a waiter."""
        if not self.is_notified:
            return FIRST_PAUSE, LAST_PAUSE
        return LOOK_AGAIN, self.look_again if self._presence.is_connected else LOOK_AGAIN

    def _look_now(self) -> None:
        """A notification may have been lost, or cannot be read: all waiters here look."""
        for listener in list(self.waiting):
            listener.look()

    # Notifying

    def notify(
        self, pool: str, *, has_arrivals: bool = False, only_one: bool = False, shard: int = 0
    ) -> None:
        self.changed.add(shard)
        kinds = [] if self._wake_workers(pool, only_one=only_one) else [ALL]
        if has_arrivals and kinds and all(each.pool != pool for each in list(self.busy)):
            kinds.append(BUSY)
        every = "" if only_one else SOME
        notified = self._presence.notify(pool, f"{shard} {pool}", every, kinds)
        if has_arrivals and kinds and ALL not in notified:
            self._wake_busy(pool)

    def _wake_workers(self, pool: str, *, only_one: bool = False) -> bool:
        """
        Wake this process's workers with some topics, unless `only_one`, and one that serves all;
        whether there is one.
        """
        waiting = [each for each in list(self.waiting) if each.pool == pool and each.is_waiting]
        serve_all = [each for each in waiting if each.topics is None]
        chosen = [self._random.choice(serve_all)] if serve_all else []
        some = [each for each in waiting if each.topics is not None and not only_one]
        for listener in (*chosen, *some):
            listener.notify()
        return bool(serve_all)

    def _wake_busy(self, pool: str) -> bool:
        busy = [listener for listener in list(self.busy) if listener.pool == pool]
        if busy:
            self._random.choice(busy).notify(pool)
        return bool(busy)

    def notify_results(self, ids: Sequence[str]) -> None:
        super().notify_results(ids)
        for page in _pages(ids):
            if not self._presence.notify("", page, RESULTS, []):
                return

    # Leases

    def find_worker(self, pool: str) -> StoreWorkListener | str:
        """A listener of this process, or the pool: the server chooses one of another process."""
        return self._find_here(pool) or pool

    def _find_here(self, pool: str) -> StoreWorkListener | None:
        found = [each for each in list(self.waiting) if each.pool == pool and each.room > 0]
        return self._random.choice(found) if found else None

    def offer(
        self, worker: StoreWorkListener | str | None, lease: Lease | None
    ) -> tuple[int, str, str]:
        if lease is None or worker is None:
            return 0, "", ""
        if not isinstance(worker, str):
            return 1, "", ""
        text = f"{b64encode(_pack(lease)).decode()} {worker}"
        return (0, worker, text) if len(text.encode()) < MOST_BYTES else (0, "", "")

    def send_lease(self, worker: StoreWorkListener | str, lease: Lease, began: float) -> bool:
        del began
        return isinstance(worker, str) or worker.send(lease, self._ends_at(lease))

    def _ends_at(self, lease: Lease) -> float:
        """When a lease that is sent ends (monotonic seconds)."""
        length = min(lease.deadline_us - lease.published_us, round(SENT_LEASE_SECONDS * SECOND))
        return time.monotonic() + (lease.published_us + length - self._clock()) / SECOND

    def _receive_lease(self, text: str) -> None:
        """The statement `inbox_put` of another process has leased a message to this one."""
        try:
            handle, fence, content, pool = text.split(" ", 3)
            lease = _unpack(b64decode(content, validate=True))
            lease.handle, lease.fence = int(handle), int(fence)
        except (ValueError, msgspec.DecodeError):  # as in `_receive`
            self._look_now()
            return
        lease.id = generated_id(lease.id, lease.handle)
        until = self._ends_at(lease)
        if until < time.monotonic():  # this process was stopped meanwhile
            return
        listener = self._find_here(pool)
        if listener is None or not listener.send(lease, until):
            self._take_back(lease)

    def _receive(self, text: str) -> None:
        """Another process has notified this one."""
        kind, rest = text[:1], text[1:]
        if kind == RESULTS:
            super().notify_results(rest.split("\n"))
            return
        if kind == TAKES_LEASES:
            self._receive_lease(rest)
            return
        name, _, pool = rest.partition(" ")
        shard = self._shards.get(name)
        if shard is None:  # another version sent it, or another program
            self._look_now()
            return
        self.changed.add(shard)
        if kind == "b":
            self._wake_busy(pool)
        elif not self._wake_workers(pool) and not self._wake_busy(pool):
            # Nobody waits here any more: notify a worker of another process.
            self._presence.notify(pool, rest, "", [ALL, BUSY])

    # Waiting

    def work_listener(
        self,
        pool: str,
        topics: Sequence[str] | None,
        *,
        max_lease_us: int | None = None,
        looks_always: bool = False,
    ) -> StoreWorkListener:
        listener = StoreWorkListener(self, pool, topics, looks_always=looks_always)
        listener.max_lease_us = max_lease_us
        return listener

    def arrival_listener(self, pool: str) -> ArrivalListener:
        return _PresentArrivals(self.busy, pool, self._presence)

    def result_listener(self) -> ResultListener:
        return _PresentResults(self.listeners, self._presence)

    def enter(self, kind: str, pool: str) -> None:
        """Be notified as one of this kind from now on."""
        self._presence.enter(kind, pool)

    def leave(self, kind: str, pool: str) -> None:
        self._presence.leave(kind, pool)

    def close(self) -> None:
        self._presence.close()


class StoreWorkListener(listeners.StoreWorkListener):
    """
    Is notified by other threads of this process, and by other processes. An event loop watches a
    socket that becomes readable when something arrives.
    """

    def __init__(
        self,
        wakeup: Wakeup,
        pool: str,
        topics: Sequence[str] | None,
        *,
        looks_always: bool = False,
    ) -> None:
        self._wakeup = wakeup
        self._kind = ALL if topics is None else SOME
        self.is_waiting = False
        """Whether it wants to be notified."""
        self.room = 0
        """How many messages may be leased to it now."""
        self._takes_leases = False
        """Whether it has a row as one to which messages may be leased."""
        self._look_at = 0.0
        self._pause = 0.0
        self._changed = threading.Condition()
        self._is_notified = False
        self._is_woken = False
        self._should_look = False
        self._batch: Batch | None = None
        """What was leased to it, and nobody has taken yet."""
        self._files: tuple[socket.socket, socket.socket] | None = None
        super().__init__(wakeup, pool, topics, looks_always=looks_always)

    def poll(self, timeout: float, startable: int = 0) -> Batch | bool:
        deadline = time.monotonic() + timeout
        takes_leases = self.takes_leases(startable)
        if not self.is_waiting:
            self._wakeup.enter(self._kind, self.pool)
            self.is_waiting, self._look_at, self._pause = True, 0.0, 0.0
        self._take_leases(startable if takes_leases else 0)
        while True:
            now = time.monotonic()
            if now >= self._look_at:
                is_first = self._look_at == 0 or not self._wakeup.is_notified
                soon = self._look(self._wakeup, is_first=is_first)
                first, longest = self._wakeup.pauses
                self._pause = min(max(first, 2 * self._pause), longest)
                self._look_at = now + (min(soon, self._pause) if soon > 0 else self._pause)
                if soon <= 0:
                    return True
            found, is_woken = self._sleep(min(deadline, self._look_at))
            if isinstance(found, Batch):
                return found
            if is_woken:
                return False
            if found:
                if not self._looks_always:
                    return True
                self._look_at = 0.0
            elif time.monotonic() >= deadline:
                return False

    def _take_leases(self, room: int) -> None:
        """Set how many messages may be leased to it from now on."""
        self.room = room
        if bool(room) != self._takes_leases:
            self._takes_leases = bool(room)
            change = self._wakeup.enter if room else self._wakeup.leave
            change(TAKES_LEASES, self.pool)

    def _sleep(self, until: float) -> tuple[Batch | bool, bool]:
        """Sleep until then; what has arrived before, and whether it was woken."""
        with self._changed:
            left = until - time.monotonic()
            if not (self._has_arrivals or self._is_woken or self._should_look) and left > 0:
                self._changed.wait(left)
            found = self._take_arrived()
            is_woken, self._is_woken = self._is_woken, False
            if self._should_look:
                self._should_look, self._look_at, self._pause = False, 0.0, 0.0
        return found, is_woken

    @property
    def _has_arrivals(self) -> bool:
        return self._is_notified or self._batch is not None

    def _take_arrived(self) -> Batch | bool:
        batch, self._batch = self._batch, None
        if batch is not None:  # a notification that came with it is taken next
            return batch
        is_notified, self._is_notified = self._is_notified, False
        if is_notified:
            self._pause = 0.0
        return is_notified

    def send(self, lease: Lease, until: float) -> bool:
        """
        Give it a message that was leased to it, until this time (monotonic seconds). False: it does
        not take any more.
        """
        now_us = lease.published_us
        with self._changed:
            if not self.room:
                return False
            self.room -= 1
            if self.max_lease_us is not None:
                lease.deadline_us = min(lease.deadline_us, now_us + self.max_lease_us)
            if self._batch is None:
                self._batch = Batch([], now_us, until=until)
            self._batch.leases.append(lease)
            self._batch.until = min(until, self._batch.until or until)
            self._signal()
        return True

    def notify(self) -> None:
        with self._changed:
            self._is_notified = True
            self._signal()

    def look(self) -> None:
        """Look for something to lease now, and again after short pauses."""
        with self._changed:
            self._should_look = True
            self._signal()

    def wake(self) -> None:
        with self._changed:
            self._is_woken = True
            self._signal()

    def _signal(self) -> None:
        self._changed.notify()
        if self._files is not None:
            with contextlib.suppress(OSError):  # full, so it is readable
                self._files[1].send(b"!")

    # For an event loop

    @property
    def look_at(self) -> float:
        return 0.0 if self._should_look or self._has_arrivals else self._look_at

    def duplicate_file(self) -> int:
        if not (self._takes_leases and self._wakeup.is_notified):
            return -1
        with self._changed:
            if self._files is None:
                self._files = socket.socketpair()
                for file in self._files:
                    file.setblocking(False)
                self.generation += 1
                self._files[1].send(b"!")  # for what has arrived before
            return os.dup(self._files[0].fileno())

    def receive(self) -> Batch | bool:
        with self._changed:
            if self._files is not None:
                with contextlib.suppress(BlockingIOError):
                    self._files[0].recv(4096)
            return self._take_arrived()

    def pause(self) -> Batch | bool:
        if self.is_waiting:
            self.is_waiting = False
            self._take_leases(0)
            self._wakeup.leave(self._kind, self.pool)
        with self._changed:
            batch, self._batch = self._batch, None
            is_notified, self._is_notified = self._is_notified, False
        if is_notified:
            self.pass_on()
        return batch if batch is not None else False

    def close(self) -> None:
        super().close()
        with self._changed:
            files, self._files = self._files, None
            self.generation += 1
            for file in files or ():
                file.close()


class _PresentArrivals(StoreArrivalListener):
    """An arrival listener that other processes notify."""

    def __init__(
        self, listeners: list[StoreArrivalListener], pool: str, presence: _Presence
    ) -> None:
        super().__init__(listeners, pool)
        self._presence: _Presence | None = presence
        presence.enter(BUSY, pool)

    def close(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.leave(BUSY, self.pool)
        super().close()


class _PresentResults(StoreResultListener):
    """A result listener that other processes notify."""

    def __init__(self, listeners: list[StoreResultListener], presence: _Presence) -> None:
        super().__init__(listeners)
        self._presence: _Presence | None = presence
        presence.enter(RESULTS, "")
        self._set_pause(FIRST_PAUSE)

    def _set_pause(self, seconds: float) -> None:
        if self._presence is not None and not self._presence.is_notified:
            self.look_again = seconds

    def subscribe(self, *names: str) -> None:
        self._set_pause(FIRST_PAUSE)
        super().subscribe(*names)

    def poll(self, timeout: float) -> list[str] | None:
        found = super().poll(timeout)
        if found is None:
            self._set_pause(min(2 * self.look_again, LAST_PAUSE))
        return found

    def close(self) -> None:
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.leave(RESULTS, "")
        super().close()


class _Presence:
    """
    The rows in `sleeper` of one process, its channel, and the thread that listens to it. Errors of
    the server are logged once and cost only time: who waits looks every second.
    `reconnected` is called after the connection was lost, and when there is another one.
    """

    def __init__(
        self,
        connect: Callable[[], ServerConnection],
        schema: str,
        receive: Callable[[str], None],
        reconnected: Callable[[], None],
    ) -> None:
        self._connect, self._receive, self._reconnected = connect, receive, reconnected
        self._table = sql.Identifier(schema, "sleeper")
        self.is_notified = True
        """False once a connection has gone through a pooler."""
        self.channel = f"laneway_{secrets.token_hex(8)}"
        self._here: Counter[tuple[str, str]] = Counter()
        """How many listeners this process has, by kind and pool."""
        self.lock = threading.RLock()
        """For the connection, and for what follows from it."""
        self._connection: psycopg.Connection[Any] | None = None
        self._is_running = False
        """Whether the thread that has the lock waits for an answer."""
        self._is_locked = False
        """Whether the connection has the lock that proves that it lives."""
        self._texts: deque[str] = deque()
        """Notifications that were received, and not given to `receive` yet."""
        self._thread: threading.Thread | None = None
        self._waker: tuple[int, int] | None = None
        self._is_closed = False
        self._retry_at = 0.0
        self._has_warned = False
        self._was_lost = False
        """Whether it waits for another connection, or for its first one."""
        _presences.add(self)

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def enter(self, kind: str, pool: str) -> None:
        """A listener of this process waits."""
        with self.lock:
            self._here[kind, pool] += 1
            if self._here[kind, pool] == 1:
                self._usable()
                if self.is_notified:
                    self._start()
                    self._run(_ENTER, (self.channel, kind, pool))

    def leave(self, kind: str, pool: str) -> None:
        with self.lock:
            self._here[kind, pool] -= 1
            if not self._here[kind, pool]:
                del self._here[kind, pool]
                if self.is_notified:
                    self._run(_LEAVE, (self.channel, kind, pool))

    def notify(self, pool: str, text: str, every: str, kinds: Sequence[str]) -> list[str]:
        """
        Notify all listeners of other processes of the kind `every`, and one of the first of `kinds`
        that has any. Returns the kinds that were notified.
        """
        values = (pool, self.channel, DEAD_SECONDS, list(kinds), text, every)
        with self.lock:
            return [kind for kind, _ in self._run(_NOTIFY, values)]

    def _run(self, statement: str, values: Sequence[object]) -> list[Any]:
        if self._is_running:  # this call is in a signal handler: who waits looks
            return []
        self._is_running = True
        try:
            return self._rows(statement, values)
        finally:
            self._is_running = False

    def _rows(self, statement: str, values: Sequence[object]) -> list[Any]:
        while (connection := self._usable()) is not None:
            try:
                cursor = connection.execute(self._text(statement), values)
                return cursor.fetchall() if cursor.description else []
            except psycopg.Error as error:
                self._lose(error)
            finally:
                if self._texts and threading.current_thread() is not self._thread:
                    self._wake()  # its connection is not readable any more
        return []

    def _text(self, statement: str) -> sql.Composed:
        return sql.SQL(statement).format(sleeper=self._table)

    def _usable(self) -> psycopg.Connection[Any] | None:
        """The connection. One that is lost is opened again, at most once a second."""
        if self._is_closed:
            return None
        if self._connection is None and time.monotonic() >= self._retry_at:
            self._retry_at = time.monotonic() + LOOK_AGAIN
            try:
                connection = self._connect()
                connection.answer_seconds = ANSWER_SECONDS
                self.is_notified = not connection.is_pooled
                if self.is_notified:
                    connection.add_notify_handler(lambda each: self._texts.append(each.payload))
                    connection.execute(f"LISTEN {self.channel}".encode())
                    self._lock_channel(connection)
                    for kind, pool in self._here:
                        connection.execute(self._text(_ENTER), (self.channel, kind, pool))
                self._connection = connection
                if self._was_lost:
                    self._was_lost = False
                    self._reconnected()
            except Exception as error:  # noqa: BLE001  # workers look every second
                self._lose(error)
        return self._connection

    def _lock_channel(self, connection: psycopg.Connection[Any]) -> None:
        """A former connection of this process may still have the lock."""
        (row,) = connection.execute(_LOCK, (self.channel,))
        self._is_locked = row[0]

    def _lose(self, error: Exception) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._was_lost = True
        self._reconnected()
        if not self._has_warned and not self._is_closed:
            self._has_warned = True
            log.warning(
                "notifications between processes fail (%s); workers look every second instead,"
                " until the server answers again",
                "; ".join(line.strip() for line in str(error).splitlines()),
            )

    # The thread that listens

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._waker = os.pipe()
            self._thread = threading.Thread(
                target=self._listen, args=self._waker[:1], name="laneway-listen", daemon=True
            )
            self._thread.start()

    def _listen(self, waker: int) -> None:
        beat_at = time.monotonic() + BEAT_SECONDS
        while not self._is_closed:
            with self.lock:
                connection = self._usable()
                file = connection.fileno() if connection is not None else None
            poll = select.poll()
            poll.register(waker, select.POLLIN)
            if file is not None:
                poll.register(file, select.POLLIN)
            ready = poll.poll(1000 * (max(beat_at - time.monotonic(), 0.0) if file else LOOK_AGAIN))
            with self.lock:
                if self._is_closed:
                    return
                if (waker, select.POLLIN) in ready:
                    os.read(waker, 4096)
                if time.monotonic() >= beat_at:
                    beat_at = time.monotonic() + BEAT_SECONDS
                    self._beat()
                self._read()
                texts = list(self._texts)
                self._texts.clear()
            for text in texts:
                self._receive(text)

    def _read(self) -> None:
        """Take the notifications that the connection has received."""
        if self._connection is None:
            return
        server = self._connection.pgconn
        try:
            server.consume_input()
            while (notification := server.notifies()) is not None:
                self._texts.append(notification.extra.decode())
        except psycopg.Error as error:
            self._lose(error)

    def _wake(self) -> None:
        """Wake the thread that listens."""
        if self._waker is not None:
            os.write(self._waker[1], b"!")

    def _beat(self) -> None:
        # A process that was stopped for long finds its rows removed by another one.
        for kind, pool in list(self._here) if self.is_notified else ():
            self._run(_ENTER, (self.channel, kind, pool))
        if self._connection is not None and not self._is_locked:
            self._is_locked = bool(self._run(_LOCK, (self.channel,))[0][0])
        if self._here:
            self._run(_FORGET, (DEAD_SECONDS,))

    def close(self) -> None:
        """End the thread and remove the rows."""
        with self.lock:
            if self._is_closed:
                return
            if self._here:
                self._run("DELETE FROM {sleeper} WHERE channel = %s", (self.channel,))
            self._is_closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            thread, waker = self._thread, self._waker
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5)
        if waker is not None:
            for file in waker:
                os.close(file)

    def forget(self) -> None:
        """In a forked child: the connection and the thread are the parent's."""
        self.lock = threading.RLock()
        self._is_closed, self._thread = True, None
        connection, self._connection = self._connection, None
        if connection is not None:
            forget(connection)


_ENTER = """INSERT INTO {sleeper} (channel, kind, pool, beat) VALUES (%s, %s, %s, now())
    ON CONFLICT (channel, kind, pool) DO UPDATE SET beat = excluded.beat"""
_LEAVE = "DELETE FROM {sleeper} WHERE channel = %s AND kind = %s AND pool = %s"
_NUMBER = "('x' || right(%s, 8))::bit(32)::int4"
_LOCK = f"SELECT pg_try_advisory_lock({LISTEN_CLASS}, {_NUMBER})"
_NOTIFY = """WITH listening AS MATERIALIZED (
        SELECT channel, kind FROM {sleeper} WHERE pool = %s AND channel <> %s
            AND beat > now() - make_interval(secs => %s)),
    one AS (SELECT * FROM listening WHERE kind = ANY(%s) ORDER BY kind, random() LIMIT 1)
    SELECT kind, pg_notify(channel, CASE WHEN kind IN ('a', 's') THEN 'w' ELSE kind END || %s)
    FROM (SELECT * FROM listening WHERE kind = %s UNION ALL SELECT * FROM one) AS notified"""
_FORGET = "DELETE FROM {sleeper} WHERE beat < now() - make_interval(secs => %s)"


def _pages(ids: Sequence[str]) -> list[str]:
    """These ids in as few texts as fit; an id that is too long for any is left out."""
    pages, page = [], ""
    for each in ids:
        if len((page + each).encode()) >= MOST_BYTES:
            pages.append(page)
            page = ""
        if len(each.encode()) < MOST_BYTES:
            page += f"\n{each}"
    return [page[1:] for page in [*pages, page] if page]


_presences: forking.Locked[_Presence] = forking.Locked(lambda presence, _: presence.forget())

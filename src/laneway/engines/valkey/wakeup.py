"""
How a worker waits without polling: it subscribes to a pub/sub channel of its own, and the function
that makes a lane runnable notifies one waiting worker of the pool. See `scripts/parts/wakeup.lua`.
"""

from __future__ import annotations

import contextlib
import math
import random
import secrets
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from laneway.engines.sharded.grants import EVERY
from laneway.engines.valkey import records
from laneway.errors import EngineUnavailable
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from laneway.engines.base import ArrivalListener, ResultListener
    from laneway.engines.sharded.grants import Grants
    from laneway.engines.shared.interrupt import Interrupt
    from laneway.engines.valkey.namespace import Namespace

LOOK_AGAIN = 5.0
"""
Seconds after which a waiter looks again without a notification, in case a notification was lost
with a process.
"""

LOOK_AGAIN_A_SHARD = 0.5
"""With many shards: seconds for each of them, if their sum is more."""

LATER = (0.2, 1.0)
"""
One waiter promises to look when a lane wakes. The others look so many seconds later, in case it
died.
"""


class _Channel:
    """
    The channel of one waiter: a subscription at the server, and a socket pair by which this process
    interrupts it.
    """

    def __init__(self, space: Namespace) -> None:
        self.name = f"laneway:{space.name}:{secrets.token_hex(8)}"
        self._subscription = space.server.subscription(self.name)
        self._interrupted, self._interrupter = socket.socketpair()
        self._interrupted.setblocking(False)
        self._interrupter.setblocking(False)

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._interrupter.send(b"!")

    def poll(self, seconds: float) -> tuple[set[int], bool]:
        """The shards that notified within so many seconds, and whether it was interrupted."""
        shards, was_interrupted = {int(shard) for shard in self._subscription.poll()}, False
        if not shards:
            ready = self._ready(max(0.0, seconds))
            if self._interrupted.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._interrupted.recv(1024)
                was_interrupted = True
            if self._subscription.fileno() in ready:
                shards = {int(shard) for shard in self._subscription.poll()}
        return shards, was_interrupted

    def _ready(self, seconds: float) -> set[int]:
        """The files of the subscription and the socket that can be read."""
        poll = select.poll()  # `select.select` is limited to 1,024 files
        poll.register(self._subscription, select.POLLIN)
        poll.register(self._interrupted, select.POLLIN)
        return {file for file, _ in poll.poll(math.ceil(seconds * 1000))}

    def close(self) -> None:
        self._subscription.close()
        self._interrupted.close()
        self._interrupter.close()


class StoreResultListener:
    """
    Reports changes of outcomes and progress. Every message has a channel of its own; see
    `scripts/parts/results.lua`.
    """

    def __init__(self, space: Namespace) -> None:
        self._subscriptions = space.server.subscriptions(f"laneway:{space.name}:of:")
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def subscribe(self, *ids: str) -> None:
        self._subscriptions.change("SUBSCRIBE", ids)

    def unsubscribe(self, *ids: str) -> None:
        self._subscriptions.change("UNSUBSCRIBE", ids)

    def wake(self) -> None:
        with contextlib.suppress(OSError):
            self._waker.send(b"!")

    def poll(self, timeout: float) -> list[str] | None:
        poll = select.poll()
        poll.register(self._subscriptions, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        ready = {file for file, _ in poll.poll(math.ceil(min(timeout, LOOK_AGAIN) * 1000))}
        if self._woken.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        if not ready:
            return None if timeout >= LOOK_AGAIN else []
        return self._subscriptions.read() if self._subscriptions.fileno() in ready else []

    def close(self) -> None:
        self._subscriptions.close()
        self._woken.close()
        self._waker.close()


class StoreArrivalListener:
    """
    Reports arrivals in one pool. A shard forgets a listener when it notifies it, so the listener
    registers again at the shards that did.
    """

    def __init__(
        self, space: Namespace, pool: str, note_notified: Callable[[set[int]], None]
    ) -> None:
        self._space = space
        self._pool = pool
        self._note_notified = note_notified
        self._channel = _Channel(space)
        self._renew_at = 0.0
        self._look_again = _look_again(space)

    def poll(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._renew_at:
                self._register(range(self._space.shards), round(self._look_again) + 2)
                self._renew_at = now + self._look_again
            shards, was_woken = self._channel.poll(min(deadline, self._renew_at) - now)
            if shards:
                self._register(shards, round(self._look_again) + 2)
                self._note_notified(shards)
                return True
            if was_woken or time.monotonic() >= deadline:
                return False

    def _register(self, shards: Iterable[int], seconds: int) -> None:
        self._space.run_many(
            [(shard, "arrivals", (self._pool, self._channel.name, seconds)) for shard in shards]
        )

    def wake(self) -> None:
        self._channel.interrupt()

    def close(self) -> None:
        try:
            with contextlib.suppress(EngineUnavailable):
                self._register(range(self._space.shards), 0)
        finally:
            self._channel.close()


def _look_again(space: Namespace) -> float:
    return max(LOOK_AGAIN, LOOK_AGAIN_A_SHARD * space.shards)


class Wakeup:
    """The waits and listeners of one engine object."""

    def __init__(self, space: Namespace, grants: Grants) -> None:
        self._space = space
        self._grants = grants
        self._lock = threading.Lock()
        self._idle: list[_Channel] = []
        self._in_use: list[_Channel] = []
        self._interrupted = 0
        self._closed = False
        self._notified: set[int] = set()
        self._look_again = _look_again(space)

    def interrupt(self) -> None:
        """End all waits."""
        with self._lock:
            self._interrupted += 1
            for channel in self._in_use:
                channel.interrupt()

    def arrival_listener(self, pool: str) -> ArrivalListener:
        """A listener for arrivals in a pool."""
        return StoreArrivalListener(self._space, pool, self.note_notified)

    def result_listener(self) -> ResultListener:
        """A listener for outcomes and progress."""
        return StoreResultListener(self._space)

    def close(self) -> None:
        """End all waits and close their channels."""
        self.interrupt()
        with self._lock:
            self._closed = True  # the channels in use are closed by their waits
            for channel in self._idle:
                channel.close()
            self._idle.clear()

    def take_notified(self) -> set[int]:
        """The shards that had something to lease when the last waits ended."""
        with self._lock:
            notified, self._notified = self._notified, set()
        return notified

    def note_notified(self, shards: set[int]) -> None:
        """These shards have something to lease."""
        with self._lock:
            self._notified |= shards

    @contextlib.contextmanager
    def _channel(self) -> Iterator[_Channel]:
        with self._lock:
            channel = self._idle.pop() if self._idle else None
        if channel is None:
            channel = _Channel(self._space)
        with self._lock:
            self._in_use.append(channel)
        try:
            yield channel
        except BaseException:
            with self._lock:
                self._in_use.remove(channel)
            channel.close()
            raise
        with self._lock:
            self._in_use.remove(channel)
            if not self._closed:
                self._idle.append(channel)
                return
        channel.close()

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        """Sleep until something could be leased, at most `timeout` s. True: lease again now."""
        try:
            return self._wait(timeout, pool, topics, interrupt)
        except EngineUnavailable:
            if self._closed:  # the wait was ended by `close`
                return False
            raise

    def _wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        deadline = time.monotonic() + timeout
        before = self._interrupted
        shards = range(self._space.shards)
        with self._channel() as channel, interrupt.waking(channel.interrupt):
            channel.poll(0.0)  # notifications since the last wait: `_look` sees their cause
            due = self._look(shards, pool, topics, channel)
            while due is not None and self._interrupted == before and not interrupt.is_set:
                now = time.monotonic()
                if now >= deadline:
                    self._leave(pool, topics, channel)
                    return False
                notified, _ = channel.poll(min(deadline, due) - now)
                if self._interrupted != before or interrupt.is_set:
                    break
                if notified:
                    self.note_notified(notified)
                    return True
                if time.monotonic() >= due:
                    due = self._look(shards, pool, topics, channel)
            if due is None:
                return True
            self._leave(pool, topics, channel)
        return False

    def _look(
        self, shards: range, pool: str, topics: Sequence[str] | None, channel: _Channel
    ) -> float | None:
        """When to look again (monotonic seconds). None: there is something to lease now."""
        named = b"" if topics is None else records.pack(list(topics))
        look_again = self._look_again * random.uniform(0.8, 1.2)
        due = time.monotonic() + look_again
        if self._grants.renew():
            # The grant of a shut gate may grow then.
            due = min(due, time.monotonic() + EVERY)
        calls = [
            (shard, "wait", (pool, named, channel.name, round(look_again) + 2)) for shard in shards
        ]
        busy = set()
        for shard, (has_work, wake, promised) in zip(
            shards, self._space.run_many(calls), strict=True
        ):
            if has_work:
                busy.add(shard)
            elif wake >= 0:
                at = (
                    time.monotonic() + wake / SECOND + (0.0 if promised else random.uniform(*LATER))
                )
                due = min(due, at)
        self.note_notified(busy)
        return None if busy else due

    def _leave(self, pool: str, topics: Sequence[str] | None, channel: _Channel) -> None:
        named = b"" if topics is None else records.pack(list(topics))
        self._space.run_many(
            [(shard, "wait", (pool, named, channel.name, 0)) for shard in range(self._space.shards)]
        )

"""
Waiting without polling: who waits is rung by whoever makes something runnable, through a channel of
his own.
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
from typing import TYPE_CHECKING, Any

from laneway.engines.valkey import records
from laneway.engines.valkey.grants import EVERY
from laneway.errors import EngineUnavailable
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from laneway.engines.shared.interrupt import Interrupt
    from laneway.engines.valkey.grants import Grants
    from laneway.engines.valkey.namespace import Namespace

LOOK_AGAIN = 5.0
"""
Seconds after which a waiter looks by itself, in case that whoever was to ring or to be rung has
died.
"""

LOOK_AGAIN_A_SHARD = 0.5
"""With many shards: so many seconds for each of them, if that is more."""

LATER = (0.2, 1.0)
"""Seconds after which those look who did not promise to, in case that he died."""


class _PoolListener:
    """
    What one waiter listens with: a channel at the server, and a socket by which this process
    interrupts it.
    """

    def __init__(self, space: Namespace) -> None:
        self.channel = f"laneway:{space.name}:{secrets.token_hex(8)}"
        self.wakeup: Any = space.link.subscription(self.channel)
        self.interrupted, self._interrupt = socket.socketpair()
        self.interrupted.setblocking(False)
        self._interrupt.setblocking(False)

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):
            self._interrupt.send(b"!")

    def poll(self, seconds: float) -> tuple[set[int], bool]:
        """The shards that rang within so many seconds, and whether it was interrupted."""
        pools_to_notify, was_interrupted = {int(shard) for shard in self.wakeup.poll()}, False
        if not pools_to_notify:
            ready = self._ready(max(0.0, seconds))
            if self.interrupted.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self.interrupted.recv(1024)
                was_interrupted = True
            if self.wakeup.fileno() in ready:
                pools_to_notify = {int(shard) for shard in self.wakeup.poll()}
        return pools_to_notify, was_interrupted

    def _ready(self, seconds: float) -> set[int]:
        """Which of the two has something to say."""
        poll = select.poll()  # `select.select` knows no more than 1,024 files
        poll.register(self.wakeup, select.POLLIN)
        poll.register(self.interrupted, select.POLLIN)
        return {file for file, _ in poll.poll(math.ceil(seconds * 1000))}

    def close(self) -> None:
        self.wakeup.close()
        self.interrupted.close()
        self._interrupt.close()


class SubscribedListener:
    """
    Hears of what is kept of messages, each through a channel of its own; see
    `scripts/parts/keeping.lua`.
    """

    def __init__(self, space: Namespace) -> None:
        self._subscriptions = space.link.subscriptions(f"laneway:{space.name}:of:")
        self._inner, self._waker = socket.socketpair()
        self._inner.setblocking(False)
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
        poll.register(self._inner, select.POLLIN)
        ready = {file for file, _ in poll.poll(math.ceil(min(timeout, LOOK_AGAIN) * 1000))}
        if self._inner.fileno() in ready:
            with contextlib.suppress(BlockingIOError):
                self._inner.recv(4096)
        if not ready:
            return None if timeout >= LOOK_AGAIN else []
        return self._subscriptions.read() if self._subscriptions.fileno() in ready else []

    def close(self) -> None:
        self._subscriptions.close()
        self._inner.close()
        self._waker.close()


class SubscribedArrivalListener:
    """
    Hears of what arrives in one pool. Who was told is to be told again only after that is written
    down anew, at the shards that told.
    """

    def __init__(
        self, space: Namespace, pool: str, note_notified: Callable[[set[int]], None]
    ) -> None:
        self._space = space
        self._pool = pool
        self._note_notified = note_notified
        self._listener = _PoolListener(space)
        self._renew_at = 0.0
        self._look_again = _look_again(space)

    def poll(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            if now >= self._renew_at:
                self._stand(range(self._space.shards), round(self._look_again) + 2)
                self._renew_at = now + self._look_again
            pools_to_notify, was_woken = self._listener.poll(min(deadline, self._renew_at) - now)
            if pools_to_notify:
                self._stand(pools_to_notify, round(self._look_again) + 2)
                self._note_notified(pools_to_notify)
                return True
            if was_woken or time.monotonic() >= deadline:
                return False

    def _stand(self, shards: Iterable[int], seconds: int) -> None:
        self._space.run_many(
            [(shard, "arrivals", (self._pool, self._listener.channel, seconds)) for shard in shards]
        )

    def wake(self) -> None:
        self._listener.interrupt()

    def close(self) -> None:
        try:
            with contextlib.suppress(EngineUnavailable):
                self._stand(range(self._space.shards), 0)
        finally:
            self._listener.close()


def _look_again(space: Namespace) -> float:
    return max(LOOK_AGAIN, LOOK_AGAIN_A_SHARD * space.shards)


class Wakeup:
    """The waits of one engine object."""

    def __init__(self, space: Namespace, grants: Grants) -> None:
        self._space = space
        self._grants = grants
        self._lock = threading.Lock()
        self._idle: list[_PoolListener] = []
        self._busy: list[_PoolListener] = []
        self._interrupted = 0
        self._closed = False
        self._notified: set[int] = set()
        self._look_again = _look_again(space)

    def interrupt(self) -> None:
        """End all of them."""
        with self._lock:
            self._interrupted += 1
            for listener in self._busy:
                listener.interrupt()

    def close(self) -> None:
        self.interrupt()
        with self._lock:
            self._closed = True  # those that are busy are closed by who has them
            for listener in self._idle:
                listener.close()
            self._idle.clear()

    def take_notified(self) -> set[int]:
        """The shards where, at the end of the last waits, something was to be had."""
        with self._lock:
            notified, self._notified = self._notified, set()
        return notified

    def note_notified(self, shards: set[int]) -> None:
        """Something is to be had on these shards."""
        with self._lock:
            self._notified |= shards

    @contextlib.contextmanager
    def _listener(self) -> Iterator[_PoolListener]:
        with self._lock:
            listener = self._idle.pop() if self._idle else None
        if listener is None:
            listener = _PoolListener(self._space)
        with self._lock:
            self._busy.append(listener)
        try:
            yield listener
        except BaseException:
            with self._lock:
                self._busy.remove(listener)
            listener.close()
            raise
        with self._lock:
            self._busy.remove(listener)
            if not self._closed:
                self._idle.append(listener)
                return
        listener.close()

    def wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        """Sleep until something could be leased, at most `timeout` seconds; True: ask again now."""
        try:
            return self._wait(timeout, pool, topics, interrupt)
        except EngineUnavailable:
            if self._closed:  # while it waited
                return False
            raise

    def _wait(
        self, timeout: float, pool: str, topics: Sequence[str] | None, interrupt: Interrupt
    ) -> bool:
        deadline = time.monotonic() + timeout
        before = self._interrupted
        shards = range(self._space.shards)
        with self._listener() as listener, interrupt.waking(listener.interrupt):
            listener.poll(0.0)  # what rang since the last wait is looked at below
            due = self._look(shards, pool, topics, listener)
            while due is not None and self._interrupted == before and not interrupt.is_set:
                now = time.monotonic()
                if now >= deadline:
                    self._leave(pool, topics, listener)
                    return False
                pools_to_notify, _ = listener.poll(min(deadline, due) - now)
                if self._interrupted != before or interrupt.is_set:
                    break
                if pools_to_notify:
                    self.note_notified(pools_to_notify)
                    return True
                if time.monotonic() >= due:
                    due = self._look(shards, pool, topics, listener)
            if due is None:
                return True
            self._leave(pool, topics, listener)
        return False

    def _look(
        self, shards: range, pool: str, topics: Sequence[str] | None, listener: _PoolListener
    ) -> float | None:
        """When to look again (monotonic seconds); None: there is something to do now."""
        named = b"" if topics is None else records.pack(list(topics))
        look_again = self._look_again * random.uniform(0.8, 1.2)
        due = time.monotonic() + look_again
        if self._grants.renew():
            due = min(
                due, time.monotonic() + EVERY
            )  # what is shut here may be let in a moment later
        calls = [
            (shard, "wait", (pool, named, listener.channel, round(look_again) + 2))
            for shard in shards
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

    def _leave(self, pool: str, topics: Sequence[str] | None, listener: _PoolListener) -> None:
        named = b"" if topics is None else records.pack(list(topics))
        self._space.run_many(
            [
                (shard, "wait", (pool, named, listener.channel, 0))
                for shard in range(self._space.shards)
            ]
        )

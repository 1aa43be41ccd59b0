"""
How a worker waits without polling: it subscribes to a pub/sub channel of its own, and the function
that makes a lane runnable notifies one waiting worker of the pool. See `scripts/parts/wakeup.lua`.

For example, the workers A and B wait with 10 free slots each: `waiters:default` has an entry
`CHANNEL/10/0` of both. A publish of 3 messages removes A's entry, publishes `+` on A's channel, and
learns that A receives it. So it leases the 3 messages to A and publishes them there: A's handlers
begin without a call. A publish of 40 messages is too large for that. It removes B's entry and
publishes the shard's number; B calls `lease` and gets 10. That batch is full, so the call notifies
the next worker that waits, if there is one.

Why this is correct. One call looks for messages and registers the worker if there are none, and a
server runs one call at a time, so nothing arrives unseen between the two. An entry is removed by
the call that uses it, so one message wakes one worker; that worker looks, and registers again. If
nobody receives what is published, the call takes the next entry. What is lost with a connection is
found by the next look, after `LOOK_AGAIN` at the latest, or delivered again when its lease ends.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from laneway.engines.base import ArrivalListener, ResultListener
from laneway.engines.sharded.grants import Grants
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import EngineUnavailable
from laneway.message import Batch
from laneway.units import SECOND

LOOK_AGAIN = 5.0
"""
Seconds after which a waiter looks again without a notification, in case a notification was lost
with a process.
"""

LOOK_AGAIN_A_SHARD = 0.5
"""With many shards: seconds for each of them, if their sum is more."""

LEASED = b"+"
"""What a shard publishes before what it leased to a listener; see `scripts/parts/wakeup.lua`."""

DELIVERY_SECONDS = 1.0
"""
How long a listener that stops waits for what was published before: a server publishes it with the
call that forgets the listener.
"""

REST_SECONDS = 0.001
"""
How long a listener that got messages waits before it registers again; it registers at once when the
worker has something to settle. The call would compete with the handlers for the interpreter.
"""

MOST_LEASED_AT_ONCE = 16
"""How many messages at most a worker lets the engine lease to it while it waits."""

LATER = (0.2, 1.0)
"""
One waiter promises to look when a lane wakes. The others look so many seconds later, in case it
died.
"""


class _Channel:
    """
    The channel of one listener: a subscription at the server, and a socket pair by which this
    process wakes it.
    """

    def __init__(self, space: Namespace) -> None:
        self.name = f"laneway:{space.name}:{secrets.token_hex(8)}"
        self.subscription = space.server.subscription(self.name)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._is_woken = False
        self.promised: set[int] = set()
        """The shards where the last look promised another one."""

    def wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(OSError):
                self._waker.send(b"!")

    def take_wake(self) -> bool:
        """Whether it was woken since the last call."""
        if not self._is_woken:
            return False
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1024)
        self._is_woken = False
        return True

    def poll(self, seconds: float) -> list[bytes] | None:
        """
        The messages that arrive within so many seconds; ends early after `wake`. None: messages may
        have been lost.
        """
        messages = self.subscription.poll()
        if messages == [] and seconds > 0:
            self.wait(seconds)
            messages = self.subscription.poll()
        return messages

    def wait(self, seconds: float) -> None:
        """Wait until something arrives, at most so many seconds; ends early after `wake`."""
        if not self._is_woken:
            poll = select.poll()  # `select.select` is limited to 1,024 files
            poll.register(self.subscription, select.POLLIN)
            poll.register(self._woken, select.POLLIN)
            poll.poll(math.ceil(seconds * 1000))

    def close(self) -> None:
        self.subscription.close()
        self._woken.close()
        self._waker.close()


class StoreResultListener:
    """
    Reports changes of outcomes and progress. Every message has a channel of its own; see
    `scripts/parts/results.lua`.
    """

    def __init__(self, space: Namespace) -> None:
        self._subscriptions = space.server.subscriptions(space.results_prefix)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)

    def subscribe(self, *names: str) -> None:
        self._subscriptions.change("SUBSCRIBE", names)

    def unsubscribe(self, *names: str) -> None:
        self._subscriptions.change("UNSUBSCRIBE", names)

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
            messages = self._channel.poll(min(deadline, self._renew_at) - now)
            if messages != []:
                every = range(self._space.shards)
                shards = {int(shard) for shard in messages} if messages is not None else {*every}
                self._register(shards, round(self._look_again) + 2)
                self._note_notified(shards)
                return True
            if self._channel.take_wake() or time.monotonic() >= deadline:
                return False

    def _register(self, shards: Iterable[int], seconds: int) -> None:
        self._space.run_many(
            [
                (shard, "wait", ("arrivals", self._pool, b"", self._channel.name, seconds))
                for shard in shards
            ]
        )

    def wake(self) -> None:
        self._channel.wake()

    def close(self) -> None:
        try:
            with contextlib.suppress(EngineUnavailable):
                self._register(range(self._space.shards), 0)
        finally:
            self._channel.close()


class StoreWorkListener:
    """
    Is notified of what can be leased in one pool. A shard forgets a listener when it notifies it,
    so the listener registers again at the shards that did, before it waits again.
    """

    def __init__(
        self,
        space: Namespace,
        grants: Grants,
        channel: _Channel,
        pool: str,
        topics: Sequence[str] | None,
        note_notified: Callable[[set[int]], None],
        max_lease_us: int | None,
        own: Callable[[str], Collection[int]],
    ) -> None:
        self._space = space
        self._grants = grants
        self._own = own
        self._max_lease_us = max_lease_us or 0
        self._pool = pool
        self._topics = b"" if topics is None else record_formats.pack(list(topics))
        self._kind = "waiters" if topics is None else "choosy"
        self._looks_never = topics is not None and not topics
        """Its caller looks itself, once it is registered again after a notification."""
        self._note_notified = note_notified
        self._channel = channel
        self._shards = set(range(space.shards))
        self._absent = set(self._shards)
        """The shards where this listener is not registered."""
        self._left: deque[set[int]] = deque()
        """Shards that removed the registration by what they published; added to `_absent` soon."""
        self.is_watched = False
        self._reading = threading.Lock()
        """Held while a thread reads the channel."""
        self._look_at = 0.0
        """When to look for something to lease without a notification (monotonic seconds)."""
        self._look_again = _look_again(space)
        self._rest_until = 0.0
        """Until then it does not register: the messages just leased begin first."""
        self._member = self._channel.name
        """How it is registered: the channel, how many messages may be leased to it, how long."""
        self._is_lease_coming = False
        """Whether the last message was `LEASED`."""

    def poll(self, timeout: float, startable: int = 0) -> Batch | bool:
        deadline = time.monotonic() + timeout
        found = self._received(0.0)
        self._note_left()
        while (found is False or self._looks_never) and not self._channel.take_wake():
            now = time.monotonic()
            if now < self._rest_until:
                look_at = self._rest_until
            else:
                if self._grants.look_at <= now and self._grants.renew():
                    return True
                is_due, is_new = now >= self._look_at, bool(self._absent)
                if (is_due or is_new) and (
                    self._look(startable, is_all=is_due) or (is_new and self._looks_never)
                ):
                    return True
                look_at, now = min(self._look_at, self._grants.look_at), time.monotonic()
            if now >= deadline:
                return False
            found = self._received(min(deadline, look_at) - now)
            self._note_left()
        return found

    @property
    def generation(self) -> int:
        return self._channel.subscription.generation

    @property
    def look_at(self) -> float:
        look_at = min(self._look_at, self._grants.look_at)
        return self._rest_until if self._absent else look_at

    def duplicate_file(self) -> int:
        subscription = self._channel.subscription
        with self._reading:
            if len(self._shards) > 1 or not subscription.is_connected:
                return -1
            return os.dup(subscription.fileno())

    def receive(self) -> Batch | bool:
        if not self._reading.acquire(blocking=False):
            return False
        try:
            return self._read(self._channel.subscription.receive())
        finally:
            self._reading.release()

    def _note_left(self) -> None:
        while self._left:
            self._absent |= self._left.popleft()

    def _received(self, seconds: float) -> Batch | bool:
        """What a shard publishes to this listener within so many seconds."""
        with self._reading:
            messages = self._channel.subscription.poll()
            found = self._read(messages)
        if messages == [] and seconds > 0:
            self._channel.wait(seconds)
            with self._reading:
                found = self._read(self._channel.subscription.poll())
        return found

    def _read(self, messages: list[bytes] | None) -> Batch | bool:
        """What these messages say."""
        if messages is None:  # notifications may have been lost, and the server restarted
            self._left.append(self._shards)
            return True
        batch: Batch | None = None
        notified: set[int] = set()
        for message in messages:
            was_announced, self._is_lease_coming = self._is_lease_coming, message == LEASED
            if message == LEASED:
                self._left.append(self._shards)
            elif message.isdigit():
                notified.add(int(message))
            else:
                if not was_announced:
                    self._left.append(self._shards)
                leased = record_formats.read_batch(message)
                batch = leased if batch is None else joined(batch, leased)
        if notified:
            self._left.append(notified)
            self._note_notified(notified)
        if batch is None:
            return bool(notified)
        self._rest_until = time.monotonic() + REST_SECONDS
        return batch

    def _look(self, startable: int, *, is_all: bool) -> bool:
        """
        Register where this listener is not registered, or everywhere. Returns whether there is
        something to lease now.
        """
        room = min(startable, MOST_LEASED_AT_ONCE) if len(self._shards) == 1 else 0
        member = self._channel.name
        if room:
            member = f"{member}/{room}/{self._max_lease_us}"
        if member != self._member:
            if not self._leave():
                return True  # `poll` receives why it is not registered
            self._member = member
        shards = sorted(self._shards if is_all else self._absent)
        look_again = self._look_again * random.uniform(0.8, 1.2)
        due = time.monotonic() + look_again if is_all else self._look_at
        self._grants.renew()
        seconds, own = round(self._look_again * 1.2) + 2, self._own(self._pool)
        before = self._channel.promised
        answers = self._space.run_many(
            [
                # A shard notifies the listener that is registered for the longest time.
                (
                    shard,
                    "wait",
                    (
                        *(self._kind, self._pool, self._topics, member),
                        *(seconds * (1 + (shard in own)), int(shard in before)),
                    ),
                )
                for shard in shards
            ]
        )
        busy = set()
        before -= set(shards)
        for shard, (has_work, wake, promised) in zip(shards, answers, strict=True):
            if promised:
                before.add(shard)
            if has_work:
                busy.add(shard)
            elif wake >= 0:
                at = (
                    time.monotonic() + wake / SECOND + (0.0 if promised else random.uniform(*LATER))
                )
                due = min(due, at)
        self._look_at = due
        self._absent = (self._absent - set(shards)) | busy
        self._note_notified(busy)
        return bool(busy)

    def wake(self) -> None:
        self._channel.wake()

    def pause(self) -> Batch | bool:
        was_notified = not self._leave()
        if self.is_watched:  # the watcher receives the rest
            return self._received(0.0)
        # What was published before it left is read: it may have been leased to this worker.
        found = self._received(DELIVERY_SECONDS if was_notified else 0.0)
        return self._received(DELIVERY_SECONDS) if self._is_lease_coming else found

    def pass_on(self) -> bool:
        return False

    def _leave(self) -> bool:
        """Remove the registrations. Returns whether all of them still existed."""
        self._note_left()
        registered = sorted(self._shards - self._absent)
        self._absent, self._look_at = set(self._shards), 0.0
        if not registered:
            return True
        arguments = (self._kind, self._pool, self._topics, self._member, 0)
        answers = self._space.run_many([(shard, "wait", arguments) for shard in registered])
        return all(existed for (existed, *_) in answers)

    def close(self) -> None:
        with self._reading:
            self._channel.close()


def joined(batch: Batch, later: Batch) -> Batch:
    """Two batches as one."""
    return Batch([*batch.leases, *later.leases], later.now_us, later.next_wake_us)


def _look_again(space: Namespace) -> float:
    return max(LOOK_AGAIN, LOOK_AGAIN_A_SHARD * space.shards)


class Wakeup:
    """The waits and listeners of one engine object."""

    def __init__(
        self, space: Namespace, grants: Grants, own: Callable[[str], Collection[int]]
    ) -> None:
        """`own`: the shards that the workers of a pool in this process visit first."""
        self._own = own
        self._space = space
        self._grants = grants
        self._lock = threading.Lock()
        self._idle: list[_Channel] = []
        self._waiting: list[StoreWorkListener] = []
        self._interrupted = 0
        self._closed = False
        self._notified: set[int] = set()

    def interrupt(self) -> None:
        with self._lock:
            self._interrupted += 1
            for listener in self._waiting:
                listener.wake()

    def work_listener(
        self,
        pool: str,
        topics: Sequence[str] | None,
        channel: _Channel | None = None,
        max_lease_us: int | None = None,
    ) -> StoreWorkListener:
        channel = channel or _Channel(self._space)
        return StoreWorkListener(
            self._space,
            self._grants,
            channel,
            pool,
            topics,
            self.note_notified,
            max_lease_us,
            self._own,
        )

    def arrival_listener(self, pool: str) -> ArrivalListener:
        return StoreArrivalListener(self._space, pool, self.note_notified)

    def result_listener(self) -> ResultListener:
        """A listener for outcomes and progress."""
        return StoreResultListener(self._space)

    def close(self) -> None:
        """End all waits and close their channels."""
        with self._lock:
            self._closed = True  # the channels in use are closed by their waits
            for channel in self._idle:
                channel.close()
            self._idle.clear()
        self.interrupt()

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
    def _listener(self, pool: str, topics: Sequence[str] | None) -> Iterator[StoreWorkListener]:
        """A listener for one wait, with a channel that is used again."""
        with self._lock:
            channel = self._idle.pop() if self._idle else None
        if channel is None:
            channel = _Channel(self._space)
        listener = self.work_listener(pool, topics, channel)
        with self._lock:
            self._waiting.append(listener)
        try:
            channel.poll(0.0)  # notifications since the last wait: `poll` sees their cause
            channel.take_wake()
            yield listener
        except BaseException:
            with self._lock:
                self._waiting.remove(listener)
            channel.close()
            raise
        with self._lock:
            self._waiting.remove(listener)
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
        with self._listener(pool, topics) as listener, interrupt.waking(listener.wake):
            while self._interrupted == before and not (interrupt.is_set or self._closed):
                left = deadline - time.monotonic()
                if listener.poll(left):
                    return True
                if left <= 0:
                    break
            return bool(listener.pause())

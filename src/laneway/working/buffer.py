"""
Leased messages that have not begun, in the order in which they will.

The engine is fair in what it delivers; this buffer keeps the few milliseconds of work that a worker
has prefetched fair too. In each round, each topic begins one message, so the message of a quiet
topic does not wait behind all that was leased of a busy topic before it.
Within a topic, messages begin by priority, then in the order of their leases.
Each message here will begin: shares and weights were decided by the lease.

Rounds do not help a quiet topic whose message comes while a busy topic has every slot.
While a *crowd* of one topic waits here and others come and go, one slot in ten is reserved for
*newcomers*: topics that had nothing waiting here when their message came.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from laneway.working.handler import Handler
from laneway.working.worker_delivery import WorkerDelivery

RESERVED_DIVISOR = 10
"""
How many slots there are for one that is reserved for newcomers; a worker with fewer slots reserves
none.
"""

RESERVED_SECONDS = 1.0
"""How long slots stay reserved after the last newcomer; then all topics may use them."""

CROWD = 8
"""
How many messages of one topic are a crowd; this many wait here only if handlers are quick and much
of the topic is prefetched.
"""

MAX_SPARE = 16
"""
How many messages wait for a handler that is at its own limit, beyond twice that limit; the worker
releases the others.
"""


class HandlerQueue:
    """The messages that wait for one handler, and how many calls of it run."""

    __slots__ = (
        "_by_topic",
        "_next_round",
        "_this_round",
        "count",
        "crowd",
        "gathering_since",
        "handler",
        "is_full",
        "is_timed",
        "max_running",
        "newcomers",
        "round",
        "running",
    )

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self.handler = handler
        self.max_running = min(handler.concurrency or concurrency, concurrency)
        self.running = 0
        self.count = 0
        self.gathering_since = 0.0
        """When the first message of the next batch came (monotonic seconds)."""
        self.is_timed = False
        """Whether the worker looks again when the gathering is over."""
        self.round = 0
        """How many rounds are complete."""
        self._by_topic: dict[str, deque[WorkerDelivery]] = {}
        self._this_round: deque[str] = deque()  # topics that have yet to begin a message
        self._next_round: deque[str] = deque()  # topics that have begun one
        self.crowd = ""
        """The last topic that had a crowd."""
        self.is_full: Callable[[str], bool] | None = None
        """Whether a topic has its share of slots, so that others go first, or None."""
        self.newcomers: dict[str, None] = {}
        """Newcomers that have not begun a message yet, in the order in which they came."""

    def add(self, delivery: WorkerDelivery) -> bool:
        """Add a message. Returns whether it is the only one of its topic."""
        topic = delivery.lease.topic
        waiting = self._by_topic.get(topic)
        if waiting is None:
            self._by_topic[topic] = deque((delivery,))
            self._this_round.append(topic)
        elif waiting[-1].lease.priority >= delivery.lease.priority:
            waiting.append(delivery)
        else:
            priority = delivery.lease.priority
            waiting.insert(
                next(n for n, other in enumerate(waiting) if other.lease.priority < priority),
                delivery,
            )
        if self.count == 0 and self.handler.batch_wait is not None:
            self.gathering_since = time.monotonic()
        self.count += 1
        if waiting is None:
            return True
        if len(waiting) >= CROWD:
            self.crowd = topic
        return False

    def has(self, topic: str) -> bool:
        """Whether messages of a topic wait."""
        return topic in self._by_topic

    def has_crowd_beside(self, topic: str) -> bool:
        """Whether messages wait of another topic that had a crowd."""
        return self.crowd != topic and self.crowd in self._by_topic

    def pop(self) -> WorkerDelivery:
        """Take the first message of the round's next topic; there must be one."""
        topic = self._this_round.popleft()
        if self.is_full is not None and self.is_full(topic):
            topic = self._after_full(topic, self.is_full)
        if self.newcomers:
            self.newcomers.pop(topic, None)
        return self._take(topic)

    def _after_full(self, first: str, is_full: Callable[[str], bool]) -> str:
        """
        Skip topics that have too many slots, which are few; the first one if all have.
        """
        topic = first
        for _ in range(len(self._by_topic) - 1):
            self._next_round.append(topic)
            if not self._this_round:
                self._this_round, self._next_round = self._next_round, self._this_round
                self.round += 1
            topic = self._this_round.popleft()
            if not is_full(topic):
                break
        return topic

    def pop_newcomer(self) -> WorkerDelivery:
        """Take the first message of the first newcomer; there must be one."""
        topic = next(iter(self.newcomers))
        del self.newcomers[topic]
        self._this_round.remove(topic)
        return self._take(topic)

    def _take(self, topic: str) -> WorkerDelivery:
        waiting = self._by_topic[topic]
        delivery = waiting.popleft()
        if waiting:
            self._next_round.append(topic)
        else:
            del self._by_topic[topic]
        if not self._this_round:
            self._this_round, self._next_round = self._next_round, self._this_round
            self.round += 1
        self.count -= 1
        return delivery

    def rank(self) -> tuple[int, int]:
        """Of several queues, the one with the smallest rank is next."""
        return self.round, self._by_topic[self._this_round[0]][0].lease.fence

    @property
    def is_open(self) -> bool:
        """Whether a message waits and may begin."""
        return self.count > 0 and self.running < self.max_running and not self.seconds_to_gather()

    def seconds_to_gather(self) -> float:
        """How long messages still wait for a full batch; 0.0: they may begin."""
        handler = self.handler
        if handler.batch_wait is None or not 0 < self.count < (handler.batch or 1):
            return 0.0
        return max(0.0, self.gathering_since + handler.batch_wait - time.monotonic())

    @property
    def is_over_full(self) -> bool:
        """Whether a handler with a limit of its own is too far behind to take more messages."""
        return (
            self.handler.concurrency is not None
            and self.count > 2 * self.max_running * (self.handler.batch or 1) + MAX_SPARE
        )


class Buffer:
    """
    The queues of all handlers. The caller counts `running` of a queue up and down.

    `accepts_all`: never refuse a message (a burst does not wait for messages that are put off).
    """

    def __init__(self, concurrency: int, *, accepts_all: bool) -> None:
        self._concurrency = concurrency
        self._accepts_all = accepts_all
        self.queues: dict[Handler, HandlerQueue] = {}
        """The queues of the handlers that had messages so far; `queue` adds one."""
        self.with_batch_wait: list[HandlerQueue] = []
        """Those of `queues` whose handlers wait for full batches."""
        self._filled: dict[Handler, HandlerQueue] = {}
        self._round = 0
        self.reserved = 0
        """How many slots are reserved for newcomers now."""
        self._reserved_until = 0.0

    def __len__(self) -> int:
        return sum(queue.count for queue in self._filled.values())

    def queue(self, handler: Handler) -> HandlerQueue:
        """The queue of a handler."""
        queue = self.queues.get(handler)
        if queue is None:
            queue = self.queues[handler] = HandlerQueue(handler, self._concurrency)
            if handler.batch_wait is not None:
                self.with_batch_wait.append(queue)
        return queue

    def add(self, delivery: WorkerDelivery) -> bool:
        """Add a message; False: its handler is too far behind, release it."""
        queue = self.queues.get(delivery.handler) or self.queue(delivery.handler)
        if queue.is_over_full and not self._accepts_all:
            return False
        if queue.count == 0:
            queue.round = max(queue.round, self._round)  # an empty queue saves no rounds up
            self._filled[delivery.handler] = queue
        topic = delivery.lease.topic
        if queue.add(delivery):
            for other in self._filled.values():
                if other.crowd and other.has_crowd_beside(topic):
                    queue.newcomers[topic] = None
                    self.reserved = self._concurrency // RESERVED_DIVISOR
                    self._reserved_until = time.monotonic() + RESERVED_SECONDS
                    break
        return True

    def seconds_reserved(self) -> float:
        """
        How long slots stay reserved if no newcomer comes. Ends the reservation when that is 0.
        """
        seconds = self._reserved_until - time.monotonic()
        if seconds <= 0:
            self.reserved = 0
        return max(seconds, 0.0)

    def mark(self, deliveries: Iterable[WorkerDelivery]) -> None:
        """These may begin in reserved slots, as the messages of newcomers."""
        for delivery in deliveries:
            queue = self.queues.get(delivery.handler)
            if queue is not None and queue.has(delivery.lease.topic):
                queue.newcomers[delivery.lease.topic] = None

    def newcomers_queue(self) -> HandlerQueue | None:
        """A queue with a newcomer whose message may begin."""
        return next(
            (queue for queue in self._filled.values() if queue.newcomers and queue.is_open), None
        )

    def next_queue(self) -> HandlerQueue | None:
        """The queue whose first message begins next, or None if none may begin."""
        filled = self._filled
        if len(filled) == 1:
            (queue,) = filled.values()
            if queue.count == 0:
                filled.clear()
                return None
            if queue.running >= queue.max_running or queue.seconds_to_gather():
                return None
        else:
            for handler in [handler for handler, each in filled.items() if each.count == 0]:
                del filled[handler]
            first = min(
                (each for each in filled.values() if each.is_open),
                key=HandlerQueue.rank,
                default=None,
            )
            if first is None:
                return None
            queue = first
        self._round = queue.round
        return queue

    def drain(self) -> list[WorkerDelivery]:
        """Take all messages out."""
        deliveries = [queue.pop() for queue in self._filled.values() for _ in range(queue.count)]
        self._filled.clear()
        return deliveries

"""
What was leased and is not yet begun, by handler.

The engine is fair in what it hands out; this keeps the few milliseconds of work that a worker has
ahead fair too. Topics take turns, one message each, so that what comes of a quiet topic does not
stand behind all that was leased of a busy one before it. Within a topic it is priority, then
hand-out. Whatever is here will be begun: shares and weights are decided by what was leased.

Turns are of no use to a quiet topic whose message comes when a busy one has every slot. So while a
crowd of one topic waits here and others come and go, one slot in ten is kept for *newcomers*:
topics of which nothing waited here when their message came.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.working.delivery import WorkerDelivery
    from laneway.working.handler import Handler

KEPT_PART = 10
"""One slot in so many is kept for newcomers; a worker with fewer keeps none."""

KEPT_SECONDS = 1.0
"""How long after the last newcomer."""

CROWD = 8
"""So many of one topic wait here only where handlers are quick and much of it is leased ahead."""

SPARE = 16
"""
Messages that wait for a handler which is at its own limit, beyond twice that limit; the others go
back.
"""


class HandlerQueue:
    """One handler's messages, and how many of it run."""

    __slots__ = (
        "_coming",
        "_lines",
        "_turn",
        "count",
        "crowd",
        "handler",
        "most",
        "newcomers",
        "round",
        "running",
    )

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self.handler = handler
        self.most = min(handler.concurrency or concurrency, concurrency)
        self.running = 0
        self.count = 0
        self.round = 0
        """How often all its topics have had their turn."""
        self._lines: dict[str, deque[WorkerDelivery]] = {}
        self._turn: deque[str] = deque()  # topics that have yet to have their turn in this round
        self._coming: deque[str] = deque()  # those that had it
        self.crowd = ""
        """The last topic of which a crowd waited."""
        self.newcomers: dict[str, None] = {}
        """Those that had no turn yet, in the order in which they came."""

    def add(self, delivery: WorkerDelivery) -> bool:
        """Take it in. Returns whether nothing of its topic waited here."""
        topic = delivery.lease.topic
        line = self._lines.get(topic)
        if line is None:
            self._lines[topic] = deque((delivery,))
            self._turn.append(topic)
        elif line[-1].lease.priority >= delivery.lease.priority:
            line.append(delivery)
        else:
            priority = delivery.lease.priority
            line.insert(
                next(n for n, other in enumerate(line) if other.lease.priority < priority), delivery
            )
        self.count += 1
        if line is None:
            return True
        if len(line) >= CROWD:
            self.crowd = topic
        return False

    def has_crowd_beside(self, topic: str) -> bool:
        """Whether some of another topic wait of which a crowd did."""
        return self.crowd != topic and self.crowd in self._lines

    def pop(self) -> WorkerDelivery:
        """The next message of the topic whose turn it is; there must be one."""
        topic = self._turn.popleft()
        if self.newcomers:
            self.newcomers.pop(topic, None)
        return self._take(topic)

    def pop_newcomer(self) -> WorkerDelivery:
        """The first message of a newcomer, as its turn; there must be one."""
        topic = next(iter(self.newcomers))
        del self.newcomers[topic]
        self._turn.remove(topic)
        return self._take(topic)

    def _take(self, topic: str) -> WorkerDelivery:
        line = self._lines[topic]
        delivery = line.popleft()
        if line:
            self._coming.append(topic)
        else:
            del self._lines[topic]
        if not self._turn:
            self._turn, self._coming = self._coming, self._turn
            self.round += 1
        self.count -= 1
        return delivery

    def rank(self) -> tuple[int, int]:
        """Smaller goes first."""
        return self.round, self._lines[self._turn[0]][0].lease.fence

    @property
    def is_open(self) -> bool:
        return self.count > 0 and self.running < self.most

    @property
    def is_over_full(self) -> bool:
        """
        Whether a handler that has a limit of its own is so far behind that others should be served
        instead.
        """
        return (
            self.handler.concurrency is not None
            and self.count > 2 * self.most * (self.handler.batch or 1) + SPARE
        )


class Buffer:
    """All shelves. The caller counts `running` of a shelf up and down."""

    def __init__(self, concurrency: int, *, keeps_all: bool) -> None:
        self._concurrency = concurrency
        self._keeps_all = keeps_all  # a burst does not wait for what it would put off
        self._queues: dict[Handler, HandlerQueue] = {}
        self._filled: dict[Handler, HandlerQueue] = {}
        self._round = 0
        self.kept = 0
        """Slots that are kept for newcomers now."""
        self._kept_until = 0.0

    def __len__(self) -> int:
        return sum(queue.count for queue in self._filled.values())

    def queue(self, handler: Handler) -> HandlerQueue:
        found = self._queues.get(handler)
        if found is None:
            found = self._queues[handler] = HandlerQueue(handler, self._concurrency)
        return found

    def add(self, delivery: WorkerDelivery) -> bool:
        """Take it in; False: its handler is too far behind, it should go back."""
        queue = self._queues.get(delivery.handler) or self.queue(delivery.handler)
        if queue.is_over_full and not self._keeps_all:
            return False
        if queue.count == 0:
            queue.round = max(queue.round, self._round)  # while it was empty it saved nothing up
            self._filled[delivery.handler] = queue
        topic = delivery.lease.topic
        if queue.add(delivery):
            for other in self._filled.values():
                if other.crowd and other.has_crowd_beside(topic):
                    queue.newcomers[topic] = None
                    self.kept = self._concurrency // KEPT_PART
                    self._kept_until = time.monotonic() + KEPT_SECONDS
                    break
        return True

    def seconds_kept(self) -> float:
        """
        For how long slots are kept from now on, if nobody new comes. Keeps none any more when that
        is over.
        """
        left = self._kept_until - time.monotonic()
        if left <= 0:
            self.kept = 0
        return max(left, 0.0)

    def newcomers_queue(self) -> HandlerQueue | None:
        """A shelf that has a newcomer which can be begun."""
        return next(
            (queue for queue in self._filled.values() if queue.newcomers and queue.is_open), None
        )

    def next_queue(self) -> HandlerQueue | None:
        """The shelf whose first message is to be begun next; None: nothing can be begun."""
        filled = self._filled
        if len(filled) == 1:
            (found,) = filled.values()
            if found.count == 0:
                filled.clear()
                return None
            if found.running >= found.most:
                return None
        else:
            for handler in [handler for handler, queue in filled.items() if queue.count == 0]:
                del filled[handler]
            queue = min(
                (queue for queue in filled.values() if queue.is_open),
                key=HandlerQueue.rank,
                default=None,
            )
            if queue is None:
                return None
            found = queue
        self._round = found.round
        return found

    def drain(self) -> list[WorkerDelivery]:
        """Take everything out."""
        out = [queue.pop() for queue in self._filled.values() for _ in range(queue.count)]
        self._filled.clear()
        return out

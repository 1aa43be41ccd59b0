"""
The order in which a worker's prefetched messages begin: topics take turns, and within a topic
messages begin by priority, then in the order of their leases.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.message import Batch, Lease
from laneway.working import buffer as buffer_module, engine_thread
from laneway.working.buffer import Buffer, HandlerQueue
from laneway.working.handler import Handler
from laneway.working.worker_delivery import WorkerDelivery


def test_large_bodies_are_not_leased_far_ahead(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker leases so few messages ahead that their bodies take a bounded memory."""
    monkeypatch.setattr(engine_thread, "MAX_PREFETCH_BYTES", 10_000)
    app.publish_many(Message("a", b"x" * 1_000) for _ in range(3_000))
    sizes: list[int] = []
    lease = app.engine.lease

    def recorded(n: int, **options: Any) -> Batch:
        sizes.append(n)
        return lease(n, **options)

    monkeypatch.setattr(app.engine, "lease", recorded)

    @app.handler("a")
    async def handle(body: bytes) -> None:
        pass

    assert app.run_worker(burst=True, concurrency=1).acked == 3_000
    assert 3 < max(sizes) <= 1 + 10 + 5  # the slot, the prefetch, and half of it for arrivals


def test_more_is_leased_ahead_from_a_distant_store(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers continue during a long lease call, because the one before has leased enough."""
    app.publish_many(Message("a", n) for n in range(6_000))
    sizes: list[int] = []
    lease = app.engine.lease

    def distant(n: int, **options: Any) -> Batch:
        sizes.append(n)
        time.sleep(0.03)
        return lease(n, **options)

    monkeypatch.setattr(app.engine, "lease", distant)

    @app.handler("a")
    async def handle(n: int) -> None:
        pass

    assert app.run_worker(burst=True, concurrency=10).acked == 6_000
    assert max(sizes) >= 500, sizes


def create_handlers(*patterns: str) -> list[Handler]:
    app = Laneway("sqlite://")
    handlers = []
    for pattern in patterns:

        async def nothing(message: Any) -> None:
            pass

        app.handler(pattern)(nothing)
        handler = app.runtime.handlers.find(Lease(1, 1, "1", pattern.replace("*", "x"), b"1", 0))
        assert handler is not None
        handlers.append(handler)
    return handlers


class Filler:
    """Adds deliveries with growing fences to a buffer."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.fence = 0

    def add(self, handler: Handler, topic: str, *priorities: int) -> None:
        for priority in priorities:
            self.fence += 1
            assert self.buffer.add(
                WorkerDelivery(
                    Lease(self.fence, self.fence, "", topic, b"", 0, priority=priority),
                    handler,
                    0.0,
                    0,
                )
            )

    def order(self, key: Callable[[Lease], Any]) -> list[Any]:
        """Take all messages; `key` of each, in order."""
        keys = []
        while (queue := self.buffer.next_queue()) is not None:
            keys.append(key(queue.pop().lease))
        return keys


def test_a_quiet_topic_does_not_wait_behind_a_busy_one() -> None:
    """Topics take turns, whatever the order in which their messages were leased."""
    (handler,) = create_handlers("*")
    filler = Filler(Buffer(10, accepts_all=True))
    filler.add(handler, "busy", *[0] * 5)
    assert [filler.buffer.next_queue().pop().lease.topic for _ in range(2)] == ["busy", "busy"]  # type: ignore[union-attr]
    filler.add(handler, "quiet", 0)
    filler.add(handler, "other", 0, 0)
    order = filler.order(lambda lease: lease.topic)
    assert order.index("quiet") <= 1
    assert order == ["busy", "quiet", "other", "busy", "other", "busy"]


def test_within_a_topic_messages_begin_by_priority_then_by_lease() -> None:
    """A larger priority begins first; equal ones begin in the order of their fences."""
    (handler,) = create_handlers("*")
    filler = Filler(Buffer(10, accepts_all=True))
    filler.add(handler, "a", 0, 5, 0, 5, -1, 9)
    assert filler.order(lambda lease: (lease.priority, lease.fence)) == [
        (9, 6),
        (5, 2),
        (5, 4),
        (0, 1),
        (0, 3),
        (-1, 5),
    ]


def test_topics_of_all_handlers_take_turns() -> None:
    """A topic of another handler does not wait until the first handler has nothing left."""
    one, two = create_handlers("a.*", "b.*")
    filler = Filler(Buffer(10, accepts_all=True))
    filler.add(one, "a.busy", *[0] * 4)
    filler.add(two, "b.quiet", 0)
    assert filler.order(lambda lease: lease.topic) == [
        "a.busy",
        "b.quiet",
        "a.busy",
        "a.busy",
        "a.busy",
    ]


def test_a_handler_at_its_limit_is_passed_over() -> None:
    """Messages of other handlers begin meanwhile."""
    one, two = create_handlers("a.*", "b.*")
    buffer = Buffer(10, accepts_all=True)
    filler = Filler(buffer)
    filler.add(one, "a.1", 0, 0)
    filler.add(two, "b.1", 0)
    buffer.queue(one).running = 10
    assert filler.order(lambda lease: lease.topic) == ["b.1"]
    buffer.queue(one).running = 0
    assert len(buffer.drain()) == 2
    assert len(buffer) == 0


def begin(buffer: Buffer, queue: HandlerQueue, slots: int = 10) -> list[str]:
    """Begin all that may begin, as a worker does; returns the topics."""
    begun = []
    while True:
        if queue.running < slots - buffer.reserved and buffer.next_queue() is not None:
            begun.append(queue.pop().lease.topic)
        elif buffer.reserved and queue.running < slots and buffer.newcomers_queue() is not None:
            begun.append(queue.pop_newcomer().lease.topic)
        else:
            return begun
        queue.running += 1


def test_one_slot_in_ten_is_reserved_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one topic has a crowd and others come and go."""
    (handler,) = create_handlers("*")
    buffer = Buffer(10, accepts_all=True)
    filler, queue = Filler(buffer), buffer.queue(handler)
    filler.add(handler, "busy", *[0] * 30)
    assert begin(buffer, queue) == ["busy"] * 10, "a topic that is alone has all slots"
    filler.add(handler, "quiet.1", 0)
    queue.running -= 1
    assert begin(buffer, queue) == ["quiet.1"], "before the busy topic"
    filler.add(handler, "quiet.2", 0, 0)
    assert begin(buffer, queue) == [], "all slots are taken"
    queue.running -= 1
    assert begin(buffer, queue) == ["quiet.2"]
    queue.running -= 1
    assert begin(buffer, queue) == [], "quiet.2 had its turn; busy may not use the reserved slot"
    assert buffer.seconds_reserved() > 0
    later = time.monotonic() + buffer_module.RESERVED_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert buffer.seconds_reserved() == 0, "there was no newcomer for a while"
    assert begin(buffer, queue) == ["busy"]
    left = sorted(delivery.lease.topic for delivery in buffer.drain())
    assert left == ["busy"] * 19 + ["quiet.2"]


@pytest.mark.parametrize(("topics", "messages"), [(1, 30), (20, 4), (3, 1)])
def test_no_slot_is_reserved_without_a_crowd_of_another_topic(topics: int, messages: int) -> None:
    """
    Neither for a single topic, nor for many with a few messages each, nor for slow handlers, of
    which nothing is prefetched.
    """
    (handler,) = create_handlers("*")
    buffer = Buffer(10, accepts_all=True)
    filler, queue = Filler(buffer), buffer.queue(handler)
    for _ in range(3):
        for topic in range(topics):
            filler.add(handler, f"t{topic}", *[0] * messages)
        queue.running = 0
        assert len(begin(buffer, queue)) == min(10, topics * messages)
        assert buffer.reserved == 0
        buffer.drain()

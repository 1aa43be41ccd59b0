"""
What a worker has ahead of its handlers: topics take turns, within a topic it is priority, then
hand-out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from laneway import Laneway
from laneway.message import Lease
from laneway.working import buffer as buffer_module
from laneway.working.buffer import Buffer, HandlerQueue
from laneway.working.delivery import WorkerDelivery
from laneway.working.handler import Handler


def handlers(*patterns: str) -> list[Handler]:
    app = Laneway("sqlite://")
    made = []
    for pattern in patterns:

        async def nothing(message: Any) -> None:
            pass

        app.handler(pattern)(nothing)
        found = app.handlers.find(Lease(1, 1, "1", pattern.replace("*", "x"), b"1", 0))
        assert found is not None
        made.append(found)
    return made


class Numbered:
    """Works with growing fences."""

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

    def order(self, tell: Callable[[Lease], Any]) -> list[Any]:
        out = []
        while (queue := self.buffer.next_queue()) is not None:
            out.append(tell(queue.pop().lease))
        return out


def test_a_quiet_topic_does_not_wait_behind_a_busy_one() -> None:
    (handler,) = handlers("*")
    box = Numbered(Buffer(10, keeps_all=True))
    box.add(handler, "busy", *[0] * 5)
    assert [box.buffer.next_queue().pop().lease.topic for _ in range(2)] == ["busy", "busy"]  # type: ignore[union-attr]
    box.add(handler, "quiet", 0)
    box.add(handler, "other", 0, 0)
    order = box.order(lambda lease: lease.topic)
    assert order.index("quiet") <= 1
    assert order == ["busy", "quiet", "other", "busy", "other", "busy"]


def test_within_a_topic_priority_goes_first_then_the_hand_out() -> None:
    (handler,) = handlers("*")
    box = Numbered(Buffer(10, keeps_all=True))
    box.add(handler, "a", 0, 5, 0, 5, -1, 9)
    assert box.order(lambda lease: (lease.priority, lease.fence)) == [
        (9, 6),
        (5, 2),
        (5, 4),
        (0, 1),
        (0, 3),
        (-1, 5),
    ]


def test_turns_go_over_all_handlers() -> None:
    """A topic of another handler does not wait until the first handler has nothing left."""
    one, two = handlers("a.*", "b.*")
    box = Numbered(Buffer(10, keeps_all=True))
    box.add(one, "a.busy", *[0] * 4)
    box.add(two, "b.quiet", 0)
    assert box.order(lambda lease: lease.topic) == [
        "a.busy",
        "b.quiet",
        "a.busy",
        "a.busy",
        "a.busy",
    ]


def test_a_handler_at_its_limit_is_passed_over() -> None:
    one, two = handlers("a.*", "b.*")
    buffer = Buffer(10, keeps_all=True)
    box = Numbered(buffer)
    box.add(one, "a.1", 0, 0)
    box.add(two, "b.1", 0)
    buffer.queue(one).running = 10
    assert box.order(lambda lease: lease.topic) == ["b.1"]
    buffer.queue(one).running = 0
    assert len(buffer.drain()) == 2
    assert len(buffer) == 0


def begin(buffer: Buffer, queue: HandlerQueue, most: int = 10) -> list[str]:
    """Begin all that can be begun, as a worker does; its topics."""
    begun = []
    while True:
        if queue.running < most - buffer.kept and buffer.next_queue() is not None:
            begun.append(queue.pop().lease.topic)
        elif buffer.kept and queue.running < most and buffer.newcomers_queue() is not None:
            begun.append(queue.pop_newcomer().lease.topic)
        else:
            return begun
        queue.running += 1


def test_one_slot_in_ten_is_kept_for_newcomers(monkeypatch: pytest.MonkeyPatch) -> None:
    """While topics come and go."""
    (handler,) = handlers("*")
    buffer = Buffer(10, keeps_all=True)
    box, queue = Numbered(buffer), buffer.queue(handler)
    box.add(handler, "busy", *[0] * 30)
    assert begin(buffer, queue) == ["busy"] * 10, "a topic that is alone has all of them"
    box.add(handler, "quiet.1", 0)
    queue.running -= 1
    assert begin(buffer, queue) == ["quiet.1"], "out of turn"
    box.add(handler, "quiet.2", 0, 0)
    assert begin(buffer, queue) == [], "all are taken"
    queue.running -= 1
    assert begin(buffer, queue) == ["quiet.2"]
    queue.running -= 1
    assert begin(buffer, queue) == [], "it had its turn; busy may not have the last one either"
    assert buffer.seconds_kept() > 0
    later = time.monotonic() + buffer_module.KEPT_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert buffer.seconds_kept() == 0, "nobody new has come for a while"
    assert begin(buffer, queue) == ["busy"]
    assert sorted(delivery.lease.topic for delivery in buffer.drain()) == ["busy"] * 19 + [
        "quiet.2"
    ]


@pytest.mark.parametrize(("topics", "messages"), [(1, 30), (20, 4), (3, 1)])
def test_no_slot_is_kept_where_no_crowd_stands_before_a_newcomer(
    topics: int, messages: int
) -> None:
    """
    One topic by itself, many of which a few wait each, and slow handlers, of which nothing is
    leased ahead.
    """
    (handler,) = handlers("*")
    buffer = Buffer(10, keeps_all=True)
    box, queue = Numbered(buffer), buffer.queue(handler)
    for _ in range(3):
        for topic in range(topics):
            box.add(handler, f"t{topic}", *[0] * messages)
        queue.running = 0
        assert len(begin(buffer, queue)) == min(10, topics * messages)
        assert buffer.kept == 0
        buffer.drain()

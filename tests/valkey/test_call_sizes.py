"""The sizes of calls adapt to the processor time of the last one; here that time is faked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from laneway.engines.base import FullEngine
from laneway.engines.sharded.splitting import FIRST_CALL
from laneway.engines.valkey.engine import (
    AT_ONCE,
    MOST_PUT,
    MOST_SERVED,
    PLAIN_AT_ONCE,
)
from laneway.engines.valkey.namespace import Namespace
from laneway.message import Draft, Settlement
from laneway.testing.servers import Server

SLOW_US, FAST_US = 9_000, 100
BEFORE_MESSAGES = 4
"""Arguments of `put` before the messages."""


class Calls:
    """The number of items of each call. A call of more than `most` items seems to be slow."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.leases = 0
        self.most = 0

    def add(self, name: str, arguments: tuple[Any, ...], answers: list[Any]) -> None:
        """Note a call, and replace its processor time."""
        if name == "put":
            size = len(arguments) - BEFORE_MESSAGES
        elif name == "settle":
            size = len(msgspec.msgpack.decode(arguments[0])) // 3
        else:
            self.leases += name == "lease"
            return
        self.sizes.append(size)
        assert 0 <= answers[-1] < 10_000_000
        answers[-1] = SLOW_US if size > self.most else FAST_US


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    noted = Calls()
    run = Namespace.run

    def measured(
        space: Namespace, name: str, shard: int, now_us: int | None, *arguments: Any, **how: bool
    ) -> Any:
        answers = run(space, name, shard, now_us, *arguments, **how)
        noted.add(name, arguments, answers)
        return answers

    monkeypatch.setattr(Namespace, "run", measured)
    return noted


@pytest.fixture
def engine(opened: Callable[..., FullEngine]) -> Iterator[FullEngine]:
    with Server() as server:
        yield opened(server.url)


def rich(count: int) -> list[Draft]:
    """So many messages that are not plain."""
    return [Draft("t", b"%d" % n, priority=1) for n in range(count)]


def plain(count: int) -> list[Draft]:
    return [Draft("t", b"%d" % n) for n in range(count)]


def test_large_puts_shrink_and_grow(engine: FullEngine, calls: Calls) -> None:
    calls.most = PLAIN_AT_ONCE
    engine.put(rich(2_000))
    assert calls.sizes[0] == FIRST_CALL
    assert max(calls.sizes) == MOST_PUT

    calls.most = 0
    calls.sizes.clear()
    receipts = engine.put(rich(1_000))
    assert [receipt.outcome for receipt in receipts] == ["accepted"] * 1_000
    assert len({receipt.id for receipt in receipts}) == 1_000
    assert sum(calls.sizes) == 1_000
    assert calls.sizes == sorted(calls.sizes, reverse=True)
    assert calls.sizes[-2] == 4


def test_a_put_that_has_to_be_atomic_is_one_call(engine: FullEngine, calls: Calls) -> None:
    engine.put(rich(1_000))
    calls.sizes.clear()
    drafts = rich(AT_ONCE)
    assert engine.is_put_atomic(drafts)
    engine.put(drafts)
    assert calls.sizes == [AT_ONCE]
    assert not engine.is_put_atomic(rich(AT_ONCE + 1))


def test_plain_messages_have_a_limit_of_their_own(engine: FullEngine, calls: Calls) -> None:
    calls.most = PLAIN_AT_ONCE
    engine.put(plain(5 * PLAIN_AT_ONCE))
    assert max(calls.sizes) == PLAIN_AT_ONCE

    calls.sizes.clear()
    engine.put([*plain(300), *rich(300)])
    assert calls.sizes[0] == 300  # of plain ones only
    assert max(calls.sizes[1:]) <= MOST_PUT

    calls.most = 0
    engine.put(plain(5 * PLAIN_AT_ONCE))
    assert calls.sizes[-2] == 4


def test_settlements_shrink_and_grow(engine: FullEngine, calls: Calls) -> None:
    engine.put(plain(3_000))

    def settle(count: int) -> list[int]:
        leases = engine.lease(count).leases
        calls.sizes.clear()
        answers = engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        assert answers == ["acked"] * count
        return calls.sizes[:]

    calls.most = MOST_SERVED
    assert max(settle(2_000)) == MOST_SERVED
    calls.most = 0
    sizes = settle(1_000)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-2] == 4
    assert not engine.lease(1).leases


def test_settlements_that_publish_are_one_call(engine: FullEngine, calls: Calls) -> None:
    """A refused message undoes all of it."""
    engine.put(plain(AT_ONCE + 500))
    leases = engine.lease(AT_ONCE + 500).leases
    ends = [Settlement(lease.handle, lease.fence) for lease in leases]
    engine.settle(ends[:500])
    calls.sizes.clear()
    engine.settle(ends[500:], publish={0: [Draft("next", b"")]})
    assert calls.sizes == [AT_ONCE - 1]  # and one that publishes


def test_a_lease_passes_over_few_settled_ones(engine: FullEngine, calls: Calls) -> None:
    """After a burst, the ends of as many leases are due as it had messages."""
    now, second, count = 2_200_000_000_000_000, 1_000_000, 3_000
    engine.put(plain(count), now_us=now)
    held = engine.lease(1, now_us=now).leases[0]
    while leases := engine.lease(AT_ONCE, now_us=now).leases:
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases], now_us=now)
        now += 1
    calls.leases = 0
    found = engine.lease(2, now_us=now + 3_600 * second).leases
    assert [lease.id for lease in found] == [held.id]
    assert calls.leases > 1


def test_small_calls_of_a_lease_visit_as_one(engine: FullEngine, calls: Calls) -> None:
    """Each visit takes as many messages as if one call delivered all of the lease."""
    topics = [f"t{n}" for n in range(150)]
    engine.put([Draft(topic, b"x") for topic in topics for _ in range(4)])
    leases = engine.lease(3 * FIRST_CALL).leases
    assert calls.leases >= 2
    visited = len({lease.topic for lease in leases})
    assert visited <= 3 * FIRST_CALL // 4 + calls.leases, "the end of a call may cut a visit"


SUBSCRIPTIONS = 100
VALUES_OF_PUBLISHED = 5


@pytest.fixture
def most_published(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The messages and copies that each call publishes."""
    counts: list[int] = []
    run = Namespace.run

    def counted(
        space: Namespace, name: str, shard: int, now_us: int | None, *arguments: Any, **how: bool
    ) -> Any:
        if name == "put":
            counts.append(len(arguments) - BEFORE_MESSAGES)
        elif name == "settle" and arguments[2]:
            counts.append(len(msgspec.msgpack.decode(arguments[3])) // VALUES_OF_PUBLISHED)
        return run(space, name, shard, now_us, *arguments, **how)

    monkeypatch.setattr(Namespace, "run", counted)
    return counts


def subscribe(engine: FullEngine, topic: str, count: int, **options: Any) -> None:
    names = [f"subscription:s{n:03}" for n in range(count)]
    engine.policy_set("operator", topic, {**{name: {} for name in names}, **options})


def bodies_in(engine: FullEngine, topic: str) -> list[bytes]:
    return [lease.body for lease in engine.lease(50, topics=[topic]).leases]


def test_settlements_that_publish_copies_are_divided(
    engine: FullEngine, most_published: list[int]
) -> None:
    """Acks with many copies were one call: 250 acks with 1,000 copies each took seconds."""
    subscribe(engine, "orders", SUBSCRIPTIONS)
    engine.put(plain(20))
    leases = engine.lease(20).leases
    most_published.clear()
    answers = engine.settle(
        [Settlement(lease.handle, lease.fence) for lease in leases],
        publish={n: [Draft("orders", b"%d" % n)] for n in range(20)},
    )
    assert answers == ["acked"] * 20
    assert sum(most_published) == 20 * (1 + SUBSCRIPTIONS)
    assert max(most_published) <= AT_ONCE
    assert bodies_in(engine, "orders#s099") == [b"%d" % n for n in range(20)]


def test_a_forwarded_batch_with_copies_is_divided(
    engine: FullEngine, most_published: list[int]
) -> None:
    """It was one call, whatever it had. A repeat knows what each of its calls has taken."""
    subscribe(engine, "orders", SUBSCRIPTIONS)
    drafts = [Draft("orders", b"%d" % n, id=f"{n}", sticky=True) for n in range(20)]
    for outcome in ("accepted", "duplicate"):
        receipts = engine.forward(drafts, spool="s", batch="1")
        assert [receipt.outcome for receipt in receipts] == [outcome] * 20
    assert max(most_published) <= PLAIN_AT_ONCE
    assert bodies_in(engine, "orders#s099") == [b"%d" % n for n in range(20)]


def test_a_divided_batch_keeps_the_order_of_full_topics(
    engine: FullEngine, most_published: list[int]
) -> None:
    """After a refused message the later ones of its topic are refused, in later calls too."""
    where = {"subscription:few": {"where": {"type": "a"}}}
    subscribe(engine, "orders", SUBSCRIPTIONS, **where)
    engine.policy_set("operator", "orders#few", {"max_backlog": 1})
    drafts = [
        Draft(topic, b"%d" % n, id=f"{n}", sticky=True, headers={"type": "a" if n < 4 else "b"})
        for n, topic in enumerate(["orders", "other"] * 10)
    ]
    receipts = engine.forward(drafts, spool="s", batch="1")
    assert len(most_published) > 1
    assert [receipt.outcome for receipt in receipts] == [
        "accepted" if n == 0 or n % 2 else "refused" for n in range(20)
    ]
    assert [receipt.id for receipt in receipts] == [draft.id for draft in drafts]
    assert engine.topic_stats("orders#s000").waiting == 1
    (few,) = engine.lease(1, topics=["orders#few"]).leases
    engine.settle([Settlement(few.handle, few.fence)])
    again = engine.forward(drafts, spool="s", batch="1")
    assert [receipt.outcome for receipt in again] == [
        "duplicate" if n == 0 or n % 2 else "accepted" for n in range(20)
    ]
    assert bodies_in(engine, "orders") == [b"%d" % n for n in range(0, 20, 2)]


def test_copies_are_put_apart_from_later_messages(
    engine: FullEngine, most_published: list[int]
) -> None:
    """A message with many copies is a call by itself, also in a batch that is one otherwise."""
    subscribe(engine, "orders", PLAIN_AT_ONCE)
    engine.put([Draft("orders", b"0"), *rich(100), Draft("orders", b"1"), *plain(100)])
    assert max(most_published) == 1 + PLAIN_AT_ONCE


def test_copies_with_options_are_put_in_smaller_calls(
    engine: FullEngine, calls: Calls, most_published: list[int]
) -> None:
    """They cost several times as much as plain ones, so they have the limit of other such puts."""
    subscribe(engine, "orders", 20)
    engine.put([Draft("orders", b"%d" % n, priority=1) for n in range(100)])  # calls seem slow
    most_published.clear()
    drafts = [Draft("orders", b"%d" % n, priority=1) for n in range(100)]
    assert [receipt.outcome for receipt in engine.put(drafts)] == ["accepted"] * 100
    assert sum(most_published) == 100 * 21
    assert max(most_published) <= FIRST_CALL
    engine.put(plain(20))
    leases = engine.lease(20, topics=["t"]).leases
    most_published.clear()
    engine.settle(
        [Settlement(lease.handle, lease.fence) for lease in leases],
        publish={n: drafts[n : n + 1] for n in range(20)},
    )
    assert sum(most_published) == 20 * 21
    assert max(most_published) <= FIRST_CALL
    assert max(calls.sizes) <= PLAIN_AT_ONCE

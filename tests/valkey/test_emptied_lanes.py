"""Lanes of which a visit takes all that they have: they are served without being decoded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.base.history import Tallies
from laneway.engines.sharded.splitting import FIRST_CALL
from laneway.message import Action, Draft, Lease, Settlement
from laneway.policy import Gate
from laneway.units import SECOND
from tests.conformance.valkey_setups import server

Opened = Callable[..., FullEngine]

ROUNDS = 40
STEMS = ("any", "gated", "high", "once", "few", "known", "rate")
TOPICS = [f"{stem}.{n}" for stem in STEMS for n in range(12)]
POLICIES: dict[str, dict[str, Any]] = {
    "any.*": {"lease": 1.5},
    "gated.*": {"gate": "door"},
    "high.*": {"tier": "high", "weight": 0.5},
    "once.*": {"delivery": "at_most_once"},
    "few.*": {"concurrency": 1},
    "known.*": {"dedupe": 60},
    "known.3": {"weight": 2},
    "rate.*": {"rate": 3.0, "burst": 2},
}
NOW = 1_700_000_000 * SECOND


def draft(draw: random.Random, number: int) -> Draft:
    """A message; most are plain."""
    topic, body = draw.choice(TOPICS), b"%d" % number
    kind = draw.random()
    if kind < 0.6:
        return Draft(topic, body)
    if kind < 0.7:
        return Draft(topic, body, headers={"a": "b" * draw.randrange(40)})
    if kind < 0.8:
        return Draft(topic, body, id=f"{number}", sticky=draw.random() < 0.3)
    if kind < 0.85:
        return Draft(topic, body, delay_us=draw.choice((1, SECOND)))
    if kind < 0.9:
        return Draft(topic, body, ttl_us=draw.choice((1, SECOND)))
    return Draft(topic, body, key="k", priority=draw.choice((0, 1)))


def seen(lease: Lease) -> tuple[object, ...]:
    return lease.topic, lease.body, lease.attempt, lease.headers, lease.id is None


def waits(engine: FullEngine, now: int) -> tuple[object, ...]:
    """What the store counts of all lanes together."""
    every = engine.overview(now_us=now)
    return (
        every.waiting,
        every.leased,
        every.delivered,
        every.done,
        every.expired,
        every.bytes,
    )


def tallied(found: Tallies) -> list[tuple[object, ...]]:
    return sorted(
        (each.tier, each.pattern, each.published, each.delivered, each.done, each.waiting)
        for each in found.tallies
    )


def checked(engine: FullEngine) -> list[object]:
    return [check for check in engine.doctor() if not check.ok]


@pytest.mark.parametrize("seed", [12, 71, 83, None], ids=str)
def test_emptied_lanes_are_served_as_on_sqlite(opened: Opened, seed: int | None) -> None:
    """In the same order, with the same counts, whatever the lanes' messages and policies are."""
    seed = random.randrange(10**6) if seed is None else seed
    print("seed", seed)
    draw = random.Random(seed)
    engines = opened(server().url), opened("sqlite://")
    now, number = NOW, 0
    held: list[list[Lease]] = [[], []]
    for engine in engines:
        engine.gate_set("door", Gate(concurrency=9), now_us=now)
        for pattern, policy in POLICIES.items():
            engine.policy_set("code", pattern, policy, now_us=now)
    for _ in range(ROUNDS):
        # not a single one: on SQLite it waits in the inbox, where a rate does not hold it back yet
        drafts = [draft(draw, number + n) for n in range(draw.choice((2, 15, 70)))]
        number += len(drafts)
        for engine in engines:
            engine.put(drafts, now_us=now)
        now += draw.choice((0, 1000, SECOND, 2 * SECOND))
        room = draw.choice((1, 5, 60))
        for _ in range(draw.choice((1, 3))):
            found = [engine.lease(room, now_us=now).leases for engine in engines]
            assert [seen(lease) for lease in found[0]] == [seen(lease) for lease in found[1]]
            for n, leases in enumerate(found):
                held[n] += leases
        chosen = draw.getrandbits(32)
        for n, engine in enumerate(engines):
            same = random.Random(chosen)
            actions: list[Action] = ["ack", "ack", "ack", "retry", "release"]
            kept = [lease for lease in held[n] if same.random() < 0.2]
            ends = [
                Settlement(lease.handle, lease.fence, same.choice(actions), 0)
                for lease in held[n]
                if lease not in kept
            ]
            for first in range(0, len(ends), FIRST_CALL):  # Valkey may divide larger calls
                engine.settle(ends[first : first + FIRST_CALL], now_us=now)
            held[n] = kept
        for topic in TOPICS:
            stats = [engine.topic_stats(topic, now_us=now) for engine in engines]
            assert stats[0] == stats[1]
        assert waits(engines[0], now) == waits(engines[1], now)
        tallies = [engine.tallies(now_us=now) for engine in engines]
        assert tallied(tallies[0]) == tallied(tallies[1])
    assert checked(engines[0]) == []


def test_a_message_that_is_lost_is_not_counted(opened: Opened) -> None:
    """Its lane is emptied, too, and the others are served."""
    engine = opened(server().url)
    topics = [f"t.{n}" for n in range(20)]
    engine.put([Draft(topic, b"12345") for topic in topics * 2], now_us=NOW)
    messages = engine._space.key(0, "m")  # type: ignore[attr-defined]
    # one of two in t.1, both in t.2
    assert server().run("HDEL", messages, "2", "3", "23") == 3
    leases = engine.lease(60, now_us=NOW).leases
    assert sorted(lease.topic for lease in leases) == sorted(
        [topic for topic in topics * 2 if topic not in ("t.1", "t.2")] + ["t.1"]
    )
    of_topic = {topic: engine.topic_stats(topic, now_us=NOW) for topic in topics}
    assert [of_topic[topic].leased for topic in topics] == [2, 1, 0] + 17 * [2]
    assert {(each.ready, each.state) for each in of_topic.values()} == {(0, "idle")}
    assert [of_topic[topic].bytes for topic in topics[:4]] == [0, 5, 10, 0]  # until it is repaired
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases], now_us=NOW)
    assert engine.lease(60, now_us=NOW).leases == []


def test_a_lane_that_this_call_has_changed_is_not_emptied(opened: Opened) -> None:
    """A lease of it has run out: its record is not yet what the store has."""
    engine = opened(server().url)
    engine.policy_set("code", "t.*", {"lease": 1}, now_us=NOW)
    engine.put([Draft("t.1", b"1"), Draft("t.1", b"2"), Draft("t.2", b"3")], now_us=NOW)
    assert [lease.body for lease in engine.lease(1, now_us=NOW).leases] == [b"1"]
    later = NOW + 2 * SECOND
    assert [lease.body for lease in engine.lease(9, now_us=later).leases] == [b"3", b"1", b"2"]
    stats = engine.topic_stats("t.1", now_us=later)
    assert (stats.ready, stats.leased, stats.state) == (0, 2, "idle")
    assert checked(engine) == []


def test_a_topic_that_is_emptied_often_is_busy(opened: Opened) -> None:
    """It comes into the top list of rates as soon as it belongs there."""
    engine = opened(server().url)
    for n in range(32):
        engine.put([Draft("t.1", b"")] + [Draft("t.2", b"")] * (n % 2), now_us=NOW + n)
        assert len(engine.lease(9, now_us=NOW + n).leases) == 1 + n % 2
    busy = engine._space.key(0, "top:busy")  # type: ignore[attr-defined]
    assert server().run("ZRANGE", busy, "0", "-1") == ["t.1"]


def test_messages_expire_at_their_delivery(opened: Opened) -> None:
    """There are more of them than housekeeping comes to."""
    engine = opened(server().url)
    topics = [f"t.{n}" for n in range(1500)]
    engine.put([Draft(topic, b"x", ttl_us=SECOND) for topic in topics], now_us=NOW)
    engine.put([Draft("t.7", b"alive"), Draft("t.1499", b"alive")], now_us=NOW)
    later = NOW + 2 * SECOND
    found: list[bytes] = []
    while batch := engine.lease(100, now_us=later).leases:
        found += [lease.body for lease in batch]
    assert found == [b"alive", b"alive"]
    everything = engine.overview(now_us=later)
    assert (everything.waiting, everything.leased, everything.bytes) == (0, 2, 0)
    assert everything.expired == 1500
    assert checked(engine) == []

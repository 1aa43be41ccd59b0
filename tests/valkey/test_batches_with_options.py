"""Batches of messages that are not plain, over many topics, beside the same calls on SQLite."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

from laneway.engines.base import FullEngine
from laneway.engines.sharded.splitting import CallSize
from laneway.engines.valkey.engine import PLAIN_AT_ONCE
from laneway.errors import BacklogFull
from laneway.message import Action, Draft, Lease, Settlement
from laneway.units import SECOND
from tests.conformance.valkey_setups import server

Opened = Callable[..., FullEngine]

ROUNDS, BATCH = 25, 60
ROOM = 60
"""Messages that one call of the server delivers: a lease for more is several of them."""

TOPICS = [f"{stem}.{n}" for stem in ("any", "serial", "yield", "brief", "slow") for n in range(8)]
POLICIES: dict[str, dict[str, Any]] = {
    "serial.*": {"serial": "hold"},
    "yield.*": {"serial": "yield"},
    "brief.*": {"ttl": 4},
    "slow.*": {"rate": 2.0, "burst": 1},
}


def draft(draw: random.Random, number: int, *, is_unusual: bool) -> Draft:
    """A message without an id; most have some option. `is_unusual`: also a seldom one."""
    is_delayed = draw.random() < 0.4
    return Draft(
        draw.choice(TOPICS),
        b"%d" % number,
        key=draw.choice((None, "k0", "k1", "k2")),
        priority=draw.choice((0, 0, 1, 600 if is_unusual else -2)),
        delay_us=draw.randrange(3 * SECOND) if is_delayed else 0,
        ttl_us=draw.choice((None, None, 5 * SECOND)),
        headers=draw.choice((None, {"laneway-cost": "2"} if is_unusual else {"a": "b"})),
        at_front=draw.random() < 0.1,
    )


def settlement(draw: random.Random, lease: Lease) -> Settlement:
    """How the lease ends."""
    actions: list[Action] = ["ack", "ack", "ack", "retry", "release", "dead"]
    action = draw.choice(actions)
    delay_us = draw.randrange(2 * SECOND) if action in ("retry", "release") else None
    return Settlement(lease.handle, lease.fence, action, delay_us)


def seen(lease: Lease) -> tuple[object, ...]:
    """What both engines say alike."""
    return lease.topic, lease.body, lease.attempt, lease.deliveries, lease.priority


def test_batches_with_options_do_the_same_as_on_sqlite(opened: Opened) -> None:
    """Lanes that a batch makes, changes or delays in, and what is delivered of them."""
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    ours, reference = engines = opened(server().url), opened("sqlite://")
    now = 1_700_000_000 * SECOND
    for engine in engines:
        for pattern, policy in POLICIES.items():
            engine.policy_set("code", pattern, policy, now_us=now)
    number = 0
    for _ in range(ROUNDS):
        # a single one waits in the inbox of SQLite, where a rate does not hold it back yet
        size = draw.choice((2, BATCH, 3 * BATCH))
        is_unusual = draw.random() < 0.3
        drafts = [draft(draw, number + n, is_unusual=is_unusual) for n in range(size)]
        if draw.random() < 0.3:  # nothing but delayed ones
            drafts = [msgspec.structs.replace(each, delay_us=SECOND) for each in drafts]
        elif draw.random() < 0.3:  # many in a lane, none of them plain
            few = draw.sample(TOPICS[8:24], 2)
            drafts = [
                msgspec.structs.replace(each, topic=draw.choice(few), key=each.key or "k3")
                for each in drafts
            ]
        number += size
        receipts = [engine.put(drafts, now_us=now) for engine in engines]
        assert len({tuple(each.outcome for each in answer) for answer in receipts}) == 1
        now += draw.randrange(2 * SECOND)
        room = draw.randrange(1, ROOM + 1)
        leases, expected = (engine.lease(room, now_us=now).leases for engine in engines)
        assert [seen(lease) for lease in leases] == [seen(lease) for lease in expected]
        chosen = draw.getrandbits(32)
        answers = []
        for engine, mine in ((ours, leases), (reference, expected)):
            same = random.Random(chosen)
            ends = [settlement(same, lease) for lease in mine]
            answers.append(engine.settle(ends, now_us=now))
        assert answers[0] == answers[1]
        for topic in draw.sample(TOPICS, 5):
            stats = [engine.topic_stats(topic, now_us=now) for engine in engines]
            assert stats[0] == stats[1]
    assert [check for check in ours.doctor() if not check.ok] == []


CHANGES: list[dict[str, Any]] = [
    {},
    {"tier": "high"},
    {"rate": 50.0},
    {"concurrency": 3},
    {"paused": True},
    {"weight": 3},
]


def test_batches_wake_idle_lanes_as_on_sqlite(opened: Opened) -> None:
    """Lanes are emptied again and again, and get messages before or after they are forgotten."""
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    engines = opened(server().url), opened("sqlite://")
    now = 1_700_000_000 * SECOND
    number, held = 0, [[], []]  # type: int, list[list[Lease]]
    for turn in range(2 * ROUNDS):
        if turn % 8 == 7:
            policy = draw.choice(CHANGES)
            for engine in engines:
                engine.policy_set("code", "any.*", policy, now_us=now)
        topics = draw.sample(TOPICS, draw.choice((2, 9, 30)))
        is_plain = draw.random() < 0.5
        drafts = [
            msgspec.structs.replace(
                Draft("", b"") if is_plain else draft(draw, 0, is_unusual=False),
                topic=topic,
                body=b"%d" % (number + n),
            )
            for n, topic in enumerate(topics * draw.choice((1, 1, 3)))
        ]
        number += len(drafts)
        for engine in engines:
            engine.put(drafts, now_us=now)
        now += draw.choice((0, 1000, SECOND // 4, 3 * SECOND // 2))
        chosen = draw.getrandbits(32)
        for _ in range(4):
            found = [engine.lease(ROOM, now_us=now).leases for engine in engines]
            assert [seen(lease) for lease in found[0]] == [seen(lease) for lease in found[1]]
            for n, leases in enumerate(found):
                held[n] += leases
        for n, engine in enumerate(engines):
            same = random.Random(chosen)
            kept = [lease for lease in held[n] if same.random() < 0.1]
            ends = [lease for lease in held[n] if lease not in kept]
            engine.settle([Settlement(each.handle, each.fence) for each in ends], now_us=now)
            held[n] = kept
        for topic in TOPICS:
            stats = [engine.topic_stats(topic, now_us=now) for engine in engines]
            assert stats[0] == stats[1]
    assert [check for check in engines[0].doctor() if not check.ok] == []


SUBSCRIPTIONS = 12
COPIED = ("copied.a", "copied.b", "copied.c")
POLICIES_OF_COPIES: dict[str, dict[str, Any]] = {
    "copied.*": {"dedupe": 3},
    "copied.*#s1": {"serial": "hold"},
    "copied.*#s2": {"ttl": 4},
    "copied.*#s3": {"rate": 2.0, "burst": 1},
    "copied.*#s4": {"merge": "last", "window": 1},
    "copied.*#s5": {"dedupe": 60},
    "copied.*#s6": {"concurrency": 1},
}
CHANGES_OF_COPIES: list[tuple[str, dict[str, Any]]] = [
    ("copied.a", {"own_backlog": False}),
    ("copied.a", {"own_backlog": None}),
    ("copied.b#s7", {"max_backlog": 2, "on_full": "drop_oldest"}),
    ("copied.b#s7", {"max_backlog": 2, "on_full": "refuse"}),
    ("copied.b#s7", {"max_backlog": None, "on_full": None}),
    ("copied.c#s8", {"paused": True}),
    ("copied.c#s8", {"paused": None, "tier": "high"}),
    ("copied.c", {"subscription:s9": {"expires": 60}}),
]


def copied_drafts(draw: random.Random, number: int, count: int) -> list[Draft]:
    """Messages of topics with subscriptions; some are plain, and some have ids."""
    drafts = []
    for n in range(count):
        each = draft(draw, number + n, is_unusual=draw.random() < 0.1)
        if draw.random() < 0.5:
            each = Draft("", each.body, each.key, headers=draw.choice((None, {"a": "b"})))
        drafts.append(
            msgspec.structs.replace(
                each,
                topic=draw.choice((*COPIED, "copied.d")),
                id=draw.choice((None, f"id{draw.randrange(max(0, number - 30), number + count)}")),
                sticky=draw.random() < 0.2,
            )
        )
    return drafts


def id_of(lease: Lease, prefix: str = "id") -> str:
    """What both engines say alike of the id: not the part that an engine generated."""
    generated, colon, rest = lease.id.partition(":")
    return generated + colon + rest if generated.startswith(prefix) else colon + rest


def settled(settle: Callable[[], Sequence[str]]) -> list[str]:
    """The answers, or the topics of refused messages."""
    try:
        return list(settle())
    except BacklogFull as error:
        return [getattr(receipt, "topic", "") for receipt in error.receipts]


@pytest.mark.parametrize("leaves", [False, True])
def test_copies_do_the_same_as_on_sqlite(
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    leaves: bool,
) -> None:
    """
    Copies with and without options, put by batches, by spools and by settlements; `leaves`: a call
    for one message puts few of them, and leaves the others to later calls.
    """
    url = request.getfixturevalue("few_copies_at_once") if leaves else server().url
    # a refused message undoes all of a call: on SQLite that is all of a step here
    monkeypatch.setattr(CallSize, "fit", lambda *_, **__: None)
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    engines = opened(url), opened("sqlite://")
    engines[0]._puts.limit = PLAIN_AT_ONCE  # type: ignore[attr-defined]
    now = 1_700_000_000 * SECOND
    for engine in engines:
        for topic in COPIED:
            names: dict[str, Any] = {f"subscription:s{n}": {} for n in range(SUBSCRIPTIONS)}
            engine.policy_set("code", topic, names, now_us=now)
        for pattern, policy in POLICIES_OF_COPIES.items():
            engine.policy_set("code", pattern, policy, now_us=now)
    topics = [
        *COPIED,
        "copied.d",
        *(f"{topic}#s{n}" for topic in COPIED for n in range(SUBSCRIPTIONS)),
    ]
    number = 0
    for turn in range(ROUNDS):
        if turn % 6 == 5:
            pattern, policy = draw.choice(CHANGES_OF_COPIES)
            for engine in engines:
                engine.policy_set("code", pattern, policy, now_us=now)
        count = draw.choice((1, 1, 2, 15))
        drafts = copied_drafts(draw, number, count)
        number += count
        outcomes = []
        for engine in engines:
            if turn % 5 == 4:
                named = [
                    msgspec.structs.replace(each, id=each.id or each.body.decode(), sticky=True)
                    for each in drafts
                ]
                answer = engine.forward(named, spool="s", batch=f"{turn}", now_us=now)
            else:
                answer = engine.put(drafts, now_us=now)
            outcomes.append([receipt.outcome for receipt in answer])
        assert outcomes[0] == outcomes[1]
        now += draw.choice((0, 1000, SECOND // 2, 2 * SECOND))
        chosen, room = draw.getrandbits(32), draw.randrange(1, ROOM + 1)
        answers = []
        both = [engine.lease(room, now_us=now).leases for engine in engines]
        assert [seen(lease) for lease in both[0]] == [seen(lease) for lease in both[1]]
        assert list(map(id_of, both[0])) == list(map(id_of, both[1]))
        for engine, leases in zip(engines, both, strict=True):
            same = random.Random(chosen)
            ends = [settlement(same, lease) for lease in leases]
            publish = {
                n: copied_drafts(same, number, same.choice((1, 1, 2)))
                for n in same.sample(range(len(ends)), min(len(ends), same.choice((0, 1, 5))))
            }
            settle = partial(engine.settle, ends, publish=publish, now_us=now)
            answers.append(settled(settle))
        assert answers[0] == answers[1]
        for topic in topics:
            stats = [engine.topic_stats(topic, now_us=now) for engine in engines]
            assert stats[0] == stats[1]
    assert [check for check in engines[0].doctor() if not check.ok] == []


MERGING: dict[str, dict[str, Any]] = {
    "first.*": {"merge": "first"},
    "last.*": {"merge": "last", "dedupe": 3},
    "late.*": {"merge": "last", "window": 2, "serial": "hold", "ttl": 60},
    "all.*": {"merge": "all", "merge_limit": 3, "dedupe": 1},
}
MERGING_TOPICS = [f"{pattern[:-1]}{n}" for pattern in MERGING for n in range(4)]
LENGTHS = (1, 31, 32, 260)
"""Texts of 32 and of 256 bytes begin with other marks in a record."""


def merging_draft(draw: random.Random, number: int) -> Draft:
    """A message that often joins another, or has a known id."""
    named = draw.random() < 0.6
    return Draft(
        draw.choice(MERGING_TOPICS),
        b"%d" % number,
        key=draw.choice("kl") * draw.choice(LENGTHS) if draw.random() < 0.9 else None,
        id=f"{draw.randrange(max(1, number))}".rjust(draw.choice(LENGTHS), "i") if named else None,
        headers=draw.choice((None, {"a": "b"})),
        priority=draw.choice((0, 0, 0, 1)),
        delay_us=draw.choice((0, 0, 0, SECOND)),
    )


def test_merging_batches_do_the_same_as_on_sqlite(opened: Opened) -> None:
    """Messages that join others of their own call and of earlier ones, with ids and without."""
    seed = random.randrange(10**6)
    print("seed", seed)
    draw = random.Random(seed)
    engines = opened(server().url), opened("sqlite://")
    now, number = 1_700_000_000 * SECOND, 1
    for engine in engines:
        for pattern, policy in MERGING.items():
            engine.policy_set("code", pattern, policy, now_us=now)
    for _ in range(ROUNDS):
        drafts = [merging_draft(draw, number + n) for n in range(draw.choice((2, 20, BATCH)))]
        number += len(drafts)
        receipts = [engine.put(drafts, now_us=now) for engine in engines]
        assert len({tuple(each.outcome for each in answer) for answer in receipts}) == 1
        for each in drafts:
            if each.id is not None:  # also of a message that it joined
                views = [engine.find(each.id, each.topic) for engine in engines]
                assert len({view and view.body for view in views}) == 1
        now += draw.choice((0, 1000, SECOND, 3 * SECOND))
        room = draw.choice((1, 10, ROOM))
        found = [engine.lease(room, now_us=now).leases for engine in engines]
        for leases in zip(*found, strict=True):
            ours, expected = (
                (*seen(lease), lease.bodies, lease.headers, id_of(lease, "i")) for lease in leases
            )
            assert ours == expected
        chosen = draw.getrandbits(32)
        answers = []
        for engine, mine in zip(engines, found, strict=True):
            same = random.Random(chosen)
            ends = [settlement(same, lease) for lease in mine]
            answers.append(engine.settle(ends, now_us=now))
        assert answers[0] == answers[1]
        for topic in MERGING_TOPICS:
            stats = [engine.topic_stats(topic, now_us=now) for engine in engines]
            assert stats[0] == stats[1]
    assert [check for check in engines[0].doctor() if not check.ok] == []


def test_a_batch_makes_lanes_of_delayed_messages(opened: Opened) -> None:
    """They are in no index of lanes that can deliver before their messages are due."""
    engine = opened(server().url)
    now = 1_700_000_000 * SECOND
    topics = [f"t.{n}" for n in range(30)]
    drafts = [Draft(topic, b"", delay_us=SECOND) for topic in topics]
    drafts += [Draft(topic, b"", priority=1) for topic in topics[::3]]
    engine.put([Draft("first", b"")], now_us=now)  # the queue of its tier exists from now on
    assert len(engine.lease(1, now_us=now).leases) == 1
    engine.put(drafts, now_us=now)
    states = [engine.topic_stats(topic, now_us=now).state for topic in topics]
    assert states == ["runnable", "idle", "idle"] * 10
    runnable = engine._space.key(0, "run:1")  # type: ignore[attr-defined]
    assert server().run("ZCARD", runnable) == 10
    first = engine.lease(60, now_us=now).leases
    assert [lease.topic for lease in first] == topics[::3]
    later = engine.lease(60, now_us=now + SECOND).leases
    assert sorted(lease.topic for lease in later) == sorted(topics)
    assert [check for check in engine.doctor() if not check.ok] == []

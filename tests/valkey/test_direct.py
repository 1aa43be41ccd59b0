"""
A plain message for a worker that sleeps, while nothing else can be leased, takes a shorter way
(`scripts/parts/direct.lua`), with the same effect as a put of many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import redis

from laneway.engines.base import FullEngine, WorkListener
from laneway.engines.valkey import record_formats, wakeup
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.testing.servers import Server, until

Opened = Callable[..., FullEngine]
ROOM = 10

DIRECT = {
    "fcall": 1,
    "get": 1,
    "hget": 1,
    "zrange": 1,
    "time": 1,
    "exists": 1,
    "zrem": 2,
    "publish": 1,
    "hset": 3,
    "zadd": 1,
    "hincrby": 3,
    "set": 1,
}
"""The commands of a put that takes the shorter way, in a lane that is idle."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as its_server:
        yield its_server


@pytest.fixture(autouse=True)
def _sleepers_stay_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, and they learn of work by a notification only."""
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)


LISTENERS: list[WorkListener] = []


@pytest.fixture(autouse=True)
def _no_listener_is_left() -> Iterator[None]:
    yield
    while LISTENERS:
        LISTENERS.pop().close()


class Sleeper:
    """A worker that sleeps until something is leased to it."""

    def __init__(self, engine: FullEngine) -> None:
        self.engine = engine
        self.listener: WorkListener = engine.work_listener()
        LISTENERS.append(self.listener)
        self.sleep()

    def sleep(self) -> None:
        while self.listener.poll(0.003, ROOM):
            self.engine.tick()

    def leases(self) -> list[Lease]:
        batch = self.listener.poll(20.0, ROOM)
        if batch is True:  # on a busy machine it did not listen any longer
            batch = self.engine.lease(ROOM)
        assert isinstance(batch, Batch), batch
        return batch.leases


def commands(server: Server, call: Callable[[], object]) -> dict[str, int]:
    """How often the server runs each command meanwhile."""
    with client_of(server) as client:
        client.config_resetstat()
        call()
        return {
            name.removeprefix("cmdstat_"): each["calls"]
            for name, each in client.info("commandstats").items()
            if not name.startswith("cmdstat_config")
        }


def client_of(server: Server) -> Any:
    return redis.Redis.from_url(server.url.replace("valkey://", "redis://"))


def ack(engine: FullEngine, leases: list[Lease]) -> None:
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])


def sleeper_that_knows(engine: FullEngine, topic: str) -> Sleeper:
    """A sleeper after two messages of a topic, so that its server knows how to lease the next."""
    sleeper = Sleeper(engine)
    for _ in range(2):
        engine.put([Draft(topic, b"x")])
        ack(engine, sleeper.leases())
        sleeper.sleep()
    return sleeper


def stored(server: Server, namespace: str) -> dict[str, Any]:
    """What the namespace has stored, without times, and numbers that are made of them."""
    with client_of(server) as client:
        return stored_in(client, f"laneway:{{{namespace}/0}}:")


def stored_in(client: Any, prefix: str) -> dict[str, Any]:
    counters = msgspec.structs.asdict(record_formats.read_counters(client.get(f"{prefix}shard")))
    for field in ("nonce", "now", "seq", "fence", "version", "alarm"):
        del counters[field]
    lanes = {}
    for name, content in client.hgetall(f"{prefix}lanes").items():
        lane = msgspec.structs.asdict(record_formats.read_lane(name.decode(), content))
        lanes[name] = {field: lane[field] for field in lane if field not in ("wake", "seen")}
    leases = [
        (held.lane, held.charge, held.quick, held.gate, held.deadline - held.granted)
        for held in map(record_formats.read_held, client.hvals(f"{prefix}l"))
    ]
    tallies = {
        field: count
        for field, count in client.hgetall(f"{prefix}tallies").items()
        if field != b"since"
    }
    return {
        "keys": {name.removeprefix(prefix.encode()) for name in client.scan_iter(f"{prefix}*")},
        "counters": counters,
        "lanes": lanes,
        "leases": sorted(leases),
        "messages": sorted(content[:-7] for content in client.hvals(f"{prefix}m")),
        "tallies": tallies,
        "names": client.zrange(f"{prefix}names", 0, -1),
        "idle": client.zrange(f"{prefix}idle", 0, -1),
        "due": len(client.zrange(f"{prefix}due", 0, -1)),
    }


def put_and_lease(opened: Opened, server: Server, names: list[str]) -> float:
    """
    The same messages one by one, the shorter way and as a put of many, in these namespaces. In new
    lanes and idle ones, while others are leased, and past a step of the recent counts. Returns how
    long it took.
    """
    short, usual = (opened(server.url, namespace=name) for name in names)
    put_usually: Any = usual._put_page  # type: ignore[attr-defined]
    sleepers = {engine: Sleeper(engine) for engine in (short, usual)}
    began = time.monotonic()
    for n in range(45):
        draft = Draft(
            f"t.new-{n}" if n % 9 == 8 else "t.old",
            b"x" * (n % 7),
            key="k" if n % 5 == 0 else None,
            headers={"a": "b"} if n % 4 == 0 else None,
        )
        for engine, sleeper in sleepers.items():
            sleeper.sleep()
            if engine is short:
                (receipt,) = engine.put([draft])
            else:
                (receipt,) = put_usually(0, [draft], None)
            (lease,) = sleeper.leases()
            assert (lease.id, lease.topic, lease.body, lease.key, lease.headers) == (
                receipt.id,
                draft.topic,
                draft.body,
                draft.key,
                draft.headers,
            )
            assert (lease.attempt, lease.deliveries) == (1, 1)
            if n not in (20, 35):
                ack(engine, [lease])
    return time.monotonic() - began


def test_it_stores_what_a_put_of_many_stores(opened: Opened, server: Server) -> None:
    attempts = (
        [f"stores-{name}-{attempt}" for name in ("short", "usual")] for attempt in range(10)
    )
    # A lane is forgotten after a second.
    fast = (names for names in attempts if put_and_lease(opened, server, names) < 0.9)
    names = next(fast, None)
    if names is None:
        pytest.skip("too busy a machine: each attempt took a second")
    short, usual = (stored(server, name) for name in names)
    assert short == usual


def test_it_runs_few_commands(opened: Opened, server: Server) -> None:
    engine = opened(server.url)
    sleeper = Sleeper(engine)
    used = []
    for _ in range(20):
        sleeper.sleep()
        used.append(commands(server, lambda: engine.put([Draft("t", b"x")])))
        ack(engine, sleeper.leases())
    assert used[0] != DIRECT
    # Not all the others: a lane is forgotten after a second.
    assert DIRECT in used[1:], used


def test_a_second_sleeper_learns_the_next_event(opened: Opened, server: Server) -> None:
    """The first one may be busy when the lease of its message ends."""
    engine = opened(server.url)
    sleepers = [Sleeper(engine) for _ in range(2)]
    engine.policy_set("code", "t", {"lease": 1})
    for _ in range(3):
        engine.put([Draft("t", b"x")])
        found = None
        while not isinstance(found, Batch):
            found = next(filter(None, (each.listener.poll(0.05, ROOM) for each in sleepers)), None)
        ack(engine, found.leases)
        while (
            engine.overview().waiting + engine.overview().leased
        ):  # on a busy machine it came late
            ack(engine, engine.lease(ROOM).leases)
        for sleeper in sleepers:
            sleeper.sleep()
    engine.put([Draft("t", b"lost")])
    answers: list[list[Batch | bool]] = [[], []]

    def both_were_notified() -> bool:
        for sleeper, its in zip(sleepers, answers, strict=True):
            its.append(sleeper.listener.poll(0.1, ROOM))
        return all(map(any, answers))

    until(both_were_notified, "the end of the lease", 60)
    assert sum(isinstance(each, Batch) for its in answers for each in its) == 1
    until(lambda: engine.lease(1).leases, "the message again")


def test_it_needs_nothing_else_to_lease(opened: Opened, server: Server) -> None:
    """What waited before goes first."""
    engine = opened(server.url)
    sleeper = sleeper_that_knows(engine, "t")
    notified = Sleeper(engine)
    engine.put([Draft("other", b"%d" % n) for n in range(20)])  # too many to lease them at once
    assert notified.listener.poll(20.0, ROOM) is True
    engine.put([Draft("t", b"new")])
    bodies = [lease.body for lease in sleeper.leases()]
    assert bodies[:3] == [b"0", b"1", b"new"]
    assert len(bodies) == ROOM


@pytest.mark.parametrize("own", [True, False], ids=["own", "pattern"])
@pytest.mark.parametrize("fields", [{"paused": True}, {"pool": "another"}, {"concurrency": 1}])
def test_a_change_of_policies_holds_at_once(
    opened: Opened, server: Server, fields: dict[str, Any], *, own: bool
) -> None:
    engine = opened(server.url)
    sleeper = sleeper_that_knows(engine, "a.t")
    engine.policy_set("code", "a.t" if own else "a.*", fields)
    engine.put([Draft("a.t", b"1")])
    if fields == {"concurrency": 1}:
        (lease,) = sleeper.leases()
        sleeper.sleep()
        engine.put([Draft("a.t", b"2")])
        assert sleeper.listener.poll(0.1, ROOM) is False
        ack(engine, [lease])
    assert not isinstance(sleeper.listener.poll(0.1, ROOM), Batch)


def test_nothing_is_leased_to_a_sleeper_that_is_gone(opened: Opened, server: Server) -> None:
    engine = opened(server.url)
    sleeper = sleeper_that_knows(engine, "t")
    before = int(server.info("pubsub_clients"))
    sleeper.listener.close()
    until(lambda: int(server.info("pubsub_clients")) < before, "the server to see it gone")
    engine.put([Draft("t", b"x")])
    assert len(engine.lease(10).leases) == 1

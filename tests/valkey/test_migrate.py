"""
A namespace moves from one engine to another and back: nothing is lost or doubled, and a move that
broke off goes on.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import cast

import msgspec
import pytest

from laneway import Delivery, Laneway, Message
from laneway.cli.migrate import copy_rows, move
from laneway.engines.base import ExportedMessage, FullEngine, ImportAnswer, MessageView
from laneway.engines.valkey.migrating import MigratingShards
from laneway.history.records import Row, encode
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.testing.servers import until
from tests.conformance import postgres_setups
from tests.conformance.valkey_setups import cluster, server

Opened = Callable[..., FullEngine]
URLS: dict[str, Callable[[], str]] = {
    "server": lambda: server().url,
    "cluster": cluster,
    "files": lambda: "sqlite:///{folder}/{name}?shards=4",
    "sqlite": lambda: "sqlite:///{folder}/{name}.db",
    "postgres": lambda: postgres_setups.server().url,
    "schemas": lambda: f"{postgres_setups.server().url}?shards=4",
}
SERVERS = ["server", "cluster", "files", "postgres", "schemas"]


def url_of(kind: str, folder: Path, name: str) -> str:
    return URLS[kind]().format(folder=folder, name=name)


CHANGES = ("seq", "state", "fence", "deadline_us")


def quiet(_: str) -> None:
    pass


def fill(engine: FullEngine) -> None:
    """Some of everything."""
    engine.gate_set("g", Gate(rate=50.0, burst=3, concurrency=2))
    engine.gate_set("g", Gate(concurrency=5), layer="operator")
    engine.policy_set("code", "a.*", {"rate": 5, "gate": "g"})
    engine.policy_set("operator", "a.1", {"paused": True})
    engine.policy_set("code", "merging", {"merge": "all"})
    engine.policy_set("code", "serial", {"serial": True})
    engine.policy_set("code", "bucket.*", {"buckets": 2})
    engine.policy_set("code", "known", {"dedupe": "forever"})
    engine.policy_set("code", "tired", {"retries": 0})
    engine.put([Draft("known", b"k", id="once")])
    engine.settle([Settlement(lease.handle, lease.fence) for lease in engine.lease(10).leases])
    engine.put([Draft("tired", b"x", headers={"a": "b"})])
    engine.settle(
        [
            Settlement(lease.handle, lease.fence, "retry", error="boom")
            for lease in engine.lease(10).leases
        ]
    )
    engine.put([Draft("again", b"y", key="k")])
    engine.settle(
        [
            Settlement(lease.handle, lease.fence, "retry", delay_us=0, reason="once")
            for lease in engine.lease(10).leases
        ]
    )
    engine.put([Draft("merging", b"%d" % n, key="m", id=f"m{n}") for n in range(3)])
    engine.put([Draft("serial", b"%d" % n, key="s", priority=n % 2) for n in range(4)])
    engine.put([Draft(f"bucket.{n}", b"b", at_front=n == 1) for n in range(4)])
    engine.put([Draft("a.1", b"%d" % n, ttl_us=3_600_000_000, sticky=n == 0) for n in range(30)])
    engine.put([Draft("later", b"\xff\x00", delay_us=3_600_000_000, headers={"n": "1"})])


def everything(engine: FullEngine) -> list[dict[str, object]]:
    """
    All messages, without what a move changes: numbers, and who is the first of a serial key for the
    moment.
    """
    found = [
        msgspec.convert(view, MessageView) if isinstance(view, dict) else view
        for view in engine.snapshot()["messages"]
    ]
    caught = [
        {name: value for name, value in msgspec.structs.asdict(view).items() if name not in CHANGES}
        for view in found
    ]
    return sorted(caught, key=lambda each: (str(each["topic"]), str(each["id"])))


@pytest.mark.parametrize("where", SERVERS)
def test_there_and_back(opened: Opened, tmp_path: Path, where: str) -> None:
    first, last = (
        opened(f"sqlite:///{tmp_path}/a.db", namespace="default"),
        opened(f"sqlite:///{tmp_path}/b.db", namespace="default"),
    )
    between = opened(url_of(where, tmp_path, "q"))
    fill(first)
    before, order = everything(first), [view.id for view in first.topic_peek("a.1", limit=30)]
    for old, new in ((first, between), (between, last)):
        counts = move(old, new, quiet, wait=True)
        assert counts["messages"] == len(before) - 1
        assert counts["dead letters"] == 1
        assert everything(new) == before
        assert old.overview().waiting == old.overview().dead == 0
        assert new.policies().rows() == first.policies().rows()
        assert new.gate_layers() == first.gate_layers()
        assert [view.id for view in new.topic_peek("a.1", limit=30)] == order, "in their order"
        assert (
            new.put([Draft("known", b"k", id="once"), Draft("merging", b"9", key="m", id="m1")])[
                0
            ].outcome
            == "duplicate"
        )
        assert [check for engine in (old, new) for check in engine.doctor() if not check.ok] == []
    assert last.lookup("merging", ["m1"])["m1"] == "waiting"


class Killed(Exception):
    pass


class Dying:
    """
    An engine that takes in so many pages, and then its program is killed: before the next has
    arrived, or before anybody knows that it did.
    """

    def __init__(self, engine: FullEngine, pages: int, *, arrives: bool) -> None:
        self._engine, self._left, self._arrives = engine, pages, arrives

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def import_(self, exported_messages: list[ExportedMessage]) -> list[ImportAnswer]:
        self._left -= 1
        dies = self._left < 0
        if dies and not self._arrives:
            raise Killed
        answers = self._engine.import_(exported_messages)
        if dies:
            raise Killed
        return answers


@pytest.mark.parametrize(
    "arrives", [False, True], ids=["before it arrived", "before the source knew"]
)
@pytest.mark.parametrize(
    ("source", "target"),
    [
        *product(("sqlite", "server", "files"), repeat=2),
        *(("postgres", "server"), ("sqlite", "schemas")),
    ],
)
def test_a_move_that_broke_off_goes_on(
    opened: Opened,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    *,
    arrives: bool,
) -> None:
    monkeypatch.setattr("laneway.cli.migrate.PAGE", 7)
    old, new = opened(url_of(source, tmp_path, "old")), opened(url_of(target, tmp_path, "new"))
    fill(old)
    before = everything(old)
    for pages in (0, 2, 3):
        with pytest.raises(Killed):
            move(old, cast("FullEngine", Dying(new, pages, arrives=arrives)), quiet, wait=True)
    move(old, new, quiet, wait=True)
    assert everything(new) == before


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("sqlite", "postgres"), ("postgres", "server")),
        *(("server", "schemas"), ("schemas", "sqlite")),
    ],
)
def test_a_move_while_both_are_in_use(
    opened: Opened, tmp_path: Path, source: str, target: str
) -> None:
    """One program publishes to the old store, and workers run on both: each message ends once."""
    old, new = opened(url_of(source, tmp_path, "old")), opened(url_of(target, tmp_path, "new"))
    names = [f"m{n}" for n in range(60)]
    acked: Counter[str] = Counter()
    is_done = threading.Event()

    def publish() -> None:
        for n, name in enumerate(names):
            old.put([Draft(f"t.{n % 7}", b"x", id=name, delay_us=50_000 if n % 5 == 0 else 0)])

    def work(engine: FullEngine) -> None:
        while not is_done.is_set():
            engine.wait(0.02)
            leases = engine.lease(3).leases
            answers = engine.settle([Settlement(each.handle, each.fence) for each in leases])
            for lease, answer in zip(leases, answers, strict=True):
                acked[lease.id] += answer == "acked"

    with ThreadPoolExecutor() as pool:
        publishes = pool.submit(publish)
        works = [pool.submit(work, engine) for engine in (old, new)]
        try:
            while not publishes.done():
                move(old, new, quiet, wait=False)
            publishes.result()
            move(old, new, quiet, wait=True)
            until(lambda: not new.overview().waiting + new.overview().leased, "all is done")
        finally:
            is_done.set()
        for each in works:
            each.result()
    assert acked == Counter(names)
    assert [check for engine in (old, new) for check in engine.doctor() if not check.ok] == []


def test_a_page_does_not_read_the_lanes_that_were_emptied(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a move of many topics takes the longer for each page the more it has moved."""
    monkeypatch.setattr("laneway.cli.migrate.PAGE", 10)
    calls = 0
    plain = MigratingShards.export

    def counted(
        self: MigratingShards, shard: int, lane: str | None, limit: int
    ) -> list[ExportedMessage]:
        nonlocal calls
        calls += 1
        return plain(self, shard, lane, limit)

    monkeypatch.setattr(MigratingShards, "export", counted)
    old, new = opened(server().url), opened(f"sqlite:///{tmp_path}/a.db")
    old.put([Draft(f"t.{n}", b"1") for n in range(300)])
    assert move(old, new, quiet, wait=True)["messages"] == 300
    assert calls < 300 * 4
    old.put([Draft(f"t.{n}", b"2") for n in range(0, 300, 7)])
    assert move(old, new, quiet, wait=True)["messages"] == 43, "also behind the last page's lane"


@pytest.mark.parametrize(("source", "target"), [("sqlite", "server"), ("postgres", "sqlite")])
def test_what_a_worker_holds_stays_until_it_ends(
    opened: Opened, tmp_path: Path, source: str, target: str
) -> None:
    old, new = opened(url_of(source, tmp_path, "old")), opened(url_of(target, tmp_path, "new"))
    old.put([Draft("t", b"1"), Draft("t", b"2")])
    (held,) = old.lease(1).leases
    assert move(old, new, quiet, wait=False)["still leased"] == 1
    old.settle([Settlement(held.handle, held.fence, "release")])
    assert move(old, new, quiet, wait=True) == {
        "gates": 0,
        "policies": 0,
        "elections": 0,
        "rows of history": 0,
        "tokens": 0,
        "endpoints": 0,
        "attempts in the delivery log": 0,
        "finished ids": 0,
        "spools": 0,
        "messages": 1,
        "dead letters": 0,
        "still leased": 0,
    }
    assert sorted(lease.body for lease in new.lease(10).leases) == [b"1", b"2"]


@pytest.mark.parametrize("where", ["server", "cluster", "files", "postgres"])
def test_messages_behind_their_keys_move(opened: Opened, tmp_path: Path, where: str) -> None:
    """The limits of keys hold there as well, for what waits in the order of each key."""
    old = opened(f"sqlite:///{tmp_path}/a.db", namespace="default")
    new = opened(url_of(where, tmp_path, "q"))
    old.policy_set("code", "slow", {"key_rate": 0.001})
    old.policy_set("code", "narrow", {"key_concurrency": 1})
    for topic in ("slow", "narrow"):
        old.put([Draft(topic, b"%d" % n, key=f"k{n % 2}") for n in range(6)])
    leases = old.lease(20).leases
    assert len(leases) == 4
    old.settle([Settlement(lease.handle, lease.fence) for lease in leases if lease.topic == "slow"])
    assert old.topic_stats("slow").parked == old.topic_stats("narrow").parked == 4
    assert move(old, new, quiet, wait=False)["still leased"] == 2
    old.settle(
        [
            Settlement(lease.handle, lease.fence, "release")
            for lease in leases
            if lease.topic == "narrow"
        ]
    )
    assert move(old, new, quiet, wait=True)["messages"] == 2
    found = {lease.body: lease for lease in new.lease(20, topics=["narrow"]).leases}
    assert new.topic_stats("narrow").parked == 4
    new.settle([Settlement(lease.handle, lease.fence) for lease in found.values()])
    assert len(new.lease(20, topics=["narrow"]).leases) == 2
    first = new.lease(20, topics=["slow"]).leases
    assert sorted(lease.body for lease in first) == [b"2", b"3"]
    assert new.topic_stats("slow").parked == 2
    assert [check for engine in (old, new) for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("where", SERVERS)
def test_a_serial_key_stays_held(opened: Opened, tmp_path: Path, where: str) -> None:
    """A message that waits for its retry is not overtaken by the next one of its key."""
    first, last = (opened(url_of("sqlite", tmp_path, name)) for name in ("old", "new"))
    first.policy_set("code", "*", {"serial": "hold"})
    first.policy_set("code", "bucket.*", {"buckets": 2})
    for topic in ("t", "bucket.1"):
        first.put([Draft(topic, b"x", key="k", id=f"m{n}", priority=n) for n in range(4)])
    leases = first.lease(4).leases
    assert sorted((each.topic, each.id) for each in leases) == [("bucket.1", "m3"), ("t", "m3")]
    delays = [0, 3_600_000_000]
    first.settle(
        [
            Settlement(lease.handle, lease.fence, "retry", delay_us=delay)
            for lease, delay in zip(leases, delays, strict=True)
        ]
    )
    states = {"m0": "parked", "m1": "parked", "m2": "parked"}
    between = opened(url_of(where, tmp_path, "q"))
    for old, new in ((first, between), (between, last)):
        move(old, new, quiet, wait=True)
        for each, state in zip(leases, ("ready", "delayed"), strict=True):
            found = {view.id: view.state for view in new.topic_peek(each.topic)}
            assert found == states | {"m3": state}
        new.put([Draft(each.topic, b"x", key="k", id="first", priority=9) for each in leases])
        (lease,) = new.lease(4).leases
        assert (lease.topic, lease.id) == (leases[0].topic, "m3")
        new.settle([Settlement(lease.handle, lease.fence, "release")])
        for each in leases:
            assert new.cancel("first", each.topic) == "cancelled"
        assert [check for check in new.doctor() if not check.ok] == []


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("where", SERVERS)
def test_a_held_key_is_taken_over(
    opened: Opened, tmp_path: Path, where: str, *, is_known: bool
) -> None:
    """What the new store has of the key comes after it, except if a worker holds that already."""
    old, new = opened(url_of("sqlite", tmp_path, "old")), opened(url_of(where, tmp_path, "new"))
    old.policy_set("code", "t", {"serial": "hold"})
    old.put([Draft("t", b"x", key="k", id="m0")])
    (lease,) = old.lease(1).leases
    old.put([Draft("t", b"x", key="k", id=f"m{n}", priority=n) for n in range(1, 4)])
    move(old, new, quiet, wait=False)
    (taken,) = new.lease(1).leases if is_known else (None,)
    old.settle([Settlement(lease.handle, lease.fence, "release")])
    move(old, new, quiet, wait=True)
    order = ["m0", "m3", "m2", "m1"]
    if taken is not None:
        assert new.lease(1).leases == []
        new.settle([Settlement(taken.handle, taken.fence)])
        order = ["m2", "m1", "m0"]
    for expected in order:
        assert [check for check in new.doctor() if not check.ok] == []
        (lease,) = new.lease(2).leases
        assert lease.id == expected
        new.settle([Settlement(lease.handle, lease.fence)])
    assert not new.overview().waiting


@pytest.mark.parametrize("where", SERVERS)
def test_the_latest_at_the_front_stays_there(opened: Opened, tmp_path: Path, where: str) -> None:
    first, between, last = (
        opened(url_of(kind, tmp_path, name))
        for kind, name in (("sqlite", "a"), (where, "b"), ("sqlite", "c"))
    )
    for n in range(4):
        first.put([Draft("t", b"x", id=f"m{n}", at_front=n != 1)])
    for old, new in ((first, between), (between, last)):
        move(old, new, quiet, wait=True)
        assert [view.id for view in new.topic_peek("t")] == ["m3", "m2", "m0", "m1"]


@pytest.mark.parametrize("where", SERVERS)
def test_more_than_a_page_keeps_its_order(opened: Opened, tmp_path: Path, where: str) -> None:
    """At the front the last one is first; one call's messages have the same time."""
    old = opened(url_of(where, tmp_path, "old"), namespace=f"many-{secrets.token_hex(4)}")
    new = opened(f"sqlite:///{tmp_path}/new.db", namespace="default")
    for start in range(0, 1200, 400):
        batch = range(start, start + 400)
        old.put([Draft("front", b"%d" % n, at_front=True, priority=n % 2) for n in batch])
        hour = 3_600_000_000
        old.put([Draft("mixed", b"%d" % n, ttl_us=None if n % 3 else hour) for n in batch])
    move(old, new, quiet, wait=True)
    found: dict[str, list[int]] = {"front": [], "mixed": []}
    while leases := new.lease(500).leases:
        for lease in leases:
            found[lease.topic].append(int(lease.body))
    assert found == {
        "front": [*range(1199, 0, -2), *range(1198, -1, -2)],
        "mixed": list(range(1200)),
    }


@pytest.mark.parametrize("where", ["server", "cluster", "files", "schemas"])
def test_subscriptions_of_patterns_move(opened: Opened, tmp_path: Path, where: str) -> None:
    """With their policies and what waits; the next consumer's fence is larger."""
    name = secrets.token_hex(6)
    url = url_of(where, tmp_path, "q")
    with (
        Laneway(f"sqlite:///{tmp_path}/a.db", namespace=name) as old,
        Laneway(url, namespace=name) as new,
    ):
        old.subscribe("orders.*", "audit", kind="failover")
        old.policy("orders.*#audit", retries=0)
        old.policy("*#audit", concurrency=3)
        old.publish_many(Message(f"orders.{n % 3}", n) for n in range(9))
        with old.subscriptions.consumer("orders.*", "audit"):
            pass
        with old.subscriptions.consumer("orders.*", "audit") as consumer:
            fence = consumer.fence
        move(old.engine, new.engine, quiet, wait=True)
        assert new.engine.policies().rows() == old.engine.policies().rows()
        policy = new.engine.policy_of("orders.1#audit")
        assert (policy.retries, policy.concurrency) == (0, 3)
        with new.subscriptions.consumer("orders.*", "audit") as consumer:
            assert consumer.fence > fence
            found: list[Delivery] = []
            while deliveries := consumer.lease(20, wait=2):
                found += deliveries
            assert sorted(each.body for each in found) == list(range(9))


@pytest.mark.parametrize(
    ("source", "target"), [("sqlite", "server"), ("server", "postgres"), ("schemas", "sqlite")]
)
def test_the_history_moves(opened: Opened, tmp_path: Path, source: str, target: str) -> None:
    """Rows of the old store are there; a second copy, and later rows of the new one, stay."""
    old, new = opened(url_of(source, tmp_path, "old")), opened(url_of(target, tmp_path, "new"))
    row = Row(at_us=0, begin_us=0, end_us=9, waiting=3, cells=[], waits=[])
    newer = msgspec.structs.replace(row, at_us=7_200_000_000)
    assert old.history_write("x", None, {"10:0": encode(row), "60:7": encode(row)})
    assert new.history_write("x", None, {"10:0": encode(newer)})
    assert copy_rows(old, new) == 1
    assert copy_rows(old, new) == 0
    assert new.history_read(["10:0", "60:7"]) == [encode(newer), encode(row)]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        *(("sqlite", "cluster"), ("cluster", "files")),
        *(("files", "postgres"), ("schemas", "sqlite")),
    ],
)
def test_a_spool_goes_on_with_the_other_store(
    opened: Opened, tmp_path: Path, source: str, target: str
) -> None:
    """A batch without an answer is repeated there: what the old store took is not stored again."""
    old, new = opened(url_of(source, tmp_path, "old")), opened(url_of(target, tmp_path, "new"))
    old.policy_set("code", "full", {"max_backlog": 1})
    batch = [Draft(f"t.{n}", b"%d" % n, id=f"m{n}", sticky=True) for n in range(8)]
    batch += [Draft("full", b"x", id=name, sticky=True) for name in ("x", "y")]
    taken = [each.outcome for each in old.forward(batch, spool="s", batch="1")]
    assert taken == ["accepted"] * 9 + ["refused"]
    old.forward([Draft("t.1", b"1", id="z", sticky=True)], spool="other", batch="1")
    while found := old.lease(20).leases:
        old.settle([Settlement(each.handle, each.fence) for each in found])
    assert move(old, new, quiet, wait=True)["spools"] == 2
    later = time.time_ns() // 1000 + 100 * 86_400_000_000
    new.tick(now_us=later)  # the ids themselves are forgotten
    assert new.lookup("t.1", ["m1"], now_us=later)["m1"] == "unknown"
    again = [each.outcome for each in new.forward(batch, spool="s", batch="1", now_us=later)]
    assert again == ["duplicate"] * 9 + ["accepted"]
    newer = [Draft("t.1", b"1", id="w", sticky=True)]
    new.forward(newer, spool="other", batch="2", now_us=later)
    assert move(old, new, quiet, wait=True)["spools"] == 2
    later += 100 * 86_400_000_000
    new.tick(now_us=later)
    repeated = new.forward(newer, spool="other", batch="2", now_us=later)
    assert [each.outcome for each in repeated] == ["duplicate"], "the newer batch stays"

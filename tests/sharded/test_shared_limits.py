"""
Limits that topics on several shards share: never exceeded, and reached also where all messages are
in one topic. On 4 files and on 4 shards of a server, under a clock that the tests move.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from bench import adaptive
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.sqlite.folder import FilesEngine
from laneway.errors import BadMessage
from laneway.headers import COST
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate, default_burst
from tests.conformance.valkey_setups import server
from tests.seeds import seed_for

STEP = 0.1
"""Seconds between two leases."""

NEVER = 1 << 30
"""A step that does not come."""

MANY = 64 if "LANEWAY_HISTORIES" in os.environ else 16
"""
Shards on which a narrow limit goes round: a lease asks each of them, so `make test` has fewer. The
grants of 64 shards are also tested without stores, in `test_grants`.
"""


class Shards:
    """A namespace on 4 shards, its clock, and what was delivered when."""

    def __init__(self, engine: FullEngine, draw: random.Random) -> None:
        self.engine, self.draw = engine, draw
        self.now = 2_000_000_000_000_000  # later than the servers' clocks
        self.steps = 0
        self.held: list[tuple[int, Lease]] = []
        self.delivered: list[tuple[int, Lease]] = []
        self.most_held = 0
        self.asked: list[str] = []
        """The gates that renewals asked about."""
        space = engine._space  # type: ignore[attr-defined]
        self._usages = space.gate_usages
        space.gate_usages = self._ask
        self.grants = engine._grants  # type: ignore[attr-defined]
        self.grants._random = draw

    def _ask(self, gates: Sequence[str]) -> object:
        self.asked += gates
        return self._usages(gates)

    def put(self, topics: list[str], each: int) -> None:
        self.engine.put(
            [Draft(topic, b"x") for topic in topics for _ in range(each)], now_us=self.now
        )

    def renew(self) -> None:
        self.grants._next[False] = self.grants._divided = 0.0
        self.grants.renew(self.now)

    def step(self, hold: int = 0) -> int:
        """Lease once, settle what is held for so many steps, and answer how many were leased."""
        leases = self.engine.lease(100, now_us=self.now).leases
        self.delivered += [(self.now, lease) for lease in leases]
        self.held += [(self.steps + self.draw.randint(0, hold), lease) for lease in leases]
        self.most_held = max(self.most_held, len(self.held))
        ended = [lease for until, lease in self.held if until <= self.steps]
        self.held = [each for each in self.held if each[0] > self.steps]
        self.engine.settle(
            [Settlement(lease.handle, lease.fence) for lease in ended], now_us=self.now
        )
        self.steps += 1
        self.now += round(STEP * 1_000_000)
        return len(leases)

    def drain(self, seconds: float, hold: int = 0) -> Counter[str]:
        """Lease from all shards for so long; answers how much each topic got."""
        before, end = len(self.delivered), self.now + round(seconds * 1_000_000)
        while self.now < end:
            while leases := self.engine.lease(100, now_us=self.now).leases:
                self.delivered += [(self.now, lease) for lease in leases]
                self.held += [
                    (self.steps + self.draw.randint(1, 1 + hold), each) for each in leases
                ]
                self.most_held = max(self.most_held, len(self.held))
            ended = [lease for until, lease in self.held if until <= self.steps]
            self.held = [each for each in self.held if each[0] > self.steps]
            self.engine.settle(
                [Settlement(lease.handle, lease.fence) for lease in ended], now_us=self.now
            )
            self.steps += 1
            self.now += 50_000
        return Counter(lease.topic for _, lease in self.delivered[before:])

    def steps_of(self, seconds: float, hold: int = 0) -> int:
        return sum(self.step(hold) for _ in range(round(seconds / STEP)))

    def most_above(self, rate: float, cost: int = 1) -> float:
        """By how much the deliveries of any time exceed its rate at most: the burst that it had."""
        most, debt, before = 0.0, 0.0, 0
        for at, _ in self.delivered:
            debt = max(0.0, debt - rate * (at - before) / 1_000_000) + cost
            most, before = max(most, debt), at
        return most


@pytest.fixture(params=["files", "valkey"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Shards]]:
    engines: list[FullEngine] = []
    seed = seed_for("LANEWAY_HISTORIES")
    print(f"LANEWAY_SEED={seed}")

    def open_(shards: int = 4) -> Shards:
        files = request.param == "files"
        place = f"sqlite:///{tmp_path}/q" if files else server().url
        url = f"{place}?shards={shards}"
        namespace = "q" if files else uuid.uuid4().hex
        engines.append(open_engine(url, Settings(namespace=namespace, durability="memory")))
        return Shards(engines[-1], random.Random(seed))

    yield open_
    for engine in engines:
        engine.close()


@pytest.mark.parametrize(("shards", "seconds"), [(4, 20), (MANY, 10)])
def test_a_narrow_rate_over_shards(
    opened: Callable[..., Shards], shards: int, seconds: int
) -> None:
    """A burst is divided in whole permits, and each shard has its turn."""
    opened_ = opened(shards)
    opened_.engine.gate_set("account", Gate(10.0), now_us=opened_.now)
    opened_.engine.policy_set("code", "t.*", {"gate": "account"}, now_us=opened_.now)
    topics = [f"t.{n}" for n in range(20)]
    opened_.put(topics, 20)
    counts = opened_.drain(seconds)
    assert opened_.most_above(10.0) <= 1.5 + 1e-6
    assert sum(counts.values()) >= 9 * seconds
    assert min(counts[topic] for topic in topics) >= 0.8 * (sum(counts.values()) // len(topics))


@pytest.mark.parametrize(("shards", "seconds"), [(4, 20), (MANY, 20)])
def test_few_slots_over_shards(opened: Callable[..., Shards], shards: int, seconds: int) -> None:
    """They go round: no topic waits for the luck of its shard."""
    opened_ = opened(shards)
    opened_.engine.gate_set("account", Gate(concurrency=2), now_us=opened_.now)
    opened_.engine.policy_set("code", "t.*", {"gate": "account"}, now_us=opened_.now)
    topics = [f"t.{n}" for n in range(20)]
    opened_.put(topics, 60)
    opened_.drain(seconds / 2, hold=2)
    counts = opened_.drain(seconds, hold=2)
    assert opened_.most_held == 2
    assert min(counts[topic] for topic in topics) >= 0.6 * sum(counts.values()) / len(topics)


TOPICS = [f"c.acme.{n}" for n in range(24)]


def test_a_groups_concurrency_over_shards(opened: Callable[..., Shards]) -> None:
    """With all topics busy, then one, then all again."""
    shards = opened()
    shards.engine.topic_group_set("acme", Gate(concurrency=9), now_us=shards.now)
    shards.engine.policy_set("code", "c.*", {"group": "{1}"}, now_us=shards.now)
    shards.put(TOPICS, 10)
    shards.steps_of(4, hold=5)
    shards.put(["c.acme.1"], 400)
    while {lease.topic for _, lease in shards.delivered[-30:]} != {"c.acme.1"}:
        assert shards.steps < 500
        shards.steps_of(1, hold=5)
    for _ in range(20):
        shards.step(hold=5)
    shards.most_held, before = 0, shards.most_held
    shards.steps_of(2, hold=5)
    assert shards.most_held == 9
    shards.put(TOPICS, 5)
    shards.steps_of(3, hold=5)
    assert max(before, shards.most_held) == 9


def test_a_groups_rate_over_shards(opened: Callable[..., Shards]) -> None:
    """One busy topic gets the whole rate; the topics together never more, also while it moves."""
    shards = opened()
    shards.engine.topic_group_set("acme", Gate(rate=20.0, burst=4), now_us=shards.now)
    shards.engine.policy_set("code", "c.*", {"group": "{1}"}, now_us=shards.now)
    shards.put(["c.acme.1"], 400)
    shards.steps_of(3)
    assert abs(shards.steps_of(5) - 100) <= 6
    shards.put(TOPICS, 40)
    shards.steps_of(12)
    assert shards.most_above(20.0) <= 4 + 1


def test_idle_groups_cost_a_renewal_nothing(opened: Callable[..., Shards]) -> None:
    """A renewal asks only about groups whose topics wait for them."""
    shards = opened()
    for n in range(12):
        shards.engine.topic_group_set(f"g{n}", Gate(concurrency=4), now_us=shards.now)
    shards.engine.policy_set("code", "c.*", {"group": "{1}"}, now_us=shards.now)
    shards.renew()
    shards.put(["c.g1.a"], 1)
    assert shards.step(hold=0) == 1
    shards.renew()
    assert shards.asked == []
    shards.put(["c.g2.a"], 9)
    assert len(shards.engine.lease(9, now_us=shards.now).leases) == 1
    shards.renew()
    assert set(shards.asked) == {"\x1dg2"}
    assert len(shards.engine.lease(9, now_us=shards.now).leases) == 3


KEYS = ["k5", "k1", "k4", "k0"]
"""One for each of four partitions, which are on four shards."""


def put_keys(shards: Shards, keys: list[str], each: int) -> None:
    drafts = [Draft("hot", b"x", key=key) for key in keys for _ in range(each)]
    shards.engine.put(drafts, now_us=shards.now)


def records_of(engine: FullEngine) -> list[str]:
    """What the shards store of the topic's gate."""
    space = engine._space  # type: ignore[attr-defined]
    found = space.waited_gates()
    if isinstance(engine, FilesEngine):
        for file in space.stores:
            with file.view() as tx:
                found |= {name for (name,) in tx.connection.execute("SELECT name FROM gate")}
    else:
        for shard in range(4):
            found |= {name.decode() for name, _ in space.scan(shard, "HSCAN", "gates")}
    return sorted(found)


def test_partitions_share_a_concurrency_over_shards(opened: Callable[..., Shards]) -> None:
    """One alone gets all of it; all together never more, also while they alternate."""
    shards = opened()
    policy = {"partitions": 4, "concurrency": 9}
    shards.engine.policy_set("code", "hot", policy, now_us=shards.now)
    put_keys(shards, KEYS[:1], 200)
    shards.steps_of(2.5, hold=5)
    assert shards.most_held == 9
    for turn in range(3):
        put_keys(shards, KEYS[turn:], 20)
        shards.steps_of(2, hold=5)
    assert shards.most_held == 9
    shards.engine.policy_set("code", "hot", {**policy, "concurrency": 5}, now_us=shards.now)
    shards.steps_of(2, hold=5)
    put_keys(shards, KEYS[1:2], 60)
    shards.most_held = 0
    shards.steps_of(4, hold=5)
    assert shards.most_held == 5
    shards.engine.topic_delete("hot", now_us=shards.now)
    shards.steps_of(4)
    assert records_of(shards.engine) == []


@pytest.mark.parametrize("kind", ["gate", "topic"])
def test_a_lower_concurrency_over_shards(opened: Callable[..., Shards], kind: str) -> None:
    """While one shard's old leases use up a lowered limit, the others lease nothing."""
    shards = opened()

    def limit(concurrency: int) -> None:
        if kind == "gate":
            shards.engine.gate_set("g", Gate(concurrency=concurrency), now_us=shards.now)
        shared = {"gate": "g"} if kind == "gate" else {"concurrency": concurrency}
        policy = {"partitions": 4, **shared}
        shards.engine.policy_set("code", "hot", policy, now_us=shards.now)

    def step(hold: int = 0) -> int:
        shards.grants.renew(shards.now)
        return shards.step(hold)

    limit(8)
    put_keys(shards, KEYS[:2], 60)
    for _ in range(20):
        step(NEVER)
    limit(2)
    step()
    shard = shards.held[0][1].handle % 4
    old = [lease for _, lease in shards.held if lease.handle % 4 == shard][:2]
    assert len(old) == 2
    shards.held = [(NEVER if lease in old else 0, lease) for _, lease in shards.held]
    for _ in range(15):
        step()
    assert sum(step() for _ in range(20)) == 0
    shards.held[0] = 0, shards.held[0][1]
    shards.most_held = 0
    assert sum(step() for _ in range(40)) >= 10
    assert shards.most_held == 2


def test_partitions_share_a_rate_over_shards(opened: Callable[..., Shards]) -> None:
    """One alone gets all of it; all together never more, also while they alternate."""
    shards = opened()
    policy = {"partitions": 4, "rate": 20.0, "burst": 8}
    shards.engine.policy_set("code", "hot", policy, now_us=shards.now)
    put_keys(shards, KEYS[:1], 250)
    shards.steps_of(3)
    assert abs(shards.steps_of(5) - 100) <= 4
    for turn in range(4):
        put_keys(shards, KEYS[turn : turn + 2], 60)
        shards.steps_of(2)
    assert shards.most_above(20.0) <= 8 + 1
    assert shards.steps_of(20) > 0
    shards.engine.topic_delete("hot", now_us=shards.now)
    shards.steps_of(4)
    assert records_of(shards.engine) == []
    assert all(check.ok for check in shards.engine.doctor())


def test_debts_move_with_the_grants_of_a_topic(opened: Callable[..., Shards]) -> None:
    """A cost above the burst counts while turns move, and while the topic is away for a moment."""
    shards = opened()
    policy = {"partitions": 4, "rate": 2.0}
    shards.engine.policy_set("code", "hot", policy, now_us=shards.now)
    delivered = 0
    for _ in range(8):
        drafts = [Draft("hot", b"x", key=key, headers={COST: "3"}) for key in KEYS]
        shards.engine.put(drafts * 2, now_us=shards.now)
        delivered += shards.steps_of(shards.draw.uniform(4, 6))
        shards.engine.topic_purge("hot", now_us=shards.now)
        shards.steps_of(0.5)
    assert delivered >= 16
    assert shards.most_above(2.0, cost=3) <= 3.01
    shards.steps_of(4)
    assert records_of(shards.engine) == []


def test_partitions_share_a_limit_that_adapts_over_shards(opened: Callable[..., Shards]) -> None:
    """It finds what the destination bears, wherever the messages are, also below one a shard."""
    shards = opened()
    engine, topic = shards.engine, adaptive.TOPIC
    policy = {"partitions": 4, "concurrency": "auto", "max_concurrency": 24, "retries": 1000}
    engine.policy_set("code", topic, policy, now_us=shards.now)
    simulation = adaptive.Simulation(engine, "refuses", 12, 1, KEYS)
    simulation.now = shards.now
    simulation.run(6)
    counts = simulation.run(10)
    print(counts)
    assert counts["done"] >= 0.8 * 12 * 10 / 0.2
    assert counts["refuses"] <= 0.1 * counts["done"]
    simulation.destination.capacity = 2
    simulation.run(6)
    counts = simulation.run(10)
    print(counts)
    assert counts["done"] >= 0.7 * 2 * 10 / 0.2
    assert counts["refuses"] <= 60
    engine.topic_purge(topic, now_us=simulation.now)
    simulation.keys, simulation.destination.capacity, simulation.waiting = KEYS[:1], 60, 0
    simulation.run(12)
    stats = engine.topic_stats(topic, now_us=simulation.now)
    assert (stats.limit, stats.leased) == (24, 24), "one partition gets all of it"
    last = engine.put([Draft(topic, b"x", key=KEYS[0])], now_us=simulation.now)[0].id
    (reason, _) = engine.explain(last, topic, now_us=simulation.now).reasons
    text = "24 messages of its topic are leased, and its concurrency is 24 now (auto, 1 to 24): r"
    assert text in reason
    engine.topic_delete(topic, now_us=simulation.now)
    shards.now = simulation.now + 15 * 60 * 1_000_000
    shards.steps_of(4)
    assert records_of(engine) == []


@pytest.mark.parametrize("is_moved", [False, True], ids=["parts", "grants"])
@pytest.mark.parametrize(("before", "after"), [(2, 8), (8, 2), (1, 8), (3, 5)])
def test_another_number_of_partitions(
    opened: Callable[..., Shards], before: int, after: int, *, is_moved: bool
) -> None:
    """The limits hold at once, although shards still have their parts of the partitions before."""
    shards = opened()

    def keyed(count: int) -> list[Draft]:
        return [Draft("a", b"x", key=f"k{n}") for n in range(count)]

    shards.engine.policy_set("code", "a", {"partitions": before, "concurrency": 8})
    shards.engine.put(keyed(60), now_us=shards.now)
    first = shards.engine.lease(4, now_us=shards.now).leases
    if is_moved:
        shards.renew()
    shards.engine.settle([Settlement(each.handle, each.fence) for each in first])
    while shards.engine.overview(now_us=shards.now).waiting:
        assert shards.step()
    shards.engine.policy_set("code", "a", {"partitions": after}, now_us=shards.now)
    shards.engine.put(keyed(200), now_us=shards.now)
    held = sum(len(shards.engine.lease(100, now_us=shards.now).leases) for _ in range(12))
    assert held <= 8


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"rate": 20}, {"rate": 3}),
        ({"rate": 3}, {"rate": 20}),
        ({"concurrency": 8}, {"concurrency": 8, "rate": 3}),
        ({"concurrency": 8, "rate": 3}, {"concurrency": 8}),
        ({"rate": 20}, {"concurrency": 2}),
        ({"concurrency": 2}, {"rate": 3}),
    ],
)
def test_other_limits_of_a_topic_with_partitions(
    opened: Callable[..., Shards], before: dict[str, float], after: dict[str, float]
) -> None:
    """
    The new limits are reached, and not exceeded, even if they have fewer places than there are
    shards.
    """
    shards = opened()
    for moment in range(3):
        topic = f"t.{moment}"
        shards.engine.policy_set("code", topic, {"partitions": 4, **before}, now_us=shards.now)
        shards.put([topic], 200)
        shards.renew()
        shards.steps_of(0.1 * moment + 1, hold=3)
        removed = dict.fromkeys(before.keys() - after.keys())
        shards.engine.policy_set("code", topic, {**removed, **after}, now_us=shards.now)
        began, held = shards.now, len(shards.held)
        shards.delivered.clear()
        shards.most_held = 0
        while shards.now < began + 8_000_000:
            shards.step(hold=3)
            shards.grants.renew(shards.now)
        if rate := after.get("rate"):
            assert shards.most_above(rate) <= default_burst(rate) + 1
            assert len(shards.delivered) >= 0.8 * min(rate * 8, 50)
        else:
            assert len(shards.delivered) >= 40
        if concurrency := after.get("concurrency"):
            assert shards.most_held <= max(concurrency, held)
        shards.engine.topic_purge(topic, now_us=shards.now)
        shards.held.clear()


def test_a_gate_is_reset_on_all_shards(opened: Callable[[], Shards]) -> None:
    """Costs shut the gate on each shard for hours; all of them open, and each cost has a bound."""
    shards = opened()
    engine, topics = shards.engine, [f"t.{n}" for n in range(40)]
    engine.gate_set("g", Gate(1.0, 40, max_cost=100_000), now_us=shards.now)
    engine.policy_set("code", "*", {"gate": "g"}, now_us=shards.now)
    for topic in topics:
        costly = Draft(topic, b"x", headers={COST: "100000"})
        engine.put([costly], now_us=shards.now)
        with pytest.raises(BadMessage, match='gate "g" allows 100,000'):
            engine.put([msgspec.structs.replace(costly, headers={COST: "100001"})])
    assert shards.steps_of(2) == 4
    assert shards.steps_of(60) == 0
    assert engine.gate_reset("g", now_us=shards.now)
    assert not engine.gate_reset("unknown", now_us=shards.now)
    assert shards.steps_of(2) == 4


def test_grants_move_while_the_clock_of_a_store_stands_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine's clock was set back by an hour: a claim of the renewal ends all the same."""
    now = time.time_ns()
    machine = SimpleNamespace(time_ns=lambda: now)
    monkeypatch.setattr("laneway.engines.sql.shard_namespace.time", machine)
    engine = open_engine(f"sqlite:///{tmp_path}/q?shards=2", Settings())
    hour_ahead = now // 1000 + 3600 * 1_000_000
    topics = [f"a.{n}" for n in range(20)]  # on both files
    engine.put([Draft(topic, b"x") for topic in topics], now_us=hour_ahead)
    space = engine._space  # type: ignore[attr-defined]
    assert space.claim_grants(0.2)
    assert not space.claim_grants(0.2)
    now += 199_000_000
    assert not space.claim_grants(0.2)
    now += 1_000_000
    assert space.claim_grants(0.2)
    engine.close()

"""
Random histories under a clock that is moved by hand, against what must hold in each of them.

A small oracle beside the engine keeps books by itself: which messages were accepted, who holds what, which leases are over. After every
step it compares: nothing is lost or doubled, one live lease a message, limits hold, the store's parts agree. At the end everything drains.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.errors import Refused, UsageError
from fairlead.message import Draft, Lease, Settlement
from fairlead.policy import Gate, Tier
from fairlead.units import SECOND

START = 1_800_000_000 * SECOND
GATE_CONCURRENCY = 3
LONG = "FAIRLEAD_HISTORIES" in os.environ
EXAMPLES = int(os.environ.get("FAIRLEAD_HISTORIES", "40"))
"""How many histories: always the same forty, or so many random ones in a long run."""

PHASES = list(Phase) if LONG else [Phase.generate]
"""A short run tells what failed at once; a long one makes the history short first."""

TOPICS = [f"{family}.{n}" for family in "abcde" for n in (1, 2)]
PATTERNS = [f"{family}.*" for family in "abcde"] + ["a.1", "b.1", "*"]

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "rate": st.sampled_from([None, 5, 100]),
    "concurrency": st.sampled_from([None, 4, 8]),
    "weight": st.sampled_from([None, 0.5, 7]),
    "tier": st.sampled_from([None, "high", "mid", "low", "vip"]),
    "pool": st.sampled_from([None, "other"]),
    "lease": st.sampled_from([None, 1, 5]),
    "retries": st.sampled_from([None, 0, 2]),
    "backoff": st.sampled_from([None, 0.5]),
    "ttl": st.sampled_from([None, 2, 20]),
    "on_expiry": st.sampled_from([None, "drop"]),
    "dead_ttl": st.sampled_from([None, 5]),
    "serial": st.sampled_from([None, "hold", "yield"]),
    "gate": st.sampled_from([None, "g"]),
    "merge": st.sampled_from([None, "first", "last", "all"]),
    "dedupe": st.sampled_from([None, 3, "forever"]),
    "max_backlog": st.sampled_from([None, 5, "200B"]),
    "on_full": st.sampled_from([None, "drop_oldest"]),
    "delivery": st.sampled_from([None, "at_most_once"]),
    "paused": st.sampled_from([None, True]),
}

drafts = st.builds(
    Draft,
    topic=st.sampled_from(TOPICS),
    body=st.binary(min_size=1, max_size=60),
    key=st.sampled_from([None, None, "k1", "k2"]),
    priority=st.sampled_from([0, 0, 5, -3]),
    delay_us=st.sampled_from([0, 0, 0, 400_000, 2_500_000]),
    id=st.one_of(st.none(), st.sampled_from([f"i{n}" for n in range(8)])),
    ttl_us=st.sampled_from([None, None, 5 * SECOND]),
    at_front=st.sampled_from([False, False, True]),
)
policies = st.lists(st.sampled_from(sorted(FIELDS)), max_size=4, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: FIELDS[name] for name in names})
)


class Histories(RuleBasedStateMachine):
    """An engine, and the oracle's books."""

    def __init__(self) -> None:
        super().__init__()
        tiers = {"high": Tier(6), "mid": Tier(3, fair_by="time"), "low": Tier(1), "vip": Tier("strict")}
        self.engine = open_engine("sqlite://", Settings(tiers=tiers, random=lambda: 0.5))
        self.now = START
        self.held: dict[int, Lease] = {}
        self.empty: set[int] = set()
        self.over: list[Lease] = []
        self.highest_fence = 0
        self.engine.gate_set("g", Gate(concurrency=GATE_CONCURRENCY), now_us=self.now)
        self.engine.policy_set("code", "d.*", {"partitions": 2}, now_us=self.now)
        self.engine.policy_set("code", "e.*", {"buckets": 2}, now_us=self.now)

    @initialize(first=policies)
    def begin(self, first: dict[str, Any]) -> None:
        self.policy("operator", "*", first)

    @rule(batch=st.lists(drafts, min_size=1, max_size=6))
    def put(self, batch: list[Draft]) -> None:
        before = self.engine.overview(now_us=self.now)
        try:
            receipts = self.engine.put(batch, now_us=self.now)
        except UsageError:
            receipts = []
        after = self.engine.overview(now_us=self.now)
        outcomes = Counter(receipt.outcome for receipt in receipts)
        assert after.published - before.published == outcomes["accepted"]
        assert after.merged - before.merged == outcomes["merged"]

    @rule(n=st.integers(1, 12), pool=st.sampled_from(["default", "default", "other"]), startable=st.sampled_from([None, 0, 2]))
    def lease(self, n: int, pool: str, startable: int | None) -> None:
        batch = self.engine.lease(n, pool=pool, startable=startable, record_start=True, now_us=self.now)
        assert len(batch.leases) <= n
        limited = sum(lease.limited for lease in batch.leases)
        assert startable is None or limited <= startable
        self._close_those_that_ran_out()
        alive = self._fences_with_a_message()
        for lease in batch.leases:
            assert lease.fence > self.highest_fence, "fences grow over everything"
            self.highest_fence = lease.fence
            assert all(lease.handle != other.handle for other in self.held.values()), "one live lease a message"
            assert lease.deadline_us > self.now
            self.held[lease.fence] = lease
            if lease.fence not in alive:
                self.empty.add(lease.fence)  # at most once: the message is gone, its lease is not

    def _fences_with_a_message(self) -> set[int]:
        return {message["fence"] for message in self.engine.snapshot(now_us=self.now)["messages"] if message["fence"] is not None}

    def _close_those_that_ran_out(self) -> None:
        alive = self._fences_with_a_message() | self.empty
        for fence in list(self.held):
            lease = self.held[fence]
            if lease.deadline_us <= self.now or fence not in alive:
                self.over.append(self.held.pop(fence))

    @precondition(lambda self: self.held)
    @rule(
        data=st.data(),
        action=st.sampled_from(["ack", "ack", "retry", "dead", "release", "rest", "unhandled"]),
        begun=st.booleans(),
        cost=st.sampled_from([0, 1_000, 2 * SECOND]),
    )
    def settle(self, data: st.DataObject, action: str, begun: bool, cost: int) -> None:
        lease = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        settlement = Settlement(lease.handle, lease.fence, action, cost_us=cost, begun=begun)
        (answer,) = self.engine.settle([settlement], now_us=self.now)
        assert answer in ("acked", "retried", "died", "released", "lost", "gone")
        self.over.append(lease)

    @precondition(lambda self: self.over)
    @rule(data=st.data())
    def settle_late(self, data: st.DataObject) -> None:
        """A stale fence changes nothing and says so."""
        lease = data.draw(st.sampled_from(self.over))
        before = self.engine.snapshot(now_us=self.now)
        answers = self.engine.settle([Settlement(lease.handle, lease.fence)], now_us=self.now)
        assert answers in (["lost"], ["gone"])
        assert self.engine.snapshot(now_us=self.now) == before

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.5, 3.0, 70.0]))
    def later(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)
        self.engine.tick(now_us=self.now)
        self._close_those_that_ran_out()

    @rule(layer=st.sampled_from(["code", "operator"]), pattern=st.sampled_from(PATTERNS), fields=policies)
    def policy(self, layer: str, pattern: str, fields: dict[str, Any]) -> None:
        try:
            self.engine.policy_set(layer, pattern, fields, now_us=self.now)  # type: ignore[arg-type]
        except (UsageError, Refused):
            pass

    @rule(topic=st.sampled_from(TOPICS), everything=st.booleans())
    def take_away(self, topic: str, everything: bool) -> None:
        if everything:
            self.engine.topic_delete(topic, now_us=self.now)
            for fence in [fence for fence, lease in self.held.items() if lease.topic == topic and fence in self.empty]:
                del self.held[fence]  # whether a bucket knows whose it was is its own affair
            self._close_those_that_ran_out()
        else:
            self.engine.topic_purge(topic, now_us=self.now)
            assert self.engine.topic_stats(topic, now_us=self.now).waiting == 0

    @rule(spacing=st.sampled_from([0, 100_000]))
    def redrive(self, spacing: int) -> None:
        dead = self.engine.overview(now_us=self.now).dead
        assert self.engine.dead_redrive(limit=3, spacing_us=spacing, now_us=self.now) == min(3, dead)

    @invariant()
    def the_books_agree(self) -> None:
        """Conservation: what was accepted is somewhere, and counted once."""
        assert [check for check in self.engine.doctor() if not check.ok] == []
        snapshot = self.engine.snapshot(now_us=self.now)
        states = Counter(message["state"] for message in snapshot["messages"])
        totals = snapshot["totals"]
        assert states["ready"] + states["delayed"] + states["parked"] == totals["waiting"]
        assert states["dead"] == totals["dead"]
        assert snapshot["gates"][0]["leased"] <= GATE_CONCURRENCY

    def teardown(self) -> None:
        """Let everything run: nothing is stuck, and nothing stays behind."""
        for pattern in PATTERNS:
            self.engine.policy_set("operator", pattern, {"paused": False}, now_us=self.now)
        for _ in range(3_000):
            self.now += 700_000
            for pool in ("default", "other"):
                leases = self.engine.lease(50, pool=pool, now_us=self.now).leases
                self.engine.settle([Settlement(lease.handle, lease.fence) for lease in leases], now_us=self.now)
            overview = self.engine.overview(now_us=self.now)
            if not overview.waiting and not overview.leased and not overview.topics:
                break
        else:
            raise AssertionError(f"something is stuck: {overview}")
        self.engine.close()


TestHistories = Histories.TestCase
Histories.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    derandomize=not LONG,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)

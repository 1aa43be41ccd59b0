"""
Random calls whose numbers are the lowest and the highest that are allowed: in policies, gates,
groups, tiers, messages and settlements, for many topics at once.

They hurt no other message: a plain message of a topic without policies is still delivered, each
view of the store answers, and the doctor finds nothing. `LANEWAY_SEED=…` repeats a run,
`LANEWAY_EXTREMES=500` makes more rounds.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.codec import MAX_PRIORITY, MIN_PRIORITY
from laneway.engines.base import RESULT_TTL_HEADER, SIGNALS_HEADER, FullEngine, Settings
from laneway.errors import BacklogFull, BadMessage, BadPolicy, TopicInUse
from laneway.headers import COST, MAX_COST, MAX_SIGNALS
from laneway.message import Action, Draft, Lease, Settlement
from laneway.policy import WEIGHTS, Gate, check_fields
from laneway.testing.engine_driver import START
from laneway.tiers import Tier
from laneway.units import LEAST_RATE, MAX_BYTES, MAX_MOMENT, MAX_SECONDS, SECOND
from tests.conformance.conftest import ENGINES, SHARDED
from tests.seeds import seed_for

SEED = seed_for("LANEWAY_EXTREMES")
ROUNDS = int(os.environ.get("LANEWAY_EXTREMES", "4"))
STEPS = 60
SETUPS: list[str] = [
    name
    for name in ("sqlite memory", "sqlite 4 files", "valkey", "redis")
    if name in ENGINES | SHARDED
]
if "LANEWAY_EXTREMES" in os.environ:
    SETUPS.append("postgres 4 schemas")  # the slowest

YEARS = MAX_SECONDS * SECOND
MILLION = 1_000_000
RATES = [LEAST_RATE, float(MILLION)]
TIMES = [1e-6, MAX_SECONDS]
TIERS = {
    "strict": Tier("strict"),
    "tiny": Tier(5e-324),
    "huge": Tier(MILLION),
    "time": Tier(MILLION, "time"),
    "tiny time": Tier(1e-300, "time"),
}
TOPICS = [f"{family}.{n}" for family in "abcd" for n in range(3)]
PATTERNS = ["a.*", "b.*", "c.*", "d.*", *TOPICS]
GATES = ["g", "h"]

FIELDS: dict[str, list[Any]] = {
    "rate": RATES,
    "concurrency": [1, MILLION],
    "weight": list(WEIGHTS),
    "tier": list(TIERS),
    "lease": TIMES,
    "time_limit": [*TIMES, "forever"],
    "retries": [0, MILLION],
    "backoff": [
        0,
        MAX_SECONDS,
        {"base": MAX_SECONDS, "factor": 1000.0, "cap": MAX_SECONDS},
        {"base": 5e-324, "factor": 1000.0, "cap": MAX_SECONDS, "jitter": False},
    ],
    "ttl": TIMES,
    "on_unhandled": TIMES,
    "dead_ttl": TIMES,
    "serial": ["hold", "yield"],
    "key_concurrency": [1, MILLION],
    "gate": ["g", GATES],
    "group": ["{0}", "all"],
    "dedupe": [*TIMES, "forever"],
    "max_cost": [1, MAX_COST],
    "max_backlog": [1, 1 << 60, f"{MAX_BYTES}B"],
    "partitions": [1, 5, 1024],
}
COMBINATIONS: list[dict[str, Any]] = [
    {"rate": LEAST_RATE, "burst": 1, "max_cost": MAX_COST},
    {"rate": LEAST_RATE, "burst": MILLION},
    {"rate": float(MILLION), "burst": MILLION},
    {"rate": LEAST_RATE, "partitions": 1024, "max_cost": MAX_COST},
    {"rate": LEAST_RATE, "gate": GATES, "max_cost": MAX_COST},
    {"key_rate": LEAST_RATE},
    {"key_rate": float(MILLION), "key_concurrency": MILLION},
    {"concurrency": "auto", "max_concurrency": MILLION},
    {"concurrency": "auto", "min_concurrency": MILLION, "max_concurrency": MILLION},
    {"merge": "last", "window": MAX_SECONDS, "debounce": True, "max_wait": MAX_SECONDS},
    {"merge": "all", "merge_limit": 2, "window": 1e-6, "edge": "leading"},
    {"max_backlog": 1, "on_full": "drop_oldest"},
    {"delivery": "at_most_once", "weight": WEIGHTS[0]},
]
HEADERS = [
    None,
    {COST: str(MAX_COST)},
    {COST: str(MAX_COST)},
    {RESULT_TTL_HEADER: f"0,{MAX_SECONDS}"},
    {SIGNALS_HEADER: str(MAX_SIGNALS)},
]
ACTIONS: list[Action] = ["ack", "retry", "dead", "release", "release", "back_off", "unhandled"]
REFUSALS = (BadPolicy, BadMessage, BacklogFull, TopicInUse)


class Extremes:
    """One round on an empty engine."""

    def __init__(self, engine: FullEngine, chance: random.Random, *, doctor: bool) -> None:
        self.engine = engine
        self.chance = chance
        self.pick = chance.choice
        self.doctor = doctor
        self.now = START
        self.held: list[Lease] = []
        self.delivered: set[tuple[str, str, int]] = set()
        self.others = 0

    def run(self) -> None:
        self.engine.tier_set("code", TIERS, now_us=self.now)
        self.limits()
        for _ in range(5):
            self.policy()
        steps: list[Callable[[], None]] = [
            *(self.publish, self.publish, self.lease, self.lease, self.settle, self.settle),
            *(self.policy, self.limits, self.redrive, self.extend, self.later),
        ]
        for step in range(STEPS):
            self.pick(steps)()
            if step % 12 == 11:
                self.look()

    def do(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call the engine, which may refuse what is asked."""
        try:
            return getattr(self.engine, operation)(*arguments, **options, now_us=self.now)
        except REFUSALS:
            return None

    def policy(self) -> None:
        names = self.chance.sample(sorted(FIELDS), self.pick([0, 1, 3]))
        fields = {name: self.pick(FIELDS[name]) for name in names} | self.pick(COMBINATIONS)
        if "key_rate" in fields:
            fields["serial"] = None
        pattern = self.pick(PATTERNS)
        self.do(
            "policy_set", self.pick(["code", "operator"]), pattern, check_fields(pattern, fields)
        )

    def limits(self) -> None:
        most, concurrency = self.pick([None, 1, MILLION]), self.pick([None, 1, MILLION])
        rate = self.pick([None, *RATES])
        gate = Gate(rate, most, concurrency, max_cost=self.pick([None, 1, MAX_COST, MAX_COST]))
        self.do("gate_set", self.pick(GATES), gate)
        weight = self.pick([None, *WEIGHTS])
        self.do("topic_group_set", self.pick("ab"), Gate(rate, None, concurrency, weight))

    def publish(self) -> None:
        for _ in range(self.pick([1, 5, 20])):
            draft = Draft(
                self.pick(TOPICS),
                b"x",
                key=self.pick([None, "k", "l"]),
                priority=self.pick([0, 0, MAX_PRIORITY, MIN_PRIORITY]),
                delay_us=self.pick([0, 0, 0, 1, YEARS]),
                at_us=self.pick([None] * 6 + [-MAX_MOMENT * SECOND, self.now + YEARS]),
                ttl_us=self.pick([None, None, None, 1, YEARS]),
                id=self.pick([None, None, "i"]),
                headers=self.pick(HEADERS),
                at_front=self.pick([False, True]),
            )
            self.do("put", [draft])

    def lease(self) -> None:
        self.held += self.leased(self.pick([1, 100]))

    def leased(self, n: int) -> list[Lease]:
        leases: list[Lease] = self.engine.lease(n, now_us=self.now).leases
        for lease in leases:
            delivery = (lease.topic, str(lease.handle), lease.fence)
            assert delivery not in self.delivered
            self.delivered.add(delivery)
        return leases

    def settle(self) -> None:
        self.chance.shuffle(self.held)
        some, self.held = self.held[:30], self.held[30:]
        ends = [
            Settlement(
                lease.handle,
                lease.fence,
                self.pick(ACTIONS),
                self.pick([None, None, 0, YEARS]),
                cost_us=self.pick([0, 1, YEARS]),
                begun=self.pick([True, False]),
                overload=self.pick([None, "timeout", "answer"]),
                id=lease.id,
                topic=lease.topic,
                outcome=self.pick([None, b"1"]),
                outcome_ttl_us=self.pick([1, YEARS]),
            )
            for lease in some
        ]
        self.do("settle", ends)

    def redrive(self) -> None:
        spacing = round(SECOND / LEAST_RATE)
        self.do("dead_redrive", first_us=self.pick([0, YEARS]), spacing_us=self.pick([0, spacing]))

    def extend(self) -> None:
        self.do("extend", [(each.handle, each.fence) for each in self.held], self.pick([1, YEARS]))

    def later(self) -> None:
        self.now += self.pick([1, 1_000, 60 * SECOND, 15 * 86_400 * SECOND])

    def look(self) -> None:
        """Another topic goes on, and the store can be seen."""
        engine, now = self.engine, self.now
        self.others += 1
        name = f"other {self.others}"
        (receipt,) = engine.put([Draft("other", b"x", id=name)], now_us=now)
        assert receipt.outcome == "accepted"
        engine.explain(name, "other", now_us=now)
        found: list[Lease] = []
        for _ in range(20):
            if found:
                break
            leases = self.leased(100)
            found += [lease for lease in leases if lease.topic == "other"]
            self.held += [lease for lease in leases if lease.topic != "other"]
        assert [lease.id for lease in found] == [name]
        ends = [Settlement(lease.handle, lease.fence) for lease in found]
        assert engine.settle(ends, now_us=now) == ["acked"]
        self.view()

    def view(self) -> None:
        engine, now, topic = self.engine, self.now, self.pick(TOPICS)
        engine.tick(now_us=now)
        engine.overview(now_us=now)
        engine.tallies(now_us=now)
        engine.gate_list()
        engine.topic_group_list()
        engine.topic_stats(topic, now_us=now)
        for order in ("name", "backlog", "age", "throttled", "in-rate"):
            engine.topic_list(order=order, limit=self.pick([1, (1 << 63) - 1]), now_us=now)
        for message in engine.topic_peek(topic, now_us=now):
            engine.explain(message.id, topic, now_us=now)
        engine.delayed_counts(topic, [now, now + YEARS], now_us=now)
        engine.dead_list(limit=3)
        if self.doctor:
            assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("name", SETUPS)
def test_extreme_numbers_hurt_no_other_message(name: str, tmp_path: Path) -> None:
    print(f"repeat with LANEWAY_SEED={SEED} LANEWAY_EXTREMES={ROUNDS}")
    for n in range(ROUNDS):
        folder = tmp_path / str(n)
        folder.mkdir()
        engine = (ENGINES | SHARDED)[name](
            folder, Settings(random=lambda: 1.0, durability="memory")
        )
        try:
            chance = random.Random(f"{SEED} {n}")
            # The doctor reads all files of several shards, which may differ after a refusal.
            Extremes(engine, chance, doctor=name not in SHARDED).run()
        finally:
            engine.close()

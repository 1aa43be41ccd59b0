"""
Histories of subscriptions by pattern: engines and the model agree after every step.

Each `make test` has the same ones, so that it judges a change and not luck. `LANEWAY_HISTORIES=100`
runs as many random ones and prints their seeds, each of which `LANEWAY_SEED=…` repeats.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from laneway.message import Action, Draft, Settlement
from laneway.units import SECOND
from tests.seeds import seeds_of_histories
from tests.stateful.lockstep import Lockstep

HISTORIES = int(os.environ.get("LANEWAY_HISTORIES") or 0)
FIXED = 2_166_899_475
STEPS = 150

ENGINES = ["sqlite file", "sqlite folder", "valkey", "valkey, cluster"]
ENGINES += ["postgres"] if HISTORIES else []  # it has the rules of the first ones

TOPICS = ["a", "a.1", "a.2", "a.b.1", "c.1"]
NAMES = ["s", "t"]
COPIES = [f"{topic}#{name}" for topic in TOPICS for name in NAMES]
PLAIN = ["*", "a.*", "a.b.*", "c.*"]
OF_COPIES = [f"{pattern}#{name}" for pattern in PLAIN for name in NAMES]
ACTIONS: list[Action] = ["ack", "ack", "retry", "release"]
LAYERS = ["code", "operator", "program:p"]
POOLS = ["default", "other", *OF_COPIES]
DECLARED: list[dict[str, Any] | None] = [
    *(None, {}, {}),
    *({"kind": "failover"}, {"kind": "exclusive"}),
    {"where": {"x": "y"}, "kind": "failover"},
]
FIELDS: dict[str, list[Any]] = {
    "rate": [2, 5, None],
    "concurrency": [1, 2, None],
    "retries": [0, 1, None],
    "pool": ["other", "default", None],
    "tier": ["high", "low", None],
    "paused": [True, None, None],
    "max_backlog": [3, None],
    "on_full": ["drop_oldest", None],
    "ttl": [2, None],
}


def fields(chance: random.Random, name: str) -> dict[str, Any]:
    """What is set for a pattern or topic."""
    found = {
        field: chance.choice(FIELDS[field])
        for field in chance.sample(sorted(FIELDS), chance.randint(0, 3))
    }
    if "#" not in name and chance.random() < 0.6:
        found[f"subscription:{chance.choice(NAMES)}"] = chance.choice(DECLARED)
    return found


def step(lockstep: Lockstep, chance: random.Random) -> None:
    def do(operation: str, *arguments: Any, **options: Any) -> tuple[Any, Any]:
        return lockstep.call(operation, arguments, now_us=lockstep.now, **options)

    lockstep.now += chance.choice([0, 0, 1, 20]) * SECOND // 10
    what = chance.random()
    if what < 0.2:
        name = chance.choice([*PLAIN, *OF_COPIES, "a.1", "a.1#s", "c.1#t"])
        do("policy_set", chance.choice(LAYERS), name, fields(chance, name))
    elif what < 0.25:
        do("policy_reset", chance.choice(LAYERS), chance.choice([*PLAIN, *OF_COPIES]))
    elif what < 0.6:
        headers = chance.choice([None, {"x": "y"}])
        do("put", [Draft(chance.choice(TOPICS), b"1", headers=headers) for _ in range(3)])
    else:
        topics = chance.sample(COPIES, 3) if chance.random() < 0.2 else None
        pool = chance.choice(POOLS)
        found = do("lease", chance.choice([1, 3, 20]), pool=pool, topics=topics)
        action = chance.choice(ACTIONS)
        settlements = [
            [Settlement(lease.handle, lease.fence, action) for lease in side.leases]
            for side in found
        ]
        lockstep.call("settle", (settlements[0],), (settlements[1],), now_us=lockstep.now)
    topic = chance.choice([*TOPICS, *COPIES])
    do("topic_stats", topic)
    lockstep.compare(
        f"policy of {topic}", lockstep.engine.policy_of(topic), lockstep.model.policy_of(topic)
    )


@pytest.mark.timeout(0 if HISTORIES else 300)
@pytest.mark.parametrize("name", ENGINES)
def test_subscription_patterns_agree(name: str) -> None:
    for seed in seeds_of_histories([FIXED]):
        print(f"repeat with LANEWAY_SEED={seed}")
        chance = random.Random(seed)
        lockstep = Lockstep(name)
        try:
            for _ in range(STEPS):
                step(lockstep, chance)
                if chance.random() < 0.1:
                    lockstep.change_over()
        finally:
            lockstep.close()

"""
Histories of full backlogs: engines and the model drop and refuse the same messages.

Puts of many messages for few topics, with priorities, delays, merges and keys, so that later
messages of a put drop earlier ones, and others join what is about to be dropped. `make test` runs
fixed seeds. `LANEWAY_HISTORIES=100` runs as many random ones, and `LANEWAY_SEED=…` repeats one.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from laneway.engines.sql import backlog_limits
from laneway.message import Action, Draft, Settlement
from laneway.policy import Gate
from laneway.units import SECOND
from tests.seeds import seeds_of_histories
from tests.stateful.lockstep import Lockstep

HISTORIES = int(os.environ.get("LANEWAY_HISTORIES") or 0)
ENGINES = ["sqlite file", "valkey", "postgres"]
STEPS = 60
FIXED = [2_166_899_475, 1_862_816_520]

TOPICS = ["a.1", "a.2", "b.1"]
LIMITS: list[dict[str, Any]] = [
    *({"max_backlog": n} for n in (1, 2, 5, 12)),
    *({"max_backlog": f"{n}B"} for n in (30, 90, 300)),
]
RULES: list[dict[str, Any]] = [
    {},
    {},
    {"serial": "hold"},
    {"serial": "yield"},
    {"key_concurrency": 1},
    {"key_rate": 0.5},
    {"merge": "last"},
    {"merge": "last", "serial": "hold"},
    {"merge": "all", "merge_limit": 3},
    {"merge": "first", "window": 2, "edge": "leading"},
    {"merge": "last", "window": 1, "debounce": True},
    {"partitions": 3},
    {"buckets": 2},
    {"buckets": 2, "serial": "hold"},
    {"buckets": 2, "merge": "all"},
    {"gate": "g"},
    {"group": "{0}", "concurrency": 1},
    {"ttl": 2},
    {"subscription:s": {}, "own_backlog": False},
    {"subscription:s": {}},
]
ACTIONS: list[Action] = ["ack", "retry", "retry", "release", "dead"]


def policy(chance: random.Random) -> dict[str, Any]:
    drops = {"on_full": "drop_oldest"} if chance.random() < 0.8 else {}
    return chance.choice(LIMITS) | drops | chance.choice(RULES) | {"retries": 3, "backoff": 1}


def draft(chance: random.Random) -> Draft:
    return Draft(
        chance.choice(TOPICS),
        b"x" * chance.choice([1, 1, 10, 40]),
        key=chance.choice([None, "k", "k", "l"]),
        id=chance.choice([None, None, "1", "2"]),
        priority=chance.choice([0, 0, 0, 1, 5]),
        delay_us=chance.choice([0, 0, 0, SECOND]),
        at_front=chance.random() < 0.1,
        ttl_us=chance.choice([None, None, None, SECOND]),
    )


def step(lockstep: Lockstep, chance: random.Random) -> None:
    lockstep.now += chance.choice([0, 0, 1, 15]) * SECOND // 10
    what = chance.random()
    if what < 0.1:
        topic, fields = chance.choice(["a.*", "b.*", "a.1"]), policy(chance)
        lockstep.call("policy_set", ("code", topic, fields), now_us=lockstep.now)
    elif what < 0.6:
        drafts = [draft(chance) for _ in range(chance.choice([1, 4, 30]))]
        lockstep.call("put", (drafts,), now_us=lockstep.now)
    else:
        found = lockstep.call("lease", (chance.choice([1, 3]),), now_us=lockstep.now)
        action = chance.choice(ACTIONS)
        ours, theirs = (
            [Settlement(lease.handle, lease.fence, action) for lease in side.leases]
            for side in found
        )
        if chance.random() < 0.8:
            lockstep.call("settle", (ours,), (theirs,), now_us=lockstep.now)
    lockstep.compare_everything()


@pytest.mark.timeout(0 if HISTORIES else 300)
@pytest.mark.parametrize("name", ENGINES)
def test_full_backlogs_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog_limits, "LARGE", 1)  # their buckets count all topics
    for seed in seeds_of_histories(FIXED):
        print(f"repeat with LANEWAY_SEED={seed}")
        chance = random.Random(seed)
        limits = {"max_backlog": 15, "on_full": chance.choice(["drop_oldest", "refuse"])}
        lockstep = Lockstep(name, **(limits if chance.random() < 0.3 else {}))
        lockstep.call("gate_set", ("g", Gate(concurrency=1)), now_us=lockstep.now)
        for topic in ("a.*", "b.*"):
            lockstep.call("policy_set", ("code", topic, policy(chance)), now_us=lockstep.now)
        try:
            for _ in range(STEPS):
                step(lockstep, chance)
                if chance.random() < 0.1:
                    lockstep.change_over()
        finally:
            lockstep.close()

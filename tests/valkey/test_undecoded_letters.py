"""Messages that die are buried without being decoded, if nothing about them is rare."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.shared.refusals import EXPIRED
from laneway.errors import BacklogFull
from laneway.headers import FLOW, RESULT_TTL
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate
from laneway.units import SECOND
from tests.seeds import FIXED
from tests.valkey.lockstep import in_lockstep
from tests.valkey.stored_keys import UNDIVIDED

Opened = Callable[..., FullEngine]

NOW = 1_700_000_000 * SECOND
POLICIES: dict[str, dict[str, Any]] = {
    "serial": {"serial": "hold", "gate": "g"},
    "yields": {"serial": "yield", "retries": 1},
    "keys": {"key_concurrency": 1, "dead_ttl": 60},
    "merged": {"merge": "all", "dedupe": 60, "retries": 1},
    "folded.*": {"buckets": 2, "dead_ttl": 90},
    "parts": {"partitions": 3},
    "auto": {"concurrency": "auto"},
    "full": {"max_backlog": 3, "on_full": "refuse"},
}
TOPICS = ("plain", "plain.2", *(name.replace("*", "a") for name in POLICIES if name != "full"))
HEADERS: tuple[dict[str, str], ...] = (
    *({} for _ in range(4)),
    {"h": "1"},
    {RESULT_TTL: "60"},
    {FLOW: "f"},
)


def draft_of(draw: random.Random, number: int) -> Draft:
    return Draft(
        draw.choice(TOPICS),
        b"%d" % number,
        id=f"id{number}",
        sticky=draw.random() < 0.1,
        key=f"k{draw.randrange(3)}" if draw.random() < 0.5 else None,
        priority=draw.choice((0, 0, 1, 1000)),
        ttl_us=draw.choice((None, 10_000 * SECOND)),
        delay_us=draw.choice((0, 0, 0, 1)),
        headers=dict(draw.choice(HEADERS)),
    )


def settlement_of(draw: random.Random, lease: Lease) -> Settlement:
    settlement = Settlement(lease.handle, lease.fence, cost_us=1_000)
    kind = draw.random()
    if kind < 0.7:
        settlement.action = "dead"
        settlement.reason = draw.choice((None, "refused", EXPIRED))
        settlement.error = draw.choice((None, "failed", "failed\nbadly"))
    elif kind < 0.9:
        settlement.action, settlement.delay_us = draw.choice(("retry", "unhandled")), 0
    if draw.random() < 0.1:
        settlement.id, settlement.outcome, settlement.outcome_ttl_us = lease.id, b"1", 60 * SECOND
    return settlement


def step(engine: FullEngine, draw: random.Random, number: int, now: int) -> list[Any]:
    """What the calls of one step answer."""
    engine.put([draft_of(draw, number + n) for n in range(20)], now_us=now)
    leases = engine.lease(draw.randint(1, 30), now_us=now + 1).leases
    seen: list[Any] = [(lease.topic, lease.body, lease.deliveries) for lease in leases]
    if leases:
        settlements = [settlement_of(draw, lease) for lease in leases]
        if draw.random() < 0.1:
            settlements.append(settlements[0])
        child = Draft(draw.choice(("plain", "full")), b"child")
        publish = {0: [child]} if draw.random() < 0.3 else None
        try:
            seen += engine.settle(settlements, publish=publish, now_us=now + 2)
        except BacklogFull:
            seen.append("refused")
            seen += engine.settle(settlements, now_us=now + 2)
    if draw.random() < 0.2:
        seen.append(engine.dead_redrive(limit=5, now_us=now + 3))
    if draw.random() < 0.1:
        seen.append(engine.dead_drop(limit=5, now_us=now + 3))
    return seen


@pytest.mark.parametrize("seed", range(FIXED, FIXED + 4))
def test_they_are_stored_like_those_that_are_decoded(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    decodes = UNDIVIDED.replace(b"if not stored or lane.is_bucket then", b"if true then")
    assert decodes != UNDIVIDED
    with in_lockstep(opened, monkeypatch, decodes, now_us=NOW) as both:
        for engine in both.engines:
            engine.gate_set("g", Gate(concurrency=3), now_us=NOW)
            for pattern, fields in POLICIES.items():
                engine.policy_set("code", pattern, fields, now_us=NOW)
        for n in range(30):
            now = NOW + n * 7 * SECOND
            one_answers, other_answers = (
                step(engine, random.Random(f"{seed} {n}"), 20 * n, now) for engine in both.engines
            )
            assert one_answers == other_answers
            both.check()

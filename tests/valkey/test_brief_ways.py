"""
What calls do in a brief way to messages that have nothing unusual (ids finished with plain acks,
serial keys freed together, new messages parked, whole sets deleted, headers that are known) is
stored like what the ordinary ways do.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate
from laneway.units import SECOND
from tests.seeds import FIXED
from tests.valkey.lockstep import in_lockstep
from tests.valkey.stored_keys import UNDIVIDED

Opened = Callable[..., FullEngine]

NOW = 1_700_000_000 * SECOND
ORDINARY = {
    b"elseif is_held and fence ==": b"elseif false and fence ==",
    b"if next(held) ~= nil then": b"if false then",
    b"local found = read_aside(counts)": b"local found = {}",
    b"if not is_behind(line, code) then": b"if true then",
    b"if are_all then\nwrites.clear(": b"if false then\nwrites.clear(",
    b"if is_last then\nwrites.clear(": b"if false then\nwrites.clear(",
    b"if are_all and #aside == #members then": b"if false then",
    b"if not headers_then then": b"if true then",
    b"if deliveries == nil then": b"if true then",
}
"""Each condition of a brief way, and what leaves all to the ordinary one."""

POLICIES: dict[str, dict[str, Any]] = {
    "serial.*": {"serial": "hold"},
    "yield.*": {"serial": "yield", "retries": 1, "gate": "g"},
    "known.*": {"dedupe": 60},
    "merged.*": {"serial": "hold", "merge": "last", "window": 3, "dedupe": 60, "ttl": 3600},
    "all.*": {"merge": "all", "gate": "g"},
    "keys.*": {"key_concurrency": 1, "gate": "g"},
    "auto.*": {"concurrency": "auto"},
    "parts.*": {"partitions": 2, "serial": "hold"},
    "folded.*": {"buckets": 2, "serial": "hold"},
    "brief.*": {"ttl": 4},
    "once.*": {"delivery": "at_most_once", "serial": "hold"},
    "full.*": {"rate": 5, "burst": 40, "concurrency": 30, "gate": "g", "serial": "hold"},
}
TOPICS = [f"{pattern[:-1]}{n}" for pattern in (*POLICIES, "plain.*") for n in range(2)]
HEADERS: tuple[dict[str, str] | None, ...] = (
    None,
    None,
    *({"content-type": "application/json", "trace": "0123456789abcdef"},) * 3,
    {"laneway-cost": "2"},
    {"": ""},
)
CALLS = 40
USUAL = [topic for topic in TOPICS if not topic.startswith(("parts", "folded"))]


def draft(draw: random.Random, number: int, *, is_unusual: bool) -> Draft:
    """A message; half have few options. `is_unusual`: perhaps its whole batch needs more."""
    topic = draw.choice(TOPICS if is_unusual else USUAL)
    is_small = draw.random() < 0.5
    return Draft(
        topic,
        b"%d" % number,
        key=draw.choice(("k0", "k1", "k2", "k3", None)),
        id=f"id{number}" if topic[0] in "kma" and draw.random() < 0.7 else None,
        sticky=is_unusual and draw.random() < 0.1,
        priority=0 if is_small else draw.choice((0, 1, -1, 600 if is_unusual else 2)),
        at_front=draw.random() < 0.25,
        ttl_us=None if is_small else draw.choice((None, None, 5 * SECOND)),
        delay_us=0 if draw.random() < 0.8 else draw.randrange(1, 4 * SECOND),
        headers=draw.choice(HEADERS if is_unusual else HEADERS[:5]),
    )


def settlement(draw: random.Random, lease: Lease) -> Settlement:
    found = Settlement(lease.handle, lease.fence, cost_us=1_000)
    kind = draw.random()
    if kind < 0.1:
        found.action, found.delay_us = draw.choice(("retry", "release")), draw.choice((0, SECOND))
    elif kind < 0.15:
        found.action, found.reason = "dead", "refused"
    elif kind < 0.17:
        found.action, found.delay_us = "back_off", SECOND
    elif kind < 0.2:
        found.fence -= 1
    elif kind < 0.3:
        found.id, found.outcome, found.outcome_ttl_us = lease.id, b"1", 60 * SECOND
    return found


def step(
    engine: FullEngine, held: list[Lease], draw: random.Random, number: int, now: int
) -> list[Any]:
    """What the calls of one step answer."""
    is_unusual = draw.random() < 0.2
    numbers = [number + n for n in range(draw.choice((2, 20, 40)))]
    if draw.random() < 0.2:  # ids that are known by now
        numbers += range(max(0, number - 20), number - 17)
    drafts = [draft(draw, number, is_unusual=is_unusual) for number in numbers]
    seen: list[Any] = [receipt.outcome for receipt in engine.put(drafts, now_us=now)]
    for _ in range(draw.choice((0, 1, 3))):
        found = engine.lease(draw.choice((3, 40)), now_us=now + 1).leases
        held += found
        seen += [(lease.topic, lease.body, lease.deliveries, lease.headers) for lease in found]
    draw.shuffle(held)
    count = draw.choice((0, len(held), len(held) * 3 // 4))
    ended = [held.pop() for _ in range(count)]
    settlements = [settlement(draw, lease) for lease in ended]
    if settlements and draw.random() < 0.1:
        settlements.append(settlements[0])
    seen += engine.settle(settlements, now_us=now + 2)
    return seen


def normal(value: Any) -> Any:
    """A stored value without the padding of one of a hash's fields."""
    if isinstance(value, dict):
        spaces = b" " * 64
        return {
            name: each.removesuffix(spaces).removesuffix(b"\xd9@") for name, each in value.items()
        }
    return value


def ordinary() -> bytes:
    """The library without brief ways."""
    found = UNDIVIDED
    for condition, replacement in ORDINARY.items():
        assert found.count(condition) == 1, condition
        found = found.replace(condition, replacement)
    return found


@pytest.mark.parametrize("seed", range(FIXED, FIXED + 3))
def test_brief_ways_store_what_ordinary_ways_store(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with in_lockstep(opened, monkeypatch, ordinary(), now_us=NOW) as both:
        held: tuple[list[Lease], list[Lease]] = [], []
        for engine in both.engines:
            engine.gate_set("g", Gate(concurrency=30), now_us=NOW)
            for pattern, fields in POLICIES.items():
                engine.policy_set("code", pattern, fields, now_us=NOW)
        now = NOW
        for n in range(CALLS):
            draw = random.Random(f"{seed} {n}")
            now += draw.choice((0, 1_000, SECOND, 4 * SECOND, 45 * SECOND))
            if n == CALLS // 2:  # leases under a gate end without one
                for engine in both.engines:
                    engine.policy_set("code", "all.*", {"merge": "all"}, now_us=now)
            chosen = draw.getrandbits(32)
            one_answers, other_answers = (
                step(engine, mine, random.Random(chosen), 40 * n, now)
                for engine, mine in zip(both.engines, held, strict=True)
            )
            assert one_answers == other_answers
            both.check(normal)
        for engine in both.engines:
            assert [check for check in engine.doctor() if not check.ok] == []

"""Large bodies: one function call handles few of them, because the server answers no other then."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.valkey.engine import HOUSE
from laneway.engines.valkey.namespace import Namespace
from laneway.message import Draft, Lease, Settlement
from laneway.testing.servers import Server
from laneway.units import SECOND

LARGE = bytes(1 << 19)
MANY = 60
NOW = 2_200_000_000 * SECOND


@pytest.fixture
def engine(opened: Callable[..., FullEngine]) -> Iterator[FullEngine]:
    with Server() as server:
        yield opened(server.url)


def lease_all(engine: FullEngine) -> list[Lease]:
    found: list[Lease] = []
    while leases := engine.lease(MANY, now_us=NOW).leases:
        found += leases
    return found


def put(engine: FullEngine, **options: int) -> None:
    engine.put([Draft("large", LARGE, **options) for _ in range(MANY)], now_us=NOW)  # type: ignore[arg-type]


def left_after_housekeeping(engine: FullEngine, count: Callable[[], int]) -> list[int]:
    """What is left after each call of housekeeping, which handles up to `HOUSE` small messages."""
    before, left = count(), list[int]()
    while before and len(left) < 100:
        engine._tick_on(0, HOUSE, NOW + 30 * SECOND)  # type: ignore[attr-defined]
        before = count()
        left.append(before)
    return left


def test_a_call_leases_few_once_they_are_known(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    run = Namespace.run

    def noted(space: Namespace, name: str, *arguments: object, **how: bool) -> object:
        answers = run(space, name, *arguments, **how)  # type: ignore[arg-type]
        if name == "lease":
            sizes.append(len(answers[5]) // 2)
        elif name == "settle":
            sizes.append(sum(map(len, answers[0])) if answers[0] else 0)
        return answers

    put(engine)
    engine.lease(1, now_us=NOW)
    monkeypatch.setattr(Namespace, "run", noted)
    assert len(lease_all(engine)) == MANY - 1
    assert max(sizes) <= 16


def test_few_settlements_are_one_call(engine: FullEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engine)
    leases = lease_all(engine)
    calls: list[str] = []
    run = Namespace.run

    def noted(space: Namespace, name: str, *arguments: object, **how: bool) -> object:
        calls.append(name)
        return run(space, name, *arguments, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(Namespace, "run", noted)
    ends = [Settlement(each.handle, each.fence, "dead") for each in leases]
    assert engine.settle(ends, now_us=NOW) == ["died"] * MANY
    assert calls.count("settle") >= MANY // 15


def test_messages_that_expire(engine: FullEngine) -> None:
    put(engine, ttl_us=SECOND)
    left = left_after_housekeeping(engine, lambda: engine.topic_stats("large").waiting)
    assert left[0] >= MANY - 20
    assert left[-1] == 0


def test_messages_that_are_due(engine: FullEngine) -> None:
    put(engine, delay_us=SECOND)
    left = left_after_housekeeping(engine, lambda: engine.topic_stats("large").delayed)
    assert left[0] >= MANY - 20
    assert left[-1] == 0


def test_leases_that_run_out(engine: FullEngine) -> None:
    engine.policy_set("code", "large", {"lease": 1})
    put(engine)
    assert len(lease_all(engine)) == MANY
    left = left_after_housekeeping(engine, lambda: engine.topic_stats("large").leased)
    assert left[0] >= MANY - 20
    assert left[-1] == 0

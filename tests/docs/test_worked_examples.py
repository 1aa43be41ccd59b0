"""
The numbers in the heads of modules are true: the examples of pure modules are run, and those of
modules that need a store are checked here, on the engines of both languages.
"""

from __future__ import annotations

import doctest
import time
from typing import TYPE_CHECKING

import pytest

from laneway.engines.shared import adaptive, fairness, gates, key_limits
from laneway.engines.sql.rivalry import WAITING_SHARE, Rivalry
from laneway.policy import Gate, Tier
from laneway.testing import EngineDriver
from tests.conformance.conftest import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture(params=["sqlite memory", "valkey"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineDriver]:
    driver = EngineDriver(lambda settings: ENGINES[request.param](tmp_path, settings))
    yield driver
    driver.engine.close()


def topics(driver: EngineDriver, n: int) -> str:
    return " ".join(lease.topic for lease in driver.lease(n))


@pytest.mark.parametrize("module", [adaptive, fairness, gates, key_limits])
def test_the_examples_of_pure_modules(module: ModuleType) -> None:
    """They run as they are written."""
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_fairness(driver: EngineDriver) -> None:
    """fairness.py: lanes with the weights 1 and 1.5."""
    driver.policy("b", weight=1.5)
    driver.put("a", *"123456789")
    driver.put("b", *"123456789")
    assert topics(driver, 10) == "a a b b b a a b b b"


def test_leasing(driver: EngineDriver) -> None:
    """leasing.py: tiers, shares and limits."""
    tiers = {"urgent": Tier("strict"), "high": Tier(2), "low": Tier(1)}
    driver.open(tiers=tiers, default_tier="high")
    driver.policy("u", tier="urgent")
    driver.policy("r", rate=10)
    driver.policy("two", concurrency=2)
    driver.policy("l", tier="low")
    driver.put("u", "1", "2")
    for topic in ("r", "h", "two", "l"):
        driver.put(topic, *"1234567890")
    assert topics(driver, 11) == "u u r l h h l two two l h"
    assert topics(driver, 6) == "h l h h l h"


def test_rivalry(monkeypatch: pytest.MonkeyPatch) -> None:
    """rivalry.py: 2 of 10 ms, then nothing."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rivalry = Rivalry()
    rivalry.measure(0, 10, 0.0)
    now = 0.010
    assert rivalry.measure(20, 30, 0.002)
    assert rivalry._share == pytest.approx(0.05)
    now = 0.020
    assert not rivalry.measure(30, 40, 0.002)
    assert rivalry._share == pytest.approx(0.0375)
    assert WAITING_SHARE == 0.04


def test_gate_order(driver: EngineDriver) -> None:
    """gate_order.py: `fast` is held while `slow` opens soon."""
    driver.engine.gate_set("fast", Gate(10, 1), now_us=driver.now)
    driver.engine.gate_set("slow", Gate(4, 1), now_us=driver.now)
    driver.policy("both", gate=["fast", "slow"])
    driver.policy("one", gate="fast")
    driver.put("both", *"12345")
    driver.put("one", *"12345")
    delivered = []
    for ms in range(0, 560, 10):
        delivered += [f"{ms} {lease.topic}" for lease in driver.lease()]
        driver.later(0.01)
    assert delivered == ["0 both", "100 one", "250 both", "350 one", "450 one", "550 both"]


def test_group_queues(driver: EngineDriver) -> None:
    """group_queues.py: a customer with two topics, and one with one."""
    for topic in ("a1", "a2", "g1"):
        driver.policy(topic, group="acme" if topic[0] == "a" else "globex")
        driver.put(topic, *"12345678")
    assert topics(driver, 10) == "a1 a1 g1 g1 a2 a2 g1 g1 a1 a1"


def test_key_limits(driver: EngineDriver) -> None:
    """key_limits.py: x2 waits for x1, y1 does not."""
    driver.policy("t", key_concurrency=1)
    for body in ("x1", "x2", "y1"):
        driver.put("t", body, key=body[0])
    leases = driver.lease()
    assert [lease.body for lease in leases] == [b"x1", b"y1"]
    assert driver.bodies() == []
    driver.settle(leases[:1])
    assert driver.bodies() == ["x2"]


@pytest.mark.parametrize(
    ("merge", "waiting", "returned"),
    [
        ("first", [[b"a"]], [b"a"]),
        ("last", [[b"d"]], [b"b"]),
        ("all", [[b"a", b"b", b"c"], [b"d"]], [b"a", b"b"]),
    ],
)
def test_merging(
    driver: EngineDriver, merge: str, waiting: list[list[bytes]], returned: list[bytes]
) -> None:
    """merging.py: what waits after four messages, and when one returns."""
    driver.policy("*", merge=merge, merge_limit=3)
    for body in "abcd":
        driver.put("four", body, key="k")
    assert [lease.bodies or [lease.body] for lease in driver.lease()] == waiting
    driver.put("returns", "a", key="k")
    leases = driver.lease()
    driver.put("returns", "b", key="k")
    driver.settle(leases, "retry", delay_us=0)
    (lease,) = driver.lease()
    assert (lease.bodies or [lease.body], lease.attempt) == (returned, 2)


def test_copies(driver: EngineDriver) -> None:
    """copies.py: numbers of a message and its copies; one without room refuses all."""
    subscriptions: dict[str, object] = {
        "subscription:audit": {},
        "subscription:mail": {"where": {"kind": "paid"}},
    }
    driver.engine.policy_set("code", "orders", subscriptions, now_us=driver.now)
    driver.put("orders", "1")
    driver.put("orders", "2", headers={"kind": "paid"})
    leases = sorted(driver.lease(), key=lambda lease: lease.handle)
    assert [f"{lease.handle} {lease.topic}" for lease in leases] == [
        "1 orders",
        "2 orders#audit",
        "3 orders",
        "4 orders#audit",
        "5 orders#mail",
    ]
    driver.policy("orders#mail", max_backlog=1)
    outcomes = [
        driver.put("orders", body, headers={"kind": "paid"})[0].outcome for body in ("3", "4")
    ]
    assert outcomes == ["accepted", "refused"]
    assert len(driver.lease()) == 3


def test_fences(driver: EngineDriver) -> None:
    """leases.py: the first lease ends, and only the second one settles."""
    driver.policy("t", lease="10s")
    driver.put("t", "x")
    first = driver.lease()
    driver.later(11)
    second = driver.lease()
    assert [first[0].fence, second[0].fence] == [1, 2]
    assert driver.settle(first) == ["lost"]
    assert driver.settle(second) == ["acked"]
    assert driver.settle(second) == ["lost"]


def test_tiers(driver: EngineDriver) -> None:
    """tiers.py: a changed share holds for the next lease."""
    driver.open(tiers={"high": Tier(6), "mid": Tier(3), "low": Tier(1)}, default_tier="mid")
    for tier in ("high", "mid", "low"):
        driver.policy(tier, tier=tier)
        driver.put(tier, *"1234567890")
    driver.engine.tier_set("operator", {"low": Tier(2)}, now_us=driver.now)
    leased = topics(driver, 11).split()
    assert [leased.count(tier) for tier in ("high", "mid", "low")] == [6, 3, 2]

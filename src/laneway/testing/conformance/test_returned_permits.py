"""Permits that return from messages that were leased and never started."""

from __future__ import annotations

import random

import pytest

from laneway.message import Lease
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

KINDS = ["topic", "gate", "group", "partitions", "key"]
RATE, BURST = 40, 5


def limit(driver: EngineDriver, kind: str) -> None:
    """Limit all topics "a.*", or the key "k" of the topic "a.1", and with it all that is put."""
    limits = Gate(RATE, BURST)
    if kind == "gate":
        driver.engine.gate_set("g", limits, now_us=driver.now)
        driver.policy("a.*", gate="g")
    elif kind == "group":
        driver.engine.topic_group_set("a", limits, now_us=driver.now)
        driver.policy("a.*", group="a")
    elif kind == "partitions":
        driver.policy("a.*", rate=RATE, burst=BURST, partitions=2)
    elif kind == "key":  # its burst cannot be set: of 80 permits a second it is 5
        driver.policy("a.*", key_rate=2 * RATE)
    else:
        driver.policy("a.*", rate=RATE, burst=BURST)


def rate_of(kind: str) -> int:
    return 2 * RATE if kind == "key" else RATE


@pytest.mark.parametrize("kind", KINDS)
def test_permits_that_come_back_late_are_not_used_twice(driver: EngineDriver, kind: str) -> None:
    """What time has given meanwhile may be used already: it is not given again."""
    limit(driver, kind)
    driver.put("a.1", *map(str, range(20)), key="k")
    early = driver.lease()
    assert len(early) == BURST
    assert len(driver.lease(after=4 / rate_of(kind))) == 4
    driver.later(0.001)
    driver.settle(early, "release", begun=False)
    assert len(driver.lease()) <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_permits_that_come_back_immediately_are_all_there(driver: EngineDriver, kind: str) -> None:
    """A worker that stops as soon as it has leased costs nobody a permit."""
    limit(driver, kind)
    driver.put("a.1", *map(str, range(20)), key="k")
    driver.settle(driver.lease(), "release", begun=False)
    assert len(driver.lease()) == BURST


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_releases_never_exceed_the_rate(driver: EngineDriver, kind: str, seed: int) -> None:
    """
    In any time T at most rate times T and the burst of the messages that began, whatever number of
    others is released, and when.
    """
    draw = random.Random(seed)
    limit(driver, kind)
    driver.put("a.1", *map(str, range(150)), key="k")
    held: list[tuple[int, Lease]] = []
    begun: list[int] = []
    for _ in range(150):
        driver.later(draw.choice([0, 0.001, 0.01, 0.03, 0.1]))
        held += [(driver.now, lease) for lease in driver.lease(draw.randint(1, 8))]
        draw.shuffle(held)
        ended = [held.pop() for _ in range(draw.randint(0, len(held)))]
        if draw.random() < 0.6:
            driver.settle([lease for _, lease in ended], "release", begun=False)
        else:
            driver.settle([lease for _, lease in ended])
            begun += [at for at, _ in ended]
    begun = sorted(begun + [at for at, _ in held])
    assert len(begun) > BURST
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            seconds = (begun[last] - begun[first]) / SECOND
            assert last - first + 1 <= rate_of(kind) * seconds + BURST + 1e-6

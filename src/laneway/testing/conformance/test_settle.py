"""
`settle`: retries, releases, rejects, back-off, suspects, and messages published with an ack.
"""

from __future__ import annotations

import random

import pytest

from laneway.errors import BacklogFull
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver


def test_unhandled(driver: EngineDriver) -> None:
    """
    An unhandled message returns after 5 s to 5 min without an attempt. Explain and doctor
    report it.
    """
    (receipt,) = driver.put("a", "1")
    for delay in (5, 10, 20, 40, 80, 160, 300, 300):
        (lease,) = driver.lease()
        assert lease.attempt == 1
        assert driver.settle([lease], "unhandled") == ["released"]
        assert driver.lease(after=delay - 0.001) == []
        driver.later(0.001)
    (lease,) = driver.lease()
    driver.settle([lease], "unhandled")
    explained = driver.engine.explain(receipt.id, "a", now_us=driver.now)
    assert explained.starts_us is None, "a free worker is not what it waits for"
    (reason,) = explained.reasons
    assert reason.startswith(
        "no worker has had a handler for it for 15.2 min; it is delivered again in 5.0 min"
    )
    (check,) = [check for check in driver.engine.doctor() if check.name == "handlers"]
    assert check.ok
    assert check.detail.startswith("1 message waits for a handler")


def test_retries_and_backoff(
    driver: EngineDriver,
) -> None:
    """`retries=2` allows three attempts; back-off doubles; the dead letter has the history."""
    driver.policy("a", retries=2, backoff={"base": 1, "jitter": False})
    driver.put("a", "x")
    for attempt, delay in ((1, 1), (2, 2), (3, 0)):
        (lease,) = driver.lease()
        assert lease.attempt == attempt
        answer = driver.settle([lease], "retry", reason="boom", error=f"Boom {attempt}")
        assert answer == (["retried"] if attempt < 3 else ["died"])
        if delay:
            assert driver.lease(after=delay - 0.000001) == []
            driver.later(0.000001)
    ((_, dead),) = driver.engine.dead_list()
    assert dead.reason == "retries used up (3 attempts): boom"
    assert [entry["error"] for entry in dead.history] == ["Boom 1", "Boom 2", "Boom 3"]


def test_a_list_of_delays(driver: EngineDriver) -> None:
    """Each failure has its delay, and the last one repeats."""
    driver.policy("a", retries=3, backoff={"delays": [2, 0.5], "jitter": False})
    driver.put("a", "x")
    for delay in (2, 0.5, 0.5):
        (lease,) = driver.lease()
        assert driver.settle([lease], "retry") == ["retried"]
        assert driver.lease(after=delay - 0.000001) == []
        driver.later(0.000001)
    assert len(driver.lease()) == 1


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (None, "failed"),
        ("ValueError: no\n  File shop.py", "ValueError: no"),
        ("\n", "failed"),
        ("x" * 300, "x" * 300),
        ("é" * 200, "é" * 149),  # 300 bytes, of which the last character is cut
    ],
)
def test_dead_letter_reason(driver: EngineDriver, error: str | None, shown: str) -> None:
    """The reason shows the first line of the last error, cut; `error` has the whole."""
    driver.policy("a", retries=0)
    driver.put("a", "1")
    assert driver.settle(driver.lease(), "retry", error=error) == ["died"]
    ((_, dead),) = driver.engine.dead_list()
    assert (dead.reason, dead.error) == (f"retries used up (1 attempt): {shown}", error)


def test_release(driver: EngineDriver) -> None:
    """A release counts no attempt and keeps the message's position: shutdowns use no retries."""
    driver.put("a", "1", "2")
    (first,) = driver.lease(1)
    assert driver.settle([first], "release") == ["released"]
    leases = driver.lease()
    assert [(lease.body, lease.attempt, lease.deliveries) for lease in leases] == [
        (b"1", 1, 2),
        (b"2", 1, 1),
    ]


def test_poison_message(
    driver: EngineDriver,
) -> None:
    """A message that kills workers becomes a dead letter; others in its batch lose no attempts."""
    driver.policy("a", retries=1)
    driver.put("a", "poison", "innocent")
    for _ in range(3):
        leases = driver.lease()
        for lease in leases:
            if lease.suspect and lease.body == b"poison":
                assert driver.engine.start([(lease.handle, lease.fence)], now_us=driver.now) == [
                    True
                ]
        driver.later(60)
    (left,) = driver.lease()
    assert (left.body, left.attempt, left.deliveries) == (b"innocent", 1, 4)
    ((_, dead),) = driver.engine.dead_list()
    assert dead.body == b"poison"


def test_publish_with_ack(driver: EngineDriver) -> None:
    """An ack publishes messages atomically, once, with derived ids; a lost lease publishes none."""
    driver.put("a", "x", id="parent")
    (lease,) = driver.lease()
    done = [Settlement(lease.handle, lease.fence)]
    assert driver.engine.settle(done, publish={0: [Draft("b", b"next")]}, now_us=driver.now) == [
        "acked"
    ]
    assert driver.engine.settle(done, publish={0: [Draft("b", b"next")]}, now_us=driver.now) == [
        "lost"
    ]
    (following,) = driver.lease()
    assert (following.topic, following.id) == ("b", "parent:0")
    driver.settle([following])
    assert driver.put("b", "again", id="parent:0")[0].outcome == "duplicate"


def test_wrong_handle(driver: EngineDriver) -> None:
    """A wrong handle is lost and does not affect the right one in the same call."""
    driver.put("a", "1")
    (lease,) = driver.lease()
    right, wrong = Settlement(lease.handle, lease.fence), Settlement(lease.handle + 1, lease.fence)
    assert driver.engine.settle([wrong, right, right], now_us=driver.now) == [
        "lost",
        "acked",
        "lost",
    ]


def test_publish_with_ack_at_most_once(
    driver: EngineDriver,
) -> None:
    """Messages published with acks of at-most-once messages get distinct ids."""
    driver.policy("a", delivery="at_most_once")
    driver.put("a", "1", "2")
    settlements = [Settlement(lease.handle, lease.fence) for lease in driver.lease()]
    driver.engine.settle(
        settlements, publish={n: [Draft("next", b"x")] for n in range(2)}, now_us=driver.now
    )
    assert driver.waiting("next") == 2


def test_publish_with_ack_is_atomic(driver: EngineDriver) -> None:
    """If a message published with an ack is refused, nothing of the settle happens."""
    driver.policy("next", max_backlog=1)
    driver.put("next", "1")
    driver.put("a", "1")
    (lease,) = driver.lease(topics=["a"])
    settlement = Settlement(lease.handle, lease.fence)
    with pytest.raises(BacklogFull):
        driver.engine.settle([settlement], publish={0: [Draft("next", b"2")]}, now_us=driver.now)
    driver.run(topics=["next"])
    assert driver.engine.settle(
        [settlement], publish={0: [Draft("next", b"2")]}, now_us=driver.now
    ) == ["acked"]
    assert driver.waiting("next") == 1


def test_back_off_at_most_once(driver: EngineDriver) -> None:
    """An at-most-once topic backs off, probes, and recovers with an ack."""
    driver.policy("a", delivery="at_most_once")
    driver.put("a", *map(str, range(9)))
    driver.settle(driver.lease(1), "back_off")
    assert driver.lease() == []
    probe = driver.lease(after=1)
    assert len(probe) == 1
    driver.settle(probe)
    assert len(driver.lease()) == 7


def test_attempts_only_grow(driver: EngineDriver) -> None:
    """Attempts only grow, to at most retries + 1, and end in one dead letter."""
    draw = random.Random(11)
    driver.policy("a", retries=3, backoff=0, lease=1)
    driver.put("a", *map(str, range(20)))
    attempts: dict[bytes, int] = {}
    while driver.engine.overview(now_us=driver.now).dead < 20:
        leases = driver.lease(5)
        driver.engine.start([(lease.handle, lease.fence) for lease in leases], now_us=driver.now)
        for lease in leases:
            assert attempts.get(lease.body, 1) <= lease.attempt <= 4
            attempts[lease.body] = lease.attempt
            if draw.random() < 0.8:
                driver.settle([lease], draw.choice(["retry", "release"]))
        driver.later(1)
    died = [view.body for _, view in driver.engine.dead_list(limit=100)]
    assert sorted(died) == sorted(attempts)
    assert len(died) == 20

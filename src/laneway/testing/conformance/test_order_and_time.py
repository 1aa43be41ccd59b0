"""Order inside a topic, delays, ttl, leases, attempts."""

from __future__ import annotations

import pytest

from laneway.errors import BadMessage
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND


def test_higher_priority_first_then_publish_order(driver: EngineDriver) -> None:
    """And `at_front` before the others of its priority, the latest first."""
    driver.put("a", "1", "2")
    driver.put("a", "high", priority=5)
    driver.put("a", "front1", at_front=True)
    driver.put("a", "front2", at_front=True)
    driver.put("a", "low", priority=-5)
    assert driver.run() == ["high", "front2", "front1", "1", "2", "low"]


def test_a_delayed_message_is_due_at_its_time_and_stands_by_it(driver: EngineDriver) -> None:
    """Overdue messages come oldest due first."""
    driver.put("a", "two", delay_us=2 * SECOND)
    driver.put("a", "one", delay_us=1 * SECOND)
    driver.put("a", "at", at_us=driver.now + 3 * SECOND)
    batch = driver.batch()
    assert batch.leases == []
    assert batch.next_wake_us == driver.now + 1 * SECOND
    driver.later(0.999999)
    assert driver.run() == []
    driver.later(10)
    assert driver.run() == ["one", "two", "at"]


def test_the_ttl_runs_from_publish_and_ends_in_a_dead_letter_or_nowhere(
    driver: EngineDriver,
) -> None:
    """Also for a message that waits for a retry."""
    driver.policy("drop", on_expiry="drop", ttl=5)
    driver.put("a", "x", ttl_us=5 * SECOND)
    driver.put("drop", "y")
    driver.later(5)
    assert driver.run() == []
    assert [(view.body, view.state) for _, view in driver.engine.dead_list()] == [(b"x", "dead")]
    assert driver.engine.overview(now_us=driver.now).expired == 2


def test_a_delay_that_outlasts_its_ttl_is_refused(driver: EngineDriver) -> None:
    """At publish; nothing of the batch is accepted."""
    with pytest.raises(BadMessage, match="outlasts"):
        driver.engine.put(
            [Draft("a", b"1"), Draft("a", b"2", delay_us=9 * SECOND, ttl_us=5 * SECOND)],
            now_us=driver.now,
        )
    assert driver.waiting("a") == 0


def test_a_body_over_the_limit_is_refused(driver: EngineDriver) -> None:
    """With both sizes."""
    driver.policy("a", max_body=10)
    with pytest.raises(BadMessage, match="11 bytes"):
        driver.put("a", "x" * 11)


def test_a_lease_that_ran_out_is_handed_out_again_and_the_old_one_is_lost(
    driver: EngineDriver,
) -> None:
    """Its fence is stale: a settle changes nothing and says so; fences grow."""
    driver.put("a", "x")
    (old,) = driver.lease()
    assert driver.lease() == []
    driver.later(60)
    (new,) = driver.lease()
    assert new.fence > old.fence
    assert (new.attempt, new.deliveries, new.suspect) == (1, 2, True)
    assert driver.settle([old]) == ["lost"]
    assert driver.engine.extend(
        [(old.handle, old.fence), (new.handle, new.fence)], SECOND, now_us=driver.now
    ) == [False, True]
    assert driver.settle([new]) == ["acked"]
    assert driver.settle([new]) == ["lost"]


def test_an_extended_lease_lives_on(driver: EngineDriver) -> None:
    """To at least now + by; never shorter than before."""
    driver.put("a", "x", "y")
    x, y = driver.lease()
    driver.later(50)
    assert driver.engine.extend([(x.handle, x.fence)], 60 * SECOND, now_us=driver.now) == [True]
    assert driver.engine.extend([(x.handle, x.fence)], 1 * SECOND, now_us=driver.now) == [True]
    driver.later(10)
    assert driver.bodies() == ["y"]
    driver.later(49)
    assert driver.bodies() == []
    driver.later(1)
    assert driver.bodies() == ["x"]
    assert y.fence


def test_retries_count_attempts_and_end_in_a_dead_letter_with_its_history(
    driver: EngineDriver,
) -> None:
    """`retries=2` means at most three attempts; backoff doubles."""
    driver.policy("a", retries=2, backoff={"base": 1, "jitter": False})
    driver.put("a", "x")
    for attempt, delay in ((1, 1), (2, 2), (3, 0)):
        (lease,) = driver.lease()
        assert lease.attempt == attempt
        answer = driver.settle([lease], "retry", reason="boom", error=f"Boom {attempt}")
        assert answer == (["retried"] if attempt < 3 else ["died"])
        if delay:
            driver.later(delay - 0.000001)
            assert driver.lease() == []
            driver.later(0.000001)
    ((_, dead),) = driver.engine.dead_list()
    assert dead.reason == "retries used up (3 attempts): boom"
    assert [entry["error"] for entry in dead.history] == ["Boom 1", "Boom 2", "Boom 3"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, "failed"),
        ("ValueError: no\n  File shop.py", "ValueError: no"),
        ("\n", "failed"),
        ("x" * 300, "x" * 300),
        ("é" * 200, "é" * 149),  # 300 bytes, of which the last character is cut
    ],
)
def test_a_dead_letters_reason_shows_the_last_error(
    driver: EngineDriver, error: str | None, told: str
) -> None:
    """Its first line, cut; the whole is the letter's error."""
    driver.policy("a", retries=0)
    driver.put("a", "1")
    assert driver.settle(driver.lease(), "retry", error=error) == ["died"]
    ((_, dead),) = driver.engine.dead_list()
    assert (dead.reason, dead.error) == (f"retries used up (1 attempt): {told}", error)


def test_release_counts_no_attempt_and_keeps_the_place(driver: EngineDriver) -> None:
    """Shutdowns burn no retries."""
    driver.put("a", "1", "2")
    (first,) = driver.lease(1)
    assert driver.settle([first], "release") == ["released"]
    leases = driver.lease()
    assert [(lease.body, lease.attempt, lease.deliveries) for lease in leases] == [
        (b"1", 1, 2),
        (b"2", 1, 1),
    ]


def test_poison_reaches_the_dead_letters_and_its_neighbours_are_not_charged(
    driver: EngineDriver,
) -> None:
    """Only recorded starts of suspects count."""
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


def test_a_dead_letter_can_be_redriven_or_dropped_and_is_forgotten_in_the_end(
    driver: EngineDriver,
) -> None:
    """A redriven one starts anew, behind what waits."""
    driver.policy("a", dead_ttl=100)
    driver.put("a", "1", "2", "3")
    driver.settle(driver.lease(), "dead", reason="no")
    ids = [view.id for _, view in driver.engine.dead_list("a")]
    assert driver.engine.dead_redrive("a", [ids[0]], now_us=driver.now) == 1
    (again,) = driver.lease()
    assert (again.id, again.attempt) == (ids[0], 1)
    assert driver.engine.dead_drop("a", [ids[1]], now_us=driver.now) == 1
    driver.later(100)
    driver.engine.tick(now_us=driver.now)
    assert driver.engine.dead_list() == []


def test_redriving_at_a_rate_spreads_them(driver: EngineDriver) -> None:
    """The n-th is due n spacings from now."""
    driver.put("a", "1", "2", "3")
    driver.settle(driver.lease(), "dead")
    assert driver.engine.dead_redrive(spacing_us=SECOND, now_us=driver.now) == 3
    assert driver.run() == ["1"]
    driver.later(2)
    assert driver.run() == ["2", "3"]


def test_a_rate_goes_on_over_several_redrives(driver: EngineDriver) -> None:
    """The first of a call is due when the caller says, so that many pages keep one rate."""
    driver.put("a", "1", "2", "3", "4")
    driver.settle(driver.lease(4), "dead")
    assert [
        driver.engine.dead_redrive(
            limit=2, first_us=first * SECOND, spacing_us=SECOND, now_us=driver.now
        )
        for first in (0, 2)
    ] == [2, 2]
    assert driver.run() == ["1"]
    driver.later(2)
    assert driver.run() == ["2", "3"]
    driver.later(1)
    assert driver.run() == ["4"]


def test_the_clock_never_goes_back(driver: EngineDriver) -> None:
    """A step backwards stands still until it is caught up; leases are not stolen."""
    driver.put("a", "x")
    (lease,) = driver.lease()
    driver.engine.lease(1, now_us=driver.now - 3600 * SECOND)
    driver.later(59)
    assert driver.lease() == []
    driver.later(1)
    assert [again.id for again in driver.lease()] == [lease.id]


def test_acks_can_publish_what_comes_next(driver: EngineDriver) -> None:
    """Together, once, with ids derived from the parent; a lost lease publishes nothing."""
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


def test_cursors_tell_what_was_handed_out_and_what_is_finished(driver: EngineDriver) -> None:
    """Both only grow; a message that comes back does not move the scan cursor."""
    driver.put("a", "1", "2", "3")
    first = driver.engine.cursors("a")[0]
    leases = driver.lease(2)
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.settle([leases[1]])
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.settle([leases[0]], "retry")
    assert driver.engine.cursors("a")[0] == (first[0] + 2, first[1])
    driver.later(3600)
    driver.run()
    last = driver.engine.overview(now_us=driver.now).last_number
    assert driver.engine.cursors("a") == {0: (last, last)}

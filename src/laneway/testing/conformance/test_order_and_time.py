"""Order inside a topic, delays, ttl, leases, attempts."""

from __future__ import annotations

import pytest

from laneway.errors import BadMessage
from laneway.message import Draft, Settlement
from laneway.testing.bench import EngineBench
from laneway.units import SECOND


def test_higher_priority_first_then_publish_order(bench: EngineBench) -> None:
    """And `at_front` before the others of its priority, the latest first."""
    bench.put("a", "1", "2")
    bench.put("a", "high", priority=5)
    bench.put("a", "front1", at_front=True)
    bench.put("a", "front2", at_front=True)
    bench.put("a", "low", priority=-5)
    assert bench.run() == ["high", "front2", "front1", "1", "2", "low"]


def test_a_delayed_message_is_due_at_its_time_and_stands_by_it(bench: EngineBench) -> None:
    """Overdue messages come oldest due first."""
    bench.put("a", "two", delay_us=2 * SECOND)
    bench.put("a", "one", delay_us=1 * SECOND)
    bench.put("a", "at", at_us=bench.now + 3 * SECOND)
    batch = bench.batch()
    assert batch.leases == []
    assert batch.next_wake_us == bench.now + 1 * SECOND
    bench.later(0.999999)
    assert bench.run() == []
    bench.later(10)
    assert bench.run() == ["one", "two", "at"]


def test_the_ttl_runs_from_publish_and_ends_in_a_dead_letter_or_nowhere(bench: EngineBench) -> None:
    """Also for a message that waits for a retry."""
    bench.policy("drop", on_expiry="drop", ttl=5)
    bench.put("a", "x", ttl_us=5 * SECOND)
    bench.put("drop", "y")
    bench.later(5)
    assert bench.run() == []
    assert [(view.body, view.state) for _, view in bench.engine.dead_list()] == [(b"x", "dead")]
    assert bench.engine.overview(now_us=bench.now).expired == 2


def test_a_delay_that_outlasts_its_ttl_is_refused(bench: EngineBench) -> None:
    """At publish; nothing of the batch is accepted."""
    with pytest.raises(BadMessage, match="outlasts"):
        bench.engine.put([Draft("a", b"1"), Draft("a", b"2", delay_us=9 * SECOND, ttl_us=5 * SECOND)], now_us=bench.now)
    assert bench.waiting("a") == 0


def test_a_body_over_the_limit_is_refused(bench: EngineBench) -> None:
    """With both sizes."""
    bench.policy("a", max_body=10)
    with pytest.raises(BadMessage, match="11 bytes"):
        bench.put("a", "x" * 11)


def test_a_lease_that_ran_out_is_handed_out_again_and_the_old_one_is_lost(bench: EngineBench) -> None:
    """Its fence is stale: a settle changes nothing and says so; fences grow."""
    bench.put("a", "x")
    (old,) = bench.lease()
    assert bench.lease() == []
    bench.later(60)
    (new,) = bench.lease()
    assert new.fence > old.fence
    assert (new.attempt, new.deliveries, new.suspect) == (1, 2, True)
    assert bench.settle([old]) == ["lost"]
    assert bench.engine.extend([(old.handle, old.fence), (new.handle, new.fence)], SECOND, now_us=bench.now) == [False, True]
    assert bench.settle([new]) == ["acked"]
    assert bench.settle([new]) == ["lost"]


def test_an_extended_lease_lives_on(bench: EngineBench) -> None:
    """To at least now + by; never shorter than before."""
    bench.put("a", "x", "y")
    x, y = bench.lease()
    bench.later(50)
    assert bench.engine.extend([(x.handle, x.fence)], 60 * SECOND, now_us=bench.now) == [True]
    assert bench.engine.extend([(x.handle, x.fence)], 1 * SECOND, now_us=bench.now) == [True]
    bench.later(10)
    assert bench.bodies() == ["y"]
    bench.later(49)
    assert bench.bodies() == []
    bench.later(1)
    assert bench.bodies() == ["x"]
    assert y.fence


def test_retries_count_attempts_and_end_in_a_dead_letter_with_its_history(bench: EngineBench) -> None:
    """`retries=2` means at most three attempts; backoff doubles."""
    bench.policy("a", retries=2, backoff={"base": 1, "jitter": False})
    bench.put("a", "x")
    for attempt, delay in ((1, 1), (2, 2), (3, 0)):
        (lease,) = bench.lease()
        assert lease.attempt == attempt
        answer = bench.settle([lease], "retry", reason="boom", error=f"Boom {attempt}")
        assert answer == (["retried"] if attempt < 3 else ["died"])
        if delay:
            bench.later(delay - 0.000001)
            assert bench.lease() == []
            bench.later(0.000001)
    ((_, dead),) = bench.engine.dead_list()
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
def test_a_dead_letters_reason_shows_the_last_error(bench: EngineBench, error: str | None, told: str) -> None:
    """Its first line, cut; the whole is the letter's error."""
    bench.policy("a", retries=0)
    bench.put("a", "1")
    assert bench.settle(bench.lease(), "retry", error=error) == ["died"]
    ((_, dead),) = bench.engine.dead_list()
    assert (dead.reason, dead.error) == (f"retries used up (1 attempt): {told}", error)


def test_release_counts_no_attempt_and_keeps_the_place(bench: EngineBench) -> None:
    """Shutdowns burn no retries."""
    bench.put("a", "1", "2")
    (first,) = bench.lease(1)
    assert bench.settle([first], "release") == ["released"]
    leases = bench.lease()
    assert [(lease.body, lease.attempt, lease.deliveries) for lease in leases] == [(b"1", 1, 2), (b"2", 1, 1)]


def test_poison_reaches_the_dead_letters_and_its_neighbours_are_not_charged(bench: EngineBench) -> None:
    """Only recorded starts of suspects count."""
    bench.policy("a", retries=1)
    bench.put("a", "poison", "innocent")
    for _ in range(3):
        leases = bench.lease()
        for lease in leases:
            if lease.suspect and lease.body == b"poison":
                assert bench.engine.start([(lease.handle, lease.fence)], now_us=bench.now) == [True]
        bench.later(60)
    (left,) = bench.lease()
    assert (left.body, left.attempt, left.deliveries) == (b"innocent", 1, 4)
    ((_, dead),) = bench.engine.dead_list()
    assert dead.body == b"poison"


def test_a_dead_letter_can_be_redriven_or_dropped_and_is_forgotten_in_the_end(bench: EngineBench) -> None:
    """A redriven one starts anew, behind what waits."""
    bench.policy("a", dead_ttl=100)
    bench.put("a", "1", "2", "3")
    bench.settle(bench.lease(), "dead", reason="no")
    ids = [view.id for _, view in bench.engine.dead_list("a")]
    assert bench.engine.dead_redrive("a", [ids[0]], now_us=bench.now) == 1
    (again,) = bench.lease()
    assert (again.id, again.attempt) == (ids[0], 1)
    assert bench.engine.dead_drop("a", [ids[1]], now_us=bench.now) == 1
    bench.later(100)
    bench.engine.tick(now_us=bench.now)
    assert bench.engine.dead_list() == []


def test_redriving_at_a_rate_spreads_them(bench: EngineBench) -> None:
    """The n-th is due n spacings from now."""
    bench.put("a", "1", "2", "3")
    bench.settle(bench.lease(), "dead")
    assert bench.engine.dead_redrive(spacing_us=SECOND, now_us=bench.now) == 3
    assert bench.run() == ["1"]
    bench.later(2)
    assert bench.run() == ["2", "3"]


def test_a_rate_goes_on_over_several_redrives(bench: EngineBench) -> None:
    """The first of a call is due when the caller says, so that many pages keep one rate."""
    bench.put("a", "1", "2", "3", "4")
    bench.settle(bench.lease(4), "dead")
    assert [bench.engine.dead_redrive(limit=2, first_us=first * SECOND, spacing_us=SECOND, now_us=bench.now) for first in (0, 2)] == [2, 2]
    assert bench.run() == ["1"]
    bench.later(2)
    assert bench.run() == ["2", "3"]
    bench.later(1)
    assert bench.run() == ["4"]


def test_the_clock_never_goes_back(bench: EngineBench) -> None:
    """A step backwards stands still until it is caught up; leases are not stolen."""
    bench.put("a", "x")
    (lease,) = bench.lease()
    bench.engine.lease(1, now_us=bench.now - 3600 * SECOND)
    bench.later(59)
    assert bench.lease() == []
    bench.later(1)
    assert [again.id for again in bench.lease()] == [lease.id]


def test_acks_can_publish_what_comes_next(bench: EngineBench) -> None:
    """Together, once, with ids derived from the parent; a lost lease publishes nothing."""
    bench.put("a", "x", id="parent")
    (lease,) = bench.lease()
    done = [Settlement(lease.handle, lease.fence)]
    assert bench.engine.settle(done, publish={0: [Draft("b", b"next")]}, now_us=bench.now) == ["acked"]
    assert bench.engine.settle(done, publish={0: [Draft("b", b"next")]}, now_us=bench.now) == ["lost"]
    (following,) = bench.lease()
    assert (following.topic, following.id) == ("b", "parent:0")
    bench.settle([following])
    assert bench.put("b", "again", id="parent:0")[0].outcome == "duplicate"


def test_cursors_tell_what_was_handed_out_and_what_is_finished(bench: EngineBench) -> None:
    """Both only grow; a message that comes back does not move the scan cursor."""
    bench.put("a", "1", "2", "3")
    first = bench.engine.cursors("a")[0]
    leases = bench.lease(2)
    assert bench.engine.cursors("a")[0] == (first[0] + 2, first[1])
    bench.settle([leases[1]])
    assert bench.engine.cursors("a")[0] == (first[0] + 2, first[1])
    bench.settle([leases[0]], "retry")
    assert bench.engine.cursors("a")[0] == (first[0] + 2, first[1])
    bench.later(3600)
    bench.run()
    last = bench.engine.overview(now_us=bench.now).last_number
    assert bench.engine.cursors("a") == {0: (last, last)}

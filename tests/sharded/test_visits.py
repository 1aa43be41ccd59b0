"""Which shards a lease visits."""

from __future__ import annotations

from laneway.engines.sharded.visits import CHECK_EVERY, OTHERS_EVERY, VISIT_AGAIN, Visits
from laneway.message import Batch, Lease
from laneway.units import SECOND


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def leases(count: int, *, limited: bool = False) -> list[Lease]:
    return [Lease(n, n, str(n), "t", b"", 0, limited=limited) for n in range(count)]


def batch(
    found: list[Lease] | None = None, *, now_us: int = 1_000, wake: int | None = None
) -> Batch:
    return Batch(found or [], now_us, wake)


def all_empty(shards: int = 3) -> tuple[Visits, Clock]:
    clock = Clock()
    visits = Visits(shards, 0, clock)
    for shard in range(shards):
        visits.note("p", shard, batch(), 10, 10)
    return visits, clock


def test_no_shard_is_always_the_last() -> None:
    """Shards that notified come first, and take turns among themselves."""
    visits = Visits(3, 1)
    assert visits.every("p") == [1, 2, 0]
    assert visits.every("p", {0}) == [0, 2, 1]
    assert visits.every("p", {0, 1}) == [0, 1, 2]
    assert visits.every("p", {0, 1}) == [1, 0, 2]


def test_a_shard_that_notifies_a_full_pool_waits_for_its_turn() -> None:
    """It may have a backlog, and notify all the time."""
    visits = Visits(3, 1)
    visits.end("p", is_idle=False, is_full=True)
    assert [visits.every("p", {1})[0] for _ in range(4)] == [1, 2, 0, 1]
    visits.end("p", is_idle=False, is_full=False)
    assert visits.every("p", {0}) == [0, 2, 1]


def test_shards_that_were_not_visited_yet_are_likely_in_turns() -> None:
    visits = Visits(3, 1)
    assert visits.likely("p", 10, {0}) == [0, 1, 2]
    assert visits.likely("p", 10, ()) == [2, 0, 1]


def test_of_empty_shards_the_next_one_is_visited() -> None:
    """So every shard has its turn, and every lease learns the time."""
    visits, _ = all_empty()
    assert [visits.likely("p", 10, ()) for _ in range(4)] == [[0], [1], [2], [0]]
    assert visits.likely("other", 10, ()) == [1, 2, 0]


def test_a_shard_with_news_is_visited() -> None:
    """It notified this process, or this process put or settled something there."""
    visits, _ = all_empty()
    assert visits.likely("p", 10, {2}) == [2]
    visits.note("p", 2, batch(), 10, 10)
    visits.forget([1])
    assert visits.likely("p", 10, ()) == [1]


def test_a_shard_that_may_have_more_is_visited_again() -> None:
    visits, _ = all_empty()
    visits.note("p", 1, batch(leases(10)), 10, 10)
    assert visits.likely("p", 10, ()) == [1]
    visits.note("p", 1, batch(leases(9)), 10, 10)
    assert visits.likely("p", 10, ()) == [1], "the next in turn"
    assert visits.likely("p", 10, ()) == [2]


def test_a_shard_that_another_process_changed_is_visited() -> None:
    visits, _ = all_empty()
    assert visits.changed("p", 10, [1_000, 1_000, 1_000]) == []
    assert visits.changed("p", 10, [1_000, 1_001, 1_000]) == [1]


def test_shards_are_compared_from_time_to_time() -> None:
    visits, clock = all_empty()
    assert visits.is_check_due("p")
    visits.changed("p", 10, [1_000] * 3)
    assert not visits.is_check_due("p")
    clock.now += CHECK_EVERY
    assert visits.is_check_due("p")


def test_a_shard_is_visited_at_its_wake_time() -> None:
    visits, clock = all_empty()
    visits.note("p", 1, batch(wake=1_000 + SECOND // 2), 10, 10)
    assert visits.wakes("p") == [1_000 + SECOND // 2]
    assert visits.changed("p", 10, [1_000] * 3) == []
    clock.now += 0.5
    assert visits.changed("p", 10, [1_000] * 3) == [1]


def test_an_empty_shard_is_visited_again_in_any_case() -> None:
    """Its server's clock may stand still: then no change can be seen."""
    visits, clock = all_empty()
    clock.now += VISIT_AGAIN
    assert sorted(visits.likely("p", 10, ())) == [0, 1, 2]


def test_messages_that_could_not_start_are_leased_when_they_can() -> None:
    """A shard keeps messages of limited topics that the caller cannot start now."""
    visits, _ = all_empty(1)
    visits.note("p", 0, batch(leases(2, limited=True)), 10, 2)
    assert visits.changed("p", 0, [1_000]) == []
    assert visits.changed("p", 1, [1_000]) == [0]
    visits.note("p", 0, batch(leases(2, limited=True)), 10, 3)
    assert visits.changed("p", 1, [1_000]) == []


def test_own_shards_come_first() -> None:
    """And the others where they have nothing; one lease of ten visits the others first."""
    visits = Visits(4, 0)
    assert visits.first("p", [0, 1, 2, 3], ()) == ([0, 1, 2, 3], [])
    visits.prefer("p", [1, 3])
    assert visits.own("p") == {1, 3}
    orders = [visits.first("p", [2, 3, 0, 1], ()) for _ in range(2 * OTHERS_EVERY)]
    assert orders.count(([3, 1], [2, 0])) == 2 * OTHERS_EVERY - 2
    assert orders.count(([2, 0, 3, 1], [])) == 2
    assert visits.first("p", [0, 2], ()) == ([0, 2], [])
    assert visits.first("other", [0, 1], ()) == ([0, 1], [])
    for shards in (range(0), range(4)):
        visits.prefer("p", shards)
        assert visits.first("p", [0, 1], ()) == ([0, 1], [])


def test_an_idle_pool_visits_the_shard_that_notified_it_first() -> None:
    """Its message does not wait for visits of the others, or for their times."""
    visits = Visits(4, 0)
    visits.prefer("p", [3])
    shards = [2, 0, 1, 3]
    visits.end("p", is_idle=True)
    assert visits.first("p", shards, {2}) == ([2], [0, 1, 3])
    assert visits.first("p", shards, ()) == ([3], [2, 0, 1])
    assert visits.first("p", shards, (), prefers_own=False) == (shards, [])
    assert not visits.is_check_due("p")
    assert visits.first("other", shards, {2}) == (shards, [])
    visits.end("p", is_idle=False)
    assert visits.first("p", shards, {2}) == ([3], [2, 0, 1]), "a busy pool visits as before"
    assert visits.is_check_due("p")

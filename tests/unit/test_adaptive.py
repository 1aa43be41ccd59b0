"""The arithmetic of `concurrency="auto"`."""

from __future__ import annotations

import random

from laneway.engines.shared import adaptive
from laneway.engines.shared.adaptive import Flow

SEED = 3
BASE_US = 100_000


def _run(flow: Flow, capacity: int, windows: int, base_us: int = BASE_US) -> None:
    """Successes of a destination where calls above its capacity wait in line."""
    chance = random.Random(SEED)
    for _ in range(windows):
        limit = adaptive.limit_of(flow, 1, 64)
        adaptive.delivered(flow, limit, limit)
        latency = base_us * max(1.0, limit / capacity)
        for _ in range(limit):
            took = round(latency * chance.uniform(0.9, 1.1))
            here = adaptive.limit_of(flow, 1, 64)
            adaptive.succeeded(flow, took, 1, 64, here, now_us=0)


def test_queue_at_the_destination_stays_short() -> None:
    """The limit does not follow the latency that it causes itself, however long it goes on."""
    flow = Flow()
    _run(flow, capacity=8, windows=300)
    for _ in range(50):
        _run(flow, capacity=8, windows=100)
        assert 12 <= flow.limit <= 20, f"seed {SEED}"


def test_lower_capacity() -> None:
    """The limit falls with the capacity, and grows with it again."""
    flow = Flow()
    _run(flow, capacity=40, windows=100)
    assert flow.limit >= 40
    _run(flow, capacity=10, windows=300)
    assert 10 <= flow.limit <= 24
    _run(flow, capacity=40, windows=100)
    assert flow.limit >= 40


def test_destination_that_became_slower() -> None:
    """If fewer messages at once do not make it quicker, it is not overloaded: the limit returns."""
    flow = Flow()
    _run(flow, capacity=1000, windows=100)
    assert flow.limit == 64
    _run(flow, capacity=1000, windows=300, base_us=5 * BASE_US)
    assert flow.limit == 64


def test_slower_destination_at_the_least_limit() -> None:
    """A limit that cannot fall any more does not stay there for ever."""
    flow = Flow()
    _run(flow, capacity=1, windows=50)
    _run(flow, capacity=1000, windows=400, base_us=20 * BASE_US)
    assert flow.limit >= 32


def test_wall() -> None:
    """After an overload the limit stays one below it for a while, then tries again."""
    flow = Flow(limit=10)
    adaptive.overloaded(flow, adaptive.ANSWER, 5, 9, 1, 64, now_us=0)
    assert flow.limit == 7
    adaptive.overloaded(flow, adaptive.ANSWER, 9, 9, 1, 64, now_us=0)
    assert flow.limit == 7
    _run(flow, capacity=1000, windows=2)
    assert flow.limit == 9
    _run(flow, capacity=1000, windows=adaptive.HOLD_WINDOWS)
    assert flow.limit == 9
    _run(flow, capacity=1000, windows=2)
    assert flow.limit == 11


def test_leases_without_a_latency() -> None:
    """Successes that nobody has measured count as quick."""
    flow = Flow()
    for _ in range(200):
        here = adaptive.limit_of(flow, 1, 64)
        adaptive.delivered(flow, 64, here)
        adaptive.succeeded(flow, 0, 1, 64, here, now_us=0)
    assert flow.limit >= 15


def test_parts_of_shards() -> None:
    """They move with the limit and are never more than it; before it is divided, perhaps so."""
    assert [adaptive.part_of(limit, 4, 64, 16) for limit in (16, 15, 9, 4, 1)] == [4, 3, 2, 1, 0]
    assert [adaptive.part_of(limit, 4, 64, 16) for limit in (17, 19, 20, 64)] == [4, 4, 5, 16]
    assert [adaptive.part_of(limit, 16, 64, None) for limit in (1, 4, 5, 64)] == [1, 1, 2, 16]
    chance = random.Random(SEED)
    for _ in range(500):
        out_of = chance.randint(1, 64)
        parts = [0, 0, 0, 0]
        for _ in range(out_of):
            parts[chance.randrange(4)] += 1
        for limit in range(1, 65):
            whole = sum(adaptive.part_of(limit, part, 64, out_of) for part in parts)
            assert limit - 4 < whole <= limit, f"seed {SEED}"


def test_the_limit_of_all_shards() -> None:
    """The mean by parts, of the shards that know something; fractions are not lost on average."""

    def share(limit: int, part: float, flow: Flow | None) -> adaptive.Share:
        return adaptive.Share(limit, part, 0, flow)

    assert adaptive.limit_of_all([share(2, 0.25, None)] * 4) == 2
    assert adaptive.limit_of_all([share(2, 0.25, None), share(12, 0.25, Flow())]) == 12
    assert adaptive.limit_of_all([share(2, 0.0, Flow()), share(12, 1.0, Flow())]) == 12
    shares = [share(4, 0.75, Flow()), share(5, 0.25, Flow())]
    lucks = [n / 100 for n in range(100)]
    assert sum(adaptive.limit_of_all(shares, luck) for luck in lucks) == 425

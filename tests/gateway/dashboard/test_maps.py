"""Heat maps, what the history stores for them, and the pages that show them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from laneway import Laneway, Message
from laneway.engines.base import WAIT_BOUNDS_US, WorkerFacts
from laneway.gateway.dashboard import heat
from laneway.gateway.dashboard.pages.topics import filter_of
from laneway.history import figures, sampling
from laneway.history.records import AGE_BUCKETS, HandlerCounts, Row, age_class, bucket_of
from laneway.message import Lease, Settlement
from laneway.testing import World, virtual
from laneway.units import SECOND
from laneway.working.handler import Handler
from laneway.working.settler import Durations
from laneway.working.worker_delivery import WorkerDelivery
from tests.gateway.dashboard.conftest import running


@pytest.fixture
def world(app: Laneway) -> Iterator[World]:
    with virtual(app) as world:
        yield world


def stored(app: Laneway, seconds: float = 3600) -> list[Row]:
    return figures.read_rows(app.engine, seconds, sampling.latest_row(app.engine))


def report(app: Laneway, worker: str, **durations: list[int]) -> None:
    """A heartbeat with these counters of handlers."""
    facts = WorkerFacts(id=worker, durations={k.replace("_", "."): v for k, v in durations.items()})
    app.engine.beat(facts, dead_after_us=600 * SECOND, listed_us=600 * SECOND)


def test_a_sample_has_ages_gates_and_handlers(app: Laneway, world: World) -> None:
    """By bucket the age of its oldest message, who waits at gates, and what handlers did since."""
    app.gate("psp", concurrency=1)
    app.policy("bill.*", gate="psp")
    app.publish_many([Message("bill.a", 1), Message("bill.b", 1)])
    app.engine.lease(10)
    app.publish("quiet", 1)
    report(app, "w1", task_a=[1, 5])
    world.later(30)
    sampling.take(app.engine)
    world.later(30)
    report(app, "w1", task_a=[3, 5, 0, 7])
    report(app, "w2", task_a=[0, 1], task_b=[0, 0, 2])
    sampling.take(app.engine)
    row = next(row for row in reversed(stored(app)) if row.handlers)
    assert row.ages[bucket_of("quiet")] == age_class(60 * SECOND)
    assert len(row.ages) == AGE_BUCKETS
    assert set(row.gates) == {"psp"}
    assert row.handlers["task.a"].failed == 2
    assert row.handlers["task.a"].counts[:3] == [1, 0, 7]
    assert row.handlers["task.b"].count == 2


def test_rows_add_up(app: Laneway) -> None:
    """Ages are those of the oldest, times at gates and counts are sums; old records are read."""
    one = Row(1, 0, 1, 0, [], [], bytes([3, 0]), {"g": 1}, {"t": HandlerCounts(1, [1, 0])})
    later = Row(2, 1, 2, 0, [], [], bytes([1, 4]), {"g": 2, "h": 5})
    later.handlers = {"t": HandlerCounts(0, [0, 2])}
    one.add(later)
    assert one.ages == bytes([3, 4])
    assert one.gates == {"g": 3, "h": 5}
    assert one.handlers["t"] == HandlerCounts(1, [1, 2])
    old = msgspec.msgpack.encode([1, 0, 1, 7, [], []])
    assert msgspec.msgpack.decode(old, type=Row) == Row(1, 0, 1, 7, [], [])


def test_durations_are_right_on_average() -> None:
    """One message of each call counts for all of it, failures are exact, and names are bounded."""
    durations = Durations()
    handlers = [Handler(print, "a", name=name) for name in ("quick", "slow")]
    lease = Lease(0, 0, "i", "a", b"", 0)
    held: dict[int, WorkerDelivery | None] = {
        fence: WorkerDelivery(lease, handlers[fence < 3], 0.0, 0) for fence in range(10)
    }
    settlements = [
        Settlement(fence, fence, "ack", cost_us=2 * SECOND if fence < 3 else 2_000)
        for fence in range(10)
    ]
    for _ in range(2000):
        durations.add(settlements, held)
    durations.add_failure(WorkerDelivery(lease, handlers[1], 0.0, 0))
    counts = durations.counts()
    assert counts["slow"][0] == 1
    slow, quick = counts["slow"][1 + 6], counts["quick"][1 + 1]
    assert slow + quick == 20_000
    assert slow == pytest.approx(6_000, rel=0.15)


def test_a_map_has_lines_of_equal_cells() -> None:
    """Equal neighbors are one line; the first class is at the bottom, level 0 is left out."""
    rows = [Row(at * SECOND, 0, 0, at, [], []) for at in range(60)]
    columns = heat.columns_of(rows, 60, 60 * SECOND)
    found = columns.map_of(2, lambda rows: [1, 2 if rows[0].waiting == 5 else 0])
    assert found.paths == [(1, "M0 1h60"), (2, "M5 0h1")]
    assert heat.part_levels([0, 1, 99]) == [0, 1, 5]
    assert heat.quantile([0, 9, 1], 0.5) == "5 ms"
    assert heat.quantile([0] * len(WAIT_BOUNDS_US) + [1], 0.5) == "over 24 h"
    assert heat.quantile([], 0.5) == "–"


def test_pages_show_maps(app: Laneway, world: World) -> None:
    """Who waits is a map with links to the topics of a bucket; tasks have their durations."""
    app.publish("bill.late", 1)
    report(app, "w1", task_slow=[0, 1])
    sampling.take(app.engine)
    world.later(400)
    report(app, "w1", task_slow=[4, 1, 0, 0, 0, 10])
    sampling.take(app.engine)
    with running(app) as browser:
        page = browser.get("/fairness")
        bucket = bucket_of("bill.late")
        assert f"{bucket} 5 min to 15 min" in page.words
        assert f"filter=bucket%3A{bucket}" in page.text
        assert "bill.late" in browser.get(f"/topics?order=age&filter=bucket:{bucket}").words
        assert "No topic matches" in browser.get("/topics?filter=bucket:99").words
        page = browser.get("/jobs?task=task.slow")
        assert "task.slow 0.2/min 500 ms 500 ms 4 36%" in page.words
        assert "task.slow: how long it took" in page.words
        assert "level-5" in page.text
        assert "over time" not in browser.get("/jobs?range=15m&task=none").words.split("Failed")[-1]


def test_a_filter_takes_a_bucket() -> None:
    assert filter_of("bucket:7 push.*").wanted == {"bucket": "7"}

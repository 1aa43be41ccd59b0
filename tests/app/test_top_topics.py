"""Top lists of topics, as people and programs read them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from laneway import Laneway, Message
from laneway.engines.base import MAX_BUSY_TOPICS, TopicStats, WorkerFacts
from laneway.errors import UsageError
from laneway.units import SECOND
from tests.working.support import Running, until


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
        yield app


def beat(app: Laneway, name: str, busy: dict[str, float], dead_after_us: int = SECOND) -> None:
    facts = WorkerFacts(id=name, busy_topics=busy)
    app.engine.beat(facts, dead_after_us=dead_after_us * 600, listed_us=700 * SECOND)


def test_by_worker_time(app: Laneway) -> None:
    """The handlers that workers run are added up by topic; dead workers run none."""
    beat(app, "one", {"push.a": 2.5, "push.b": 1})
    beat(app, "two", {"push.b": 3.0, "mail.c": 0.25})
    beat(app, "dead", {"mail.c": 90.0}, dead_after_us=-SECOND)
    found = app.topics(order="worker-time")
    assert [(stats.topic, stats.worker_time) for stats in found] == [
        ("push.b", 4.0),
        ("push.a", 2.5),
        ("mail.c", 0.25),
    ]
    assert [each.topic for each in app.topics(order="worker-time", pattern="push.*", limit=1)] == [
        "push.b"
    ]
    assert app.topics(order="name") == []


def test_workers_report_the_topics_that_keep_them_busy(app: Laneway) -> None:
    """A worker's heartbeat has the topics whose handlers run."""
    end = threading.Event()
    found: list[TopicStats] = []

    @app.handler("slow.*")
    def slow(message: Message) -> None:
        end.wait(120)

    def is_reported() -> bool:
        found[:] = app.topics(order="worker-time")
        return bool(found)

    app.publish("slow.a", 1)
    with Running(app, heartbeat_timeout=0.3):
        until(is_reported)
        end.set()
    busy = found[0]
    assert busy.topic == "slow.a"
    assert busy.worker_time


def test_a_heartbeat_names_a_bounded_number_of_topics(app: Laneway) -> None:
    """A heartbeat keeps the topics with most handlers."""
    beat(app, "many", {f"t.{n}": n for n in range(1000)})
    (worker,) = app.engine.workers()
    assert list(worker.facts.busy_topics) == [f"t.{999 - n}" for n in range(MAX_BUSY_TOPICS)]


def test_failures_and_arrivals(app: Laneway) -> None:
    """Each order has its figure; the other lists do not read it."""
    app.publish_many([Message("push.a", n) for n in range(64)])
    app.publish("push.b", 1)
    for delivery in app.lease(1, topics=["push.b"]):
        delivery.retry(error="no")
    assert [stats.topic for stats in app.topics(order="in-rate")] == ["push.a"]
    (failing,) = app.topics(order="failures")
    assert failing.topic == "push.b"
    assert failing.failure_rate
    assert app.topics(order="backlog")[0].in_rate is None
    with pytest.raises(UsageError, match=r"worker-time.*got 'size'"):
        app.topics(order="size")  # type: ignore[arg-type]

"""What a worker says about itself, and how it is found: the list, pings, what no worker serves."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from laneway import Laneway, Refused, WorkerInfo
from laneway.admin import workers as admin_workers
from laneway.engines.base import WorkerFacts
from laneway.errors import EngineUnavailable
from laneway.units import SECOND
from laneway.working import heartbeat
from tests.working.support import Running, until

SOON = 120.0

pytestmark = pytest.mark.usefixtures("quick_heartbeats")


def only(app: Laneway) -> WorkerInfo:
    (worker,) = app.workers()
    return worker


def test_worker_is_listed_while_it_runs(app: Laneway) -> None:
    """With its slots, leases and the message that has run longest; a worker that stops leaves."""
    done = threading.Event()

    @app.handler("a.*")
    def wait(_: object) -> None:
        done.wait(SOON)

    before = time.time()
    app.publish("a.1", 1, id="first")
    with Running(app, concurrency=3, heartbeat_timeout=600):
        until(lambda: app.workers() and only(app).oldest_id)
        worker = only(app)
        assert (worker.state, worker.pools, worker.topics) == ("running", ["default"], None)
        assert (worker.busy, worker.concurrency, worker.leased) == (1, 3, 1)
        assert (worker.oldest_topic, worker.oldest_id) == ("a.1", "first")
        assert f"worker {worker.id} holds it" in app.explain("first", topic="a.1").reasons[0]
        assert worker.oldest_since is not None
        assert before - 30 <= worker.oldest_since <= worker.last_heartbeat + 0.1
        assert worker.started <= worker.last_heartbeat
        assert worker.patterns is not None
        assert "a.*" in worker.patterns
        until(lambda: only(app).last_heartbeat > worker.last_heartbeat)
        done.set()
        until(lambda: only(app).oldest_id is None)
    assert app.workers() == []


def test_stopping_worker_says_so(app: Laneway) -> None:
    """While its handlers run on within the grace period it serves no pool."""
    done = threading.Event()

    @app.handler("a")
    def wait(_: object) -> None:
        done.wait(SOON)

    app.publish("a", 1)
    with Running(app, heartbeat_timeout=600) as running:
        until(lambda: app.workers() and only(app).busy)
        assert app.workers("default")
        running.stop()
        until(lambda: only(app).state == "stopping")
        assert admin_workers.Coverage(app.engine).lack("default", "a") is not None
        done.set()


def test_ping(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker answers at once, and not with its next heartbeat; one that died does not."""
    monkeypatch.setattr(heartbeat, "BEATS", 3)

    @app.handler("a")
    async def note(_: object) -> None: ...

    with Running(app, heartbeat_timeout=600):
        until(app.workers)
        worker_id = only(app).id
        for answers in (
            app.control.ping(worker_id, timeout=SOON),
            asyncio.run(app.control.aping(timeout=SOON)),
        ):
            (seconds,) = answers.values()
            assert seconds is not None
        app.engine.beat(
            WorkerFacts(id="killed"), dead_after_us=600 * SECOND, listed_us=700 * SECOND
        )
        answers = asyncio.run(app.control.aping(timeout=1))
        assert set(answers) == {worker_id, "killed"}
        assert answers["killed"] is None
        with pytest.raises(Refused, match='there is no worker "other"'):
            app.control.ping("other")


def test_blocked_event_loop_is_seen(
    app: Laneway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    The heartbeats go on, and tell how long the event loop has not responded; the log names the
    handler, once.
    """
    monkeypatch.setattr(heartbeat, "BLOCKED_SECONDS", 0.1)
    monkeypatch.setattr(heartbeat, "WARN_SECONDS", 3600.0)
    warning = "block blocks the event loop: nothing else ran there for"
    done = threading.Event()

    @app.handler("a")
    async def block(_: object) -> None:
        done.wait(SOON)  # it blocks

    with Running(app, heartbeat_timeout=600):
        app.publish("a", 1, id="blocking")
        until(lambda: app.workers() and (only(app).loop_lag or 0) > 0.3)
        until(lambda: warning in caplog.text)
        assert "(message blocking in topic a)" in caplog.text
        assert only(app).state == "running"
        done.set()
        until(lambda: (only(app).loop_lag or 0) < 0.2)
        app.publish("a", 1)
        until(lambda: app.topic("a").stats().done == 2)
    assert caplog.text.count(warning) == 1


def test_failing_heartbeat_does_not_end_the_worker(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raises; messages are handled, and the next heartbeat may succeed."""
    errors = [EngineUnavailable("away"), RuntimeError("defect")]
    beat = app.engine.beat

    def failing(*args: object, **options: object) -> int:
        if errors:
            raise errors.pop()
        return beat(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(app.engine, "beat", failing)
    handled = threading.Event()

    @app.handler("a")
    async def note(_: object) -> None:
        handled.set()

    with Running(app, heartbeat_timeout=600):
        app.publish("a", 1)
        assert handled.wait(SOON)
        until(app.workers)
    assert not errors


def test_explain_names_what_no_worker_serves(app: Laneway) -> None:
    """First if nothing else holds the message back; otherwise after what does."""
    app.policy("gpu.*", pool="gpu")
    app.policy("gpu.held", paused=True)
    first, later = app.publish("gpu.a", 1), app.publish("gpu.a", 2, delay="1h")
    held = app.publish("gpu.held", 3)
    assert app.explain(first.id).reasons[0] == 'no worker serves pool "gpu"'
    assert app.explain(first.id).starts_us is None
    assert app.explain(held.id).reasons == [
        "the topic is paused; resume it",
        'no worker serves pool "gpu"',
    ]
    assert len(app.explain(later.id).reasons) == 1, "one may be started until it is due"
    for facts in (WorkerFacts(id="1", pools=["gpu"], patterns=["cpu.*"]), WorkerFacts(id="2")):
        app.engine.beat(facts, dead_after_us=600 * SECOND, listed_us=700 * SECOND)
    assert app.explain(first.id).reasons[0] == 'no worker of pool "gpu" handles topic "gpu.a"'
    serving = WorkerFacts(id="3", pools=["gpu"], topics=["gpu.b", "gpu.a"], patterns=["gpu.*"])
    app.engine.beat(serving, dead_after_us=600 * SECOND, listed_us=700 * SECOND)
    assert not any("no worker" in reason for reason in app.explain(first.id).reasons)


def test_doctor_finds_messages_that_no_worker_serves(app: Laneway) -> None:
    """Once they have waited for a minute; a paused topic waits for nobody."""
    engine = app.engine
    app.policy("gpu", pool="gpu")
    app.policy("held", pool="other", paused=True)
    assert admin_workers.check(engine).ok
    for topic in ("gpu", "held"):
        app.publish(topic, 1)
    assert admin_workers.check(engine).ok
    engine.tick(now_us=engine.time_us() + 70 * SECOND)  # moves the store's clock
    finding = admin_workers.check(engine)
    assert not finding.ok
    assert finding.detail == 'no worker serves pool "gpu", and messages wait'
    facts = WorkerFacts(id="1", pools=["gpu", "other"], busy=2)
    engine.beat(facts, dead_after_us=600 * SECOND, listed_us=700 * SECOND)
    assert admin_workers.check(engine).ok
    assert admin_workers.check(engine).detail == "1 worker, 2 handlers run"

"""Handlers of exclusive and failover subscriptions: one worker at a time, with a fence."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from laneway import Laneway, Message, Term
from laneway.cluster import subscription_workers
from laneway.cluster.subscription_workers import _TermEngine
from laneway.cluster.term import clock
from laneway.cluster.term_store import Candidate, Claim, ElectionState, EngineTerms
from laneway.engines.base import FullEngine
from laneway.message import Batch
from laneway.testing.servers import until
from laneway.working.embedded_worker import EmbeddedWorker
from tests.cluster.processes import files_of, process_of
from tests.conformance.valkey_setups import server
from tests.stopping import stop_between_writes

TERM, LONG = 5.0, 60.0
"""Seconds. Processes of the tests may not run for a while; LONG is waited for by no test."""

PROGRAM = """
import sys, time
from laneway import Laneway
app = Laneway(sys.argv[1])

@app.handler(sys.argv[2], subscription="audit")
def audit(message):
    print("begun", message.topic, message.body, flush=True)
    if message.body == 3:
        sys.stdin.readline()

app.run_worker(concurrency=1, heartbeat_timeout=float(sys.argv[3]), grace=1)
"""


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/q.db"
    server().run("FLUSHALL")
    return server().url


@contextmanager
def worker_process(url: str, term: float) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, which holds message 3 until a line arrives."""
    with process_of(PROGRAM, url, "orders", str(term)) as process:
        yield process


def bodies(process: subprocess.Popen[str], count: int) -> list[int]:
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[-1]) for _ in range(count)]


@contextmanager
def worker_of(app: Laneway, seen: list[int], pattern: str = "orders") -> Iterator[EmbeddedWorker]:
    """A worker in this process."""

    @app.handler(pattern, subscription="audit")
    def audit(message: Message) -> None:
        seen.append(message.body)

    worker = app.worker(concurrency=1, heartbeat_timeout=LONG)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)


def state(app: Laneway) -> ElectionState:
    return app.election("consumer:orders#audit").state()


def holder(app: Laneway) -> str | None:
    return state(app).holder


def test_killed_worker(url: str) -> None:
    """
    After SIGKILL the waiting worker takes over with what was not settled, in order. It counts the
    term by its own clock, so the term ends in real time.
    """
    seen: list[int] = []
    with Laneway(url) as app, worker_process(url, TERM) as process:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="failover")
        app.publish_many(Message("orders", n) for n in range(8))
        assert bodies(process, 4) == [0, 1, 2, 3]
        until(lambda: app.engine.overview().done == 3, "the settlements")
        first = app.election("consumer:orders#audit").state()
        with worker_of(app, seen):
            process.kill()
            process.wait()
            until(lambda: len(seen) == 5, "the messages", 60)
            assert app.election("consumer:orders#audit").state().number > first.number
        until(lambda: holder(app) is None, "the end of the term")  # it has handed over
    assert seen == [3, 4, 5, 6, 7]


def test_stopped_process(url: str) -> None:
    """A worker that stood still for longer than its term settles nothing afterwards."""
    seen: list[int] = []
    with Laneway(url) as app, worker_process(url, TERM) as process:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="failover")
        app.publish_many(Message("orders", n) for n in range(6))
        assert bodies(process, 4) == [0, 1, 2, 3]
        until(lambda: app.engine.overview().done == 3, "the settlements")
        stop_between_writes(process.pid, *files_of(url))
        with worker_of(app, seen):
            until(lambda: len(seen) == 3, "the messages", 60)
            assert process.stdin is not None
            process.send_signal(signal.SIGCONT)
            process.stdin.write("\n")  # its handler of message 3 returns
            process.stdin.flush()
            app.publish("orders", 6)
            until(lambda: len(seen) == 4, "the messages")
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        # the store has a later term, or, if the timer is first, its time has passed
        assert "is lost: " in errors
        overview = app.engine.overview()  # a topic's own counters are forgotten with it
        assert (overview.done, overview.waiting, overview.leased) == (7, 0, 0)
    assert seen == [3, 4, 5, 6]


def test_exclusive_waits_with_a_warning(url: str, caplog: pytest.LogCaptureFixture) -> None:
    first_seen: list[int] = []
    second_seen: list[int] = []
    with Laneway(url) as app, Laneway(url) as other:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="exclusive")
        with ExitStack() as first, worker_of(other, second_seen) as waiting:
            assert waiting is not None
            until(lambda: holder(app), "a holder")
            first.enter_context(worker_of(app, first_seen))
            until(
                lambda: "and it is exclusive; this worker receives none" in caplog.text,
                "what the test waits for",
            )
            app.publish("orders", 1)
            until(lambda: second_seen == [1], "the messages")
            number = state(app).number
            waiting.stop()
            until(lambda: state(app).number > number, "the next term")  # it leases until it stops
            app.publish("orders", 2)
            until(lambda: first_seen == [2], "the messages")
    assert second_seen == [1]


def test_by_pattern_of_handlers(url: str) -> None:
    """A handler's pattern covers the subscriptions of single topics."""
    seen: list[int] = []
    with Laneway(url) as app:
        app.policy("*", own_backlog=False)
        for topic in ("orders.eu", "orders.us"):
            app.topic(topic).subscribe("audit", kind="failover")
        app.topic("orders.eu").subscribe("tax", kind="failover")
        app.publish_many(Message(topic, 1) for topic in ("orders.eu", "orders.us"))

        @app.handler("orders.*", subscription="audit")
        def audit(message: Message) -> None:
            seen.append(message.body)

        assert app.run_worker(burst=True).acked == 2
        assert app.topic("orders.eu#tax").stats().waiting == 1
    assert seen == [1, 1]


def test_step_down(url: str) -> None:
    """A worker that is asked to step down releases what it holds, and another one takes over."""
    seen: dict[str, list[int]] = {"first": [], "second": []}
    begun = threading.Event()
    with Laneway(url) as app, Laneway(url) as other:
        app.topic("orders").subscribe("audit", kind="failover")

        @app.handler("orders", subscription="audit")
        async def audit(message: Message) -> None:
            begun.set()
            await asyncio.sleep(60 if message.body == 1 else 0)
            seen["first"].append(message.body)

        worker = app.worker(heartbeat_timeout=LONG, concurrency=1, grace=0)
        thread = threading.Thread(target=worker.run)
        thread.start()
        app.publish("orders", 1)
        assert begun.wait(30)
        with worker_of(other, seen["second"]):
            other.election("consumer:orders#audit").step_down()
            until(lambda: seen["second"] == [1], "the messages")
            assert not seen["first"]
            worker.stop()
            thread.join(30)


def test_burst(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A worker with burst takes what is free, and does not wait for the rest."""
    with Laneway(url) as app, Laneway(url) as other:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="exclusive")
        app.publish_many(Message("orders", n) for n in range(3))
        app.handler("orders", subscription="audit")(lambda message: None)
        with other.topic("orders#audit").consumer():
            assert app.run_worker(burst=True).acked == 0
        assert "consumes it; this worker skips it" in caplog.text
        assert app.run_worker(burst=True).acked == 3


def test_shared_meanwhile(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscription that becomes shared is left to the workers of its usual pool."""
    monkeypatch.setattr(subscription_workers, "LOOK_SECONDS", 0.2)
    seen: list[int] = []
    with Laneway(url) as app:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="failover")
        with worker_of(app, seen):
            until(lambda: holder(app), "a holder")
            app.topic("orders").subscribe("audit")
            app.publish("orders", 1)
            until(lambda: seen == [1], "the messages")
            until(lambda: holder(app) is None, "the end of the term")


def test_a_claim_that_is_answered_too_late(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not end with its term; it claims again."""
    seen: list[int] = []
    claim, claims = EngineTerms.claim, []

    def late(terms: EngineTerms, candidate: Candidate, term: float) -> Claim | ElectionState:
        answer = claim(terms, candidate, term)
        claims.append(answer)
        is_first = len(claims) == 1 and isinstance(answer, Claim)
        return msgspec.structs.replace(answer, left=0.0) if is_first else answer

    monkeypatch.setattr(EngineTerms, "claim", late)
    with Laneway(url) as app:
        app.policy("orders", own_backlog=False)
        app.topic("orders").subscribe("audit", kind="exclusive")
        app.publish("orders", 1)
        with worker_of(app, seen):
            until(lambda: seen == [1], "the messages")


def test_leases_that_arrive_after_the_term(url: str) -> None:
    """They are returned, because a successor may hold the subscription already."""

    class Slow:
        """An engine whose leases are answered when the term has ended."""

        def lease(self, n: int, **options: Any) -> Batch:
            batch = engine.lease(n, **options)
            term.lose("it took too long")
            return batch

        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

    with Laneway(url) as app:
        engine = app.engine
        app.publish("orders", 1)
        term = Term("consumer:orders", 1, clock() + 60, was_handed_over=False)
        late = _TermEngine(cast("FullEngine", Slow()), term)
        assert late.lease(5, max_lease_us=1_000_000).leases == []
        stats = app.topic("orders").stats()
        assert (stats.waiting, stats.leased) == (1, 0)

"""Time limits, lost leases, shutdown, and an unavailable store: nothing is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from laneway import EngineUnavailable, Laneway, LeaseLost, Message, SoftTimeLimit
from laneway.errors import EngineCorrupt
from laneway.working.handler import SOFT_TIME_LIMIT_HEADER
from laneway.working.worker import Worker
from tests.working.support import Running, StoppedClock, until

if TYPE_CHECKING:
    from collections.abc import Callable


LEASE = 30.0
"""Seconds of a lease that does not end by real time during a test."""


def dead_error(app: Laneway, topic: str) -> str:
    """The error of the topic's only dead letter."""
    (dead,) = app.topic(topic).dead_letters()
    return dead.error or ""


def test_a_coroutine_is_cancelled_at_its_time_limit(app: Laneway) -> None:
    """At the time limit a coroutine is cancelled and its message is retried."""
    app.policy("t", retries=0)
    ended: list[str] = []

    @app.handler("t", time_limit=0.05)
    async def handle(_: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    app.publish("t")
    assert app.run_worker(burst=True).died == 1
    assert ended == ["cancelled"]
    assert "time limit of 0.05 s" in dead_error(app, "t")


def test_a_coroutine_that_ignores_its_cancellation_is_given_up(app: Laneway) -> None:
    """Its message fails all the same, and what the coroutine does later changes nothing."""
    app.policy("t", retries=0)

    @app.handler("t", time_limit=0.05)
    async def handle(_: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)

    app.publish("t")
    app.publish("t")
    summary = app.run_worker(burst=True, concurrency=1)
    assert (summary.died, summary.acked) == (2, 0)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_the_soft_limit_is_raised_in_the_handler(
    app: Laneway, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the soft limit the handler may clean up and succeed."""
    seen: list[str] = []
    begun, warn = threading.Event(), Worker._warn

    def warn_when_begun(worker: Worker, *unit_and_limit: Any) -> None:
        if begun.is_set():
            warn(worker, *unit_and_limit)
        else:  # a slow machine: its thread has not come to its `try` yet
            asyncio.get_running_loop().call_later(0.01, warn_when_begun, worker, *unit_and_limit)

    monkeypatch.setattr(Worker, "_warn", warn_when_begun)

    async def ahandle(_: Message) -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
        except SoftTimeLimit:
            await asyncio.sleep(0)
            seen.append("tidied up")

    def handle(_: Message) -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        except SoftTimeLimit:
            seen.append("tidied up")

    app.handler("t", soft_time_limit=0.05, time_limit=30)(ahandle if kind == "async" else handle)
    app.publish("t")
    assert app.run_worker(burst=True).acked == 1
    assert seen == ["tidied up"]


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_an_uncaught_soft_limit_is_a_failure(app: Laneway, kind: str) -> None:
    """The message is retried as after any other exception, and the next message is not affected."""
    app.policy("t", retries=0)

    async def ahandle(message: Message) -> None:
        await asyncio.sleep(message.body)

    def handle(message: Message) -> None:
        until_over = time.monotonic() + message.body
        while time.monotonic() < until_over:
            time.sleep(0.001)

    app.handler("t", soft_time_limit=60)(ahandle if kind == "async" else handle)
    first = Message("t", 120, headers={SOFT_TIME_LIMIT_HEADER: "0.2"})
    app.publish_many([first, *(Message("t", 0.001) for _ in range(20))])
    summary = app.run_worker(burst=True, concurrency=1)
    assert (summary.died, summary.acked) == (1, 20)
    assert "SoftTimeLimit" in dead_error(app, "t")


def test_a_thread_that_hangs_is_given_up_and_replaced(app: Laneway) -> None:
    """
    A thread cannot be killed: its message fails, and others are handled although only one may run
    at once.
    """
    app.policy("*", retries=0)
    release = threading.Event()
    seen: list[str] = []

    @app.handler("hang", time_limit=0.05)
    def hang(_: Message) -> None:
        release.wait(30)

    @app.handler("fine")
    def fine(_: Message) -> None:
        seen.append("fine")

    app.publish("hang", priority=1)
    app.publish("fine")
    try:
        summary = app.run_worker(burst=True, concurrency=1)
    finally:
        release.set()
    assert (summary.died, summary.acked) == (1, 1)
    assert seen == ["fine"]


@pytest.mark.usefixtures("quick_renewals")
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_leases_are_extended_while_a_handler_runs(
    app: Laneway, clock: StoppedClock, kind: str
) -> None:
    """A handler may take longer than the lease; no other worker gets its message."""
    app.policy("long", lease=LEASE)
    starts: list[int] = []

    async def ahandle(message: Message) -> None:
        starts.append(message.attempt)
        await asyncio.to_thread(clock.outlast_lease, app, message, LEASE)

    def handle(message: Message) -> None:
        starts.append(message.attempt)
        clock.outlast_lease(app, message, LEASE)

    app.handler("long")(ahandle if kind == "async" else handle)
    app.publish("long")
    assert app.run_worker(burst=True, heartbeat_timeout=600).acked == 1
    assert starts == [1]


@pytest.mark.usefixtures("quick_renewals")
def test_a_lost_lease_cancels_its_coroutine(app: Laneway) -> None:
    """When the lease is lost the handler is cancelled, and the message is not settled."""
    app.policy("l", lease=LEASE)
    begun, cancelled = threading.Event(), threading.Event()

    @app.handler("l")
    async def handle(_: Message) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    app.publish("l")
    with Running(app, heartbeat_timeout=600):
        assert begun.wait(60)
        app.topic("l").delete()
        assert cancelled.wait(60)


@pytest.mark.usefixtures("quick_renewals")
def test_a_lost_lease_is_raised_in_its_thread(app: Laneway) -> None:
    """LeaseLost is raised in a plain function."""
    app.policy("l", lease=LEASE)
    begun, lost = threading.Event(), threading.Event()

    @app.handler("l")
    def handle(_: Message) -> None:
        try:
            begun.set()
            while True:
                time.sleep(0.001)
        except LeaseLost:
            lost.set()

    app.publish("l")
    with Running(app, heartbeat_timeout=600):
        assert begun.wait(60)
        app.topic("l").delete()
        assert lost.wait(60)


def test_stop_finishes_running_handlers_and_releases_the_rest(app: Laneway) -> None:
    """
    Running handlers end within the grace period; messages that have not begun are released without
    an attempt.
    """
    begun, finish = threading.Event(), threading.Event()

    @app.handler("s")
    def handle(_: Message) -> None:
        begun.set()
        finish.wait(60)

    app.publish_many(Message("s", n) for n in range(20))
    running = Running(app, concurrency=2, grace=60)
    with running:
        assert begun.wait(60)
        running.stop()
        finish.set()
        summary = running.join()
    stats = app.topic("s").stats()
    assert stats.leased == 0
    assert summary.acked == stats.done
    assert 1 <= summary.acked <= 2
    assert stats.ready == 20 - summary.acked


@pytest.mark.parametrize("stops", [1, 2])
def test_stop_ends_handlers_after_the_grace_or_at_a_second_stop(app: Laneway, stops: int) -> None:
    """
    What has not ended within the grace period is released without an attempt; a second stop does
    not wait for the grace period.
    """
    begun = threading.Event()

    @app.handler("s")
    async def handle(_: Message) -> None:
        begun.set()
        await asyncio.sleep(60)

    app.publish("s")
    running = Running(app, grace=0.1 if stops == 1 else 60)
    with running:
        assert begun.wait(60)
        for _ in range(stops):
            running.stop()
        running.join()
    (delivery,) = app.lease(1)
    assert (delivery.attempt, delivery.lease.deliveries) == (1, 2)


def test_a_message_published_to_an_idle_worker_starts_at_once(app: Laneway) -> None:
    """An idle worker is notified, also after a while."""
    got: list[float] = []
    arrived = threading.Semaphore(0)

    @app.handler("i")
    async def handle(message: Message) -> None:
        got.append(time.time() - message.body)
        arrived.release()

    with Running(app):
        for _ in range(20):
            app.publish("i", time.time())
            assert arrived.acquire(timeout=20)
    assert sorted(got)[4] < 0.5, "on a busy machine most may be late"


def test_a_delayed_message_is_handled_when_it_is_due(app: Laneway) -> None:
    """A worker sleeps exactly until the next message is due."""
    late: list[float] = []
    arrived = threading.Semaphore(0)

    @app.handler("d")
    async def handle(message: Message) -> None:
        late.append(time.time() - message.body)
        arrived.release()

    with Running(app):
        for _ in range(20):
            app.publish("d", time.time() + 0.15, delay=0.15)
            assert arrived.acquire(timeout=20)
            if late[-1] < 0.2:
                break  # on a busy machine some are late
    assert -0.005 < min(late) < 0.2


def test_a_worker_continues_after_the_store_was_unavailable(
    app: Laneway, caplog: pytest.LogCaptureFixture
) -> None:
    """
    While the store is unavailable the worker retries; then it settles what has ended and continues.
    """
    caplog.set_level(logging.WARNING)
    away = threading.Event()
    done = threading.Semaphore(0)
    engine = app.engine
    lease, settle = engine.lease, engine.settle

    def failing(call: Callable[..., object]) -> Callable[..., object]:
        def attempt(*args: object, **kwargs: object) -> object:
            if away.is_set():
                raise EngineUnavailable(
                    "the disk is full; nothing was changed, make room and try again"
                )
            return call(*args, **kwargs)

        return attempt

    engine.lease, engine.settle = failing(lease), failing(settle)  # type: ignore[method-assign, assignment]

    @app.handler("e")
    async def handle(message: Message) -> None:
        if message.body == 1:
            away.set()
        done.release()

    with Running(app):
        app.publish("e", 1)
        assert done.acquire(timeout=60)
        app.publish("e", 2)
        until(lambda: "store unavailable" in caplog.text)
        away.clear()
        assert done.acquire(timeout=60)
        until(lambda: app.topic("e").stats().done == 2)
    assert "disk is full" in caplog.text


@pytest.mark.usefixtures("quick_renewals")
def test_leases_are_extended_while_a_handler_blocks_the_event_loop(
    app: Laneway, clock: StoppedClock
) -> None:
    """Those in the worker's buffer too: each message is handled once."""
    app.policy("x", lease=LEASE)
    handled: list[int] = []
    blocked = threading.Event()

    @app.handler("x")
    async def handle(message: Message) -> None:
        if not blocked.is_set():
            blocked.set()
            clock.outlast_lease(app, message, LEASE)
        handled.append(message.body)

    app.publish_many(Message("x", n) for n in range(20))
    summary = app.run_worker(burst=True, concurrency=5, heartbeat_timeout=600)
    assert summary.lost == 0
    assert sorted(handled) == list(range(20))


def test_a_worker_with_a_damaged_store_does_not_wait_for_suspects(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The suspect's start can never be recorded: the worker ends at once, whatever its grace period
    is.
    """
    app.policy("t", lease=0.05)
    app.publish("t")
    app.lease()
    until(lambda: app.topic("t").stats().leased == 0 or app.engine.tick() is None)

    def damaged(*_: object, **__: object) -> object:
        raise EngineCorrupt("the file is damaged")

    monkeypatch.setattr(app.engine, "start", damaged)

    @app.handler("t")
    def handle(_: Message) -> None: ...

    began = time.monotonic()
    with pytest.raises(EngineCorrupt):
        app.run_worker(grace=100)
    assert time.monotonic() - began < 50

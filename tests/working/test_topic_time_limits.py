"""
Time limits of policies: a handler that hangs is stopped, and the next message of its key runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pytest

from laneway import Laneway, Message, policy
from laneway.message import Lease
from laneway.policy import Resolved
from laneway.units import SECOND
from laneway.working import overdue
from laneway.working.executors import threads
from laneway.working.handler import Handler
from laneway.working.overdue import OverdueHandlers
from laneway.working.worker_delivery import WorkerDelivery
from tests.conformance.valkey_setups import server
from tests.working.support import Running, StoppedClock, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NEVER = threading.Event()
LIMIT = 0.05


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at running handlers many times a second, with the policies of that moment."""
    monkeypatch.setattr(overdue, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(overdue, "POLICY_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def only_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine the other messages are not overdue, however long they take."""
    find = OverdueHandlers.find

    def find_hanging(
        self: OverdueHandlers, held: list[WorkerDelivery]
    ) -> dict[WorkerDelivery, float]:
        found = find(self, held)
        return {unit: limit for unit, limit in found.items() if b"hang" in unit.lease.body}

    monkeypatch.setattr(OverdueHandlers, "find", find_hanging)


@pytest.fixture(autouse=True)
def ended_threads() -> Iterator[None]:
    """The threads whose handlers hung end with the test."""
    yield
    NEVER.set()
    NEVER.clear()


@pytest.fixture
def short_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "DEFAULT_TIME_LIMIT", LIMIT)


@pytest.fixture(params=["sqlite", "valkey"])
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Laneway]:
    url = f"sqlite:///{tmp_path}/q.db" if request.param == "sqlite" else server().url
    with Laneway(url, namespace=uuid4().hex, durability="memory") as application:
        application.policy("*", backoff=0, retries=0)
        yield application


async def hang_as_coroutine(message: Message) -> None:
    if message.body == "hang":
        await asyncio.Event().wait()


def hang(message: Message) -> None:
    if message.body == "hang":
        NEVER.wait()


HANDLERS: dict[str, tuple[Callable[[Message], Any], dict[str, Any]]] = {
    "async": (hang_as_coroutine, {}),
    "thread": (hang, {}),
    "process": (hang, {"isolation": "process"}),
}


def published(app: Laneway, topic: str = "t") -> None:
    """A message whose handler hangs, and one behind it, of one key."""
    app.publish(topic, "hang", key="k")
    app.publish(topic, "next", key="k")


def died_at_limit(app: Laneway, topic: str = "t") -> str:
    """The error of the message that hung, once it and the next one have ended in a worker."""
    summary = app.run_worker(burst=True, concurrency=1, grace=0)
    assert (summary.died, summary.acked) == (1, 1)
    (dead,) = app.topic(topic).dead_letters()
    assert dead.message.body == "hang"
    return dead.error or ""


@pytest.mark.usefixtures("short_default")
@pytest.mark.parametrize("kind", HANDLERS)
def test_a_serial_key_outlasts_a_handler_that_hangs(app: Laneway, kind: str) -> None:
    """By default: the handler is stopped, its message fails, and the next one of its key runs."""
    app.policy("t", serial=True)
    handler, options = HANDLERS[kind]
    app.handler("t", **options)(handler)
    published(app)
    assert f"its topic's time limit of {LIMIT} s" in died_at_limit(app)


@pytest.mark.parametrize("kind", HANDLERS)
def test_a_merged_key_outlasts_a_handler_that_hangs(
    app: Laneway, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrived while the head ran is handled after it; with a retry, both are merged."""
    app.policy("t", merge="last", serial=True, retries=1)
    handler, options = HANDLERS[kind]
    app.handler("t", **options)(handler)
    app.publish("t", "hang", key="k")
    with Running(app, concurrency=1, grace=0):
        until(lambda: app.topic("t").stats().leased)
        app.publish("t", "next", key="k")
        monkeypatch.setattr(policy, "DEFAULT_TIME_LIMIT", LIMIT)
        until(lambda: app.topic("t").stats().done)
    stats = app.topic("t").stats()
    assert (stats.dead, stats.waiting, stats.leased) == (0, 0, 0)


@pytest.mark.usefixtures("short_default")
def test_a_retry_of_a_handler_that_hung_lets_its_key_pass(app: Laneway) -> None:
    """With serial="yield" the next message of the key runs while the first one waits."""
    app.policy("t", serial="yield", retries=1, backoff=3600)
    app.handler("t")(hang)
    published(app)
    with Running(app, concurrency=1, grace=0):
        until(lambda: app.topic("t").stats().done)
    assert app.topic("t").stats().delayed == 1


@pytest.mark.usefixtures("short_default")
@pytest.mark.parametrize("fields", [{}, {"serial": True, "time_limit": "forever"}])
def test_other_handlers_have_no_default(app: Laneway, fields: dict[str, Any]) -> None:
    """Neither where no key can be blocked nor where the policy says that there is no limit."""
    app.policy("t", **fields)
    app.policy("limited", time_limit=2 * LIMIT)
    release = threading.Event()

    @app.handler("t")
    def handle(_: Message) -> None:
        release.wait()

    app.handler("limited")(hang)
    app.publish("t", "hang", key="k")
    app.publish("limited", "hang")
    with Running(app):
        until(lambda: app.topic("limited").stats().dead)  # by then the default would be over
        release.set()
        until(lambda: app.topic("t").stats().done)


def test_a_limit_for_all_topics(app: Laneway) -> None:
    """The policy of `*` limits handlers that have no limit of their own."""
    app.policy("*", time_limit=LIMIT)
    app.handler("t")(hang)
    published(app)
    assert f"its topic's time limit of {LIMIT} s" in died_at_limit(app)


def test_an_operator_stops_a_handler_that_runs(app: Laneway) -> None:
    """A policy's limit shortens the handler's own, and acts on handlers that run already."""
    begun = threading.Event()

    @app.handler("t", time_limit=3600)
    async def handle(message: Message) -> None:
        begun.set()
        await hang_as_coroutine(message)

    app.publish("t", "hang")
    with Running(app):
        assert begun.wait(60)
        app.engine.policy_set("operator", "*", {"time_limit": LIMIT})
        until(lambda: app.topic("t").stats().dead)
    assert f"{LIMIT} s" in (app.topic("t").dead_letters()[0].error or "")


def test_a_batch_has_the_shortest_limit_of_its_topics(app: Laneway) -> None:
    """One call, whose messages are all retried or dead letters when it is stopped."""
    app.policy("t.*", time_limit="1h")
    app.policy("t.b", time_limit=LIMIT)

    @app.handler("t.*", batch=2, batch_wait=60)
    async def handle(messages: list[Message]) -> None:
        await hang_as_coroutine(messages[0])

    app.publish("t.a", "hang")
    app.publish("t.b", "hang")
    assert app.run_worker(burst=True).died == 2


def test_a_thread_that_still_runs_is_reported(
    app: Laneway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be killed; another thread has taken its place."""
    monkeypatch.setattr(threads, "STUCK_SECONDS", LIMIT)
    caplog.set_level(logging.WARNING)
    app.policy("t", time_limit=LIMIT)
    app.handler("t")(hang)
    app.publish("t", "hang", id="stuck")
    with Running(app, grace=0):
        until(lambda: "message stuck in topic t: its handler was stopped, but" in caplog.text)


@pytest.mark.parametrize("app", ["sqlite"], indirect=True)
@pytest.mark.usefixtures("short_default")
def test_a_lease_is_not_extended_after_the_limit(
    app: Laneway, clock: StoppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A coroutine that blocks the event loop cannot be stopped: its lease ends, other workers get the
    message, and what its handler does afterwards changes nothing.
    """
    app.policy("t", serial=True, lease=1)
    over, find = threading.Event(), OverdueHandlers.find

    def note(
        handlers: OverdueHandlers, held: Iterable[WorkerDelivery]
    ) -> dict[WorkerDelivery, float]:
        if found := find(handlers, held):
            over.set()
        return found

    monkeypatch.setattr(OverdueHandlers, "find", note)
    others: list[Lease] = []

    @app.handler("t")
    async def handle(_: Message) -> None:
        assert over.wait(60)
        clock.now_us += 2 * SECOND
        (lease,) = app.engine.lease(1).leases
        others.append(lease)

    sent = app.publish("t", "hang", key="k")
    summary = app.run_worker(burst=True, heartbeat_timeout=600, max_messages=1)
    assert (summary.lost, summary.handled) == (1, 0)
    assert [lease.id for lease in others] == [sent.id]


# Without a worker


class PolicyReader(NamedTuple):
    """An engine of which only policies are read."""

    policies: dict[str, Resolved]
    reads: list[str]

    def policy_of(self, topic: str) -> Resolved:
        self.reads.append(topic)
        return self.policies.get(topic, Resolved())


def running(topic: str, **options: Any) -> WorkerDelivery:
    """A delivery whose handler began at the beginning of time."""
    handler = Handler(hang, topic, **options)
    unit = WorkerDelivery(Lease(1, 1, "m", topic, b"hang", 0), handler, 0.0, SECOND)
    unit.began = 1e-9
    return unit


def overdue_of(engine: PolicyReader) -> OverdueHandlers:
    return OverdueHandlers(engine)  # type: ignore[arg-type]  # it only reads policies


def test_the_time_in_which_a_child_starts_does_not_count() -> None:
    engine = PolicyReader({"t": Resolved(time_limit=1)}, [])
    unit = running("t")
    unit.is_starting = True
    assert overdue_of(engine).find([unit]) == {}
    unit.is_starting = False
    assert overdue_of(engine).find([unit]) == {unit: 1e-6}


def test_a_handler_is_overdue_although_its_policy_is_not_read_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own limit holds."""
    monkeypatch.setattr(overdue, "MAX_READS", 0)
    unit = running("t", time_limit=0.5)
    assert overdue_of(PolicyReader({}, [])).find([unit]) == {unit: 0.5}


def test_few_policies_are_read_at_once_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with many topics of long handlers reads them one after the other, and once."""
    monkeypatch.setattr(overdue, "POLICY_SECONDS", 3600)
    monkeypatch.setattr(overdue, "MAX_READS", 2)
    engine = PolicyReader({f"t{n}": Resolved(time_limit=1) for n in range(5)}, [])
    units = [running(f"t{n}") for n in range(5)]
    handlers = overdue_of(engine)
    assert list(handlers.find(units)) == units[:2]
    assert list(handlers.find(units)) == units[:4]
    assert list(handlers.find(units)) == list(handlers.find(units)) == units
    assert engine.reads == [f"t{n}" for n in range(5)]
    assert list(handlers.find(units[:1])) == units[:1]
    assert list(handlers.find(units)) == [units[0], *units[1:3]], "topics that ended are forgotten"

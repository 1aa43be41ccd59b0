"""Middlewares around handlers, and hooks that are called with the end of messages."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any

import pytest

from laneway import DestinationUnavailable, Laneway, Message, Reject, Retry, UsageError
from laneway.message import Lease, Settlement
from laneway.working.hook_thread import HookThread
from laneway.working.middleware import HandlingMiddlewares
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Generator

KINDS = ["async", "thread"]


def register(app: Laneway, kind: str, work: Any, **options: Any) -> None:
    """Register the same handler as a coroutine or as a plain function."""

    async def ahandle(message: Any) -> Any:
        return work(message)

    def handle(message: Any) -> Any:
        return work(message)

    app.handler("*", **options)(ahandle if kind == "async" else handle)


@pytest.mark.parametrize("kind", KINDS)
def test_middlewares_run_around_every_handler(app: Laneway, kind: str) -> None:
    """The first is the outermost; the handler sees context variables that a middleware sets."""
    seen: list[Any] = []
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")

    @app.around_handling
    def outer(message: Message) -> Generator[None, None, None]:
        seen.append(("outer", message.body))
        trace.set(f"trace of {message.body}")
        yield
        seen.append("outer ends")

    @app.around_handling
    def inner(message: Message) -> Generator[None, None, None]:
        seen.append(("inner", message.body))
        yield
        seen.append("inner ends")

    register(app, kind, lambda message: seen.append(trace.get()))
    app.publish("t", 1)
    assert app.run_worker(burst=True).acked == 1
    assert seen == [("outer", 1), ("inner", 1), "trace of 1", "inner ends", "outer ends"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_middleware_may_change_the_outcome(app: Laneway, kind: str) -> None:
    """It may turn an error into Reject, suppress it, or refuse to run the handler."""
    ran: list[str] = []

    @app.around_handling
    def judge(message: Message) -> Generator[None, None, None]:
        if message.body == "never":
            raise Reject("not on Sundays")
        try:
            yield
        except LookupError as error:
            if message.body == "fatal":
                raise Reject("no such customer") from error

    def work(message: Message) -> None:
        ran.append(message.body)
        raise LookupError(message.body)

    register(app, kind, work)
    for body in ("fatal", "fine", "never"):
        app.publish("t", body)
    summary = app.run_worker(burst=True, concurrency=1)
    assert (summary.acked, summary.died, summary.retried) == (1, 2, 0)
    assert sorted(ran) == ["fatal", "fine"]
    assert {dead.reason for dead in app.dead_letters.list()} == {
        "no such customer",
        "not on Sundays",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_passes_as_a_list(app: Laneway, kind: str) -> None:
    """Around a batch handler, a middleware gets the list that the handler gets."""
    seen: list[int] = []

    @app.around_handling
    def count(messages: list[Message]) -> Generator[None, None, None]:
        seen.append(len(messages))
        yield

    register(app, kind, lambda messages: None, batch=10)
    app.publish_many(Message("t", n) for n in range(20))
    assert app.run_worker(burst=True).acked == 20
    assert sum(seen) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_no_middleware_runs_for_a_body_that_cannot_be_decoded(app: Laneway, kind: str) -> None:
    """There is no message to pass; it becomes a dead letter as without middlewares."""

    @app.around_handling
    def never(message: Message) -> Generator[None, None, None]:
        raise AssertionError("called")
        yield

    register(app, kind, print)
    from laneway.message import Draft

    app.engine.put([Draft("t", b"{no json")])
    assert app.run_worker(burst=True).died == 1
    assert "not JSON" in app.dead_letters.list()[0].reason


def record_hooks(app: Laneway, seen: list[Any]) -> None:
    """Register a hook of each kind that records its arguments."""
    app.on_success(lambda message: seen.append(("success", message.body)))
    app.on_failure(
        lambda message, error: seen.append(("failure", message.body, type(error).__name__))
    )
    app.on_retry(lambda message, error: seen.append(("retry", message.body, type(error).__name__)))
    app.on_dead(lambda message, error: seen.append(("dead", message.body, type(error).__name__)))


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_are_called_with_the_end_of_each_message(app: Laneway, kind: str) -> None:
    """
    Success, failure, retry and dead follow the engine's answers, in the order of the settlements.
    """
    app.policy("*", retries=1)
    seen: list[Any] = []
    record_hooks(app, seen)

    def work(message: Message) -> None:
        match message.body:
            case "raises":
                raise LookupError
            case "asks":
                raise Retry
            case "rejects":
                raise Reject("no")

    register(app, kind, work)
    for body in ("fine", "raises", "asks", "rejects"):
        app.publish("t", body)
        app.run_worker(burst=True, concurrency=1)
    assert seen == [
        ("success", "fine"),
        ("failure", "raises", "LookupError"),
        ("retry", "raises", "LookupError"),
        ("failure", "raises", "LookupError"),
        ("dead", "raises", "LookupError"),
        ("retry", "asks", "Retry"),
        ("dead", "asks", "Retry"),
        ("dead", "rejects", "Reject"),
    ]


def test_hooks_and_time_limits_and_batches(app: Laneway) -> None:
    """A handler that was stopped has failed; for a batch, hooks are called for each message."""
    app.policy("*", retries=0)
    seen: list[Any] = []
    record_hooks(app, seen)

    @app.handler("slow", time_limit=0.05)
    async def slow(_: Message) -> None:
        await asyncio.sleep(60)

    @app.handler("batch", batch=10)
    async def batch(messages: list[Message]) -> list[Exception | None]:
        return [None if message.body % 2 else Reject("even") for message in messages]

    app.publish("slow", "s")
    app.publish_many(Message("batch", n) for n in range(4))
    app.run_worker(burst=True)
    assert sorted(map(str, seen)) == sorted(
        map(
            str,
            [
                ("failure", "s", "TimeLimit"),
                ("dead", "s", "TimeLimit"),
                ("dead", 0, "Reject"),
                ("success", 1),
                ("dead", 2, "Reject"),
                ("success", 3),
            ],
        )
    )


def test_a_back_off_is_no_failure(app: Laneway) -> None:
    """A message whose destination is unavailable has not failed: on_failure is not called."""
    seen: list[Any] = []
    record_hooks(app, seen)

    @app.handler("*")
    async def unavailable(_: Message) -> None:
        raise DestinationUnavailable("503", retry_after=60)

    app.publish("t")
    with Running(app):
        until(lambda: app.topic("t").stats().delivered and not app.topic("t").stats().leased)
    assert seen == []


def test_a_hook_that_fails_is_logged_and_changes_nothing(
    app: Laneway, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is acked, and the next hook is called."""
    seen: list[Any] = []

    @app.on_success
    def broken(message: Message) -> None:
        raise RuntimeError("the mail server is down")

    app.on_success(lambda message: seen.append(message.body))
    register(app, "async", lambda message: None)
    app.publish("t", 1)
    assert app.run_worker(burst=True).acked == 1
    assert seen == [1]
    assert "broken of on_success failed" in caplog.text
    assert "mail server" in caplog.text


def test_slow_hooks_set_the_pace(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handlers do not run far ahead of hooks, and continue when the hooks have caught up."""
    monkeypatch.setattr("laneway.working.hook_thread.MAX_PENDING", 4)
    called: list[Any] = []
    go_on, handled = threading.Event(), threading.Event()

    @app.on_success
    def slow(message: Message) -> None:
        assert go_on.wait(60)
        called.append(message.body)

    def work(message: Message) -> None:
        handled.set()

    register(app, "thread", work)
    app.publish_many(Message("t", n) for n in range(100))
    with Running(app, concurrency=1):
        assert handled.wait(60)
        threading.Event().wait(0.3)  # time enough to run far ahead
        assert app.topic("t").stats().done < 30
        go_on.set()
        until(lambda: len(called) == 100)
    assert sorted(called) == list(range(100))


def test_hooks_are_plain_functions(app: Laneway) -> None:
    """An async hook is refused, because it would never be awaited."""

    async def hook(message: Message) -> None: ...

    with pytest.raises(UsageError, match=r'on_success: .*"def"'):
        app.on_success(hook)


def test_no_hook_is_called_for_a_lost_lease(app: Laneway) -> None:
    """Another worker decides how that message ends."""
    seen: list[Any] = []
    record_hooks(app, seen)
    register(app, "thread", lambda message: app.topic("t").delete())
    app.publish("t", 1)
    assert app.run_worker(burst=True).lost == 1
    assert seen == []


def test_hooks_that_were_behind_by_one_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resume` is called after `is_behind` was True, however far behind the hooks were."""
    monkeypatch.setattr("laneway.working.hook_thread.MAX_PENDING", 2)
    go_on, resumed = threading.Event(), threading.Event()
    middlewares = HandlingMiddlewares()
    middlewares.add_hook("success", lambda message: go_on.wait(60))
    hooks = HookThread(middlewares, resumed.set)
    leases = [Lease(n, n, f"{n}", "t", b"1", 0) for n in range(3)]
    for lease in leases:
        hooks.expect(lease, None)
    hooks.settled([Settlement(lease.handle, lease.fence) for lease in leases], ["acked"] * 3)
    assert hooks.is_behind()
    hooks.start()
    go_on.set()
    assert resumed.wait(60)
    hooks.end(60)

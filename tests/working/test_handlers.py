"""Handlers: which handler gets a message, and how the message ends."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from laneway import BadMessage, DestinationUnavailable, Laneway, Message, Reject, Retry, UsageError
from laneway.message import Batch, Lease
from laneway.testing.servers import until
from laneway.working.engine_thread import EngineThread
from laneway.working.handler import MAX_CACHED_TOPICS, Handler, Handlers
from laneway.working.outcome_log import UnhandledWarnings
from tests.working.support import Running


def test_a_burst_handles_everything_and_ends(app: Laneway) -> None:
    """A burst ends by itself when nothing is left; each message was handled once."""
    seen: list[int] = []

    @app.handler("push.*")
    async def handle(message: Message) -> None:
        seen.append(message.body["n"])

    app.publish_many(Message(f"push.{n % 7}", {"n": n}) for n in range(3000))
    summary = app.run_worker(burst=True)
    assert sorted(seen) == list(range(3000))
    assert summary.acked == 3000


def test_a_burst_runs_a_message_that_is_sent_during_its_last_lease(
    app: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker listens, so the engine sends it the message; the event loop reads it late."""
    ended: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []
    publisher = threading.Thread(target=app.publish, args=("second",))
    lease = app.engine.lease

    def lease_and_publish(*arguments: Any, **options: Any) -> Batch:
        batch = lease(*arguments, **options)
        if not batch.leases and ended == ["first"] and publisher.ident is None:
            loops[0].call_soon_threadsafe(time.sleep, 0.2)
            publisher.start()
            publisher.join()
        return batch

    monkeypatch.setattr(app.engine, "lease", lease_and_publish)

    @app.handler("first")
    async def first(_: Message) -> None:
        loops.append(asyncio.get_running_loop())
        (thread,) = (each for each in threading.enumerate() if isinstance(each, EngineThread))
        await asyncio.to_thread(until, lambda: thread._is_listening, "it listens")
        ended.append("first")

    @app.handler("second")
    async def second(_: Message) -> None:
        ended.append("second")

    app.publish("first", None)
    app.run_worker(burst=True)
    assert ended == ["first", "second"]


def test_a_burst_ends_when_nothing_is_left_to_run_now(app: Laneway) -> None:
    """
    A burst does not wait for back-offs, pauses, delays and schedules. It waits for a rate, because
    those messages could run now.
    """
    app.policy("slow", rate="20/s", burst=1)

    @app.handler("*")
    async def handle(message: Message) -> None:
        if message.topic == "unavailable":
            raise DestinationUnavailable(retry_after="1h")

    app.schedule("nightly", Message("nightly"), every="1d")
    app.topic("paused").pause()
    for topic in ("unavailable", "unavailable", "paused", "slow", "slow", "slow"):
        app.publish(topic)
    app.publish("later", delay="1h")
    began = time.monotonic()
    assert app.run_worker(burst=True, concurrency=1).acked == 3
    assert time.monotonic() - began < 300
    assert app.topic("unavailable").stats().waiting == 2


def test_the_most_specific_pattern_wins(app: Laneway) -> None:
    """A handler of the exact name precedes one of a prefix, which precedes `*`."""
    seen: list[tuple[str, str]] = []

    @app.handler("*")
    async def rest(message: Message) -> None:
        seen.append(("rest", message.topic))

    @app.handler("push.*")
    async def pushes(message: Message) -> None:
        seen.append(("pushes", message.topic))

    @app.handler("push.acme")
    def acme(message: Message) -> None:
        seen.append(("acme", message.topic))

    for topic in ("push.acme", "push.other", "mail"):
        app.publish(topic)
    app.run_worker(burst=True)
    assert sorted(seen) == [("acme", "push.acme"), ("pushes", "push.other"), ("rest", "mail")]


def test_few_topics_that_are_gone_are_remembered() -> None:
    """
    However many topics come and go, a worker keeps the handlers of a few thousand of them; with
    more, its memory would grow for as many minutes as that takes.
    """
    handlers = Handlers()
    handlers.add(Handler(lambda _: None, "soak.*"))
    kept = 0
    for n in range(25_000):
        assert handlers.find(Lease(n, n, str(n), f"soak.{n}", b"1", 0)) is not None
        kept = max(kept, len(handlers._by_topic))
    assert kept == MAX_CACHED_TOPICS == 10_000


def test_what_a_handler_gets(app: Laneway) -> None:
    """A handler gets the message as it was published, with its attempt; bytes stay bytes."""
    seen: list[Message] = []

    @app.handler("a.*")
    def handle(message: Message) -> None:
        seen.append(message)

    receipt = app.publish("a.json", {"x": [1, None]}, key="k", priority=3, headers={"trace": "7"})
    app.publish("a.raw", b"\x00\xff")
    app.run_worker(burst=True)
    by_topic = {message.topic: message for message in seen}
    first = by_topic["a.json"]
    assert (first.body, first.key, first.priority, first.headers, first.id) == (
        {"x": [1, None]},
        "k",
        3,
        {"trace": "7"},
        receipt.id,
    )
    assert (first.attempt, first.deliveries) == (1, 1)
    assert first.published_at > 0
    assert by_topic["a.raw"].body == b"\x00\xff"


def test_collected_bodies_come_as_a_list(app: Laneway) -> None:
    """With merge="all" the handler gets a list of the bodies in the order of publishing."""
    seen: list[object] = []
    app.policy("m", merge="all")

    @app.handler("m")
    async def handle(message: Message) -> None:
        seen.append(message.body)

    for n in range(3):
        app.publish("m", n, key="k")
    app.run_worker(burst=True)
    assert seen == [[0, 1, 2]]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no such order"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
    ],
)
@pytest.mark.parametrize("kind", ["async", "thread"])
def test_any_error_of_a_handler_is_a_failure_of_its_message(
    app: Laneway, error: BaseException, kind: str
) -> None:
    """
    Any exception, also SystemExit, counts as an attempt, is kept with the message, and does not end
    the worker.
    """
    app.policy("bad", retries=1)
    seen: list[int] = []

    def handle(message: Message) -> None:
        if message.topic == "good":
            seen.append(1)
            return
        raise error

    async def ahandle(message: Message) -> None:
        handle(message)

    app.handler("*")(ahandle if kind == "async" else handle)
    app.publish("bad")
    app.publish("good")
    summary = app.run_worker(burst=True)
    # A retry is due at once, but a burst does not wait for what is delayed.
    while not (dead := app.topic("bad").dead_letters()):
        summary = app.run_worker(burst=True)
    assert seen == [1]
    assert summary.died == 1
    assert type(error).__name__ in (dead[0].error or "")
    assert dead[0].reason.startswith("retries used up")


def test_one_warning_for_each_kind_without_a_handler(caplog: pytest.LogCaptureFixture) -> None:
    """The number of warnings depends on neither the messages nor the topics, and has a bound."""
    unhandled = UnhandledWarnings()
    unhandled.warn(Lease(n, n, str(n), f"push.{n}", b"1", 0) for n in range(300))
    unhandled.warn(Lease(n, n, str(n), f"single-{n}", b"1", 0) for n in range(300))
    warnings = [record.getMessage() for record in caplog.records]
    assert sum("(push.*);" in line for line in warnings) == 1
    assert len(warnings) <= 101


def test_the_error_text_has_the_place(app: Laneway) -> None:
    """Type, message and the innermost lines of the traceback are kept."""
    app.policy("bad", retries=0)

    @app.handler("bad")
    async def handle(_: Message) -> None:
        raise LookupError("order 42 is unknown")

    app.publish("bad")
    app.run_worker(burst=True)
    (dead,) = app.topic("bad").dead_letters()
    assert dead.error is not None
    assert dead.error.startswith("LookupError: order 42 is unknown")
    assert "test_handlers.py" in dead.error


def test_reject_makes_a_dead_letter_at_once(app: Laneway) -> None:
    """Reject makes a dead letter whatever retries are left."""

    @app.handler("r")
    def handle(_: Message) -> None:
        raise Reject("no such customer")

    app.publish("r")
    assert app.run_worker(burst=True).died == 1
    assert app.topic("r").dead_letters()[0].reason == "no such customer"


def test_retry_with_a_delay(app: Laneway) -> None:
    """Retry sets its own delay and counts an attempt."""

    @app.handler("r")
    async def handle(_: Message) -> None:
        raise Retry("later", delay="1h")

    app.publish("r")
    assert app.run_worker(burst=True).retried == 1
    stats = app.topic("r").stats()
    assert (stats.delayed, stats.ready) == (1, 0)


def test_an_invalid_delay_of_a_retry_is_reported(app: Laneway) -> None:
    """A delay that cannot be parsed is named in the error; the message is retried all the same."""
    app.policy("r", retries=0)

    @app.handler("r")
    async def handle(_: Message) -> None:
        raise Retry("later", delay="soon")

    app.publish("r")
    app.run_worker(burst=True)
    assert "'soon'" in (app.topic("r").dead_letters()[0].error or "")


def test_a_topic_backs_off_if_its_destination_is_unavailable(app: Laneway) -> None:
    """The whole topic waits, and no attempt is counted."""

    @app.handler("u")
    async def handle(_: Message) -> None:
        stopping.set()
        raise DestinationUnavailable("503", retry_after=60)

    stopping = threading.Event()
    app.publish("u")
    app.publish("u")
    with Running(app, concurrency=1):
        assert stopping.wait(60)
    stats = app.topic("u").stats()
    assert stats.waiting == 2
    assert stats.died == stats.retried == 0


def test_a_returned_value_is_ignored(app: Laneway, caplog: pytest.LogCaptureFixture) -> None:
    """A returned value changes nothing and is logged at level debug."""
    caplog.set_level(logging.DEBUG, "laneway.worker")

    @app.handler("n")
    async def handle(_: Message) -> object:
        return object()

    app.publish("n")
    assert app.run_worker(burst=True).acked == 1
    assert "is ignored" in caplog.text


def test_a_returned_coroutine_is_a_failure(app: Laneway) -> None:
    """A plain function that returns a coroutine has not done its work, so the message fails."""
    app.policy("n", retries=0)

    async def work() -> None: ...

    @app.handler("n")
    def handle(_: Message) -> object:
        return work()

    app.publish("n")
    assert app.run_worker(burst=True).died == 1
    assert "async def" in (app.topic("n").dead_letters()[0].error or "")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_returned_generator_is_a_failure(app: Laneway, *, is_async: bool) -> None:
    """Nothing of its work was done: an ack would lose the message."""
    app.policy("n", retries=0)

    def work() -> Iterator[None]:
        yield

    async def work_async() -> AsyncIterator[None]:
        yield

    @app.handler("n")
    def handle(_: Message) -> object:
        return work_async() if is_async else work()

    app.publish("n")
    assert app.run_worker(burst=True).died == 1
    assert "returned a generator" in (app.topic("n").dead_letters()[0].error or "")


def test_a_generator_function_is_no_handler(app: Laneway) -> None:
    def work(_: object) -> Iterator[None]:
        yield

    async def work_async(_: object) -> AsyncIterator[None]:
        yield

    for function in (work, work_async):
        for declare in (app.handler("n"), app.handler("n", batch=5), app.task, app.task()):
            with pytest.raises(UsageError, match="remove the yield"):
                declare(function)


def test_a_body_that_cannot_be_decoded_is_a_dead_letter(app: Laneway) -> None:
    """A body that is not what its headers say becomes a dead letter with a clear reason."""
    from laneway.message import Draft

    @app.handler("x")
    async def handle(_: Message) -> None: ...

    app.engine.put([Draft("x", b"{not json")])
    assert app.run_worker(burst=True).died == 1
    assert "not JSON" in app.topic("x").dead_letters()[0].reason


def test_a_message_without_a_handler_is_returned(
    app: Laneway, caplog: pytest.LogCaptureFixture
) -> None:
    """It is released with a delay, a warning and no attempt."""

    @app.handler("known")
    async def handle(_: Message) -> None: ...

    app.publish("unknown")
    app.run_worker(burst=True)
    stats = app.topic("unknown").stats()
    assert (stats.delayed, stats.dead) == (1, 0)
    assert "no handler for message" in caplog.text


def test_a_handler_takes_one_argument(app: Laneway) -> None:
    """
    A function that cannot be called with one message is refused when it is registered, not for each
    message.
    """

    def nothing() -> None: ...
    def two(message: Message, other: int) -> None: ...
    async def named(*, message: Message) -> None: ...

    for wrong in (nothing, two, named):
        with pytest.raises(UsageError, match=r"one argument.*write def \w+\(message\)"):
            app.handler("a")(wrong)
    with pytest.raises(UsageError, match=r"write def nothing\(messages\)"):
        app.handler("a", batch=3)(nothing)

    def extra(message: Message, other: int = 1, *rest: object, **more: object) -> None: ...

    app.handler("a")(extra)
    app.handler("b")(print)


@pytest.mark.parametrize("raised", [False, True])
def test_batches(app: Laneway, raised: bool) -> None:
    """
    A batch handler gets lists; its error is the error of all messages, a returned list has one
    outcome for each.
    """
    app.policy("b", retries=0)
    sizes: list[int] = []

    @app.handler("b", batch=10, concurrency=1)
    def handle(messages: list[Message]) -> list[BaseException | None]:
        sizes.append(len(messages))
        if raised:
            raise ValueError("all of them")
        return [None if message.body % 2 else Reject("even") for message in messages]

    app.publish_many(Message("b", n) for n in range(40))
    summary = app.run_worker(burst=True)
    assert sum(sizes) == 40
    assert max(sizes) == 10
    assert (summary.acked, summary.died) == ((0, 40) if raised else (20, 20))


@pytest.mark.parametrize("concurrency", [4, 100])
def test_a_batch_waits_until_it_is_full(app: Laneway, concurrency: int) -> None:
    """Also a batch with more messages than the worker has slots."""
    sizes: list[int] = []

    @app.handler("b", batch=30, batch_wait="1h")
    async def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        full.set()

    async def run() -> None:
        async with app.worker(concurrency=concurrency):
            for n in range(30):
                await app.apublish("b", n)
            await asyncio.wait_for(full.wait(), 30)

    full = asyncio.Event()
    asyncio.run(run())
    assert sizes == [30]
    assert app.topic("b").stats().done == 30


def test_a_batch_that_is_not_full_begins_after_its_wait(app: Laneway) -> None:
    @app.handler("b", batch=10, batch_wait=0.2)
    def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))

    sizes: list[int] = []
    app.publish_many(Message("b", n) for n in range(13))
    app.publish("other", 1)
    app.handler("other")(lambda _: None)
    began = time.monotonic()
    assert app.run_worker(burst=True).acked == 14
    assert sizes == [10, 3]
    assert time.monotonic() - began >= 0.2


def test_a_batch_that_waits_is_released_when_the_worker_stops(app: Laneway) -> None:
    handled: list[Message] = []

    @app.handler("b", batch=10, batch_wait="1h")
    def handle(messages: list[Message]) -> None:
        handled.extend(messages)

    @app.handler("c")
    def wait_for_the_lease(message: Message) -> None:
        while not app.topic("b").stats().leased:
            time.sleep(0.01)
        leased.set()

    leased = threading.Event()
    app.publish("b", 1)
    app.publish("c", 1)
    with Running(app):
        assert leased.wait(30)
    stats = app.topic("b").stats()
    assert (handled, stats.ready, stats.leased) == ([], 1, 0)


def test_a_batch_that_returns_a_wrong_list(app: Laneway) -> None:
    """
    A list of the wrong length is an error of all its messages; the error says what was expected.
    """
    app.policy("b", retries=0)

    @app.handler("b", batch=10)
    async def handle(messages: list[Message]) -> list[None]:
        return [None] * (len(messages) + 1)

    app.publish_many(Message("b", n) for n in range(5))
    assert app.run_worker(burst=True).died == 5
    assert "exception for each" in (app.topic("b").dead_letters()[0].error or "")


def test_one_bad_body_does_not_spoil_its_batch(app: Laneway) -> None:
    """Of a batch, only the message that cannot be decoded becomes a dead letter."""
    from laneway.message import Draft

    got: list[int] = []

    @app.handler("b", batch=10)
    async def handle(messages: list[Message]) -> None:
        got.extend(message.body for message in messages)

    app.engine.put([Draft("b", b"1"), Draft("b", b"?"), Draft("b", b"3")])
    summary = app.run_worker(burst=True)
    assert got == [1, 3]
    assert (summary.acked, summary.died) == (2, 1)


def test_context_variables_do_not_leak(app: Laneway) -> None:
    """No handler sees a context variable that the handler of another message has set."""
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)
    seen: list[int] = []

    @app.handler("c")
    async def handle(message: Message) -> None:
        seen.append(variable.get())
        variable.set(message.body)

    app.publish_many(Message("c", n) for n in range(50))
    app.run_worker(burst=True)
    assert seen == [-1] * 50


def test_concurrency_of_worker_and_handler(app: Laneway) -> None:
    """
    No more handlers run at once than the worker and the handler allow; others continue beside a
    slow one.
    """
    running = {"slow": 0, "fast": 0}
    most = {"slow": 0, "fast": 0}

    async def handle(message: Message) -> None:
        name = message.topic
        running[name] += 1
        most[name] = max(most[name], running[name])
        await asyncio.sleep(0.002)  # the work
        running[name] -= 1

    app.handler("slow", concurrency=2)(handle)
    app.handler("fast")(handle)
    app.publish_many(Message(topic, n) for n in range(40) for topic in ("slow", "fast"))
    summary = app.run_worker(burst=True, concurrency=6)
    assert summary.acked == 80
    assert most["slow"] == 2
    assert 2 < most["fast"] <= 6


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"concurency": 3}, 'did you mean "concurrency"'),
        ({"concurrency": 0}, "concurrency"),
        ({"batch": -1}, "batch"),
        ({"batch_wait": 1}, "give batch="),
        ({"batch": 2, "batch_wait": 0}, "batch_wait"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"time_limit": 0}, "time_limit"),
        ({"time_limit": 1, "soft_time_limit": 2}, "soft_time_limit must be below"),
        ({"isolation": "container"}, "isolation"),
    ],
)
def test_bad_options_of_a_handler(app: Laneway, options: dict[str, object], expected: str) -> None:
    """The error names the unknown or invalid option."""
    with pytest.raises(UsageError, match=expected):
        app.handler("x", **options)(lambda _: None)  # type: ignore[arg-type]


def test_bad_handlers(app: Laneway) -> None:
    """
    A second handler of a pattern, a bad pattern, and an async or nested function in a process are
    refused when they are registered.
    """
    app.handler("x")(print)
    with pytest.raises(UsageError, match="already"):
        app.handler("x")(print)
    with pytest.raises(UsageError, match=r"\*"):
        app.handler("x*y")(print)
    with pytest.raises(UsageError, match="top of a module"):
        app.handler("y", isolation="process")(lambda _: None)

    async def coroutine(_: Message) -> None: ...

    with pytest.raises(UsageError, match="event loop"):
        app.handler("z", isolation="process")(coroutine)
    with pytest.raises(UsageError, match="no handlers"):
        Laneway("sqlite://").run_worker(burst=True)
    with pytest.raises(UsageError, match='did you mean "concurrency"'):
        app.run_worker(concurency=3)  # type: ignore[call-arg]
    for bad in (
        {"concurrency": 0},
        {"grace": -1},
        {"heartbeat_timeout": 0.05},
        {"heartbeat_timeout": "often"},
        {"topics": "a,b"},
        {"processes": 0},
        {"pool": ""},
    ):
        with pytest.raises(UsageError, match=next(iter(bad))):
            app.run_worker(**bad)


def test_publishing_from_handlers(app: Laneway) -> None:
    """Coroutine and thread handlers may publish while the worker works."""
    seen: list[int] = []

    @app.handler("first")
    async def first(message: Message) -> None:
        await app.apublish("second", message.body)

    @app.handler("second")
    def second(message: Message) -> None:
        app.publish("third", message.body)

    @app.handler("third")
    async def third(message: Message) -> None:
        seen.append(message.body)

    app.publish_many(Message("first", n) for n in range(200))
    app.run_worker(burst=True)
    assert sorted(seen) == list(range(200))


def test_at_most_once(app: Laneway) -> None:
    """With delivery="at_most_once" a failed message is not retried."""
    app.policy("o", delivery="at_most_once")

    @app.handler("o")
    async def handle(_: Message) -> None:
        raise ValueError

    app.publish("o")
    app.run_worker(burst=True)
    stats = app.topic("o").stats()
    assert (stats.waiting, stats.leased, stats.dead) == (0, 0, 0)


def test_bad_messages_are_refused_before_anything_is_stored(app: Laneway) -> None:
    """A handler's mistake in publishing is an error like any other, and nothing is stored."""
    app.policy("h", retries=0)

    @app.handler("h")
    async def handle(_: Message) -> None:
        await app.apublish("x", float("nan"))

    app.publish("h")
    app.run_worker(burst=True)
    assert BadMessage.__name__ in (app.topic("h").dead_letters()[0].error or "")


@pytest.mark.parametrize("kind", ["from", "context", "reason", "bare", "process"])
def test_retry_keeps_its_cause(app: Laneway, kind: str) -> None:
    """
    A Retry without a reason shows the error that it was raised from or while handling, in the
    reason and the history of the dead letter.
    """
    app.policy("*", retries=1, backoff=0)

    def handle(_: Message) -> None:
        try:
            raise ValueError("HTTP 500")
        except ValueError as error:
            if kind == "from":
                raise Retry from error
            if kind == "context":
                raise Retry  # noqa: B904
            if kind == "reason":
                raise Retry("busy") from error
        raise Retry

    app.handler("t", isolation="process" if kind == "process" else None)(
        retry_in_child if kind == "process" else handle
    )
    app.publish("t")
    while not (letters := app.topic("t").dead_letters()):
        app.run_worker(burst=True)
    (letter,) = letters
    expected = {"reason": "busy", "bare": "the handler asked for a retry"}.get(
        kind, "ValueError: HTTP 500"
    )
    assert letter.reason == f"retries used up (2 attempts): {expected}"
    assert [entry["error"].partition("\n")[0] for entry in letter.history] == [expected] * 2
    assert ("HTTP 500" in (letter.error or "")) == (kind != "bare")


def retry_in_child(_: Message) -> None:
    try:
        raise ValueError("HTTP 500")
    except ValueError as error:
        raise Retry from error

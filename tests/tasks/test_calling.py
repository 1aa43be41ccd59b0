"""Tasks: how they are defined and called, what a run knows, how it is tried again."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from laneway import BadMessage, Laneway, Reject, Request, Retry, Task, UsageError, current_request
from laneway.units import SECOND


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as app:
        yield app


# Calling


def test_a_bound_task_knows_its_run(app: Laneway) -> None:
    seen: list[Request] = []

    @app.task(bind=True, topic="mail.{customer}", name="mail")
    def mail(self: Task[..., Any], customer: str, text: str = "hello") -> None:
        seen.append(self.request)

    due = datetime.now(UTC) - timedelta(seconds=1)
    receipt = mail.using(at=due, priority=5, headers={"trace": "x"}, id="mine", key="k").enqueue(
        "acme", text="bye"
    )
    app.run_worker(burst=True)
    (request,) = seen
    assert receipt.id == request.id == "mine"
    assert (request.task, request.topic, request.args, request.kwargs) == (
        "mail",
        "mail.acme",
        ("acme", "bye"),
        {},
    )
    assert (
        request.attempt,
        request.retries,
        request.deliveries,
        request.priority,
        request.key,
    ) == (1, 0, 1, 5, "k")
    assert request.headers == {"trace": "x"}
    assert request.eta == due.isoformat()
    assert (request.parent_id, request.root_id) == (None, "mine")
    assert abs(request.published_at - time.time()) < 60


def test_a_bound_task_is_called_without_itself(app: Laneway) -> None:
    @app.task(bind=True)
    def add(self: Task[..., Any], one: int, other: int = 1) -> tuple[str, int]:
        return self.name.rpartition(".")[2], one + other

    assert add(1, other=2) == ("add", 3)
    with pytest.raises(BadMessage, match="missing a required argument: 'one'"):
        add.delay()  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="only while a worker runs the task"):
        _ = add.request


def test_the_run_is_given_where_it_is_annotated(app: Laneway) -> None:
    seen: list[tuple[int, str]] = []

    @app.task
    def first(number: int, *, run: Request | None = None) -> None:
        assert run is not None
        assert run is current_request()
        seen.append((number, run.id))

    @app.task
    async def second(run: Request, number: int) -> None:
        seen.append((number, run.id))

    one = first.delay(1)
    two = second.delay(number=2)  # type: ignore[call-arg]
    app.run_worker(burst=True)
    assert sorted(seen) == [(1, one.id), (2, two.id)]
    assert current_request() is None
    with pytest.raises(BadMessage, match="run"):
        first.delay(1, run=None)


def test_who_called_whom(app: Laneway) -> None:
    """A task that calls another is its parent; the first of all is the root of both."""
    seen: dict[str, Request] = {}

    @app.task(bind=True, name="child")
    def child(self: Task[..., Any], depth: int) -> None:
        seen[f"child {depth}"] = self.request
        if depth:
            child.delay(depth - 1)

    @app.task(bind=True, name="parent")
    async def parent(self: Task[..., Any]) -> None:
        seen["parent"] = self.request
        await child.adelay(1)

    parent.delay()
    app.run_worker(burst=True)
    assert seen["child 1"].parent_id == seen["parent"].id
    assert seen["child 0"].parent_id == seen["child 1"].id
    assert {request.root_id for request in seen.values()} == {seen["parent"].id}


def test_options_of_a_call(app: Laneway) -> None:
    order: list[int] = []

    @app.task(topic="t")
    def note(number: int) -> None:
        order.append(number)

    note.delay(1)
    note.using(priority=5).enqueue(2)
    note.using(at_front=True).enqueue(0)
    note.using(delay="1h").enqueue(9)
    assert note.using(id="x", topic="elsewhere").enqueue(3).topic == "elsewhere"
    assert note.using(id="x", topic="elsewhere").enqueue(3).outcome == "duplicate"
    app.run_worker(burst=True, concurrency=1, topics=["t", "elsewhere"])
    assert order == [2, 0, 1, 3]
    assert app.topic("t").stats().delayed == 1


def test_costs_of_calls(app: Laneway) -> None:
    """A task's cost, and that of one call, which precedes; also of `enqueue` in a queue."""

    @app.task(topic="t", cost=7)
    def note(number: int) -> None: ...

    note.delay(1)
    note.using(cost=70).enqueue(2)
    note.using(cost=1).enqueue(3)
    app.queue("t").enqueue(print, 4, cost=9)
    assert [each.message.cost for each in app.lease(10, topics=["t"])] == [7, 70, 1, 9]
    with pytest.raises(BadMessage, match=r'task ".*note".*expected cost to be a whole number'):
        note.using(cost=0).enqueue(5)
    with pytest.raises(BadMessage, match="expected cost to be a whole number"):
        app.task(cost=-1)(note)


def test_when_and_where_a_call_runs(app: Laneway) -> None:
    @app.task(topic="t")
    def note(number: int) -> None: ...

    note.using(delay=3600).enqueue(1)
    note.using(at=datetime.now(UTC) + timedelta(hours=1), topic="q", ttl="2h").enqueue(number=1)
    note.using(ttl="30m", id="short").enqueue(1)
    assert app.topic("t").stats().delayed == 1
    assert app.topic("q").stats().delayed == 1
    app.engine.tick(now_us=app.engine.time_us() + 31 * 60 * SECOND)  # moves the store's clock
    assert "expired" in app.dead_letters.list("t")[0].reason
    with pytest.raises(UsageError, match='unknown option "prioriti"; did you mean "priority"'):
        note.using(prioriti=1)  # type: ignore[call-arg]


def test_coroutines_call_too(app: Laneway) -> None:
    @app.task(topic="t")
    def note(number: int) -> None: ...

    async def call() -> None:
        assert (await note.adelay(1)).outcome == "accepted"
        assert (await note.using(id="x").aenqueue(2)).id == "x"

    asyncio.run(call())
    assert app.topic("t").stats().waiting == 2


def test_many_calls_at_once(app: Laneway) -> None:
    seen: list[Any] = []

    @app.task(topic="square.{number}")
    def square(number: int, power: int = 2) -> None:
        seen.append(number**power)

    receipts = square.map(range(500))
    square.starmap(([2, 3], (2, 4)), priority=3)
    assert [receipt.topic for receipt in receipts[:2]] == ["square.0", "square.1"]
    app.run_worker(burst=True)
    assert sorted(seen) == sorted([n * n for n in range(500)] + [8, 16])
    with pytest.raises(BadMessage, match="too many positional arguments"):
        square.starmap([(1, 2, 3)])


def test_keys_and_ids_from_the_arguments(app: Laneway) -> None:
    """One order at a time, in order; and the same call twice is one."""
    seen: list[tuple[int, str]] = []

    @app.task(topic="orders.{merchant}", key="order-{order}", id="{order}-{step}", serial=True)
    def handle(merchant: str, order: int, step: str) -> None:
        seen.append((order, step))

    assert handle.delay("acme", 1, "pay").outcome == "accepted"
    assert handle.delay("acme", 1, step="pay").outcome == "duplicate"
    handle.delay("acme", 1, "ship")
    assert app.topic("orders.acme").policy()["serial"] == "hold"
    app.run_worker(burst=True)
    assert seen == [(1, "pay"), (1, "ship")]
    with pytest.raises(UsageError, match="the key 'order-\\{oder\\}' names \"oder\""):
        app.task(key="order-{oder}")(handle.function)


# Trying again


def test_a_task_asks_for_another_attempt(app: Laneway) -> None:
    attempts: list[int] = []

    @app.task(bind=True, topic="t", retries=3)
    def flaky(self: Task[..., Any]) -> None:
        attempts.append(self.request.attempt)
        try:
            raise OSError("no route")
        except OSError:
            raise self.retry(delay=0)  # noqa: B904  # the error is its cause anyway

    flaky.delay()
    summary = app.run_worker(burst=True)
    assert attempts == [1, 2, 3, 4]
    assert (summary.retried, summary.died) == (3, 1)
    (dead,) = app.dead_letters.list()
    assert dead.reason.startswith("retries used up (4 attempts): OSError: no route")


def test_fewer_attempts_where_the_call_or_the_retry_says_so(app: Laneway) -> None:
    attempts: dict[str, int] = {}

    @app.task(bind=True, topic="t", retries=10, backoff=0)
    def failing(self: Task[..., Any], name: str, limit: int | None = None) -> None:
        attempts[name] = attempts.get(name, 0) + 1
        if limit is not None:
            self.retry(delay=0, error=ValueError(name), retries=limit)
        raise ValueError(name)

    failing.using(retries=2).enqueue("by the call")
    failing.using(retries=0).enqueue("never")
    failing.delay("by the retry", limit=1)
    failing.using(retries=100).enqueue("no more than the policy")
    app.run_worker(burst=True)
    assert attempts == {
        "by the call": 3,
        "never": 1,
        "by the retry": 2,
        "no more than the policy": 11,
    }
    dead = app.dead_letters.list()
    counts = {
        "by the call": "3 attempts",
        "never": "1 attempt",
        "by the retry": "2 attempts",
        "no more than the policy": "11 attempts",
    }
    assert {each.reason for each in dead} == {
        f"retries used up ({count}): ValueError: {why}" for why, count in counts.items()
    }
    assert all(
        "test_calling.py" in (each.error or "")
        for each in dead
        if "by the retry" not in each.reason
    ), "where it was raised"
    with pytest.raises(UsageError, match="expected retries to be"):
        failing.using(retries=-1).enqueue("x")


def test_only_some_failures_are_tried_again(app: Laneway) -> None:
    attempts: list[type] = []

    @app.task(
        topic="t",
        autoretry_for=(OSError, ValueError),
        dont_autoretry_for=(UnicodeError,),
        retries=1,
        backoff=0,
    )
    async def failing(number: int) -> None:
        error = (ConnectionError("a"), UnicodeError("b"), KeyError("c"))[number]
        attempts.append(type(error))
        raise error

    failing.map(range(3))
    app.run_worker(burst=True)
    assert sorted(kind.__name__ for kind in attempts) == [
        "ConnectionError",
        "ConnectionError",
        "KeyError",
        "UnicodeError",
    ]
    reasons = sorted(dead.reason.splitlines()[0] for dead in app.dead_letters.list())
    assert reasons == [
        "KeyError: 'c'",
        "UnicodeError: b",
        "retries used up (2 attempts): ConnectionError: a",
    ]


# Classes of one's own


class Hooked(Task[Any, Any]):
    """Records the calls of its hooks."""

    notes: list[tuple[Any, ...]]

    def before_start(self, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.notes.append(("before", task_id, args, kwargs))

    def on_success(
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.notes.append(("success", retval, task_id))

    def on_retry(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> None:
        assert sys.exc_info()[1] is exc  # it is being handled: logger.exception shows it
        self.notes.append(("retry", repr(exc), "boom" in einfo))

    def on_failure(
        self,
        exc: BaseException,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str,
    ) -> None:
        assert sys.exc_info()[1] is exc
        self.notes.append(("failure", repr(exc), task_id))

    def after_return(
        self,
        status: str,
        retval: Any,
        task_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        einfo: str | None,
    ) -> None:
        self.notes.append(("after", status))


class AsyncHooked(Hooked):
    async def on_success(  # type: ignore[override]
        self, retval: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.notes.append(("awaited", retval))
        raise RuntimeError("a hook that fails changes nothing")


def test_hooks_of_a_subclass_are_called(app: Laneway) -> None:
    notes: list[tuple[Any, ...]] = []
    Hooked.notes = notes

    @app.task(base=Hooked, topic="t", retries=1, backoff=0)
    def divide(one: int, other: int) -> float:
        if not other:
            raise ZeroDivisionError("boom")
        return one / other

    assert isinstance(divide, Hooked)
    good = divide.delay(4, other=2)
    app.run_worker(burst=True)
    assert notes == [
        ("before", good.id, (4, 2), {}),
        ("success", 2.0, good.id),
        ("after", "SUCCESS"),
    ]
    notes.clear()
    bad = divide.delay(1, 0)
    app.run_worker(burst=True)
    error = "ZeroDivisionError('boom')"
    assert [note[:2] for note in notes] == [
        ("before", bad.id),
        ("retry", error),
        ("after", "RETRY"),
        ("before", bad.id),
        ("failure", error),
        ("after", "FAILURE"),
    ]
    assert notes[1] == ("retry", error, True)


@pytest.mark.parametrize(
    ("error", "word"), [(Reject("no"), "failure"), (Retry("later", delay=0), "retry")]
)
def test_hooks_are_called_for_raised_signals(app: Laneway, error: Exception, word: str) -> None:
    notes: list[tuple[Any, ...]] = []
    Hooked.notes = notes
    raised = [error]

    @app.task(base=Hooked, topic="t")
    def once() -> None:
        if raised:
            raise raised.pop()

    once.delay()
    app.run_worker(burst=True)
    assert notes[1][:2] == (word, repr(error))


def test_hooks_of_a_coroutine_may_be_coroutines(
    app: Laneway, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[tuple[Any, ...]] = []
    AsyncHooked.notes = notes

    @app.task(base=AsyncHooked, name="wait")
    async def wait() -> int:
        return 5

    wait.delay()
    assert app.run_worker(burst=True).acked == 1
    assert [note[0] for note in notes] == ["before", "awaited", "after"]
    assert 'task "wait": a hook failed' in caplog.text


def test_no_class_of_tasks(app: Laneway) -> None:
    with pytest.raises(UsageError, match=r"a subclass of laneway.Task, got <class 'int'>"):
        app.task(base=int)  # type: ignore[arg-type]


class Adder:
    def __call__(self, a: int, b: int) -> int:
        return a + b


def test_functions_without_a_signature_or_a_name_are_refused(app: Laneway) -> None:
    for builtin in (int, max, ValueError):
        with pytest.raises(UsageError, match=r"task \w+: its parameters are not known"):
            app.task(builtin)
    for nameless in (Adder(), functools.partial(Adder(), 1)):
        with pytest.raises(UsageError, match="expected name to be text, got None"):
            app.task(nameless)


def test_a_callable_object_and_a_partial_are_tasks_with_a_name(app: Laneway) -> None:
    add = app.task(name="add")(Adder())
    increment = app.task(name="increment")(functools.partial(Adder(), 1))
    jobs = [add.delay(2, 3), increment.delay(4)]
    assert app.run_worker(burst=True).acked == 2
    assert [job.result for job in jobs] == [5, 5]

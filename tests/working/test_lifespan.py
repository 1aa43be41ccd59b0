"""Lifespans: state of a worker, given to handlers and tasks by its type."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from laneway import Laneway, Message, UsageError
from tests.working.support import Running

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypes


class Database:
    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.is_open = True


class Cache(dict[str, Any]):
    pass


def test_handlers_and_tasks_get_the_state_of_their_worker(app: Laneway) -> None:
    events: list[str] = []

    @app.lifespan
    async def database() -> AsyncIterator[Database]:
        events.append("database opened")
        connection = Database()
        opened.append(connection)
        yield connection
        connection.is_open = False
        events.append("database closed")

    @app.lifespan
    def cache() -> Iterator[Cache]:
        events.append("cache opened")
        yield Cache()
        events.append("cache closed")

    opened: list[Database] = []

    @app.handler("a")
    async def handle(message: Message, db: Database, *, cache: Cache) -> None:
        assert db.is_open
        cache["a"] = 1
        db.rows.append(message.body)

    @app.handler("b", batch=10)
    def handle_in_thread(messages: list[Message], db: Database | None = None) -> None:
        assert db is not None
        assert db.is_open
        db.rows.extend(message.body for message in messages)

    @app.task(topic="c")
    def typed(db: Database, n: int, factor: int = 2) -> int:
        db.rows.append(n * factor)
        return n * factor

    @app.task(topic="c", bind=True)
    async def bound(self: Any, n: int, db: Database | None = None) -> None:
        assert db is not None
        db.rows.append(self.request.args[0] * 100)

    task: Any = typed
    app.publish("a", 1)
    app.publish("b", 2)
    job = task.delay(3)
    task.delay(n=4, factor=1)
    bound.delay(5)
    assert app.run_worker(burst=True).acked == 5
    (connection,) = opened
    assert sorted(connection.rows) == [1, 2, 4, 6, 500]
    assert job.result == 6
    assert events == ["database opened", "cache opened", "cache closed", "database closed"]


def test_other_annotations_need_not_exist_at_run_time(app: Laneway) -> None:
    @app.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    @app.handler("a")
    def handle(message: Message, db: Database, other: OnlyForTypes | None = None) -> None:
        db.rows.append(message.body)

    app.publish("a", 1)
    assert app.run_worker(burst=True).acked == 1


def test_each_worker_has_its_own(app: Laneway) -> None:
    @app.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    both = threading.Barrier(2)
    found: list[Database] = []

    @app.handler("a")
    def handle(message: Message, db: Database) -> None:
        found.append(db)
        both.wait(30)

    app.publish_many([Message("a", 1), Message("a", 2)])
    with Running(app, concurrency=1), Running(app, concurrency=1):
        app.topic("a").wait_done(30)
    assert len({id(db) for db in found}) == 2


def test_each_worker_of_one_event_loop_has_its_own(app: Laneway) -> None:
    @app.lifespan
    async def database() -> AsyncIterator[Database]:
        yield Database()

    found: list[Database] = []

    @app.handler("a")
    async def handle(message: Message, db: Database) -> None:
        found.append(db)
        began.release()
        await asyncio.wait_for(both.wait(), 30)

    async def run() -> None:
        async with app.worker(concurrency=1), app.worker(concurrency=1):
            for n in range(2):  # the second when one worker is busy: the other gets it
                await app.apublish("a", n)
                await asyncio.wait_for(began.acquire(), 30)
            both.set()

    began, both = asyncio.Semaphore(0), asyncio.Event()
    asyncio.run(run())
    assert len({id(db) for db in found}) == 2


def test_called_as_a_function_a_task_takes_the_state(app: Laneway) -> None:
    @app.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    @app.task
    def task(n: int, *, db: Database | None = None) -> int:
        assert db is not None
        db.rows.append(n)
        return n

    db = Database()
    assert task(1, db=db) == 1
    assert db.rows == [1]
    with pytest.raises(UsageError, match="no worker runs here that has a Database; pass db="):
        task(1)


def test_a_lifespan_that_fails_ends_the_worker(app: Laneway) -> None:
    @app.lifespan
    async def database() -> AsyncIterator[Database]:
        raise OSError("no route to the database")
        yield Database()

    app.handler("a")(lambda _: None)
    app.publish("a", 1)
    with pytest.raises(OSError, match="no route"):
        app.run_worker(burst=True)
    stats = app.topic("a").stats()
    assert (stats.ready, stats.delivered) == (1, 0)


def test_what_cannot_be_a_lifespan(app: Laneway) -> None:
    def expect(text: str, function: Any) -> None:
        with pytest.raises(UsageError, match=text):
            app.lifespan(function)

    async def coroutine() -> Database:
        return Database()

    def unnamed():
        yield Database()

    def with_parameter(url: str) -> Iterator[Database]:
        yield Database()

    def database() -> Iterator[Database]:
        yield Database()

    def cache() -> Iterator[Cache]:
        yield Cache()

    @app.task
    def early(n: int, cache: Cache | None = None) -> None:
        pass

    expect("expected a generator function", coroutine)
    expect("its annotation names the type", unnamed)
    expect("called without arguments", with_parameter)
    app.lifespan(database)
    expect("there is a lifespan for Database already", database)
    expect("declare it above task .*early, which asks for Cache", cache)


def handle_apart(message: Message, db: Database) -> None:
    raise AssertionError


def test_not_in_child_processes(app: Laneway) -> None:
    @app.lifespan
    def database() -> Iterator[Database]:
        yield Database()

    with pytest.raises(UsageError, match="a child process has no state of its worker"):
        app.handler("a", isolation="process")(handle_apart)


def test_without_lifespans_nothing_is_wrapped(app: Laneway) -> None:
    async def handle(message: Message) -> None:
        await asyncio.sleep(0)

    app.handler("a")(handle)
    (handler,) = app.runtime.handlers
    assert handler.function is handle

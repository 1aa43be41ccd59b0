"""
Messages that are published in the transaction of a caller's own connection: they exist once it
commits, they are gone with a rollback, and each reaches the store once.
"""

from __future__ import annotations

import asyncio
import importlib
import sqlite3
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from laneway import (
    BadMessage,
    EngineUnavailable,
    Laneway,
    LanewayError,
    Message,
    UsageError,
    aforget_once,
    aonce,
    forget_once,
    once,
)
from laneway.producing.forwarder import Forwarder, Superseded
from laneway.producing.outbox_source import OutboxSource, OutboxStatus
from laneway.producing.reports import UnsentReports
from laneway.testing.servers import until
from tests.conformance.postgres_setups import server

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from laneway import Receipt


class Database:
    """A database of a user with Laneway's tables, and what others see in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.source = OutboxSource(url, "default")
        self.source.create()

    def connect(self) -> Any:
        if self.url.startswith("postgresql:"):
            return psycopg.connect(self.url)
        return sqlite3.connect(self.url.removeprefix("sqlite:///"))

    def topics(self) -> list[str]:
        """The topics of the messages that have been committed."""
        with closing(self.connect()) as other:
            rows = other.execute("SELECT topic FROM laneway_outbox ORDER BY id").fetchall()
            return [topic for (topic,) in rows]


@pytest.fixture
def postgres() -> Iterator[Database]:
    """A new database on the server of the tests."""
    name = f"outbox_{threading.get_ident()}"
    with psycopg.connect(server().url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name}")
        database = Database(server().url_of(name))
        yield database
        database.source.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    path = tmp_path / "user.db"
    sqlite3.connect(path).close()
    database = Database(f"sqlite:///{path}")
    yield database
    database.source.close()


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Database:
    found: Database = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def app(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Laneway]:
    del request
    with Laneway(f"sqlite:///{tmp_path}/queue.db") as app:
        yield app


# Each library: nothing is seen before the commit, nothing after a rollback


def check(app: Laneway, database: Database, connection: Any, own: Any = None) -> None:
    """`own`: has `commit` and `rollback`, if the connection has not."""
    own = connection if own is None else own
    app.publish("gone", 1, connection=connection)
    own.rollback()
    receipt = app.publish("stays", 1, connection=connection)
    app.publish_many([Message("many", n) for n in range(201)], connection=connection)
    assert once(connection, Message("x", id="1"))
    assert not once(connection, Message("x", id="1"))
    assert database.topics() == []
    own.commit()
    assert database.topics() == ["stays", *["many"] * 201]
    assert (receipt.outcome, receipt.topic) == ("spooled", "stays")
    assert not once(connection, Message("x", id="1"))
    own.rollback()


def test_sqlite3(app: Laneway, sqlite: Database) -> None:
    """A connection of the standard library."""
    with closing(sqlite.connect()) as connection:
        check(app, sqlite, connection)


def test_psycopg(app: Laneway, postgres: Database) -> None:
    """A connection of psycopg, whatever its rows look like."""
    with psycopg.connect(postgres.url, row_factory=psycopg.rows.dict_row) as connection:
        check(app, postgres, connection)
    users: Any = psycopg.rows.class_row(type("User", (), {}))
    with psycopg.connect(postgres.url, row_factory=users) as connection:
        assert once(connection, Message("x", id="2"))


@pytest.mark.parametrize("factory", [psycopg.RawCursor, psycopg.ClientCursor])
def test_cursor_factories_of_psycopg(app: Laneway, postgres: Database, factory: Any) -> None:
    """Those of the connection take other placeholders; statements have cursors of their own."""
    with psycopg.connect(postgres.url, cursor_factory=factory) as connection:
        check(app, postgres, connection)

    async def run() -> None:
        kind: Any = getattr(psycopg, f"Async{factory.__name__}")
        async with await psycopg.AsyncConnection.connect(
            postgres.url, cursor_factory=kind
        ) as connection:
            await app.apublish("async", 1, connection=connection)
            assert await aonce(connection, Message("x", id="2"))

    asyncio.run(run())
    assert postgres.topics()[-1] == "async"


@pytest.mark.parametrize("factory", ["RealDictCursor", "DictCursor", "NamedTupleCursor"])
def test_psycopg2(app: Laneway, postgres: Database, factory: str) -> None:
    """A connection of psycopg2, whatever its rows look like."""
    psycopg2 = pytest.importorskip("psycopg2")
    extras = importlib.import_module("psycopg2.extras")
    connection = psycopg2.connect(postgres.url, cursor_factory=getattr(extras, factory))
    with closing(connection):
        check(app, postgres, connection)


def test_a_proxy_of_a_connection(app: Laneway, postgres: Database) -> None:
    """As werkzeug's LocalProxy, which tells the class of what it stands for."""

    class Proxy:
        def __init__(self, of: Any) -> None:
            self.of = of

        @property  # type: ignore[misc]  # as proxies do
        def __class__(self) -> Any:
            return self.of.__class__

        def __getattr__(self, name: str) -> Any:
            return getattr(self.of, name)

    url = postgres.url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url)
    with orm.Session(engine) as session:
        check(app, postgres, Proxy(session))
    engine.dispose()


def test_sqlalchemy_while_it_streams_rows(app: Laneway, postgres: Database) -> None:
    """The connection's option holds for what it reads, not for what is published meanwhile."""
    url = postgres.url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        connection.execution_options(yield_per=2)
        for (n,) in connection.execute(sqlalchemy.text("SELECT generate_series(1, 5)")):
            app.publish("each", n, connection=connection)
            assert once(connection, Message("x", id=str(n)))
    engine.dispose()
    assert postgres.topics() == ["each"] * 5


def test_once_refuses_a_message_without_an_id(database: Database) -> None:
    """A message that is not published yet has none."""
    with closing(database.connect()) as connection:
        with pytest.raises(UsageError, match="once: this message of topic x has no id"):
            once(connection, Message("x"))
        assert once(connection, Message("x", id="1"))


def test_a_pipeline_of_psycopg(app: Laneway, postgres: Database) -> None:
    """The answers of its statements come later; the first `once` of a message is still the one."""
    with psycopg.connect(postgres.url) as connection, connection.pipeline():
        app.publish("a", 1, connection=connection)
        assert once(connection, Message("x", id="1"))
        assert not once(connection, Message("x", id="1"))

    async def run() -> None:
        async with (
            await psycopg.AsyncConnection.connect(postgres.url) as connection,
            connection.pipeline(),
        ):
            assert await aonce(connection, Message("x", id="2"))
            assert not await aonce(connection, Message("x", id="2"))

    asyncio.run(run())
    assert postgres.topics() == ["a"]


@pytest.mark.parametrize("driver", ["psycopg", "sqlite"])
def test_sqlalchemy(app: Laneway, request: pytest.FixtureRequest, driver: str) -> None:
    """A Connection, a Session and a scoped session."""
    database = request.getfixturevalue("sqlite" if driver == "sqlite" else "postgres")
    url = database.url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url)
    for make in (
        engine.connect,
        lambda: orm.Session(engine),
        orm.scoped_session(orm.sessionmaker(engine)),
    ):
        with closing(make()) as connection:
            check(app, database, connection)
            for table in ("laneway_outbox", "laneway_once"):
                connection.execute(sqlalchemy.text(f"DELETE FROM {table}"))
            connection.commit()
    engine.dispose()


def test_savepoints(app: Laneway, postgres: Database) -> None:
    """What is rolled back to one is gone, and the transaction around it and its settings stay."""
    settings = "SELECT name, setting FROM pg_settings ORDER BY name"

    def part(connection: Any, block: Any, run: Any) -> None:
        before = run(settings).fetchall()
        app.publish("stays", connection=connection)
        with suppress(psycopg.Error, sqlalchemy.exc.DBAPIError), block():
            app.publish("gone", connection=connection)
            assert once(connection, Message("x", id="1"))
            run("SELECT 1 / 0")
        assert once(connection, Message("x", id="1"))
        assert run(settings).fetchall() == before
        connection.rollback()
        app.publish("stays", connection=connection)
        connection.commit()

    with psycopg.connect(postgres.url) as connection:
        connection.execute("SET lock_timeout = 7")
        part(connection, connection.transaction, connection.execute)
    engine = sqlalchemy.create_engine(postgres.url.replace("postgresql:", "postgresql+psycopg:"))
    with orm.Session(engine) as session:
        part(session, session.begin_nested, lambda text: session.execute(sqlalchemy.text(text)))
    engine.dispose()
    assert postgres.topics() == ["stays", "stays"]


@pytest.mark.parametrize("vendor", ["postgresql", "sqlite3"])
def test_django(app: Laneway, request: pytest.FixtureRequest, vendor: str) -> None:
    """`django.db.connection`, within `atomic` and rolled back there."""
    django: Any = importlib.import_module("django")
    settings: Any = importlib.import_module("django.conf").settings
    database_module: Any = importlib.import_module("django.db")
    connection, connections = database_module.connection, database_module.connections
    transaction: Any = importlib.import_module("django.db.transaction")
    options: Any = importlib.import_module("laneway.contrib.django.options")

    database = request.getfixturevalue("sqlite" if vendor == "sqlite3" else "postgres")
    name = database.url.removeprefix("sqlite:///")
    own: dict[str, Any] = {"ENGINE": f"django.db.backends.{vendor}", "NAME": name}
    if vendor == "postgresql":
        info = psycopg.conninfo.conninfo_to_dict(database.url)
        own |= {"NAME": info["dbname"], "USER": "postgres", "HOST": info["host"]}
        own |= {"PORT": info["port"], "OPTIONS": {"options": "-c lock_timeout=77"}}
    if not settings.configured:
        settings.configure(DATABASES={"default": own})
        django.setup()
    connections.settings = connections.configure_settings({"default": own})
    with suppress(AttributeError):  # of the other database
        del connections["default"]
    try:
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            app.publish("gone", 1, connection=connection)
            raise ZeroDivisionError
        with transaction.atomic():
            app.publish("stays", 1, connection=connection)
            assert once(connection, Message("x", id="1"))
            assert database.topics() == []
        assert database.topics() == ["stays"]
        assert not once(connections["default"], Message("x", id="1"))
        app.outbox.create(connection)
        with closing(options.connect("default")) as other:
            if vendor == "postgresql":
                assert other.execute("SHOW lock_timeout").fetchone() == ("77ms",)
            assert other.execute("SELECT topic FROM laneway_outbox").fetchone() == ("stays",)
    finally:
        connection.close()


async def acheck(app: Laneway, database: Database, connection: Any, begin: Any) -> None:
    """`begin`: returns a new transaction, a context manager that rolls back for an error."""
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with begin():
            await app.apublish("gone", 1, connection=connection)
            raise ZeroDivisionError
    async with begin():
        await app.apublish("stays", 1, connection=connection)
        messages = [Message("many", n) for n in range(201)]
        await app.apublish_many(messages, connection=connection)
        assert await aonce(connection, Message("x", id="1"))
        assert database.topics() == []
    assert database.topics() == ["stays", *["many"] * 201]
    async with begin():
        assert not await aonce(connection, Message("x", id="1"))
        await aforget_once(connection, 0)
        assert await aonce(connection, Message("x", id="1"))


def test_coroutines(app: Laneway, postgres: Database) -> None:
    """Asynchronous connections of psycopg, asyncpg and SQLAlchemy; also those of a pool."""

    def clear() -> None:
        with psycopg.connect(postgres.url) as connection:
            connection.execute("DELETE FROM laneway_outbox; DELETE FROM laneway_once")

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(postgres.url) as connection:
            await acheck(app, postgres, connection, connection.transaction)
        clear()
        async with (
            asyncpg.create_pool(postgres.url, min_size=1) as pool,
            pool.acquire() as connection,
        ):
            await acheck(app, postgres, connection, connection.transaction)
            with pytest.raises(UsageError, match="await apublish"):
                app.publish("x", connection=connection)
            with pytest.raises(UsageError, match=r"asyncpg\.pool\.Pool"):
                await app.apublish("x", connection=pool)
        for driver in ("asyncpg", "psycopg"):
            engine = sqlalchemy_asyncio.create_async_engine(
                postgres.url.replace("postgresql:", f"postgresql+{driver}:")
            )
            clear()
            async with engine.connect() as connection:
                await acheck(app, postgres, connection, connection.begin)
            clear()
            async with sqlalchemy_asyncio.AsyncSession(engine) as session:
                await acheck(app, postgres, session, session.begin)
                with pytest.raises(UsageError, match="await apublish"):
                    app.publish("x", connection=session)
            await engine.dispose()

    asyncio.run(run())


def test_wrong_connections(app: Laneway, sqlite: Database) -> None:
    """What is no connection of these libraries is named, and so are the accepted ones."""
    engine = sqlalchemy.create_engine("sqlite://")
    with closing(sqlite.connect()) as connection:
        for wrong in (object(), "postgresql://x", 1, engine, connection.cursor()):
            with pytest.raises(
                UsageError, match="expected connection to be a connection of psycopg"
            ):
                app.publish("a", connection=wrong)
        with pytest.raises(BadMessage):
            app.publish("a", object(), connection=connection)
        with pytest.raises(BadMessage, match="ttl"):
            app.publish("a", delay=2, ttl=1, connection=connection)
    assert sqlite.topics() == []


def test_missing_tables(app: Laneway, tmp_path: Path) -> None:
    """One error says which table is missing and how to create it."""
    with (
        closing(sqlite3.connect(tmp_path / "empty.db")) as lite,
        psycopg.connect(server().url) as postgres,
        sqlalchemy.create_engine("sqlite://").connect() as alchemy,
    ):
        for connection in (lite, postgres, alchemy):
            with pytest.raises(UsageError, match="laneway outbox create URL"):
                app.publish("a", connection=connection)
            connection.rollback()
            with pytest.raises(UsageError, match="laneway outbox create URL"):
                once(connection, Message("a", id="1"))
            connection.rollback()
        app.outbox.create(lite)
        app.publish("a", connection=lite)


def test_middlewares(app: Laneway, sqlite: Database) -> None:
    """They are around each message, and get its receipt or the error."""
    seen: list[Any] = []

    @app.around_publish
    def around(message: Message) -> Generator[Message, Receipt, None]:
        try:
            receipt = yield Message(f"{message.topic}.x", message.body)
        except LanewayError as error:
            seen.append(type(error))
            raise
        seen.append(receipt.outcome)

    with closing(sqlite.connect()) as connection:
        app.publish("a", connection=connection)
        with pytest.raises(BadMessage):
            app.publish_many([Message("a"), Message("b", object())], connection=connection)
        connection.commit()
    assert seen == ["spooled", BadMessage, BadMessage]
    assert sqlite.topics() == ["a.x"]


def test_tasks(app: Laneway, database: Database) -> None:
    """A call is published in the transaction, by `delay` and `using`; a flow is refused."""

    @app.task(topic="mail.{name}")
    def mail(name: str) -> str:
        return name

    @app.task
    def own(connection: str) -> str:
        return connection

    with closing(database.connect()) as connection:
        mail.delay("gone", connection=connection)  # type: ignore[call-arg]
        connection.rollback()
        job = mail.using(connection=connection, priority=3).enqueue("a")
        asyncio.run(mail.adelay("b", connection=connection))  # type: ignore[call-arg]
        mail.starmap([("c",)], connection=connection)
        own.delay(connection="mine")
        with pytest.raises(UsageError, match="a flow is stored as a whole"):
            mail.using(connection=connection, link=mail.s()).enqueue("d")
        connection.commit()
    forward(app, database)
    assert len(app.topic("mail.a").peek(9)) == 1
    app.run_worker(burst=True)
    assert job.get(timeout=5) == "a"
    assert app.topic("mail.gone").stats().waiting == 0


# Forwarding


def forward(app: Laneway, database: Database) -> None:
    """Forward until nothing waits."""
    thread = Forwarder(OutboxSource(database.url, "default"), app.runtime.holder, UnsentReports())
    thread.start()
    try:
        while database.source.status().waiting:
            thread.answered.wait(5)
            thread.answered.clear()
    finally:
        thread.stop()


def test_forwarded(app: Laneway, database: Database) -> None:
    """Every option arrives; messages of a topic keep their order; nothing is left."""
    with closing(database.connect()) as connection:
        app.publish(
            "a", {"n": 1}, key="k", priority=3, headers={"h": "1"}, id="mine", connection=connection
        )
        app.publish_many([Message("b", n) for n in range(700)], connection=connection)
        app.publish("a", b"raw", delay=3600, connection=connection)
        connection.commit()
    forward(app, database)
    first = app.lease(1, topics=["a"])[0].message
    assert (first.id, first.body, first.key, first.priority) == ("mine", {"n": 1}, "k", 3)
    assert (first.headers or {})["h"] == "1"
    assert [each.body for each in app.lease(999, topics=["b"])] == list(range(700))
    assert app.topic("a").stats().delayed == 1
    assert database.topics() == []


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_in_another_encoding(app: Laneway, encoding: str) -> None:
    """Its text is converted by the server, if it knows how."""
    name = f"outbox_{encoding}_{threading.get_ident()}"
    with psycopg.connect(server().url, autocommit=True) as admin:
        admin.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        admin.execute(f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0")
    database = Database(server().url_of(name))
    with closing(database.connect()) as connection:
        app.publish("é", "ü€", key="ö", connection=connection)
        connection.commit()
    forward(app, database)
    (first,) = app.lease(9)
    assert (first.topic, first.body, first.message.key) == ("é", "ü€", "ö")
    database.source.close()


def test_a_database_that_is_away() -> None:
    """The error is one line, whatever libpq writes."""
    source = OutboxSource("postgresql://postgres@127.0.0.1:9/shop", "default")
    with pytest.raises(EngineUnavailable, match="the database cannot be used") as caught:
        source.status()
    assert "\n" not in str(caught.value)


def test_a_database_that_fails_is_logged_in_one_line(
    app: Laneway, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each outage once, and without a traceback."""
    source = OutboxSource(f"sqlite:///{tmp_path}/user.db", "default")
    thread = Forwarder(source, app.runtime.holder, UnsentReports())

    def logged(times: int) -> None:
        until(lambda: len(caplog.records) >= times, f"{times} log lines")

    with closing(sqlite3.connect(tmp_path / "user.db")) as connection:
        thread.start()
        logged(1)
        app.outbox.create(connection)
        app.publish("a", connection=connection)
        connection.commit()
        assert app.lease(1, wait=20)
        connection.execute("ALTER TABLE laneway_outbox RENAME TO other")
        connection.commit()
        logged(2)
    thread.stop()
    assert len(caplog.records) == 2
    assert not any(each.exc_info for each in caplog.records)
    assert "laneway outbox create URL" in caplog.text


def test_a_slow_transaction_is_not_skipped(app: Laneway, postgres: Database) -> None:
    """A message is forwarded although later ones, with higher numbers, were before."""
    with closing(postgres.connect()) as slow, closing(postgres.connect()) as quick:
        app.publish("a", "slow", connection=slow)
        app.publish("a", "quick", connection=quick)
        quick.commit()
        source = OutboxSource(postgres.url, "default")
        thread = Forwarder(source, app.runtime.holder, UnsentReports())
        thread.start()
        assert [each.body for each in app.lease(9, wait=20)] == ["quick"]
        slow.commit()
        assert [each.body for each in app.lease(9, wait=20)] == ["slow"]
        thread.stop()


def test_refused_messages_stay(app: Laneway, database: Database) -> None:
    """A message that the store refuses is kept with the reason, and stops no other one."""
    app.policy("a", max_body=10)
    with closing(database.connect()) as connection:
        app.publish_many(
            [Message("a", "x" * 100), Message("a", 1), Message("b", 2)], connection=connection
        )
        connection.commit()
        forward(app, database)
        assert sorted(each.body for each in app.lease(9)) == [1, 2]
        assert database.source.status().rejected == 1
        (reason,) = connection.execute("SELECT reason FROM laneway_outbox").fetchone()
    assert "max_body" in reason


def test_two_forwarders(database: Database) -> None:
    """One leads; the next one repeats its batch, and the former may change nothing then."""
    with closing(database.connect()) as connection, Laneway("sqlite://") as app:
        app.publish("a", connection=connection)
        connection.commit()
    first, second = database.source, OutboxSource(database.url, "default")
    assert first.lead()
    assert not second.lead()
    first.begin()
    rows = first.next_rows(9, 1_000)
    first.next_batch((), (), ("name", [rows[0].seq]))
    status: OutboxStatus = first.status()
    assert (status.waiting, status.forwarder) == (1, first._me)
    first.step_down()
    assert second.lead()
    assert second.batch() == ("name", rows)
    with pytest.raises(Superseded):
        first.note_error("away")
    second.begin()
    second.next_batch(rows, (), None)
    with pytest.raises(Superseded):
        first.next_batch(rows, (), None)
    assert database.topics() == []
    second.close()


def test_the_store_is_away(database: Database) -> None:
    """Messages wait, and the status says why."""
    app = Laneway("valkey://127.0.0.1:1")
    with closing(database.connect()) as connection:
        app.publish("a", connection=connection)
        connection.commit()
    thread = Forwarder(OutboxSource(database.url, "default"), app.runtime.holder, UnsentReports())
    thread.start()
    while database.source.status().error is None:
        thread.join(0.01)
    thread.stop()
    status = database.source.status()
    assert (status.waiting, status.forwarder) == (1, None)
    assert "127.0.0.1:1" in (status.error or "")


def test_workers_forward(database: Database, tmp_path: Path) -> None:
    """A worker of an application with an outbox forwards; a handler records what it has done."""
    done = threading.Event()
    with Laneway(f"sqlite:///{tmp_path}/queue.db", outbox=database.url) as app:

        @app.handler("order")
        def order(message: Message) -> None:
            with closing(database.connect()) as connection:
                assert once(connection, message)
                connection.commit()
            done.set()

        with closing(database.connect()) as connection:
            app.publish("order", connection=connection)
            connection.commit()

            async def work() -> None:
                async with app.worker():
                    await asyncio.to_thread(done.wait, 30)

            asyncio.run(work())
            assert done.is_set()
            forget_once(connection, "1h")
            assert connection.execute("SELECT count(*) FROM laneway_once").fetchone() == (1,)
            forget_once(connection, 0)
            assert connection.execute("SELECT count(*) FROM laneway_once").fetchone() == (0,)
            connection.rollback()


@pytest.mark.parametrize("url", ["mysql://x/y", "sqlite://", "x", "valkey://localhost"])
def test_wrong_urls(url: str) -> None:
    """A URL that names no such database is refused at once."""
    with pytest.raises(UsageError, match="outbox: expected the URL of a database"):
        Laneway("sqlite://", outbox=url)

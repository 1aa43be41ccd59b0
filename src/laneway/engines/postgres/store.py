"""
A store in PostgreSQL: one schema, its connections and transactions, and what errors mean.

Transactions of a store run one after the other, under an advisory lock. A turn, counted up by each
of them, says whether anybody has written since this process last did.

While a thread waits for the answer to its commit, the next one begins its transaction behind it,
see `Store.confirm`.

A commit does not wait for the disk or for replicas: a durable call waits after it, on another
connection, when the lock is free again. That wait covers all commits before it, because the
server's log is in order. Behind a pooler a durable commit waits itself, under the lock: two
transactions may run on different connections, so the second one cannot tell whether the server has
crashed since the first.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from laneway.engines.postgres import statements
from laneway.engines.postgres.connecting import (
    IDLE_MS,
    NoAnswer,
    ServerConnection,
    connect,
    local_settings,
)
from laneway.engines.postgres.connection import Connection
from laneway.engines.postgres.errors import explain, was_applied
from laneway.engines.postgres.flusher import Flusher, NotConfirmed
from laneway.engines.postgres.reserve import LOOK_BYTES, Reserve
from laneway.engines.postgres.statements import LAYOUT
from laneway.engines.postgres.store_lock import StoreLock
from laneway.engines.shared import forking
from laneway.engines.sql import store as sql_store
from laneway.engines.sql.store import Outdated, Place, Read
from laneway.errors import EngineUnavailable, LanewayError, NoNamespace, SchemaMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from laneway.engines.postgres.address import Address
    from laneway.engines.postgres.servers import ShardServer
    from laneway.message import Draft

LEAST_SERVER = 140_000

LOCK_SECONDS = 30
"""How long another process's transaction is waited for."""

BUSY_SECONDS = 1.0
"""
After a call that waited for another process, how long `is_busy` asks the server, which costs a
round trip. Before that it supposes that the lock is free.
"""

NOTABLE_SECONDS = 0.002
"""A wait for the lock, beyond the round trip."""

MOVER = "laneway move"
"""The application name of a connection that moves a shard, so it may hold the lock for long."""

MOST_MOVES = 5
"""How often a schema that has moved is looked for again in one call: it may move meanwhile."""

UNREAD_SECONDS = 0.05
"""How long the answer to a commit may stay unread by the thread that was to take the lock."""

STUCK_SECONDS = 3
"""
A process that has waited for the lock for so long ends the holder if the server waits for it: a
client on a socket file that stops while it is sent a large answer, or in the middle of sending.
"""

SETTINGS: dict[str, object] = {
    "synchronous_commit": "off",
    "lock_timeout": STUCK_SECONDS * 1000,
    "idle_in_transaction_session_timeout": IDLE_MS,
    "tcp_user_timeout": IDLE_MS,  # the server's side; a client that stops while it is sent much
    "statement_timeout": 2 * LOCK_SECONDS * 1000,
    "transaction_timeout": 3 * LOCK_SECONDS * 1000,
    # What the administrator may have set for the role.
    "idle_session_timeout": 0,
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "client_min_messages": "warning",  # a canceled wait for a standby is one, and nothing else
    # Plans that hold for tables of any size: no statistics are up to date in a queue.
    "plan_cache_mode": "force_generic_plan",
    "join_collapse_limit": 1,
    "from_collapse_limit": 1,
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_memoize": "off",  # it computes the key of a lookup twice: a query, for first messages
    "jit": "off",
}

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_LOCK = """
SELECT CASE WHEN pg_try_advisory_xact_lock({0}, {1}) THEN 'free'
            ELSE 'waited' || pg_advisory_xact_lock({0}, {1})::text END"""
"""
Whether the lock was free is asked, not concluded from the time that it took: a machine with other
work is slow, too. Nobody who waits is overtaken: then the lock is not free for the first function.
"""
_SHARED_LOCK = "SELECT pg_advisory_xact_lock_shared({}, {})"
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock({}, {})"
_END_STUCK = f"""
SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
 WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
   AND l.classid::int8 = {{}} AND l.objid::int8 = {{}}
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND a.usename = current_user AND a.wait_event_type = 'Client'
   AND a.application_name <> '{MOVER}'
   AND a.state_change < clock_timestamp() - interval '{STUCK_SECONDS - 1} s'"""
"""Only transactions of the same user can be ended."""
LOCK_CLASS, READ_CLASS = 0x4C_41_4E_45, 0x4C_41_4E_52
"""
The first half of the numbers of advisory locks: "LANE" of transactions that write, "LANR" of those
that read a schema that may move.
"""


def lock_number(schema: str) -> int:
    """The second half of the numbers of a schema's advisory locks."""
    number = zlib.crc32(schema.encode())
    return number - (1 << 32 if number >= 1 << 31 else 0)


_INTERRUPTED = psycopg.OperationalError("the thread that read its answer was interrupted")


class _Commit:
    """A commit that was sent. `wait` waits for its answer, under the store's lock."""

    __slots__ = ("error", "is_answered", "number", "wait")

    def __init__(self, number: int, wait: Callable[[], None]) -> None:
        self.number, self.wait = number, wait
        self.error: LanewayError | Outdated | None = None
        self.is_answered = threading.Event()


class Store(sql_store.Store):
    """An open schema and its transactions. In a forked child process it is closed."""

    def __init__(
        self,
        address: Address,
        place: Place,
        durability: str,
        *,
        create: bool = True,
        server: ShardServer | None = None,
    ) -> None:
        """`place`: its path is the schema. `server`: where the schema may move."""
        assert place.path is not None
        self.address, self._place, self._server = address, place, server
        self._home = address.server
        """Where those who wait listen."""
        self.schema = schema = place.path
        self.name = f"{address.name} schema {schema}"
        self.lock = StoreLock()
        self.commits = 0
        self.written = 0
        """The last commit that was sent."""
        self._confirmed = 0
        """The last one that has happened."""
        self._unanswered: _Commit | None = None
        """The last one, while nobody has read its answer."""
        self._passed_on: dict[int, _Commit] = {}
        """By number: commits whose answer the next thread reads."""
        self.waited = 0.0
        self.prefers_large_leases = True  # its round trips and 20 statements
        self._durability = durability
        self._is_closed = False
        self._in_transaction = False
        self._ahead_us = 0
        """How far the server's clock is ahead of this machine's."""
        self._waited_at = float("-inf")
        """When a transaction waited for another process the last time."""
        self._quickest = float("inf")
        """Seconds of the shortest wait for the lock: a round trip."""
        number = lock_number(schema)
        self._lock_text, self._try_text = (
            text.format(LOCK_CLASS, number) for text in (_LOCK, _TRY_LOCK)
        )
        self._end_stuck_text = _END_STUCK.format(LOCK_CLASS, number % (1 << 32))
        self._read_lock = [_SHARED_LOCK.format(READ_CLASS, number)] if server else []
        self._before: tuple[list[str], list[str]] = [], []
        """Behind a pooler: the settings of a transaction, and those of a durable one."""
        self._later = {}
        self._flusher = Flusher(self._connect_flusher, lambda: (self._confirmed, self.written))
        self._connection: Connection | None = None
        self._failed_at, self._failure = 0.0, ""
        """The last attempt to connect that failed: when it began, and its error."""
        self._reserve = Reserve(self)
        self._version = 0
        """That of the last connection's `version`."""
        with self.lock:
            _stores.add(self)
            self._open(create=create)

    # Opening

    def _open(self, *, create: bool = False) -> Connection:
        connection = None
        try:
            for left in reversed(range(MOST_MOVES)):
                connection = self._try_to_open(create=create, may_move=left > 0)
                if connection is not None:
                    break
        except psycopg.Error as error:
            raise self.explain(error) from error
        assert connection is not None
        self.sends_leases = not connection.is_pooled and self.address.server == self._home
        self._flusher.close()  # so it is connected to the same server as this connection
        self._connection = opened = Connection(connection, self._version)
        if self._place.shard and self.sends_leases:  # those who wait are in the first schema
            first = self.schema.removesuffix(f".{self._place.shard}")
            sleepers = sql.Identifier(first, "sleeper").as_string()
            opened.names["inbox_put"] = f"inbox_put@{sleepers}"
        self._reserve.unlooked = LOOK_BYTES
        return opened

    def _try_to_open(self, *, create: bool, may_move: bool) -> ServerConnection | None:
        """A connection on which the schema is; None: it has just moved, so try again."""
        place = None
        if self._server is not None:
            place = self._server.find()
            self.address = self._server.address(place)
            self.name = f"{self.address.name} schema {self.schema}"
        connection = self.connect()
        try:
            self._check_server(connection)
            self._check_schema(connection, create=create)
        except BaseException as error:
            has_moved = (
                isinstance(error, NoNamespace | psycopg.errors.UndefinedTable)
                and may_move
                and self._server is not None
                and self._server.follow(connection, place)
            )
            connection.close()
            if has_moved:
                return None
            raise
        return connection

    def _has_moved(self, error: psycopg.Error, moves: int) -> bool:
        """
        Whether a failed first statement means that the schema is on another server. Then a
        connection to that is open. `moves`: how often it has moved in this call.
        """
        is_missing = isinstance(error, psycopg.errors.UndefinedTable)
        if self._server is None or not is_missing or moves >= MOST_MOVES:
            return False
        with contextlib.suppress(psycopg.Error):  # the copy has what this process had committed
            self._flusher.flush(self._confirmed, self._confirmed)
        self._drop()
        self._open()
        return True

    def _connect_flusher(self) -> psycopg.Connection[Any]:
        connection = self.connect()
        connection.execute(sql.SQL("SET synchronous_commit = {}").format(self._flush_level))
        return connection

    @property
    def _flush_level(self) -> str:
        return {"memory": "off", "replicated": "remote_apply"}.get(self._durability, "on")

    def connect(self, *, listens: bool = False) -> ServerConnection:
        """
        A new connection to the database, with the settings of transactions. `listens`: to the
        server that the URL names for notifications.
        """
        address = self.address
        settings = SETTINGS | {"search_path": sql.Identifier(self.schema).as_string()}
        if listens and address.listen_server != address.server:
            return connect(address.listen_server, settings)
        connection = connect(address.server, settings, is_pooled=address.is_pooled)
        if connection.is_pooled:
            durable = settings | {"synchronous_commit": self._flush_level}
            self._before = (
                [local_settings(settings, connection)],
                [local_settings(durable, connection)],
            )
        return connection

    def _check_server(self, connection: psycopg.Connection[Any]) -> None:
        version = connection.info.server_version
        if version < LEAST_SERVER:
            raise EngineUnavailable(
                f"{self.address.name}: the server is PostgreSQL {version // 10_000}, Laneway needs"
                f" {LEAST_SERVER // 10_000} or newer"
            )
        row = connection.execute(
            "SELECT pg_is_in_recovery(), current_setting('server_encoding'),"
            " current_setting('synchronous_standby_names')"
        ).fetchone()
        assert row is not None
        is_standby, encoding, standbys = row
        if is_standby:
            raise EngineUnavailable(
                f"{self.address.name}: this server is a read-only standby; name the primary, or"
                " all servers with ?target_session_attrs=read-write"
            )
        if encoding != "UTF8":
            raise EngineUnavailable(
                f"{self.address.name}: the database has encoding {encoding}, Laneway needs UTF8:"
                " create one with ENCODING 'UTF8' TEMPLATE template0"
            )
        if self._durability == "replicated" and not standbys:
            raise EngineUnavailable(
                f'{self.address.name}: durability "replicated" needs a synchronous standby, and'
                " synchronous_standby_names is empty on this server"
            )

    def _check_schema(self, connection: ServerConnection, *, create: bool) -> None:
        version = self._layout(connection)
        if version is None and create:
            with connection.transaction():
                for statement in (*self._before[1], self._lock_text):
                    connection.execute(statement.encode())
                version = self._layout(connection)  # another process may have been faster
                if version is None:
                    self._create(connection)
                    version = LAYOUT
        if version is None:
            raise NoNamespace(
                f"{self.name}: there is no such schema; check the URL and the namespace, or start"
                " a program that publishes to it"
            )
        self._check_layout(version)

    def _check_layout(self, version: int) -> None:
        # In each transaction that writes: another program may have upgraded the tables.
        if version != LAYOUT:
            advice = (
                "nothing was changed: upgrade Laneway and start this program again"
                if version > LAYOUT
                else "a Laneway before 0.1.0 created them: handle their messages with that version,"
                " then use another namespace"
            )
            raise SchemaMismatch(
                f"{self.name}: the tables have layout {version}, this Laneway knows layout"
                f" {LAYOUT}; {advice}"
            )

    def _layout(self, connection: psycopg.Connection[Any]) -> int | None:
        """The layout of the schema's tables; None: there are none."""
        if not self._has_schema(connection):
            return None
        row = connection.execute(
            "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = 'layout'",
            (self.schema,),
        ).fetchone()
        if row is None:
            return None
        layout = sql.Identifier(self.schema, "layout")
        row = connection.execute(sql.SQL("SELECT max(version) FROM {}").format(layout)).fetchone()
        return int(row[0]) if row is not None and row[0] is not None else 0

    def _has_schema(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the schema exists. Raises EngineUnavailable if this user must not use it."""
        row = connection.execute(
            "SELECT has_schema_privilege(oid, 'USAGE'), current_user FROM pg_namespace"
            " WHERE nspname = %s",
            (self.schema,),
        ).fetchone()
        if row is not None and not row[0]:
            raise EngineUnavailable(
                f"{self.name}: the user {row[1]} has no right to use this schema; GRANT USAGE ON"
                " SCHEMA, and the rights on its tables that docs/engines.md lists"
            )
        return row is not None

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        name = sql.Identifier(self.schema)
        other = connection.execute(
            "SELECT min(nspname) FROM pg_namespace WHERE starts_with(nspname, %s)",
            (f"{self.schema}.",),
        ).fetchone()
        if other is not None and other[0] is not None:
            raise EngineUnavailable(
                f"{self.name}: this schema is missing, and another one of its namespace exists,"
                f" {other[0]}; put it back, or restore a copy of all schemas"
            )
        if not self._has_schema(connection):  # IF NOT EXISTS asks for the right to create one
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(name))
        connection.execute(statements.tables().encode())
        nonce = self._place.nonce or f"{random.SystemRandom().randrange(32**4, 32**5):x}"
        connection.execute(
            "INSERT INTO shard (one, nonce, seq, fence) VALUES (1, %s, %s, %s)",
            (nonce, *[self._place.first_number] * 2),
        )
        connection.execute("INSERT INTO layout VALUES (%s)", (LAYOUT,))

    # Transactions

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A block that uses the connection. Raises EngineUnavailable inside another one."""
        with self.lock:
            self.refuse_nested()
            self._in_transaction = True
            try:
                yield
            finally:
                self._in_transaction = False

    @contextmanager
    def writing(
        self,
        *,
        durable: bool,
        changes_queue: bool = True,
        syncs: bool = True,
        reads: Sequence[Read] = (),
        is_whole: bool = False,
    ) -> Iterator[Connection]:
        """`is_whole`: `reads` are all that it does, so its commit is sent with them."""
        with self._alone():
            connection = self._begin(
                reads, changes_queue=changes_queue, durable=durable, is_whole=is_whole
            )
            try:
                yield connection
            except BaseException as error:
                self._roll_back(connection, error)
                if isinstance(error, psycopg.errors.DivisionByZero):
                    raise Outdated from error
                if isinstance(error, psycopg.Error):
                    raise self._explain_early(error, is_whole=is_whole) from error
                raise
            commit = self._send_commit(connection, changes_queue=changes_queue, is_whole=is_whole)
            may_pass_on = not (syncs or is_whole or connection.is_pooled)
            if may_pass_on and self.lock.is_passed_on:
                self._passed_on[commit.number] = commit
                return
            self._read_answer()
            if commit.error is not None:
                raise commit.error
            if durable and connection.warnings:  # an operator has canceled the wait for the standby
                raise self.explain(NotConfirmed("; ".join(connection.warnings)), applied=None)
        if durable and syncs:
            self.sync(commit.number)

    def confirm(self, commit: int) -> None:
        """
        A thread that waits for the lock gets it when this commit was sent, sends the beginning of
        its transaction, and reads this answer before its own.

        Why this is correct. The server runs what was sent in its order, so the next transaction
        sees this commit. If the commit fails, the next transaction is rolled back, too, before it
        has decided anything, and begins again; `failed` tells it that what this process has
        cached may not be so. A commit counts as safe only after its answer.
        """
        passed_on = self._passed_on.pop(commit, None)
        if passed_on is None:
            return
        while not passed_on.is_answered.wait(UNREAD_SECONDS):
            if self.lock.acquire(blocking=False):
                try:
                    with self._alone():
                        self._read_answer()
                    if not passed_on.is_answered.is_set():
                        self._fail(passed_on, _INTERRUPTED)
                finally:
                    self.lock.release()
        if passed_on.error is not None:
            raise passed_on.error

    def _read_answer(self) -> bool:
        """Read the answer to the last commit, if nobody has; False: it has failed."""
        commit, connection = self._unanswered, self._connection
        if commit is None or connection is None:
            return True
        try:
            commit.wait()
        except psycopg.Error as error:
            self._unanswered = None
            try:
                self._roll_back(connection, error)
            finally:
                self._fail(commit, error)
            return False
        except BaseException as error:  # such as KeyboardInterrupt
            self._roll_back(connection, error)
            raise
        self._confirmed, self._unanswered = commit.number, None
        commit.is_answered.set()
        return True

    def _fail(self, commit: _Commit, error: psycopg.Error) -> None:
        """Tell the thread of a commit that it has failed, or that this is not known."""
        self.failed += 1
        commit.error = self._explain_commit(error)
        commit.is_answered.set()

    def _begin(
        self, reads: Sequence[Read], *, changes_queue: bool, durable: bool, is_whole: bool = False
    ) -> Connection:
        """Begin a transaction under the lock; on a new connection if the old one is lost."""
        if is_whole:  # its commit is sent with the beginning, so it could not begin again
            self._read_answer()
        connection = self._usable()
        began, was_lost, moves = time.monotonic(), False, 0
        while True:
            self._in_transaction = True  # not after an attempt that was rolled back
            try:
                self._prepare(connection, durable=durable)
                begin = (_BEGIN, *self._before[durable], self._lock_text)
                begun = connection.begin(
                    begin, reads, changes_queue=changes_queue, is_whole=is_whole
                )
                if not self._read_answer():  # this transaction was rolled back with it
                    return self._begin(reads, changes_queue=changes_queue, durable=durable)
                layout, self._reserve.full_us, had_to_wait = begun()
                self._check_layout(layout)
            except psycopg.Error as error:
                self._roll_back(connection, error)
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    if time.monotonic() - began >= LOCK_SECONDS:
                        raise self.explain(error) from error
                    self._end_stuck_holder()
                elif self._has_moved(error, moves):
                    moves += 1
                elif (
                    was_lost
                    or not isinstance(error, psycopg.OperationalError)
                    or (is_whole and error.sqlstate is None)
                ):
                    raise self._explain_early(error, is_whole=is_whole) from error
                else:
                    was_lost = True
                connection = self._usable()
                continue
            except BaseException as error:  # such as KeyboardInterrupt, while it waits
                self._roll_back(connection, error)
                raise
            self._note_wait(time.monotonic() - began, had_to_wait=had_to_wait)
            self._ahead_us = connection.ahead_us
            return connection

    def _note_wait(self, took: float, *, had_to_wait: bool) -> None:
        self._quickest = min(self._quickest, took)
        waited = (took - self._quickest) * had_to_wait
        self.waited += waited
        if waited > NOTABLE_SECONDS:
            self._waited_at = time.monotonic()

    def _prepare(self, connection: Connection, *, durable: bool) -> None:
        """Do what has to be done before the commit begins that `sync` waits for."""
        if durable and self._durability != "memory" and not connection.is_pooled:
            self._flusher.prepare()

    def _explain_early(self, error: psycopg.Error, *, is_whole: bool) -> LanewayError:
        """What an error before the commit's answer means: a lost connection answers nothing."""
        return self.explain(error, applied=None if is_whole and error.sqlstate is None else False)

    def _end_stuck_holder(self) -> None:
        connection = self._usable()
        try:
            connection.pipeline.send(self._end_stuck_text)
            connection.pipeline.sync()
        except psycopg.Error as error:
            self._roll_back(connection, error)
            raise self.explain(error) from error

    def _send_commit(
        self, connection: Connection, *, changes_queue: bool, is_whole: bool
    ) -> _Commit:
        """`is_whole`: it was sent with the beginning."""
        try:
            wait = connection.finish if is_whole else connection.commit()
            self.commits += changes_queue
            self.written += 1
            self._unanswered = commit = _Commit(self.written, wait)
        except BaseException as error:
            self._roll_back(connection, error)
            if isinstance(error, psycopg.Error):
                raise self._explain_commit(error) from error
            raise
        return commit

    def _explain_commit(self, error: psycopg.Error) -> LanewayError | Outdated:
        is_outdated = isinstance(error, psycopg.errors.DivisionByZero)
        explained = Outdated() if is_outdated else self.explain(error, applied=was_applied(error))
        explained.__cause__ = error
        return explained

    def _roll_back(self, connection: Connection, error: BaseException) -> None:
        if isinstance(error, Exception):
            self._read_answer()  # that of the commit before it
        elif self._unanswered is not None:
            commit, self._unanswered = self._unanswered, None
            self._fail(commit, _INTERRUPTED)
        self._in_transaction = False
        connection.turn = -1
        is_answered = isinstance(error, Exception) and not isinstance(error, NoAnswer)
        if is_answered and connection.pipeline.is_open:
            with contextlib.suppress(psycopg.Error):
                connection.roll_back()
                if isinstance(error, psycopg.errors.DiskFull):
                    self._reserve.use()
                return
        self._drop()  # what it has sent and not read is not known

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._version = connection.version
            connection.pipeline.close()

    def _usable(self) -> Connection:
        if self._is_closed:
            raise EngineUnavailable(f"{self.name}: this engine was closed; open it again")
        connection = self._connection
        if connection is not None and (self._unanswered or connection.pipeline.is_alive()):
            return connection
        self._drop()
        if self._failed_at > self.lock.waited_since:
            raise EngineUnavailable(self._failure)
        began = time.monotonic()
        try:
            return self._open()
        except EngineUnavailable as error:
            self._failed_at, self._failure = began, str(error)
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self._alone():
            connection = self._begin_reading()
            try:
                yield connection
                connection.end_reading()
            except BaseException as error:
                self._roll_back(connection, error)
                if isinstance(error, psycopg.Error):
                    raise self.explain(error) from error
                raise

    def _begin_reading(self) -> Connection:
        moves = 0
        self._read_answer()
        while True:
            connection = self._usable()
            try:
                connection.begin_reading(
                    (_BEGIN_READING, *self._before[0], *self._read_lock),
                    checks=self._server is not None,
                )
            except psycopg.Error as error:
                self._roll_back(connection, error)
                if not self._has_moved(error, moves):
                    raise self.explain(error) from error
                moves += 1
            except BaseException as error:
                self._roll_back(connection, error)
                raise
            else:
                return connection

    def run_durably(self, name: str, *values: Any) -> list[Any]:
        with self.writing(
            durable=True,
            changes_queue=False,
            syncs=False,
            reads=((name, *values),),
            is_whole=True,
        ) as connection:
            rows: list[Any] = connection.all(name, *values)
        return rows

    def clock(self) -> int:
        """The server's time: the clocks of its clients may differ."""
        return time.time_ns() // 1000 + self._ahead_us

    def refuse_nested(self) -> None:
        if self._in_transaction or self._flusher.is_used_here:
            raise EngineUnavailable(
                f"{self.name}: this call began inside another one of its thread, as in a signal"
                " handler or a finalizer; nothing was changed, use another thread"
            )

    def refuse_without_room(self, drafts: Sequence[Draft]) -> None:
        self._reserve.check(drafts)

    # Durability

    def _flush(self, first: int, last: int) -> None:
        if self._durability == "memory" or self._before[0]:
            return
        try:
            self._flusher.flush(first, last)
        except psycopg.Error as error:
            raise self.explain(error, applied=None) from error

    def checkpoint(self) -> None:
        """The server checkpoints by itself."""

    def is_busy(self) -> bool:
        if not self.lock.acquire(blocking=False):
            return True
        try:
            if time.monotonic() > self._waited_at + BUSY_SECONDS:
                return False
            with self.reading() as connection:
                return not connection.has_lock(self._try_text)
        finally:
            self.lock.release()

    def explain(self, error: psycopg.Error, *, applied: bool | None = False) -> LanewayError:
        """The exception that an error of PostgreSQL means for the caller, in one line."""
        return explain(self.name, error, applied=applied)

    def close(self) -> None:
        """Close the connections; may be called twice, even inside a call, by a signal handler."""
        self._is_closed = True
        is_inside = self.lock.is_held_here
        with self.lock:
            if not is_inside:
                self._read_answer()
            self._drop()
        self._flusher.close()

    def __del__(self) -> None:
        # psycopg warns of unclosed connections; a program that drops its application never saw
        # these.
        if (connection := getattr(self, "_connection", None)) is not None:
            connection.pipeline.close()
        if (flusher := getattr(self, "_flusher", None)) is not None:
            flusher.close()

    def forget(self) -> None:
        """In a forked child: the connections are the parent's."""
        self.lock = StoreLock()
        self._is_closed = True
        self._unanswered = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.pipeline.forget()
        self._flusher.forget()


# No transaction runs during a fork, and the child does not use the parent's connections.
_stores: forking.Locked[Store] = forking.Locked(lambda store, _: store.forget())

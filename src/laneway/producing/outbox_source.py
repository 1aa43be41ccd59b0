"""
Forwards the outbox in a user's database to the store, in workers or with `laneway outbox forward`.

One process forwards for each namespace: `laneway_outbox_forwarder` has its name and until when it
leads. The same row names the batch that is being forwarded, and each change of it requires that it
is as this process believes. Even two processes that forward concurrently send batches in turn, each
under its name, which the store takes once.

Rows are read by their ids without a cursor: a slow transaction may commit a lower id than others
that were forwarded long before.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from laneway import storable
from laneway.engine_holder import EngineHolder
from laneway.engines.postgres import address as postgres_address
from laneway.engines.sqlite import address as sqlite_address
from laneway.errors import EngineUnavailable, LanewayError, UsageError
from laneway.printable import process_name, redacted
from laneway.producing import outbox
from laneway.producing.connections import Connected
from laneway.producing.forwarder import Forwarder, Superseded
from laneway.producing.reports import UnsentReports
from laneway.producing.spool_file import Row

LEAD_SECONDS = 10.0
"""How long a forwarder leads without a sign of life; then another process takes over."""

BUSY_SECONDS = 10.0
"""How long a statement waits for a lock of an SQLite database."""

_BEGIN = {"postgresql": "BEGIN ISOLATION LEVEL READ COMMITTED", "sqlite": "BEGIN IMMEDIATE"}
_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "sqlite": "(julianday('now') - 2440587.5) * 86400",
}
_AMONG = {
    "postgresql": "id = ANY(CAST(? AS bigint[]))",
    "sqlite": "id IN (SELECT value FROM json_each(?))",
}
_NOT_AMONG = {
    "postgresql": "id <> ALL(CAST(? AS bigint[]))",
    "sqlite": "id NOT IN (SELECT value FROM json_each(?))",
}


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an outbox holds for a namespace.

    - `waiting`: committed messages that the store has not accepted. `oldest_at`: when the oldest
      of them was published (Unix time in seconds).
    - `rejected`: messages that the store refused; the column `reason` has why.
    - `forwarder`: the process that forwards now, or None.
    - `error`: why the last attempt failed, if it did.
    """

    namespace: str
    waiting: int
    oldest_at: float | None = None
    rejected: int = 0
    forwarder: str | None = None
    error: str | None = None


class OutboxSource:
    """
    The outbox of a database as the forwarder's source. Opened at first use.

    `url`: `postgresql://…`, or `sqlite:///path`. Raises UsageError for others. `connect`: opens a
    connection, in autocommit mode; then `url` is a name for log lines.
    """

    def __init__(self, url: str, namespace: str, connect: Callable[[], Any] | None = None) -> None:
        self.name = f"outbox {redacted(url)}"
        self._namespace = namespace
        self._open = connect or _opener(url)
        self._opened: Any = None
        self._connected: Connected | None = None
        self._me = f"{process_name()}:{secrets.token_hex(6)}"
        self._spool = ""
        self._batch, self._ids = "", ""
        self._error: str | None = None
        self._renewed_at = 0.0  # monotonic
        self._read: set[int] = set()

    # As the forwarder's source

    def lead(self) -> bool:
        """Become the one that forwards. False: another process does."""
        with self._errors() as run:
            row = self._state(run)
            if not row:
                run(
                    "INSERT INTO laneway_outbox_forwarder (namespace, spool) VALUES (?, ?)"
                    " ON CONFLICT DO NOTHING",
                    (self._namespace, secrets.token_hex(8)),
                )
                row = self._state(run)
            self._spool, self._batch, self._ids, self._error, leader, is_over = row[0]
            if not is_over and leader != self._me:
                return False
            self._renew()
        return True

    def step_down(self) -> None:
        """Let another process forward."""
        if self._connected is not None:
            with suppress(Exception):
                self._connected.run(
                    "UPDATE laneway_outbox_forwarder SET leads_until = 0"
                    " WHERE namespace = ? AND forwarder = ?",
                    (self._namespace, self._me),
                )

    def begin(self) -> tuple[str, str | None]:
        """Read from the first message on. Returns the outbox's id, and the last error."""
        self._read = set()
        return self._spool, self._error

    def batch(self) -> tuple[str, list[Row]] | None:
        """The batch whose forwarding began, and was not finished: its name and its messages."""
        if not self._batch:
            return None
        return self._batch, self.rows(msgspec.json.decode(f"[{self._ids}]", type=list[int]))

    def next_rows(self, limit: int, max_bytes: int) -> list[Row]:
        """
        The next messages in order that were not read yet, with at most this many bytes of bodies
        (or one message).
        """
        with self._errors() as run:
            if time.monotonic() - self._renewed_at > LEAD_SECONDS / 3:
                self._renew()
            found = run(
                "SELECT id, length(body) FROM laneway_outbox WHERE namespace = ?"  # noqa: S608
                f" AND reason IS NULL AND {self._sql(_NOT_AMONG)} ORDER BY id LIMIT ?",
                (self._namespace, self._listed(self._read), limit),
            )
        ids: list[int] = []
        for message, size in found:
            max_bytes -= size
            if ids and max_bytes < 0:
                break
            ids.append(message)
        self._read.update(ids)
        return self.rows(ids) if ids else []

    def rows(self, seqs: Sequence[int]) -> list[Row]:
        """These messages, in the order of publish."""
        if not seqs:
            return []
        with self._errors() as run:
            rows = run(
                "SELECT id, at_us, topic, message_id, body, options FROM laneway_outbox"  # noqa: S608
                f" WHERE {self._sql(_AMONG)} ORDER BY id",
                (self._listed(seqs),),
            )
        return [Row(*row) for row in rows]

    def next_batch(
        self,
        done: Sequence[Row],
        rejected: Sequence[tuple[Row, str]],
        batch: tuple[str, Sequence[int]] | None,
    ) -> None:
        """
        In one transaction: remove the messages that the store has, note why it refuses others, and
        write down the batch that is forwarded next.
        """
        with self._errors() as run:
            run(self._sql(_BEGIN))
            try:
                name, seqs = batch or ("", ())
                ids = ",".join(map(str, seqs))
                self._renew(name, ids)
                gone = [row.seq for row in done]
                if gone:
                    run(
                        f"DELETE FROM laneway_outbox WHERE {self._sql(_AMONG)}",  # noqa: S608
                        (self._listed(gone),),
                    )
                for row, reason in rejected:
                    run("UPDATE laneway_outbox SET reason = ? WHERE id = ?", (reason, row.seq))
                run("COMMIT")
            except BaseException:
                with suppress(Exception):
                    run("ROLLBACK")
                raise
        self._batch, self._ids = name, ids
        self._read.difference_update(gone, (row.seq for row, _ in rejected))

    def note_error(self, error: str | None) -> None:
        """Note why the store cannot be used, or None if it can."""
        self._error = error
        with self._errors():
            self._renew()

    def close(self) -> None:
        """Close the connection."""
        opened, self._opened, self._connected = self._opened, None, None
        if opened is not None:
            with suppress(Exception):
                opened.close()

    # For people

    def create(self) -> None:
        """Create the tables that do not exist."""
        with self._errors():
            outbox.create(self._opened)

    def status(self) -> OutboxStatus:
        """What it holds."""
        with self._errors() as run:
            ((waiting, oldest),) = run(
                "SELECT count(*), min(at_us) FROM laneway_outbox"
                " WHERE namespace = ? AND reason IS NULL",
                (self._namespace,),
            )
            ((rejected,),) = run(
                "SELECT count(*) FROM laneway_outbox WHERE namespace = ? AND reason IS NOT NULL",
                (self._namespace,),
            )
            state = self._state(run)
        _, _, _, error, leader, is_over = state[0] if state else (None, None, None, None, "", True)
        return OutboxStatus(
            namespace=self._namespace,
            waiting=waiting,
            oldest_at=None if oldest is None else oldest / 1e6,
            rejected=rejected,
            forwarder=None if is_over else leader,
            error=error,
        )

    # The database

    def _state(self, run: Callable[..., Any]) -> Any:
        return run(
            "SELECT spool, batch, ids, error, forwarder,"  # noqa: S608
            f" leads_until < {self._sql(_NOW)}"
            " FROM laneway_outbox_forwarder WHERE namespace = ?",
            (self._namespace,),
        )

    def _renew(self, batch: str | None = None, ids: str = "") -> None:
        """Lead further, with the next batch if one is given. Raises Superseded."""
        assert self._connected is not None
        if batch is None:
            batch, ids = self._batch, self._ids
        now = self._sql(_NOW)
        if not self._connected.run(
            "UPDATE laneway_outbox_forwarder"  # noqa: S608
            f" SET forwarder = ?, leads_until = {now} + {LEAD_SECONDS}, batch = ?, ids = ?,"
            " error = ? WHERE namespace = ? AND batch = ?"
            f" AND (forwarder = ? OR leads_until < {now}) RETURNING 1",
            (self._me, batch, ids, self._error, self._namespace, self._batch, self._me),
        ):
            raise Superseded
        self._renewed_at = time.monotonic()

    @contextmanager
    def _errors(self) -> Iterator[Callable[..., Any]]:
        """A block that uses the database, and opens it before. Raises EngineUnavailable."""
        try:
            if self._connected is None:
                self._opened = self._open()
                self._connected = Connected("outbox", self._opened)
            yield self._connected.run
        except (Superseded, LanewayError):
            raise
        except Exception as error:
            self.close()
            raise EngineUnavailable(
                f"{self.name}: the database cannot be used"
                f" ({' '.join(storable.of(error, 300).split())})"
            ) from error

    def _sql(self, texts: dict[str, str]) -> str:
        assert self._connected is not None
        return texts[self._connected.database]

    def _listed(self, ids: Sequence[int] | set[int]) -> str:
        return self._sql({"postgresql": "{%s}", "sqlite": "[%s]"}) % ",".join(map(str, ids))


class OutboxForwarding:
    """The forwarder of an application's outbox, which its workers start and stop."""

    def __init__(
        self, source: Callable[[], OutboxSource], target: EngineHolder, unsent: UnsentReports
    ) -> None:
        self.name = source().name
        self._source = source
        self._target = target
        self._unsent = unsent
        self._threads: list[Forwarder] = []  # a parent's stay here in a forked child

    def start(self) -> Forwarder:
        """Forward in a thread of its own."""
        thread = Forwarder(self._source(), self._target, self._unsent)
        self._threads.append(thread)
        thread.start()
        return thread

    def stop(self) -> None:
        """End it; does not wait."""
        for thread in self._threads:
            thread.end()


def _opener(url: str) -> Callable[[], Any]:
    """What opens the database of a URL. Raises UsageError."""
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        address = postgres_address.parse(url)

        def connect() -> Any:
            try:
                from laneway.engines.postgres import connecting  # noqa: PLC0415  # an extra
            except ModuleNotFoundError as error:
                raise UsageError(
                    "an outbox in PostgreSQL needs psycopg; pip install 'laneway[postgres]'"
                ) from error
            return connecting.connect(
                address.server,
                is_pooled=address.is_pooled,
                prepare_threshold=None,  # a plan for any list of ids may read all rows
                application_name="laneway outbox",
            )

        return connect
    path = sqlite_address.parse(url).path if scheme == "sqlite" else None
    if path is None:
        raise UsageError(
            f"outbox: expected the URL of a database, like postgresql://user@host/database or"
            f" sqlite:///app.db, got {redacted(url)!r:.200}"
        )
    return lambda: sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )

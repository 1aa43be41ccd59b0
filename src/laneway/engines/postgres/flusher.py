"""
Waiting until commits are on disk, or on a synchronous standby, without a lock of the store.

The flusher commits something that waits, on its own connection. The server's log is in order, so
all earlier commits are as safe when that one is.

Why this is correct. A server that crashes loses commits that were not on disk, and a new connection
to it could not tell. So a connection confirms only commits that began after it was opened: if it
still works, the server has not crashed since. A commit whose connection was lost is not confirmed.

A standby that is away makes the wait endless, so it is bounded. The question stays open, and the
next call waits for its answer: a backend that waits for a standby does not end when its client
does, so new questions would use up the server's connections.
"""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq
from psycopg.errors import error_from_result

from laneway.engines.postgres.pipeline import forget, is_readable

CONFIRM_SECONDS = 10.0
"""How long a call waits for the disk and the standbys."""

_QUESTION = b"SELECT pg_logical_emit_message(true, 'laneway', '')"


class NotConfirmed(psycopg.OperationalError):
    """It is not known that a commit is safe."""


class Flusher:
    """
    Makes commits safe. `connect` opens a connection that waits for the disk, and `committed`
    returns the numbers of the last commit that has happened and of the last one that was sent.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        committed: Callable[[], tuple[int, int]],
    ) -> None:
        self._connect, self._committed = connect, committed
        self._lock = threading.Lock()
        self._thread = 0
        """The one that waits for an answer."""
        self._connection: psycopg.Connection[Any] | None = None
        self._lost: deque[range] = deque(maxlen=1000)
        """Commits whose connection was lost before it had confirmed them."""
        self._asked: int | None = None
        """The last commit before the question that is not answered yet."""
        self._flushed = 0
        """The last commit that is safe or lost."""
        self._warnings: list[str] = []

    def prepare(self) -> None:
        """Open the connection. Call it before each commit that `flush` is to confirm."""
        if not self._lock.locked():  # else another thread waits for an answer
            with self._lock:
                self._drop_if_closed()
        if self._connection is None:
            with self._lock:
                connection = self._connect()
                connection.add_notice_handler(self._warn)
                _, last = self._committed()
                self._lost.append(range(self._flushed + 1, last + 1))
                self._flushed, self._asked, self._connection = last, None, connection

    def _drop_if_closed(self) -> None:
        """Close an idle connection that the server has closed."""
        try:
            if self._connection and not self._asked and is_readable(self._connection.fileno()):
                self._drop()
        except psycopg.Error:
            self._drop()

    @property
    def is_used_here(self) -> bool:
        """Whether `flush` of this thread runs: the caller is in a signal handler, for example."""
        return self._thread == threading.get_ident()

    def _warn(self, notice: psycopg.errors.Diagnostic) -> None:
        self._warnings.append(notice.message_primary or "")

    def flush(self, first: int, last: int) -> None:
        """Return when these commits are safe. Raises psycopg.Error: they may not be."""
        deadline = time.monotonic() + CONFIRM_SECONDS
        with self._lock:
            self._thread = threading.get_ident()
            try:
                while not self._is_flushed(first, last):
                    self._ask(deadline)
            finally:
                self._thread = 0

    def _is_flushed(self, first: int, last: int) -> bool:
        """Whether these commits are safe. Raises NotConfirmed if that cannot be known any more."""
        is_lost = any(first < lost.stop and last >= lost.start for lost in self._lost)
        if is_lost or (self._connection is None and self._flushed < last):
            raise NotConfirmed("the connection was lost before the commit was on disk")
        return self._flushed >= last

    def _ask(self, deadline: float) -> None:
        """Wait for the answer to the open question, or to a new one. Raises psycopg.Error."""
        assert self._connection is not None
        try:
            self._wait(self._connection.pgconn, deadline)
        except NotConfirmed:
            raise
        except psycopg.Error:
            self._drop()
            raise

    def _wait(self, server: pq.abc.PGconn, deadline: float) -> None:
        if self._asked is None:
            self._warnings.clear()
            asked, _ = self._committed()
            server.send_query(_QUESTION)
            self._asked = asked
        result = _result(server, deadline)
        if result is None:
            raise NotConfirmed(
                f"neither the disk nor a synchronous standby has confirmed within"
                f" {CONFIRM_SECONDS:g} s"
            )
        asked, self._asked = self._asked, None
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise error_from_result(result)
        if self._warnings:  # an operator has canceled the wait for the standby
            raise NotConfirmed("; ".join(self._warnings))
        self._flushed = asked

    def _drop(self) -> None:
        connection, self._connection, self._asked = self._connection, None, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Close the connection; commits that it has not confirmed never are."""
        if self.is_used_here:
            self._drop()
            return
        with self._lock:
            self._drop()

    def forget(self) -> None:
        """In a forked child: the connection is the parent's."""
        self._lock = threading.Lock()
        connection, self._connection = self._connection, None
        if connection is not None:
            forget(connection)


def _result(server: pq.abc.PGconn, deadline: float) -> pq.abc.PGresult | None:
    """
    The result of a query that was sent. None: it has not come in time. Raises OperationalError if
    the connection is lost.

    `get_result` must find all that it needs: while it waits, no other thread of the process runs.
    """
    poll = select.poll()
    poll.register(server.socket, select.POLLIN)
    last: pq.abc.PGresult | None = None
    while True:
        while server.is_busy():
            if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                return None
            server.consume_input()
        result = server.get_result()
        if result is None:
            if last is None:
                raise psycopg.OperationalError(server.get_error_message().strip())
            return last
        last = result

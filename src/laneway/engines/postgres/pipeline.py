"""
A connection that sends statements without waiting for their results.

A transaction reads and writes some 10 to 30 times, and each answer that it waits for costs a round
trip. So a statement whose result nobody needs yet is only sent; the first one that is needed reads
all results before it, too. The text of a statement is sent once for each connection, which names
it: psycopg's own names are lost where a transaction is rolled back inside a pipeline. Behind a
pooler the text is sent each time.

For example, a put of 500 messages into known topics sends BEGIN, the lock and the turn, and waits
once; it decides, sends the inserts, the next turn and COMMIT, and waits once more: 2 round trips
for 9 statements. The server runs the first inserts while the others are prepared.

Why this is correct. The server runs statements in the order in which they were sent. After a failed
one it skips those before the next synchronization, and refuses those behind it: the transaction has
failed, and COMMIT rolls it back. So nothing that was sent after a failed statement happens, however
late its error is read.
"""

from __future__ import annotations

import itertools
import os
import select
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import psycopg
from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result

from laneway.engines.postgres.connecting import ANSWER_SECONDS, NoAnswer, ServerConnection

_OK = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)

# The server begins with a statement whose values have this size, while the next ones are prepared:
# the rows of some 100 messages.
EARLY_BYTES = 4096


class Prepared(msgspec.Struct, eq=False):
    """
    A statement that the server of one connection knows. `rows`: a `Transformer` that knows the
    types of its columns.
    """

    name: bytes
    rows: Any = None


class Ticket(msgspec.Struct, eq=False):
    """
    A statement that was sent, and its result once it has been read. `number`: how many statements
    were sent before it, and this one.
    """

    statement: Prepared
    number: int = 0
    result: pq.abc.PGresult | None = None


_SYNC = Prepared(b"")
"""Stands for a synchronization among what was sent."""


class Pipeline:
    """The results of statements in the order in which they were sent. Not for several threads."""

    def __init__(self, connection: ServerConnection) -> None:
        """`connection`: an open one, which nobody else uses from now on."""
        self._connection = connection
        self._prepares = not connection.is_pooled
        self._server = connection.pgconn
        self._server.enter_pipeline_mode()
        self._server.nonblocking = 1
        self._names = itertools.count()
        self._prepared: dict[tuple[str, tuple[int, ...]], Prepared] = {}
        self._unconfirmed: deque[tuple[int, tuple[str, tuple[int, ...]]]] = deque()
        """Sent, and not known to be right yet: how many statements were sent before, and which."""
        self._unread: deque[Ticket] = deque()
        self._poll = select.poll()
        self.trips = 0
        """How often the server's answer to something new was waited for."""
        self._sent = self._synced = self._counted = 0
        """
        How many statements were sent, how many of them a synchronization follows, and how many of
        these `trips` has.
        """

    def send(
        self, text: str, types: tuple[int, ...] = (), values: Sequence[bytes | None] = ()
    ) -> Ticket:
        """Send a statement. `types`: the OIDs of its values, 0: by their place in the text."""
        statement = self._prepared.get((text, types))
        if statement is None:
            statement = self._prepare(text, types)
        formats = [1] * len(values)
        if self._prepares:
            self._server.send_query_prepared(statement.name, values, formats, 1)
        else:
            self._server.send_query_params(text.encode(), values, types, formats, 1)
        self._sent += 1
        ticket = Ticket(statement, self._sent)
        self._unread.append(ticket)
        if sum(map(len, filter(None, values))) >= EARLY_BYTES:
            self.send_sync()
        return ticket

    def _prepare(self, text: str, types: tuple[int, ...]) -> Prepared:
        statement = self._prepared[text, types] = Prepared(b"laneway_%d" % next(self._names))
        self._unconfirmed.append((self._sent, (text, types)))
        if self._prepares:
            self._server.send_prepare(statement.name, text.encode(), types)
            self._unread.append(Ticket(statement))
        return statement

    def rows(self, ticket: Ticket) -> list[Any]:
        """The rows of a statement, as tuples. Raises psycopg.Error as `result` does."""
        result = self.result(ticket)
        if not (count := result.ntuples):
            return []
        rows = ticket.statement.rows
        if rows is None:
            rows = ticket.statement.rows = Transformer(self._connection)
            rows.set_pgresult(result)
        else:
            rows.set_pgresult(result, set_loaders=False)
        found: list[Any] = rows.load_rows(0, count, tuple)
        return found

    def changed(self, ticket: Ticket) -> int:
        """How many rows a statement has changed."""
        return self.result(ticket).command_tuples or 0

    def result(self, ticket: Ticket) -> pq.abc.PGresult:
        """
        The result of a statement. Raises psycopg.Error if one up to it has failed; then all is read
        up to the next synchronization.
        """
        if ticket.result is None:
            # Not a mere flush: the server counts how long a transaction is idle only after a
            # synchronization, and so frees the lock of a client that has stopped.
            if ticket.number > self._synced:
                self.send_sync()
            self._read(ticket)
        if ticket.result is None:
            raise psycopg.OperationalError("the statement was skipped: one before it has failed")
        return ticket.result

    def sync(self) -> None:
        """Wait for everything that was sent. Raises psycopg.Error as `result` does."""
        if self._sent > self._synced:
            self.send_sync()
        self._read(None)

    def read_to(self, sync: Ticket) -> None:
        """Wait for what was sent before this. Raises psycopg.Error as `result` does."""
        if sync in self._unread:
            self._read(sync)

    def send_sync(self) -> Ticket:
        """After a failed statement, those behind this one run again."""
        self._server.pipeline_sync()
        self._synced = self._sent
        sync = Ticket(_SYNC, self._sent)
        self._unread.append(sync)
        self._server.flush()
        return sync

    def recover(self) -> None:
        """Read what was sent, whatever failed."""
        while True:
            try:
                self.sync()
            except psycopg.OperationalError:
                raise
            except psycopg.Error:
                continue
            return

    def _read(self, wanted: Ticket | None) -> None:
        """Read the results up to this one; None: all."""
        unread = self._unread
        deadline = time.monotonic() + ANSWER_SECONDS
        is_new = (wanted.number if wanted is not None else self._sent) > self._counted
        while unread:
            result = self._next(deadline, is_new=is_new)
            if result is None:  # between the results of two statements
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                if self._pass_sync() is wanted:
                    return
            elif result.status in _OK:
                ticket = unread.popleft()
                ticket.result = result
                if ticket is wanted:
                    return
            else:
                self._fail(result, deadline)

    def _pass_sync(self) -> Ticket:
        while (sync := self._unread.popleft()).statement is not _SYNC:
            pass
        while self._unconfirmed and self._unconfirmed[0][0] < sync.number:
            self._unconfirmed.popleft()
        return sync

    def _fail(self, result: pq.abc.PGresult, deadline: float) -> None:
        """Read the results up to the next synchronization and raise the error."""
        for _, key in self._unconfirmed:
            self._prepared.pop(key, None)
        self._unconfirmed.clear()
        if all(ticket.statement is not _SYNC for ticket in self._unread):
            self.send_sync()
        try:
            while self._unread:
                found = self._next(deadline)
                if found is not None and found.status == pq.ExecStatus.PIPELINE_SYNC:
                    self._pass_sync()
                    break
        except psycopg.OperationalError as error:  # the server has ended the connection: see why
            raise error_from_result(result) from error
        raise error_from_result(result)

    def _next(self, deadline: float, *, is_new: bool = False) -> pq.abc.PGresult | None:
        """The next result, or None behind each one. `is_new`: nobody has waited for it yet."""
        server = self._server
        if server.flush() or server.is_busy():
            if is_new and self._counted < self._synced:
                self.trips, self._counted = self.trips + 1, self._synced
            poll, file = self._poll, server.socket
            while (unsent := server.flush()) or server.is_busy():
                poll.register(file, select.POLLIN | (select.POLLOUT if unsent else 0))
                if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
                    raise NoAnswer(f"no answer for {ANSWER_SECONDS:g} s")
                server.consume_input()
        result = server.get_result()
        if result is None and server.status == pq.ConnStatus.BAD:
            raise psycopg.OperationalError(server.get_error_message().strip())
        return result

    @property
    def is_open(self) -> bool:
        """Whether the connection can be used, as far as is known."""
        return self._server.status == pq.ConnStatus.OK

    def is_alive(self) -> bool:
        """Whether the server has not closed the connection; asks the socket only."""
        if not self.is_open:
            return False
        try:
            while is_readable(self._server.socket):
                if self._unread:
                    self._read(None)
                else:
                    self._server.consume_input()
        except psycopg.Error:
            return False
        return self.is_open

    def close(self) -> None:
        self._connection.close()

    def forget(self) -> None:
        """In a forked child: see `forget`."""
        forget(self._connection)


def is_readable(file: int) -> bool:
    """Whether a socket has something to read; an idle one has so only when it was closed."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def forget(connection: psycopg.Connection[Any]) -> None:
    """In a forked child: close its copy of a socket without a word to the server."""
    server = connection.pgconn
    if server.status == pq.ConnStatus.OK:
        os.close(server.socket)
        server.finish()

"""
What the rules need of a database: a store with its place, transactions, and statements by name.

A database implements the protocols. It has the text of each statement, and it alone knows how
values are bound: a list by `array`, and 0 for NULL in columns that are never 0, so its statements
have `nullif(?, 0)` there. Everything raises a `LanewayError` that names the store; a change that
raises has not happened unless the error's `applied` is None.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias

import msgspec

from laneway.message import Draft

NUMBER_BITS = 53
"""Bits of a number that JSON and Lua hold exactly."""

NUMBER_UNIT = 16
"""
A new sequence number or fence is at least the time in units of this many microseconds.

So a store that was deleted and created again, or that lost its last transactions in a crash,
repeats no number, unless it assigned more than 62,500 a second as long as it existed. If the caller
passes the time, numbers count from 1, as in the model. With more than 32 shards the unit is longer,
because numbers contain the shard.
"""


class Place(msgspec.Struct, frozen=True):
    """
    A store among those of its namespace.

    `path`: its file; None: it is in memory. `shard`: its index, of `shards`. `nonce`: the
    first part of generated ids, which all stores have in common; None: a new one chooses one.
    `tiers`: the tiers (JSON) that a new store gets; None: those of the settings. `is_complete`: all
    stores were created before, so this one is not new.
    """

    path: str | None
    shard: int = 0
    shards: int = 1
    nonce: str | None = None
    tiers: str | None = None
    is_complete: bool = False

    @property
    def first_number(self) -> int:
        """The number before the store's first one."""
        return self.shard << own_bits(self.shards)

    @property
    def number_unit(self) -> int:
        """See `NUMBER_UNIT`."""
        return max(NUMBER_UNIT, self.shards // 2)


def own_bits(shards: int) -> int:
    """
    The bits in which a store counts its messages and fences; those above contain its shard. So
    numbers are unique in the namespace, and each store still counts by one.
    """
    return NUMBER_BITS - (shards - 1).bit_length()


Read: TypeAlias = "tuple[Any, ...]"
"""A statement that reads: its name, then its values; a tuple stands for an `array`."""


class Outdated(Exception):  # never leaves the engine
    """What was remembered about leases is no longer so; nothing was changed."""


class Session(Protocol):
    """Runs statements by their names, within one transaction."""

    def one(self, name: str, *values: Any) -> Any:
        """The first row of a statement, or None."""

    def all(self, name: str, *values: Any) -> list[Any]:
        """All rows of a statement."""

    def run(self, name: str, *values: Any) -> None:
        """Run a statement. Its error may be raised by a later call of the transaction."""

    def change(self, name: str, *values: Any) -> int:
        """Run a statement; returns how many rows it changed."""

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each of these rows, which do not depend on each other."""

    def change_exactly(self, name: str, rows: Sequence[Sequence[Any]], count: int) -> None:
        """
        The same; if it changes another number of rows in all, it or the commit raises Outdated.
        """

    def prefetch(self, name: str, *values: Any) -> None:
        """
        The caller will read this statement, with the same values, in this transaction: a store that
        is far away asks for it without waiting. Not for one whose rows change until then.
        """

    def run_rows(self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False) -> None:
        """
        Run a statement with VALUES for many rows at once, which have different keys. A row may run
        twice, which must change nothing more: it conflicts with itself, or is written again.
        `converts`: there are values of bytes or None.
        """

    def all_rows(
        self, name: str, rows: Sequence[Sequence[Any]], *, converts: bool = False
    ) -> list[Any]:
        """All rows of a query with VALUES for many rows at once; some may be there twice."""

    def array(self, values: Sequence[Any]) -> Any:
        """
        Numbers or strings as one value of a statement: a list. With an empty one no statement
        returns or changes anything.
        """


class Connection(Session, Protocol):
    """One transaction of a store."""

    keeps_deleted: bool
    """Whether the database keeps deleted rows for a while, so that reads pass them."""

    def add_rows(self, table: str, rows: Sequence[Sequence[Any]]) -> None:
        """Insert rows with all columns of `message` or `lease`; values may be bytes or None."""

    def after_commit(self, then: Callable[[list[Any]], None], name: str, *values: Any) -> None:
        """
        Call `then` with all rows of a statement once this transaction is committed, maybe in
        another thread: nobody waits for this read, and it may fail. At most once in a transaction.
        """

    version: int
    """Another number once anything but this connection has written to the store."""

    def touched(self, name: str) -> Sequence[tuple[str, bool]]:
        """The tables that a statement names, and whether it changes them."""


class Store(Protocol):
    """
    An open store, which a database derives from. It is used by one thread at a time, which holds
    its `lock`.
    """

    name: str
    commits: int
    """How many transactions have changed what a `LaneCache` has rows of."""
    written: int
    """The number of the last commit, see `sync`."""
    failed: int = 0
    """How many commits have failed whose callers had left the lock, see `confirm`."""
    waited: float
    """Seconds for which transactions waited for those of other processes."""
    prefers_large_leases: bool
    """Whether a call has a cost of its own, whatever the number of its messages."""
    sends_leases: bool = True
    """Whether a message may be leased to a waiting worker in the transaction that puts it."""

    lock: Any
    """The lock, a context manager; a thread may take it several times."""
    _later: dict[int, tuple[int, int]]
    """By thread that syncs later: its first and last commit, or zeros."""

    def reading(self) -> AbstractContextManager[Connection]:
        """One consistent read transaction, without the write lock."""

    def writing(
        self,
        *,
        durable: bool,
        changes_queue: bool = True,
        syncs: bool = True,
        reads: Sequence[Read] = (),
    ) -> AbstractContextManager[Connection]:
        """
        One write transaction; no other one runs meanwhile. A `durable` one survives a power cut
        when this returns. `changes_queue`: False if it changes no table of which a `LaneCache` has
        rows. `syncs`: False if the caller calls `confirm` and `sync` after it, where it holds no
        lock any more. `reads`: what it will surely read, see `Session.prefetch`.
        """

    def confirm(self, commit: int) -> None:
        """
        Return when this commit, the number that was in `written`, is known to have happened. While
        a thread waits for that, the next one begins its transaction. Raises what the commit raised.
        """
        del commit

    def run_durably(self, name: str, *values: Any) -> list[Any]:
        """
        Run one statement as a durable transaction of its own; returns its rows. Call it under the
        lock, and `sync` after it.
        """

    def clock(self) -> int:
        """The time in microseconds since 1970, the same for all processes that use the store."""

    def refuse_nested(self) -> None:
        """Raise EngineUnavailable inside a transaction of this thread. Call it under the lock."""

    def refuse_without_room(self, drafts: Sequence[Draft]) -> None:
        """Raise EngineUnavailable if the disk has no room for these messages."""

    def sync(self, commit: int) -> None:
        """Return when this durable commit, the number that was in `written`, is on disk."""
        if self._later and (thread := threading.get_ident()) in self._later:
            first, _ = self._later[thread]
            self._later[thread] = first or commit, commit
        else:
            self._flush(commit, commit)

    @contextmanager
    def syncing_later(self) -> Iterator[None]:
        """`sync` of this thread returns at once inside this block, whose end syncs."""
        thread, later = threading.get_ident(), self._later
        if thread in later:
            yield  # the block around this one syncs
            return
        later[thread] = 0, 0
        try:
            yield
        finally:
            first, last = later.pop(thread)
            if last:
                self._flush(first, last)

    def sync_now(self) -> None:
        """Inside `syncing_later`: sync what was committed in it so far."""
        thread = threading.get_ident()
        first, last = self._later.get(thread, (0, 0))
        if last:
            self._later[thread] = 0, 0
            self._flush(first, last)

    def _flush(self, first: int, last: int) -> None:
        """Sync these commits and those between them."""

    def checkpoint(self) -> None:
        """Make the next durable commits faster, where the store can."""

    def is_busy(self) -> bool:
        """
        Whether another process, or another thread of this one, is probably writing now. It costs
        nothing where nobody else has written lately.
        """

    def close(self) -> None:
        """Close the store; may be called twice."""

"""
Keeps a part of the server's disk free of publishes, so that a disk that the backlog has filled can
be emptied.

A client cannot see how much of the disk is free. A large store has a table of this size, the
reserve, which is emptied when the disk is full. From then on publishes are refused, and all other
calls use its room. A publish fills it again when the disk has room for twice its size.

The table is not logged. If it is the server's log that finds the disk full, the server ends, and
empties such tables before it recovers: without this room it could not start again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from psycopg.errors import DiskFull

from laneway.engines.shared import refusals
from laneway.engines.sql.store import Store
from laneway.errors import EngineUnavailable, LanewayError
from laneway.message import Draft
from laneway.units import SECOND

RESERVE = 64 << 20
"""Bytes of the reserve, and of the tables of messages of a store that has one."""

ROWS_OF_PAGE, PAGE_BYTES = 8, 8192
"""How many rows the table's fill factor allows in a page."""

LOOK_BYTES = 8 << 20
"""How much a process publishes before it looks whether the store has become large."""

ROW_BYTES = 512
"""What a message takes besides its body."""

RETRY_US = 60 * SECOND
"""How long publishes are refused before the disk is tried again."""


class Reserve:
    """The reserve of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.unlooked = LOOK_BYTES
        """Bytes published by this process since it looked; LOOK_BYTES after it has connected."""
        self.full_us = 0
        """When the disk was full or was tried, as the last transaction saw it; 0: it has room."""
        self._is_in_use = False

    def check(self, drafts: Sequence[Draft]) -> None:
        """Raise EngineUnavailable if these messages would use the reserve."""
        self.unlooked += sum([len(draft.body) + ROW_BYTES for draft in drafts])
        if not self.full_us and self.unlooked < LOOK_BYTES:
            return
        if all(map(refusals.uses_reserve, drafts)):
            return
        self.unlooked = 0
        with self._store.reading() as connection:
            self.full_us, size, stored = connection.one("reserve_read")
        if not self.full_us and (size >= RESERVE or stored < RESERVE):
            return
        if self._store.clock() - self.full_us < RETRY_US or not self._fill():
            raise EngineUnavailable(
                f"{self._store.name}: the server's disk is full, and the last"
                f" {RESERVE >> 20:,} MiB are kept for handling what waits; nothing was changed:"
                " run workers, purge topics, or make room on the disk"
            )

    def _fill(self) -> bool:
        with self._store.writing(durable=False, changes_queue=False) as connection:
            connection.run("full_set", self._store.clock())  # no other process tries it now
        try:
            with self._store.writing(durable=False, changes_queue=False) as connection:
                for size in (2 * RESERVE, RESERVE):
                    connection.run("reserve_empty")
                    connection.run("reserve_fill", size // PAGE_BYTES * ROWS_OF_PAGE)
                connection.run("full_set", 0)
        except EngineUnavailable as error:
            if isinstance(error.__cause__, DiskFull):
                return False
            raise
        return True

    def use(self) -> None:
        """A call has found the disk full: empty the reserve."""
        if self._is_in_use:
            return
        self._is_in_use = True
        try:
            with (
                contextlib.suppress(LanewayError),
                self._store.writing(durable=False, changes_queue=False) as connection,
            ):
                connection.run("full_noted", self._store.clock())
                connection.run("reserve_empty")
        finally:
            self._is_in_use = False

"""The engine on one SQLite file: opening it, its delivery log, its size and its doctor."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from laneway.engines.base import Capabilities, Check, DoctorStep, LogEntry, Settings, StorePart
from laneway.engines.shared.refusals import check_namespace
from laneway.engines.sql import doctor
from laneway.engines.sql.admin import SqlEngine
from laneway.engines.sql.doctor import CHECKS, unhandled_topics
from laneway.engines.sql.engine import PLACE
from laneway.engines.sql.store import Place
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sqlite.address import path_of
from laneway.engines.sqlite.connection import Connection
from laneway.engines.sqlite.delivery_log import DeliveryLogFile
from laneway.engines.sqlite.store import Store
from laneway.engines.sqlite.wakeup import Wakeup
from laneway.errors import UsageError
from laneway.printable import redacted

DURABILITIES = ("memory", "fsync")

SLICE_SECONDS = 0.02
"""So long a check in steps reads, before it pauses as long."""

OPERATIONS = 20_000
"""Operations of SQLite's virtual machine after which a statement looks at the clock: under 2 ms."""


class SqliteEngine(SqlEngine):
    """The whole engine on one file."""

    _store: Store  # type: ignore[mutable-override]  # assigned once
    _wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(
        self,
        url: str,
        settings: Settings,
        place: Place | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        """`place`, `wakeup`: where the file is one of several of its namespace."""
        durability = settings.durability or "fsync"
        if durability not in DURABILITIES:
            raise UsageError(
                f'engine {redacted(url)}: durability "{durability}" needs replicas, which a file'
                ' does not have; use "fsync" (the default) or "memory"'
            )
        check_namespace(settings.namespace)
        place = place or Place(path_of(url, settings.namespace))
        path = place.path
        self.durability = durability if path is not None else "memory"
        self.capabilities = Capabilities(
            name="sqlite",
            durability=frozenset(DURABILITIES),
            persistent=path is not None,
            processes=path is not None,
            transactions=True,
            only=True,
            reserves=True,
            embedded=True,
        )
        self._delivery_log = DeliveryLogFile(path)
        store = Store(
            path,
            self.durability,
            create=settings.create,
            nonce=place.nonce,
            first_number=place.first_number,
        )
        wakeup = wakeup or Wakeup(path, self.has_work, may_lease=True)
        super().__init__(url, settings, place, store, wakeup)

    def _join(self, place: Place) -> Place:
        """Refuse a file that is one of several of its namespace."""
        if self.setting(PLACE) is not None:
            raise UsageError(
                f"{place.path}: this is one of the files of a namespace; name their folder:"
                f" sqlite:///{Path(place.path or '').parent}"
            )
        return place

    # The delivery log: a file of its own

    def delivery_log_append(
        self,
        entries: Sequence[LogEntry],
        *,
        keep_us: int,
        max_bytes: int,
        from_us: int | None = None,
        now_us: int | None = None,
    ) -> None:
        self._delivery_log.append(entries, keep_us, max_bytes, from_us, now_us)

    def delivery_log_read(
        self,
        topic: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        until_us: int | None = None,
    ) -> list[tuple[int, LogEntry]]:
        return self._delivery_log.read(topic, limit, before, until_us)

    # The file

    def store_parts(self) -> list[StorePart]:
        """The file, and the delivery log beside it if there is one."""
        began, path = time.perf_counter(), self._store.path
        if path is None:
            return [StorePart(name="memory", what=_SQLITE, shards=1, used=0)]
        parts, free = [], None
        with suppress(OSError):  # the disk is away; other calls say so
            free = shutil.disk_usage(Path(path).parent).free
        for file, what, shards in ((path, _SQLITE, 1), (f"{path}-log", "delivery log", 0)):
            if (used := _bytes(file)) is not None or shards:
                parts.append(
                    StorePart(
                        name=Path(file).name,
                        what=what,
                        shards=shards,
                        used=used or 0,
                        free=free,
                        log=_bytes(f"{file}-wal"),
                        seconds=(time.perf_counter() - began) * shards,
                    )
                )
        return parts

    def doctor(self, *, repair: bool = False) -> list[Check]:
        with self._store.reading() as connection:
            checks = [_check_file(connection)]
        if not checks[0].ok:
            return checks
        with self.transaction(0) as tx:
            return checks + doctor.check_parts(tx, repair=repair)

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        if self._store.path is None:  # nobody else has it, and it is small
            return iter([DoctorStep(1, 1, self.doctor())])
        return _check_steps(self._store, lambda connection: self._reader(connection, None), pause)


_SQLITE = f"SQLite {sqlite3.sqlite_version}"


def _bytes(file: str) -> int | None:
    try:
        return Path(file).stat().st_size
    except OSError:
        return None


def _check_file(connection: Connection) -> Check:
    """SQLite's own check of the file."""
    answers = [str(row[0]) for row in connection.execute("PRAGMA quick_check(10)")]
    is_intact = answers == ["ok"]
    return Check(
        "file",
        is_intact,
        "intact" if is_intact else "; ".join(answers),
        "" if is_intact else "restore a copy, or `sqlite3 FILE .recover`",
    )


def _check_steps(
    store: Store,
    reader: Callable[[Connection], Transaction],
    pause: Callable[[float], object],
) -> Iterator[DoctorStep]:
    """
    Check a file through a connection of its own, so that the one of all other calls stays free.
    Each check reads one snapshot: then the write-ahead log never has to wait long for a reader.
    """
    total = len(CHECKS) + 2
    with closing(store.open_reader()) as connection:
        slices = _Slices(pause)
        connection.set_progress_handler(slices.look, OPERATIONS)
        checks: list[Check] = []
        for check in (lambda _: _check_file(connection), *CHECKS, unhandled_topics):
            connection.execute("BEGIN")
            try:
                checks.append(check(reader(connection)))
            except sqlite3.Error as error:
                if slices.has_ended:
                    return
                raise store.explain(error) from error
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            done = len(checks)
            yield DoctorStep(done, total, checks if done == total else [])


class _Slices:
    """Lets a long statement pause as long as it works."""

    def __init__(self, pause: Callable[[float], object]) -> None:
        self._pause = pause
        self._began = time.monotonic()
        self.has_ended = False

    def look(self) -> bool:
        """SQLite calls it while a statement runs; True ends the statement."""
        if time.monotonic() - self._began > SLICE_SECONDS:
            self.has_ended = bool(self._pause(SLICE_SECONDS))
            self._began = time.monotonic()
        return self.has_ended

"""The engine on one SQLite file: opening it, its delivery log, its size and its doctor."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from laneway.engines.base import Capabilities, Check, DoctorStep, LogEntry, Settings, StorePart
from laneway.engines.shared.refusals import check_namespace
from laneway.engines.sql import doctor
from laneway.engines.sql.admin import SqlEngine
from laneway.engines.sql.engine import PLACE
from laneway.engines.sql.store import Place
from laneway.engines.sqlite import file_doctor
from laneway.engines.sqlite.address import path_of
from laneway.engines.sqlite.delivery_log import DeliveryLogFile
from laneway.engines.sqlite.store import Store
from laneway.engines.sqlite.wakeup import Wakeup
from laneway.errors import UsageError
from laneway.printable import redacted

DURABILITIES = ("memory", "fsync")


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
            checks = [file_doctor.check_file(connection)]
        if not checks[0].ok:
            return checks
        with self.transaction(0) as tx:
            return checks + doctor.check_parts(tx, repair=repair)

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        if self._store.path is None:  # nobody else has it, and it is small
            return iter([DoctorStep(1, 1, self.doctor())])
        return file_doctor.check_steps(
            self._store, lambda connection: self._reader(connection, None), pause
        )


_SQLITE = f"SQLite {sqlite3.sqlite_version}"


def _bytes(file: str) -> int | None:
    try:
        return Path(file).stat().st_size
    except OSError:
        return None

"""The engine on one schema of a PostgreSQL database: opening it, its delivery log, its size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from laneway.engines.base import Capabilities, Check, DoctorStep, LogEntry, Settings, StorePart
from laneway.engines.postgres.address import parse, schema_of
from laneway.engines.postgres.store import Store
from laneway.engines.postgres.wakeup import Wakeup
from laneway.engines.shared.refusals import check_namespace
from laneway.engines.sql import doctor
from laneway.engines.sql.admin import SqlEngine
from laneway.engines.sql.shard_store import take_place
from laneway.engines.sql.store import Place
from laneway.engines.sql.wakeup import take_back
from laneway.errors import UsageError
from laneway.printable import redacted

if TYPE_CHECKING:
    from laneway.engines.postgres.servers import ShardServer

DURABILITIES = ("memory", "fsync", "replicated")

NOUN = "schema"
"""What a store is, for messages."""

TRIMMED = 10_000
"""Most entries of the delivery log that one call removes."""

USUAL_BYTES = 300
"""Of an entry of the delivery log, to estimate how many are too many."""

_LOG_BYTES = "delivery log bytes"
"""The setting with the size of all entries."""


class HasShards(Exception):  # it is answered by opening them, and never seen
    """The schema is the first of several of its namespace."""


class PostgresEngine(SqlEngine):
    """The whole engine on one schema."""

    _store: Store  # type: ignore[mutable-override]  # assigned once
    _wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(
        self,
        url: str,
        settings: Settings,
        place: Place | None = None,
        wakeup: Wakeup | None = None,
        server: ShardServer | None = None,
    ) -> None:
        """
        `place`, `wakeup`: where the schema is one of several of its namespace. `server`: where it
        may move to another one.
        """
        durability = settings.durability or "fsync"
        if durability not in DURABILITIES:
            raise UsageError(
                f'engine {redacted(url)}: durability "{durability}" is unknown; use "memory",'
                ' "fsync" (the default) or "replicated"'
            )
        check_namespace(settings.namespace)
        place = place or Place(schema_of(settings.namespace))
        self.durability = durability
        self.capabilities = Capabilities(
            name="postgres",
            durability=frozenset(DURABILITIES),
            persistent=True,
            processes=True,
            transactions=True,
            only=True,
            reserves=True,
        )
        store = Store(parse(url), place, durability, create=settings.create, server=server)
        self._owns_wakeup = wakeup is None
        wakeup = wakeup or Wakeup(
            lambda: store.connect(listens=True),
            store.schema,
            self.has_work,
            partial(take_back, self.settle),
            store.clock,
        )
        super().__init__(url, settings, place, store, wakeup)

    def _join(self, place: Place) -> Place:
        """Take the place of the only schema. Raises HasShards if there are several."""
        place = take_place(self._store, place, NOUN)
        if place.shards > 1:
            raise HasShards
        return place

    def close(self) -> None:
        super().close()
        if self._owns_wakeup:
            self._wakeup.close()

    # The delivery log

    def delivery_log_append(
        self,
        entries: Sequence[LogEntry],
        *,
        keep_us: int,
        max_bytes: int,
        from_us: int | None = None,
        now_us: int | None = None,
    ) -> None:
        now = time.time_ns() // 1_000 if now_us is None else now_us
        with self._store.writing(durable=False, changes_queue=False) as connection:
            (last,) = connection.one("delivery_log_last")
            first = max((last or 0) + 1, now if from_us is None else from_us)
            connection.run_rows(
                "delivery_log_append",
                [(first + n, each.topic, each.at_us, each.data) for n, each in enumerate(entries)],
            )
            stored = connection.one("setting_read", _LOG_BYTES)
            size = int(stored[0]) if stored is not None else 0
            size += sum(len(each.data) for each in entries)
            size -= _total(connection.all("delivery_log_expire", now - keep_us, TRIMMED))
            if (too_many := size - max_bytes) > 0:
                count = min(too_many // USUAL_BYTES + 1, TRIMMED)
                size -= _total(connection.all("delivery_log_expire", first, count))
            connection.run("setting_write", _LOG_BYTES, str(size))

    def delivery_log_read(
        self,
        topic: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        until_us: int | None = None,
    ) -> list[tuple[int, LogEntry]]:
        bounds = [1 << 62]
        bounds += [before] if before is not None else []
        bounds += [until_us + 1] if until_us is not None else []
        with self._store.reading() as connection:
            if topic is None:
                rows = connection.all("delivery_log_all", min(bounds), limit)
            else:
                rows = connection.all("delivery_log_topic", topic, min(bounds), limit)
        return [(number, LogEntry(of, at_us, data)) for number, of, at_us, data in rows]

    # The database

    def store_parts(self) -> list[StorePart]:
        """The schema."""
        began = time.perf_counter()
        with self._store.reading() as connection:
            (used,) = connection.one("schema_bytes")
            (version,) = connection.one("server_version")
        return [
            StorePart(
                name=self._store.schema + self._elsewhere,
                what=f"PostgreSQL {version}",
                shards=1,
                used=used,
                seconds=time.perf_counter() - began,
            )
        ]

    @property
    def _elsewhere(self) -> str:
        """The server, if it is not the one that the URL names."""
        address = self._store.address
        return "" if address == parse(self.url) else f" on {address.place}"

    def doctor(self, *, repair: bool = False) -> list[Check]:
        with self.transaction(0) as tx:
            tx.run("check_settings")
            return doctor.check_parts(tx, repair=repair)

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        del pause
        return iter([DoctorStep(1, 1, self.doctor())])


def _total(rows: Sequence[tuple[int]]) -> int:
    return sum(size for (size,) in rows)

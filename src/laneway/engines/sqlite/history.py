"""The records of the history. These transactions are not those of the queue, and are not synced."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from laneway.engines.sql.store import Connection, Store


def read(store: Store, names: Sequence[str]) -> list[bytes | None]:
    """The records of these names."""
    with store.reading() as connection:
        return [_read(connection, name) for name in names]


def write(store: Store, name: str, before: bytes | None, records: Mapping[str, bytes]) -> bool:
    """Write the records, if that of `name` is still `before`."""
    with store.writing(durable=False, changes_queue=False) as connection:
        if _read(connection, name) != before:
            return False
        connection.run_many("history_write", list(records.items()))
        return True


def _read(connection: Connection, name: str) -> bytes | None:
    row = connection.one("history_read", name)
    return row[0] if row is not None else None

"""`once`: handle each message once, by a record in the transaction of its effects."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from laneway import arguments
from laneway.errors import UsageError
from laneway.producing.connections import Connected
from laneway.units import Duration

if TYPE_CHECKING:

    class Identified(Protocol):
        """A message, a delivery, or a task's request."""

        @property
        def topic(self) -> str: ...
        @property
        def id(self) -> str | None: ...


_RECORD = (
    "INSERT INTO laneway_once (topic, message_id, recorded_at) VALUES (?, ?, ?)"
    " ON CONFLICT DO NOTHING RETURNING 1"
)
_FORGET = "DELETE FROM laneway_once WHERE recorded_at < ?"


def once(connection: Any, delivery: Identified) -> bool:
    """
    Record in the caller's transaction that this message is handled. Returns False if an earlier
    delivery has committed such a record: then skip the work, and ack the message.

    If another transaction has recorded the message and is still open, this call waits for its end.
    `connection`: as in `publish`. `delivery`: a delivery, a message, or a task's request. Raises
    UsageError, which a delivery without an id raises too, and the database's errors.

        with database.transaction():
            if once(database, message):
                database.execute("UPDATE account SET …")
    """
    return bool(Connected("once", connection).run(_RECORD, _record(delivery)))


async def aonce(connection: Any, delivery: Identified) -> bool:
    """The async variant of `once`."""
    return bool(await Connected("once", connection).arun(_RECORD, _record(delivery)))


def forget_once(connection: Any, age: Duration) -> None:
    """
    Remove the records of `once` that are older than this, in the caller's transaction. Keep them
    longer than a message can take from its first delivery to its last.
    """
    Connected("forget_once", connection).run(_FORGET, (_before(age),))


async def aforget_once(connection: Any, age: Duration) -> None:
    """The async variant of `forget_once`."""
    await Connected("forget_once", connection).arun(_FORGET, (_before(age),))


def _record(delivery: Identified) -> tuple[str, str, float]:
    if delivery.id is None:
        raise UsageError(
            f"once: this message of topic {delivery.topic} has no id; pass what a handler received,"
            " or a message with an id"
        )
    return delivery.topic, delivery.id, time.time()


def _before(age: Duration) -> float:
    return time.time() - arguments.seconds("forget_once", "age", age)

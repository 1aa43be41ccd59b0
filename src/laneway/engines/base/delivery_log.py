"""The log of requests to push endpoints: bounded, by topic and time, separate from the queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec


class LogEntry(msgspec.Struct, array_like=True, gc=False):
    """
    An entry of the delivery log. `at_us`: when it happened. `data`: its content, up to 128 KiB,
    which the engine does not read.
    """

    topic: str
    at_us: int
    data: bytes


@runtime_checkable
class DeliveryLog(Protocol):
    """
    The delivery log of a namespace. `laneway.push` writes it.

    The cost of writing and reading a topic's entries must not grow with the number of topics.
    """

    def delivery_log_append(
        self,
        entries: Sequence[LogEntry],
        *,
        keep_us: int,
        max_bytes: int,
        from_us: int | None = None,
        now_us: int | None = None,
    ) -> None:
        """
        Append entries, and remove some of the oldest ones beyond the limits.

        Entries need not survive a power cut, whatever the messages' durability. Each entry gets a
        number larger than all others of its shard.

        Arguments: `keep_us`: how long entries are kept, in microseconds; `max_bytes`: the
        approximate maximum size of the log; `from_us`: for entries of another store: they get
        numbers from this time on, if it is later than the newest entry.
        """

    def delivery_log_read(
        self,
        topic: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        until_us: int | None = None,
    ) -> list[tuple[int, LogEntry]]:
        """
        Read entries, the newest first.

        Arguments: `topic`: None for all topics; `before`: the number of the previous page's last
        entry; `until_us`: only entries that were appended until then.

        Returns (number, entry) pairs; numbers are at most 2^63.
        """

"""The delivery log over the shards: an entry is on the home shard of its topic."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from laneway.engines.base import LogEntry
from laneway.engines.sharded.splitting import group, pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.valkey.namespace import Namespace

PAGE = 100
"""Entries that one call appends, because the server answers no other client meanwhile."""

END_US = 1 << 52
"""A time after all others."""


def append(
    space: Namespace,
    entries: Sequence[LogEntry],
    keep_us: int,
    max_bytes: int,
    from_us: int | None,
    now_us: int | None,
) -> None:
    for shard, own in group((space.routes.home(each.topic), each) for each in entries).items():
        for page in pages(own, PAGE):
            flat = [part for each in page for part in (each.topic, each.at_us, each.data)]
            most = max_bytes // space.shards
            first = b"" if from_us is None else from_us
            space.run("log_append", shard, now_us, keep_us, most, first, *flat)


def read(
    space: Namespace, topic: str | None, limit: int, before: int | None, until_us: int | None
) -> list[tuple[int, LogEntry]]:
    """Read entries, the newest first: numbers contain their shard."""
    shards = range(space.shards) if topic is None else [space.routes.home(topic)]
    found = [
        entry
        for shard in shards
        for entry in _read_on(space, shard, topic, limit, before, until_us)
    ]
    return heapq.nlargest(limit, found, key=lambda entry: entry[0])


def _read_on(
    space: Namespace,
    shard: int,
    topic: str | None,
    limit: int,
    before: int | None,
    until_us: int | None,
) -> list[tuple[int, LogEntry]]:
    end = END_US if until_us is None else until_us + 1
    if before is not None:
        end = min(end, (before - shard - 1) // space.shards + 1)
    found = space.run("log_read", shard, None, topic or b"", end, limit, repeatable=True)
    return [
        (number * space.shards + shard, LogEntry(of.decode(), int(at_us), data))
        for number, of, at_us, data in zip(
            found[::4], found[1::4], found[2::4], found[3::4], strict=True
        )
    ]

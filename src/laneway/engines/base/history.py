"""Counters by tier and policy pattern, and the storage of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

OTHER_PATTERNS = "(other)"
"""The pattern under which an engine counts all patterns beyond `MAX_TALLIES`."""

MAX_TALLIES = 100
"""
The maximum number of pairs of tier and pattern that a shard counts separately. Each tier beyond
them has one more pair, with `OTHER_PATTERNS`.
"""

WAIT_BOUNDS_US = (
    1_000,
    5_000,
    25_000,
    100_000,
    500_000,
    1_000_000,
    5_000_000,
    15_000_000,
    60_000_000,
    300_000_000,
    900_000_000,
    3_600_000_000,
    21_600_000_000,
    86_400_000_000,
)
"""
The upper bounds, exclusive, of the classes of waiting times, in microseconds; an additional last
class has none.
"""

NOISY_PART = 100
MOST_NOISY = 1000
"""One lane in this many is noisy, at most `MOST_NOISY` lanes."""


class Tally(msgspec.Struct, array_like=True, gc=False):
    """
    What happened in the topics of a tier whose most specific pattern is this one.

    - `pattern`: `"*"` includes topics that no pattern covers; `OTHER_PATTERNS`: the engine counts
      no further patterns separately.
    - `published` … `merged`: counts since the store began to count. A message that merged into a
      waiting one counts only as merged.
    - `throttled_us`: for how long rates held back ready messages, in microseconds, summed over all
      topics.
    - `waiting`: messages that wait now. If a pattern was added or removed meanwhile, a message may
      still be counted under its pattern at publish.
    """

    tier: str
    pattern: str
    published: int = 0
    delivered: int = 0
    done: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    throttled_us: int = 0
    waiting: int = 0


class WaitCounts(msgspec.Struct, array_like=True, gc=False):
    """
    How long a tier's delivered messages had waited since they were published or due: the numbers in
    each class of `WAIT_BOUNDS_US`, for noisy topics and for the others.

    The noisy topics are those with the largest backlogs: one in `NOISY_PART`, and at least one. A
    message that waited for its topic's own rate counts as noisy.
    """

    tier: str
    noisy: list[int]
    others: list[int]


class Tallies(msgspec.Struct, gc=False):
    """
    All tallies of a namespace. `now_us`: the store's clock; `since_us`: when the store began to
    count, by the same clock.
    """

    now_us: int
    since_us: int
    tallies: list[Tally]
    waits: list[WaitCounts]


@runtime_checkable
class History(Protocol):
    """
    Tallies, which the engine counts in the transactions of the messages, and records, which
    `laneway.history` derives from them. The cost of both does not depend on the number of topics.
    """

    def tallies(self, *, now_us: int | None = None) -> Tallies:
        """Read the tallies, added up over all shards."""

    def history_read(self, names: Sequence[str]) -> list[bytes | None]:
        """Read records of the history by name, or None for each that does not exist."""

    def history_write(self, name: str, before: bytes | None, records: Mapping[str, bytes]) -> bool:
        """
        Write records of the history, if the record `name` is still `before` (compare and swap).

        They need not survive a power cut, whatever the messages' durability.

        Arguments: `before`: the record, or None if it does not exist; `records`: records by name;
        they stay until they are replaced.

        Returns False, and writes nothing, if the record has changed.
        """

"""
How a call over several shards is split: batches by shard, numbers that name their shard, and the
order in which a lease visits the shards. Pure: no server, no engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from laneway.errors import EngineUnavailable

T = TypeVar("T")


def by_shard(shards: Iterable[int]) -> dict[int, list[int]]:
    """
    The positions of a batch by shard, from the shard of each item. The shards are in the order of
    their first item.
    """
    positions: dict[int, list[int]] = {}
    for position, shard in enumerate(shards):
        positions.setdefault(shard, []).append(position)
    return positions


def group(pairs: Iterable[tuple[int, T]]) -> dict[int, list[T]]:
    """Items by shard, from (shard, item)."""
    items: dict[int, list[T]] = {}
    for shard, item in pairs:
        items.setdefault(shard, []).append(item)
    return items


def pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in slices of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def pages_within(
    items: Sequence[T], most: int, most_weight: int, weight_of: Callable[[T], int]
) -> list[Sequence[T]]:
    """
    The items in slices of at most `most`, whose weights together are at most `most_weight`. An item
    that is heavier is a slice with others that have no weight.
    """
    found: list[Sequence[T]] = []
    start = weight = 0
    for n, item in enumerate(items):
        more = weight_of(item)
        if n > start and (n - start == most or (more and weight + more > most_weight)):
            found.append(items[start:n])
            start, weight = n, 0
        weight += more
    return [*found, items[start:]]


PAGE = 250
"""Most messages that one function call removes or puts back."""

PAGE_US = 5_000
"""How long such a call should use a server's processor."""

FIRST_CALL = 60
"""Items of a first call, because nothing is known about them."""


class CallSize:
    """
    How many items a call of one kind may have. It adapts to the processor time of the last call,
    because the server answers no other client meanwhile. The time until the answer says less: the
    call may wait for others on the server.
    """

    def __init__(self, most: int, longest_us: int, least: int = 4) -> None:
        """
        Arguments: the limit is between `least` and `most` items; `longest_us`: how many
        microseconds of processor time a call may use.
        """
        self._least, self._most, self._longest_us = least, most, longest_us
        self.limit = min(FIRST_CALL, most)

    def fit(self, count: int, call_us: int, *, is_full: bool = True) -> None:
        """
        Shrink the limit if a call for `count` items took too long: to what would have been in time,
        and by a quarter at least. Let it grow by a quarter if there is time for that. `call_us`: at
        most 0 if it is not known, and the limit stays. `is_full`: the call processed as many items
        as it asked for.
        """
        if call_us > self._longest_us:
            in_time = min(count * 3 // 4, count * self._longest_us // call_us)
            self.limit = max(self._least, min(self.limit, in_time))
        elif is_full and 0 < call_us < self._longest_us * 2 / 3:
            self.limit = min(self._most, max(self.limit, count + count // 4))

    def pages(self, items: Sequence[T], most: int | None = None) -> Iterator[Sequence[T]]:
        """
        The items in slices, each of which has the limit of when it is asked for, or `most` items.
        """
        start = 0
        while start < len(items):
            size = min(self.limit, most or self.limit)
            yield items[start : start + size]
            start += size


def rounds(
    by_shard_: Mapping[int, Sequence[T]], size: int
) -> Iterator[list[tuple[int, Sequence[T]]]]:
    """
    Pages of (shard, items), as many together as have at most `size` items: these can go to the
    shards in one round trip without keeping a server from others for long.
    """
    together: list[tuple[int, Sequence[T]]] = []
    left = size
    for shard, items in by_shard_.items():
        for page in pages(items, size):
            if len(page) > left:
                yield together
                together, left = [], size
            together.append((shard, page))
            left -= len(page)
    if together:
        yield together


def part_of(limit: int | None, parts: int) -> int | None:
    """The part of a limit that each of several shards gets, rounded up."""
    return -(-limit // parts) if limit is not None else None


class Numbers(msgspec.Struct, frozen=True):
    """
    Numbers that are unique in a namespace: a number of one shard (of a message, a fence, a dead
    letter) and the shard's index in one integer.
    """

    shards: int

    def join(self, shard: int, number: int) -> int:
        """The namespace's number."""
        return number * self.shards + shard

    def shard(self, joined: int) -> int:
        return joined % self.shards

    def number(self, joined: int) -> int:
        """The shard's own number."""
        return joined // self.shards

    def number_on(self, shard: int, joined: int) -> int:
        """The shard's own number; -1 for a number of another shard."""
        number, index = divmod(joined, self.shards)
        return number if index == shard else -1

    def first_beyond(self, shard: int, joined: int) -> int:
        """The shard's first own number that is joined to more than `joined`."""
        return (joined - shard) // self.shards + 1

    def by_shard(self, joined: Sequence[int]) -> dict[int, Sequence[int]]:
        """The positions of these numbers by shard."""
        if self.shards == 1:
            return {0: range(len(joined))}
        return dict(by_shard(each % self.shards for each in joined).items())


@contextlib.contextmanager
def partial_call(*, is_first: bool) -> Iterator[None]:
    """
    One of several calls to shards that make up one call of the user. If it fails and is not the
    first, `applied` of its error is None: a part was done, and the caller does not know which.
    """
    try:
        yield
    except EngineUnavailable as error:
        if not is_first:
            if error.applied is False:  # its text says that nothing was changed
                error.args = (f"{error} (on this shard; others have done their part of the call)",)
            error.applied = None
        raise
    except Exception as error:  # a driver may raise anything for what it cannot store
        if not is_first:
            error.applied = None  # type: ignore[attr-defined]  # group commit reads it
        raise

"""
Which shards a lease visits: not all of them, but those that may have something.

A visit that finds a shard empty is remembered, with the shard's next wake time. Messages that
arrive later, by other processes too, change the time of the shard's last change. Leases compare
these times, which one round trip reads from all shards: a lease that finds nothing always does, one
that finds something does so every `CHECK_EVERY` seconds. Independently of that, a shard is visited
again after `VISIT_AGAIN` seconds, and at its wake time.

A worker may prefer some shards, its own: it visits others when its own have nothing, and in one
lease of `OTHERS_EVERY` in any case, so that no shard depends on one worker.

A notification names a shard. If the last lease left nothing, this one visits only that shard, so
its message does not wait for the visits of the others; the next lease makes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec

from laneway.message import Batch
from laneway.units import SECOND

CHECK_EVERY = 0.005
"""
Seconds between two comparisons of the shards' times, while leases find messages in other shards.
"""

VISIT_AGAIN = 1.0
"""
Seconds for which a shard is believed to be empty. The bound for a shard whose clock stands still,
because its server's clock was set back.
"""


OTHERS_EVERY = 10
"""One lease in so many visits the shards of other workers first."""


class Empty(msgspec.Struct, frozen=True, gc=False):
    """
    A visit found no more in a shard: at `now_us` of the shard's clock; the shard's next wake time;
    until when it is believed (monotonic seconds). `without_limited`: messages of limited topics may
    be there, because the caller could not start more of them.
    """

    now_us: int
    wake_us: int | None
    until: float
    without_limited: bool

    def holds(self, startable: int, now: float) -> bool:
        """Whether the shard is still believed to be empty."""
        return now < self.until and (not self.without_limited or startable == 0)


class Visits:
    """What the leases of one engine object found in the shards, by pool."""

    def __init__(
        self, shards: int, first: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`first`: the shard that the first lease visits first."""
        self._shards = shards
        self._next = first
        self._clock = clock
        self._empty: dict[str, dict[int, Empty]] = {}
        self._checked = 0.0
        self._own: dict[str, frozenset[int]] = {}
        """By pool: the shards that are preferred; none: no preference."""
        self._leases = 0
        self._idle: set[str] = set()
        """The pools whose last lease left nothing, as far as is known."""
        self._full: set[str] = set()
        """The pools whose last lease left no room."""

    def prefer(self, pool: str, shards: Collection[int]) -> None:
        """Visit these shards first; all or none: no preference."""
        self._own[pool] = frozenset(shards if len(shards) < self._shards else ())

    def own(self, pool: str) -> frozenset[int]:
        """The shards that are preferred; empty: no preference."""
        return self._own.get(pool, frozenset())

    # Which shards to visit

    def every(self, pool: str, notified: Collection[int] = ()) -> list[int]:
        """
        All shards in turns, so that none is always the last. Those that notified come first, if the
        last lease of the pool left room: a shard with a backlog may notify all the time.
        """
        first, self._next = self._next, (self._next + 1) % self._shards
        turns = (*range(first, self._shards), *range(first))
        before = () if pool in self._full else (each for each in turns if each in notified)
        return list(dict.fromkeys((*before, *turns)))

    def likely(self, pool: str, startable: int, notified: Collection[int]) -> list[int]:
        """The shards that may have something, at least one, as `every` orders them."""
        self.forget(notified)
        empty, now = self._empty.setdefault(pool, {}), self._clock()
        shards = self.every(pool, notified)
        likely = [
            shard
            for shard in shards
            if (found := empty.get(shard)) is None or not found.holds(startable, now)
        ]
        return likely or shards[:1]

    def first(
        self,
        pool: str,
        shards: Sequence[int],
        notified: Collection[int],
        *,
        prefers_own: bool = True,
    ) -> tuple[list[int], list[int]]:
        """
        Which of these shards a lease visits first, and which if it finds nothing in those: those
        that notified an idle pool, else the own ones. One lease in `OTHERS_EVERY` visits all, the
        others' first.
        """
        own = (
            notified
            if notified and pool in self._idle
            else (self._own.get(pool) if prefers_own else None)
        )
        if not own:
            return list(shards), []
        first = [shard for shard in shards if shard in own]
        others = [shard for shard in shards if shard not in own]
        self._leases += 1
        if self._leases % OTHERS_EVERY == 0:
            return others + first, []
        return (first, others) if first else (others, [])

    def is_check_due(self, pool: str) -> bool:
        """Whether it is time to compare the shards' times."""
        return pool not in self._idle and self._clock() >= self._checked + CHECK_EVERY

    def changed(self, pool: str, startable: int, changed_us: Sequence[int]) -> list[int]:
        """The shards that may have something, by the times of their last changes."""
        empty, now = self._empty.setdefault(pool, {}), self._clock()
        self._checked = now
        return [
            shard
            for shard in self.every(pool)
            if (found := empty.get(shard)) is None
            or found.now_us != changed_us[shard]
            or not found.holds(startable, now)
        ]

    def wakes(self, pool: str) -> list[int]:
        """The wake times of the shards that are believed to be empty."""
        found = list(self._empty.get(pool, {}).values())
        return [each.wake_us for each in found if each.wake_us is not None]

    # What is found

    def end(self, pool: str, *, is_idle: bool, is_full: bool = False) -> None:
        """
        A lease has ended. `is_idle`: it left nothing, as far as is known. `is_full`: it left no
        room.
        """
        (self._idle.add if is_idle else self._idle.discard)(pool)
        (self._full.add if is_full else self._full.discard)(pool)

    def note(self, pool: str, shard: int, batch: Batch, room: int, startable: int) -> None:
        """A lease of `room` messages visited the shard."""
        empty = self._empty.setdefault(pool, {})
        if len(batch.leases) >= room:
            empty.pop(shard, None)
            return
        until = self._clock() + VISIT_AGAIN
        if batch.next_wake_us is not None:
            until = min(until, self._clock() + (batch.next_wake_us - batch.now_us) / SECOND)
        limited = sum(lease.limited for lease in batch.leases)
        empty[shard] = Empty(batch.now_us, batch.next_wake_us, until, limited >= startable)

    def forget(self, shards: Iterable[int]) -> None:
        """Something has changed in these shards: the next lease visits them."""
        for shard in shards:
            for empty in self._empty.values():
                empty.pop(shard, None)

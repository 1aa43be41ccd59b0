"""
Tallies: what happened so far, by tier and pattern, see `base.history`.

A transaction counts its lanes when it writes them: what their counters have become since they were
written before. So a message costs nothing here; a lane costs a few additions. The tallies are a
column of the shard's row, which every transaction writes in any case.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from laneway.engines.base.history import (
    MAX_TALLIES,
    MOST_NOISY,
    NOISY_PART,
    OTHER_PATTERNS,
    WAIT_BOUNDS_US,
    Tally,
    WaitCounts,
)
from laneway.engines.shared.tallies import WAIT_CLASSES
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Protocol

    from laneway.engines.sqlite.rows import Lane, Shard, TierQueue

    class Transaction(Protocol):
        """What counting needs of a transaction, which has a book of tallies."""

        now: int
        shard: Shard
        rules: Any
        lane_cache: Any

        @property
        def all(self) -> Callable[..., Any]: ...
        @property
        def one(self) -> Callable[..., Any]: ...
        @property
        def tier_queue_at(self) -> Callable[[int], TierQueue]: ...


class _Stored(msgspec.Struct, array_like=True):
    """The column: tallies, waiting times, and when the file began to count."""

    tallies: list[Tally]
    waits: list[WaitCounts]
    since_us: int


_loads = msgspec.msgpack.Decoder(_Stored).decode
_dumps = msgspec.msgpack.Encoder().encode


class TallyBook:
    """The tallies of a file, as a transaction changes them."""

    def __init__(self, stored: bytes | None) -> None:
        found = _loads(stored) if stored is not None else _Stored([], [], 0)
        self._by_tier: dict[str, dict[str, Tally]] = {}
        for tally in found.tallies:
            self._by_tier.setdefault(tally.tier, {})[tally.pattern] = tally
        self._count = len(found.tallies)
        self._waits = {each.tier: each for each in found.waits}
        self.since_us = found.since_us
        self.has_changed = False

    def encode(self) -> bytes:
        """The tallies as they are stored."""
        self.has_changed = False
        return _dumps(_Stored(list(self.all()), list(self._waits.values()), self.since_us))

    def all(self) -> Iterator[Tally]:
        """All tallies."""
        for tallies in self._by_tier.values():
            yield from tallies.values()

    def waits(self) -> list[WaitCounts]:
        """All waiting times."""
        return list(self._waits.values())

    def fill(self, tx: Transaction) -> None:
        """Count what waits in a file that was made before messages were counted."""
        for rule, tier_queue, waiting in tx.all("lane_tallies"):
            self._tally(tx, rule, tx.tier_queue_at(tier_queue).tier).waiting += waiting
        self.has_changed = True

    def count(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """Count what has happened in these lanes since they were counted before."""
        for lane in lanes:
            tally = self._tally_of(tx, lane)
            tally.published += lane.published - lane.counted_published
            tally.delivered += lane.delivered - lane.counted_delivered
            tally.done += lane.done - lane.counted_done
            waiting = lane.ready + lane.delayed + lane.parked
            tally.waiting += waiting - lane.counted_waiting
            lane.counted_published, lane.counted_delivered = lane.published, lane.delivered
            lane.counted_done, lane.counted_waiting = lane.done, waiting
            if lane.throttled or lane.retried or lane.merged or lane.died:
                rare = (lane.retried, lane.died, lane.merged, lane.throttled)
                if rare != lane.counted_rare:
                    before, lane.counted_rare = lane.counted_rare, rare
                    tally.retried += rare[0] - before[0]
                    tally.died += rare[1] - before[1]
                    tally.merged += rare[2] - before[2]
                    tally.throttled_us += rare[3] - before[3]
            self.has_changed = True

    def count_grown(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """The same of lanes in which messages were published, and nothing else."""
        for lane in lanes:
            more = lane.published - lane.counted_published
            if more:
                tally = self._tally_of(tx, lane)
                tally.published += more
                tally.waiting += more
                lane.counted_published += more
                lane.counted_waiting += more
                self.has_changed = True

    def count_done(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """The same of lanes in which leases were acked, and nothing else."""
        for lane in lanes:
            more = lane.done - lane.counted_done
            if more:
                self._tally_of(tx, lane).done += more
                lane.counted_done += more
                self.has_changed = True

    def count_unrouted(self, tx: Transaction, topic: str, tier: str) -> None:
        """Count a message that is not stored, because no subscription takes it."""
        self._tally(tx, topic, tier).published += 1
        self.has_changed = True

    def count_wait(self, tx: Transaction, lane: Lane, since: int, noise: int) -> None:
        """Count how long a message that is delivered now has waited; `noise`: see `noise_of`."""
        classes = self._classes(tx, lane, noise)
        classes[bisect_right(WAIT_BOUNDS_US, tx.now - since)] += 1

    def count_waits(
        self,
        tx: Transaction,
        lane: Lane,
        since: Iterable[int],
        count: int,
        ends: tuple[int, int],
        noise: int,
    ) -> None:
        """
        The same of `count` messages of a lane. `ends`: the least and largest of `since`, which is
        read only if their classes differ.
        """
        classes, now = self._classes(tx, lane, noise), tx.now
        first, last = ends
        longest = bisect_right(WAIT_BOUNDS_US, now - first)
        if longest == bisect_right(WAIT_BOUNDS_US, now - last):
            classes[longest] += count
        else:
            for each in since:
                classes[bisect_right(WAIT_BOUNDS_US, now - each)] += 1

    def _classes(self, tx: Transaction, lane: Lane, noise: int) -> list[int]:
        tier = tx.tier_queue_at(lane.tier_queue).tier
        counts = self._waits.get(tier)
        if counts is None:
            counts = self._waits[tier] = WaitCounts(tier, [0] * WAIT_CLASSES, [0] * WAIT_CLASSES)
        self.has_changed = True
        return counts.noisy if lane.big is not None and lane.big > noise else counts.others

    def _tally_of(self, tx: Transaction, lane: Lane) -> Tally:
        """Each lane keeps its tally, because looking for it costs more than counting."""
        known, patterns = lane.tally, tx.rules.patterns
        if known is not None and known[0] is patterns and known[1] == lane.tier_queue:
            tally: Tally = known[2]
            return tally
        tally = self._tally(tx, lane.rule, tx.tier_queue_at(lane.tier_queue).tier)
        lane.tally = (patterns, lane.tier_queue, tally)
        return tally

    def _tally(self, tx: Transaction, rule: str, tier: str) -> Tally:
        pattern = tx.rules.pattern_of(rule)
        tallies = self._by_tier.get(tier)
        if tallies is None:
            tallies = self._by_tier[tier] = {}
        tally = tallies.get(pattern)
        if tally is None:
            if self._count >= MAX_TALLIES:
                pattern = OTHER_PATTERNS
            tally = tallies.get(pattern)
            if tally is None:
                self._count += 1
                self.since_us = self.since_us or tx.now
                tally = tallies[pattern] = Tally(tier, pattern)
        return tally


def noise_of(tx: Transaction) -> int:
    """The largest size class that is not noisy. Read once a second: it changes slowly."""
    lane_cache = tx.lane_cache
    if not 0 <= tx.now - lane_cache.noise_us < SECOND:
        noisy = min(max(tx.shard.lanes // NOISY_PART, 1), MOST_NOISY)
        row = tx.one("lane_big_nth", noisy)
        lane_cache.noise_us, lane_cache.noise = tx.now, row[0] if row is not None else 0
    return int(lane_cache.noise)

"""
Tallies: what happened so far, by tier and pattern, see `base.history`.

A transaction counts its lanes when it writes them: what their counters have become since they were
written before. So a message costs nothing here; a lane costs a few additions. The tallies are a
column of the shard's row, which every transaction writes in any case.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

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
from laneway.engines.shared.recent import STEP, steps
from laneway.engines.shared.tallies import WAIT_CLASSES
from laneway.engines.sql.recent_counts import RecentCounts
from laneway.engines.sql.rows import Lane, Shard, TierQueue
from laneway.engines.sql.store import Session
from laneway.policy import Resolved
from laneway.units import SECOND

if TYPE_CHECKING:

    class Transaction(Session, Protocol):
        """What counting needs of a transaction, which has a book of tallies."""

        now: int
        shard: Shard
        rules: Any
        lane_cache: Any

        @property
        def policy(self) -> Callable[[str], Resolved]: ...
        @property
        def policy_of(self) -> Callable[[Lane], Resolved]: ...
        @property
        def tier_queue_at(self) -> Callable[[int], TierQueue]: ...


class _Stored(msgspec.Struct, array_like=True):
    """The column: tallies, waiting times, and when the store began to count."""

    tallies: list[Tally]
    waits: list[WaitCounts]
    since_us: int


_loads = msgspec.msgpack.Decoder(_Stored).decode
_encode_into = msgspec.msgpack.Encoder().encode_into


class TallyBook:
    """The tallies of a store, as a transaction changes them."""

    def __init__(self, stored: bytes | None) -> None:
        self._stored = found = _loads(stored) if stored is not None else _Stored([], [], 0)
        self._encoded = bytearray()
        self._by_tier: dict[str, dict[str, Tally]] = {}
        for tally in found.tallies:
            self._by_tier.setdefault(tally.tier, {})[tally.pattern] = tally
        self._waits = {each.tier: each for each in found.waits}
        self.has_changed = False
        self._recent = RecentCounts()
        self._patterns: Any = None
        """The `Rules.patterns` by which lanes have their tallies."""

    def encode(self) -> bytearray:
        """The tallies as they are stored, until the next call. A bytearray is bound for less."""
        self.has_changed = False
        _encode_into(self._stored, self._encoded)
        return self._encoded

    @property
    def since_us(self) -> int:
        """When the store began to count."""
        return self._stored.since_us

    def all(self) -> list[Tally]:
        return self._stored.tallies

    def waits(self) -> list[WaitCounts]:
        return self._stored.waits

    def fill(self, tx: Transaction) -> None:
        """Count what waits in a store that was made before messages were counted."""
        for rule, tier_queue, waiting in tx.all("lane_tallies"):
            is_apart = bool(tx.shard.own) and tx.policy(rule).history
            tally = self._tally(tx, rule, tx.tier_queue_at(tier_queue).tier, is_apart=is_apart)
            tally.waiting += waiting
        self.has_changed = True

    def refill(self, tx: Transaction) -> None:
        """Count again what waits, when no lane has unwritten changes."""
        for tally in self.all():
            tally.waiting = 0
        self.fill(tx)

    def count(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """Count what has happened in these lanes since they were counted before."""
        self._check_patterns(tx)
        tally, published, delivered, done, waiting = Tally("", ""), 0, 0, 0, 0
        arrivals: dict[str, int] = {}
        failures: dict[str, int] = {}
        for lane in lanes:
            if lane.tally is not tally:
                _add(tally, published, delivered, done, waiting)
                tally, published, delivered, done, waiting = self._tally_of(tx, lane), 0, 0, 0, 0
            more = lane.published - lane.counted_published
            published += more
            if lane.published % STEP < more and lane.topic is not None:
                _count_arrivals(arrivals, lane.topic, lane.published, more)
            delivered += lane.delivered - lane.counted_delivered
            done += lane.done - lane.counted_done
            waits = lane.ready + lane.delayed + lane.parked
            waiting += waits - lane.counted_waiting
            lane.counted_published, lane.counted_delivered = lane.published, lane.delivered
            lane.counted_done, lane.counted_waiting = lane.done, waits
            if lane.throttled or lane.retried or lane.merged or lane.died:
                _count_rare(tally, lane, failures)
        _add(tally, published, delivered, done, waiting)
        if arrivals:
            self._recent.add(tx, "in-rate", arrivals)
        if failures:
            self._recent.add(tx, "failures", failures)
        self.has_changed = True

    def count_grown(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """The same of lanes in which messages were published, and nothing else."""
        self._check_patterns(tx)
        tally, count = Tally("", ""), 0
        arrivals: dict[str, int] = {}
        for lane in lanes:
            if lane.tally is not tally:
                _add(tally, count, 0, 0, count)
                tally, count = self._tally_of(tx, lane), 0
            more = lane.published - lane.counted_published
            count += more
            if lane.published % STEP < more and lane.topic is not None:
                _count_arrivals(arrivals, lane.topic, lane.published, more)
            lane.counted_published += more
            lane.counted_waiting += more
        _add(tally, count, 0, 0, count)
        if arrivals:
            self._recent.add(tx, "in-rate", arrivals)
        self.has_changed = True

    def count_done(self, tx: Transaction, lanes: Iterable[Lane]) -> None:
        """The same of lanes in which leases were acked, and nothing else."""
        self._check_patterns(tx)
        tally, count = Tally("", ""), 0
        for lane in lanes:
            if lane.tally is not tally:
                _add(tally, 0, 0, count, 0)
                tally, count = self._tally_of(tx, lane), 0
            count += lane.done - lane.counted_done
            lane.counted_done = lane.done
        _add(tally, 0, 0, count, 0)
        self.has_changed = True

    def count_unrouted(self, tx: Transaction, topic: str, tier: str) -> None:
        """Count a message that is not stored, because no subscription takes it."""
        is_apart = tx.policy(topic).history
        self._tally(tx, topic, tier, is_apart=is_apart).published += 1
        self.has_changed = True

    def count_waits(self, tx: Transaction, tier: str, *, is_noisy: bool, since: list[int]) -> None:
        """
        Count how long messages of a tier that are delivered now have waited. `is_noisy`: in the
        noisy lanes, see `noise_of`; `since`: of each message; sorted here.
        """
        counts = self._waits.get(tier)
        if counts is None:
            counts = self._waits[tier] = WaitCounts(tier, [0] * WAIT_CLASSES, [0] * WAIT_CLASSES)
            self._stored.waits.append(counts)
        self.has_changed = True
        classes, now = counts.noisy if is_noisy else counts.others, tx.now
        since.sort()
        longest = bisect_right(WAIT_BOUNDS_US, now - since[0])
        left = len(since)
        for number in range(bisect_right(WAIT_BOUNDS_US, now - since[-1]), longest):
            longer = bisect_right(since, now - WAIT_BOUNDS_US[number])
            classes[number] += left - longer
            left = longer
        classes[longest] += left

    def _check_patterns(self, tx: Transaction) -> None:
        """Forget where lanes are counted if policies have changed."""
        if tx.rules.patterns is not self._patterns:
            self._patterns = tx.rules.patterns
            for lane in tx.lane_cache.lanes.values():
                lane.tally = None

    def _tally_of(self, tx: Transaction, lane: Lane) -> Tally:
        """Each lane keeps its tally, because looking for it costs more than counting."""
        if lane.tally is None:
            tier = tx.tier_queue_at(lane.tier_queue).tier
            is_apart = tx.policy_of(lane).history
            lane.tally = self._tally(tx, lane.rule, tier, is_apart=is_apart)
        return lane.tally

    def _tally(self, tx: Transaction, rule: str, tier: str, *, is_apart: bool) -> Tally:
        pattern = rule if is_apart else tx.rules.pattern_of(rule)
        tallies = self._by_tier.get(tier)
        if tallies is None:
            tallies = self._by_tier[tier] = {}
        tally = tallies.get(pattern)
        if tally is None:
            stored = self._stored
            if len(stored.tallies) >= MAX_TALLIES:
                pattern = OTHER_PATTERNS
            tally = tallies.get(pattern)
            if tally is None:
                stored.since_us = stored.since_us or tx.now
                tally = tallies[pattern] = Tally(tier, pattern)
                stored.tallies.append(tally)
        return tally


def _add(tally: Tally, published: int, delivered: int, done: int, waiting: int) -> None:
    tally.published += published
    tally.delivered += delivered
    tally.done += done
    tally.waiting += waiting


def _count_arrivals(arrivals: dict[str, int], topic: str, published: int, more: int) -> None:
    arrivals[topic] = arrivals.get(topic, 0) + steps(published, more)


def _count_rare(tally: Tally, lane: Lane, failures: dict[str, int]) -> None:
    rare = (lane.retried, lane.died, lane.merged, lane.throttled)
    if rare != lane.counted_rare:
        before, lane.counted_rare = lane.counted_rare, rare
        failed = rare[0] + rare[1] - before[0] - before[1]
        if failed > 0 and lane.topic is not None:
            failures[lane.topic] = failures.get(lane.topic, 0) + failed
        tally.retried += rare[0] - before[0]
        tally.died += rare[1] - before[1]
        tally.merged += rare[2] - before[2]
        tally.throttled_us += rare[3] - before[3]


def prefetch_noise(tx: Transaction) -> None:
    """Ask for what `noise_of` reads."""
    if _is_noise_old(tx):
        tx.prefetch("lane_big_nth", _noisy(tx))


def noise_of(tx: Transaction) -> int:
    """The largest size class that is not noisy. Read once a second: it changes slowly."""
    lane_cache = tx.lane_cache
    if _is_noise_old(tx):
        row = tx.one("lane_big_nth", _noisy(tx))
        lane_cache.noise_us, lane_cache.noise = tx.now, row[0] if row is not None else 0
    return int(lane_cache.noise)


def _is_noise_old(tx: Transaction) -> bool:
    return not 0 <= tx.now - tx.lane_cache.noise_us < SECOND


def _noisy(tx: Transaction) -> int:
    return min(max(tx.shard.lanes // NOISY_PART, 1), MOST_NOISY)

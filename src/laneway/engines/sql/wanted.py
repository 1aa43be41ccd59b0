"""What a lease call wants, and where the calls continue that pass over what they do not want."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from laneway.engines.base import MAX_PASSED_OVER
from laneway.engines.shared.gates import FOREVER_US
from laneway.engines.shared.naming import lane_ranges
from laneway.engines.shared.states import AT_GATE, RUNNABLE
from laneway.engines.sql.rows import Lane, rank_of
from laneway.engines.sql.transaction import Transaction
from laneway.policy import handling_patterns

Position = tuple[Any, ...]
"""Virtual time and number of a lane or group in an index."""

START: Position = (-1, -1)
"""The position before all lanes of an index."""

SEEN: Position = (-2, -2)
"""Instead of a position: all lanes of the index were seen, in the last calls."""

NOWHERE: Position = (FOREVER_US, 0)
"""The position behind all lanes of an index."""

NAMES = 0, "names"
"""The index of lanes by name, in positions: the name at which the next call begins."""

BY_NAME = 100
"""How many lanes a call reads by name."""

ALL_RANKS = (-(1 << 53), 1 << 53)
"""The smallest and the largest rank, and more."""

MAX_FILTERS = 1_000
"""Filters of calls that pass lanes over, for which positions are remembered."""


class Wanted(NamedTuple):
    """What a caller takes, as it names it in a lease; see `Queue.lease`."""

    only: frozenset[str] | None
    without: frozenset[str]
    tiers: frozenset[str] | None
    ranks: tuple[int, int] | None
    """The smallest and the largest rank that it takes; None: any."""

    @staticmethod
    def of(
        only: Sequence[str] | None,
        without: Sequence[str] | None,
        tiers: Sequence[str] | None,
        priorities: tuple[int, int] | None,
    ) -> Wanted | None:
        """What a lease call names; None: it takes everything."""
        if only is None and not without and tiers is None and priorities is None:
            return None
        return Wanted(
            None if only is None else frozenset(only),
            frozenset(without or ()),
            None if tiers is None else frozenset(tiers),
            None
            if priorities is None
            else (rank_of(priorities[1], at_front=True), rank_of(priorities[0], at_front=False)),
        )

    def takes(self, lane: Lane) -> bool:
        """Whether it takes messages of the lane, by the most specific pattern that matches."""
        if self.only is None and not self.without:
            return True
        is_bucket = lane.topic is None
        for pattern in handling_patterns(lane.rule if is_bucket else lane.topic or ""):
            if pattern in self.without:
                return False
            if self.only is not None and pattern in self.only:
                return True
        return self.only is None or is_bucket


class Only:
    """
    What a caller takes: the messages that it wants; and the positions at which its calls continue.

    A call passes over a bounded number of lanes that have nothing for it; the next call continues
    behind them, in each index by itself. An index of which all was seen is read from the start, but
    only a page of it, until all others were seen, too.

    After a call that passed over so many, the next ones also read lanes by their names, a page in
    each call. Where one page has all that the patterns match, nothing else is read. Example: only
    other workers serve a million topics `crawl.*`, and this one has three, `mail.*`. Its first call
    passes over 1,000 lanes, each of the next ones reads three.
    """

    def __init__(self, wanted: Wanted, tx: Transaction) -> None:
        self.wanted = wanted
        self._tx = tx
        self._begins = dict(tx.lane_cache.positions.get(wanted, {}))
        self._begun: set[tuple[int, str]] = set()
        self._seen: set[tuple[int, str]] = set()
        self._stopped: dict[tuple[int, str], Position] = {}
        self._groups: dict[tuple[int, str], tuple[tuple[int, str], tuple[int, int]]] = {}
        """By index of a group: the index that lists the group, and the position before it."""
        self._has_ranks: dict[int, bool] = {}
        """By lane: whether it has messages with the ranks that the caller takes."""
        self._left = MAX_PASSED_OVER
        self._is_whole, self._next_name = False, ""
        """Whether all lanes that it may take were read by name; or where the next call begins."""
        self.passed_over = False
        if self._begins and (ranges := lane_ranges(wanted.only, wanted.without)):
            self._read_by_name(ranges, *self._begins.pop(NAMES))

    @property
    def goes_on(self) -> bool:
        """Whether lanes are left that this call and the last ones have not seen."""
        return bool(self._stopped)

    @property
    def leaves_some(self) -> bool:
        """
        Whether it passed over what another worker should learn of. What a worker leaves for its
        common slots is none of that.
        """
        return self.passed_over and not self.wanted.without

    @staticmethod
    def of(wanted: Wanted | None, tx: Transaction) -> Only | None:
        """Begin a call; None: it takes everything."""
        if len(tx.lane_cache.positions) > MAX_FILTERS:
            tx.lane_cache.positions.clear()
        return None if wanted is None else Only(wanted, tx)

    def _read_by_name(self, ranges: Sequence[tuple[str, str]], first: str) -> None:
        """Offer the lanes of a page from this name on."""
        tx = self._tx
        reads = [("lanes_between", max(low, first), high, BY_NAME) for low, high in ranges]
        rows = {row[1]: row for page in tx.pages(reads) for row in page}
        names = sorted(rows)[:BY_NAME]
        tx.cache_lanes([rows[name] for name in names])
        lanes = [tx.lane_cache.lanes[rows[name][0]] for name in names]
        found = [lane for lane in lanes if lane.place in (RUNNABLE, AT_GATE) and not lane.forgotten]
        self.load_ranks(found)
        tx.came_up += filter(self.takes, found)
        is_last = len(names) < BY_NAME
        self._next_name = "" if is_last else names[-1] + "\1"  # before every other name
        if is_last and not first:
            self._is_whole = ranges[0][0] != ""
            self._left = 0 if self._is_whole else BY_NAME
            self.passed_over = True  # by the last calls

    def takes(self, lane: Lane) -> bool:
        """Whether the lane has something for the caller; if not, it counts as passed over."""
        if self.wanted.takes(lane) and self._has_rank(lane):
            return True
        self.passed_over = True
        self._left -= 1
        return False

    def _has_rank(self, lane: Lane) -> bool:
        if self.wanted.ranks is None:
            return True
        if lane.lane not in self._has_ranks:
            self.load_ranks([lane])
        return self._has_ranks[lane.lane]

    def load_ranks(self, lanes: Iterable[Lane]) -> None:
        """Read whether these lanes have messages that the caller takes, all in one statement."""
        if self.wanted.ranks is None:
            return
        numbers = [lane.lane for lane in lanes if self.wanted.takes(lane)]
        found = self._tx.all("lanes_with_ranks", self._tx.array(numbers), *self.wanted.ranks)
        self._has_ranks.update(dict.fromkeys(numbers, False))
        self._has_ranks.update((number, True) for (number,) in found)

    def begin(self, number: int, index: str) -> Position:
        """
        The position at which this call begins to read one of the indexes of a tier queue or group.
        """
        self._begun.add((number, index))
        if self._is_whole and "gates " not in index:  # a gate may be held for others
            return NOWHERE
        position = self._begins.get((number, index), START)
        return START if position == SEEN else position

    def enter_group(
        self, index: tuple[int, str], listed: tuple[int, str], before: tuple[int, int]
    ) -> None:
        """An index of a group is read, that another one lists behind this position."""
        self._groups[index] = listed, before

    def _was_seen(self, number: int, index: str) -> bool:
        listed, _ = self._groups.get((number, index), ((number, index), None))
        return self._begins.get(listed) == SEEN

    def _stop(self, index: tuple[int, str], position: Position) -> None:
        self._stopped[index] = min(self._stopped.get(index, position), position)

    def may_go_on(self, number: int, index: str, after: Position) -> bool:
        """Whether this call may read more; if not, the next one continues at `after`."""
        if self._is_whole or self._was_seen(number, index):
            return False
        if self._left > 0:
            return True
        self._stop((number, index), after)
        if (number, index) in self._groups:
            self._stop(*self._groups[number, index])
        return False

    def ended(self, number: int, index: str) -> None:
        """Everything was read, in this call and earlier ones."""
        if (number, index) not in self._groups:
            self._seen.add((number, index))

    def skips(self, number: int, index: str, before: tuple[int, int]) -> bool:
        """Whether this call may look at no further group; the next one continues at `before`."""
        if self._left > 0:
            return False
        if not self._was_seen(number, index):
            self._stop((number, index), before)
        return True

    def end(self, *, is_full: bool) -> None:
        """
        Remember where the next call begins: at the start, if this one has seen the rest of all
        indexes. `is_full`: it leased as many messages as it could; then the next one begins also
        those at the start of which it has seen all.
        """
        positions = self._tx.lane_cache.positions
        if not self._stopped:
            positions.pop(self.wanted, None)
            if self._is_whole:
                positions[self.wanted] = {NAMES: ("",)}
            return
        kept = {
            index: position
            for index, position in self._begins.items()
            if index not in self._begun or (position == SEEN and not is_full)
        }
        if not is_full:
            kept |= dict.fromkeys(self._seen, SEEN)
        positions[self.wanted] = kept | self._stopped | {NAMES: (self._next_name,)}

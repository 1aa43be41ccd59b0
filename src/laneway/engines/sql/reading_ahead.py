"""
The next messages of lanes whose visits depend on them: on their keys, costs or ranks.

A lease decides its visits one after the other. Where one of them has to know messages, those of the
lanes that are probably visited next are read too, for as many messages as there is room for, and
their gates with them. A distant database is then asked a few times for a lease, not by each visit.

For example, 100 topics have limits per key and 5 messages each, and a lease has room for 500. Its
first visit reads the first 5 messages of all topics. Where the keys of some admit fewer, more of
these topics is read, together and without bodies.

Why this is correct. While a lease decides, only its visits change what is ready, and each of them
removes what it takes and parks from what was read of its lane.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from laneway.engines.shared.key_limits import MOST_PARKED
from laneway.engines.sql import key_limits
from laneway.engines.sql.key_limits import Next
from laneway.engines.sql.rows import Lane, line_of
from laneway.engines.sql.wanted import ALL_RANKS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from laneway.engines.sql.transaction import Transaction

PAGE = 250
"""Messages that are read at once behind those that keys have held back."""

FIRST_POS = -(1 << 62)
"""Before all positions in a rank."""


class Heads:
    """The next messages of a lane, or of one topic of a bucket."""

    def __init__(self, ahead: ReadingAhead, lane: Lane, topic: str | None) -> None:
        tx = ahead.tx
        self.lane, self.topic, self.policy = lane, topic, tx.policy_of(lane)
        self.rows: list[Next] = []
        """Those that were read and that the call has not taken yet."""
        self.is_whole = False
        """Whether nothing is behind them."""
        self.at_rest = not (lane.leased or lane.parked or lane.keys_recover > tx.now)
        """Whether no key of the lane had a state before the call."""
        self.size = 0
        """How many were wanted last."""
        self._ahead = ahead
        self._taken = 0

    def first(self, most: int) -> list[Next]:
        """The first ones, at most this number."""
        while len(self.rows) < most and self.more(most):
            pass
        return self.rows[:most]

    def more(self, most: int, *, is_narrow: bool = False) -> bool:
        """Read more, see `ReadingAhead.read`. False: nothing is behind them."""
        if not self.is_whole:
            self._ahead.read_more(self, most, is_narrow=is_narrow)
            return True
        return False

    def take(self, count: int) -> list[int]:
        """The call delivers the first ones."""
        taken = [mid for mid, _ in self.rows[:count]]
        del self.rows[:count]
        self._taken += len(taken)
        return taken

    def drop(self, held_back: Collection[Next]) -> None:
        """Some were parked."""
        parked = {mid for mid, _ in held_back}
        self.rows = [each for each in self.rows if each.mid not in parked]

    def read(self, ranks: tuple[int, int], size: int, *, is_narrow: bool) -> tuple[Any, ...]:
        """The statement that reads `size` messages behind them."""
        behind = self._taken + len(self.rows)
        if self.topic is not None:
            return "folded_keys", self.topic, *ranks, size, behind
        lane, (lowest, highest) = self.lane, ranks
        place = max((lane.first_rank, lane.first_pos), (lowest, FIRST_POS))
        name = "ready_keys" if is_narrow else "ready_heads"
        return name, lane.lane, *place, highest, size, behind

    def add(self, page: Sequence[Any], size: int) -> list[tuple[int, str]]:
        """Add a page that has at most `size` messages; returns their (lane, key) with limits."""
        if self.policy.key_limited:
            added = [
                Next(mid, None if is_serial else line_of(topic, key))
                for mid, key, topic, is_serial, *_ in page
            ]
        else:
            added = [Next(row[0], None) for row in page]
        self.rows += added
        self.is_whole = len(page) < size or len(self.rows) >= self.lane.ready
        return [(self.lane.lane, key) for _, key in added if key is not None]


class ReadingAhead:
    """Reads for one call what its visits need to know."""

    def __init__(
        self, tx: Transaction, ranks: tuple[int, int] | None, visited: Collection[int]
    ) -> None:
        """`ranks`: the smallest and the largest that the call takes. `visited`: lanes, as it is."""
        self.tx = tx
        self.upcoming: deque[tuple[Lane, str | None]] = deque()
        """Lanes, and topics of buckets, in the order in which they are probably visited."""
        self.ranks, self._visited = ranks, visited
        self._heads: dict[tuple[int, str | None], Heads] = {}
        self._seen: set[tuple[int, str | None]] = set()
        self._room = 0
        """For how many messages it has read ahead last."""
        self._left = MOST_PARKED
        """How many messages may be read because keys hold others back."""

    def of(self, lane: Lane, topic: str | None = None) -> Heads | None:
        """The lane's next messages, or a topic's in a bucket; None: no visit has to know them."""
        heads = self._heads.get((lane.lane, topic))
        if heads is None and (topic is not None or self._has_to_know(lane)):
            heads = self._heads[lane.lane, topic] = Heads(self, lane, topic)
        return heads

    def _has_to_know(self, lane: Lane) -> bool:
        policy = self.tx.policy_of(lane)
        if self.ranks is not None or policy.key_limited:
            return True
        return lane.need > 0 and bool(policy.lane_rate or self.tx.gate_of(lane, policy))

    def look(self, lane: Lane, topic: str | None, most: int, room: int) -> Sequence[Lane]:
        """
        Read what the visit of a lane and the next ones have to know. `most`: how many messages
        this visit may take. `room`: how many the call may. Each time for twice as many, because
        the lanes had less than expected. Returns the lanes.
        """
        place = lane, topic
        lanes: list[Lane] = []
        heads: list[Heads] = []
        self._room = left = max(room, 2 * self._room)
        while True:
            here, its_topic = place
            key = here.lane, its_topic
            is_past = here is not lane and its_topic is None and here.lane in self._visited
            if key not in self._seen and not is_past:
                self._seen.add(key)
                lanes.append(here)
                left -= min(here.ready, most)
                if (found := self.of(here, its_topic)) is not None:
                    heads.append(found)
            if left <= 0 or not self.upcoming:
                break
            place = self.upcoming.popleft()
        self.tx.load_gates_of(lanes)
        share = max(most, -(-room // max(len(lanes), 1)))
        for each in heads:
            each.size = min(share, each.lane.ready or 1)
        self._read(heads)
        return lanes

    def read_more(self, heads: Heads, most: int, *, is_narrow: bool) -> None:
        """
        Read more of a lane, and of all lanes whose known messages are used up. `is_narrow`: because
        its keys hold messages back.
        """
        wanted = [heads]
        if not is_narrow:
            wanted += [
                each
                for each in self._heads.values()
                if each is not heads
                and not each.is_whole
                and len(each.rows) < min(most, each.lane.ready)
            ]
        for each in wanted:
            each.size = max(most, min(2 * each.size, each.lane.ready))
        self._read(wanted, is_narrow=is_narrow)

    def _read(self, wanted: list[Heads], *, is_narrow: bool = False) -> None:
        """Read as many as are wanted; more, where keys hold some of them back."""
        tx = self.tx
        while wanted:
            size = PAGE // len(wanted) if is_narrow else 0
            self._left -= size * len(wanted)
            self._read_page([(each, max(size, each.size)) for each in wanted], is_narrow=is_narrow)
            short: list[Heads] = []
            parked: list[int] = []
            for each in wanted:
                if not each.policy.key_limited or (each.is_whole and not is_narrow):
                    continue
                found, held_back = key_limits.admitted(tx, each.lane, each.rows, each.size)
                parked += [mid for mid, _ in held_back]
                if len(found) < each.size and not each.is_whole and self._left > 0:
                    short.append(each)
            tx.messages.load(parked)
            wanted, is_narrow = short, True

    def _read_page(self, wanted: Sequence[tuple[Heads, int]], *, is_narrow: bool) -> None:
        tx, ranks = self.tx, self.ranks or ALL_RANKS
        reads = [each.read(ranks, size, is_narrow=is_narrow) for each, size in wanted]
        for read in reads:
            tx.prefetch(*read)
        pages = [tx.all(*read) for read in reads]
        tx.messages.adopt([row[4:] for page in pages for row in page if row[4:] and row[4]])
        keys: list[tuple[int, str]] = []
        for (each, size), page in zip(wanted, pages, strict=True):
            added = each.add(page, size)
            if each.at_rest:
                tx.key_states.assume_absent(added)
            else:
                keys += added
        tx.key_states.load(keys)

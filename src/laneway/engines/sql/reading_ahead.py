"""
The next messages of lanes whose visits depend on them: on their keys, costs or ranks.

A lease decides its visits one after the other. Where one of them has to know messages, those of the
lanes that are probably visited next are read too, for as many messages as there is room for. A
distant database is then asked a few times for a lease, not by each visit.

For example, 100 topics have limits per key and 5 messages each, and a lease has room for 500. Its
first visit reads the first 5 messages of all topics. Where the keys of some admit fewer, more of
these topics is read, together and without bodies.

Why this is correct. While a lease decides, only its visits change what is ready, and each of them
removes what it takes and parks from what was read of its lane.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from laneway.engines.shared.key_limits import MOST_PARKED
from laneway.engines.sql import key_limits
from laneway.engines.sql.key_limits import Next
from laneway.engines.sql.rows import Lane, Row, line_of
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.wanted import ALL_RANKS
from laneway.policy import Resolved

PAGE = 250
"""Messages that are read at once behind those that keys have held back."""

FEW_HEADS = 4
"""
Up to this number of messages of a lane are read with those of other lanes, the first of all lanes
in one statement, then the second: a statement for each lane would cost more.
"""

FIRST_POS = -(1 << 62)
"""Before all positions in a rank."""


class Heads:
    """The next messages of a lane, or of one topic of a bucket."""

    def __init__(self, ahead: ReadingAhead, lane: Lane, topic: str | None) -> None:
        tx = ahead.tx
        self.lane, self.topic, self.policy = lane, topic, tx.policy_of(lane)
        self.rows: list[Next] = []
        """Those that were read and that the call has not taken yet."""
        self.is_picked = topic is not None or ahead.ranks is not None
        """Whether they need not be the first ones of the lane."""
        self.is_whole = False
        """Whether nothing is behind them."""
        self.at_rest = not (lane.leased or lane.parked or lane.keys_recover > tx.now)
        """Whether no key of the lane had a state before the call."""
        self.size = 0
        """How many were wanted last; 0: none were read."""
        self.behind = 0
        """How many messages are before the next ones that are read."""
        self._ahead = ahead

    def first(self, most: int) -> list[Next]:
        """The first ones, at most this number."""
        while len(self.rows) < most and not self.is_whole:
            self.read_more(most)
        return self.rows[:most]

    def read_more(self, most: int, *, is_narrow: bool = False) -> None:
        """
        Read what is behind them, and behind those of all lanes whose known messages are used up.
        `is_narrow`: because its keys hold messages back.
        """
        wanted = [self]
        if not is_narrow:
            wanted += [
                each
                for each in self._ahead.heads.values()
                if each is not self
                and not each.is_whole
                and len(each.rows) < min(most, each.lane.ready)
            ]
        for each in wanted:
            each.size = max(most, min(2 * each.size, each.lane.ready))
        self._ahead.read(wanted, is_narrow=is_narrow)

    def take(self, count: int) -> list[int]:
        """The call delivers the first ones. They are read now if no rate had to know them."""
        taken = [mid for mid, _ in self.first(count)]
        del self.rows[:count]
        return taken

    def read_keys(self, ranks: tuple[int, int], size: int) -> Read:
        """The statement that reads the keys of the next `size` messages."""
        if self.topic is not None:
            return "folded_keys", self.topic, *ranks, size, self.behind
        lane, (lowest, highest) = self.lane, ranks
        place = max((lane.first_rank, lane.first_pos), (lowest, FIRST_POS))
        return "ready_keys", lane.lane, *place, highest, size, self.behind

    def add(self, page: Sequence[Any], size: int) -> list[tuple[int, str]]:
        """
        Add a page that has at most `size` messages: number, key, topic, whether the key is serial.
        Returns their (lane, key) with limits.
        """
        limited = self.policy.key_limited
        added = [
            Next(mid, line_of(topic, key) if limited and not is_serial else None)
            for mid, key, topic, is_serial in page
        ]
        self.rows += added
        self.behind += len(added)
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
        """Lanes, or topics of buckets, in the order in which they are probably visited."""
        self.ranks, self._visited = ranks, visited
        self.heads: dict[tuple[int, str | None], Heads] = {}
        self._room = 0
        """For how many messages it has read ahead last."""
        self._left = MOST_PARKED
        """How many messages may be read because keys hold others back."""

    def of(self, lane: Lane, topic: str | None) -> Heads:
        """The lane's next messages, or those of a topic in a bucket."""
        heads = self.heads.get((lane.lane, topic))
        if heads is None:
            heads = self.heads[lane.lane, topic] = Heads(self, lane, topic)
        return heads

    def has_to_know(
        self, lane: Lane, topic: str | None, policy: Resolved, gate: str | None
    ) -> bool:
        """Whether a visit of the lane, or of a topic in a bucket, has to know its messages."""
        return (
            policy.key_limited
            or topic is not None
            or self.ranks is not None
            or (lane.need > 0 and bool(policy.lane_rate or gate))
        )

    def look(self, heads: Heads, most: int, room: int) -> set[str]:
        """
        Read what this visit, of at most `most` messages, and the next ones have to know. `room`:
        how many messages the call may take. Each time for twice as many, because the lanes had
        less than expected. Returns the keys of the lanes' gates.
        """
        tx, keys = self.tx, {self.tx.gate_of(heads.lane, heads.policy)}
        found, lanes, self._room = {heads: None}, 1, max(room, 2 * self._room)
        left = self._room - min(heads.lane.ready, most)
        while left > 0 and self.upcoming:
            lane, topic = self.upcoming.popleft()
            if topic is None and lane.lane in self._visited:
                continue
            lanes += 1
            left -= min(lane.ready, most)
            keys.add(gate := tx.gate_of(lane, policy := tx.policy_of(lane)))
            if self.has_to_know(lane, topic, policy, gate):
                found[self.of(lane, topic)] = None
        share = max(most, -(-room // lanes))
        unread = [each for each in found if not each.size]
        for each in unread:
            each.size = min(share, each.lane.ready or 1)
        self.read(unread)
        return {key for key in keys if key is not None}

    def read(self, wanted: list[Heads], *, is_narrow: bool = False) -> None:
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
        """`is_narrow`: without bodies, as topics of buckets always are."""
        tx, ranks = self.tx, self.ranks or ALL_RANKS
        listed = {each: size for each, size in wanted if is_narrow or each.topic is not None}
        found = tx.pages([each.read_keys(ranks, size) for each, size in listed.items()])
        pages = dict(zip(listed, found, strict=True))
        rows = read_heads(
            tx,
            {each.lane.lane: (size, each.behind) for each, size in wanted if each not in listed},
            self.ranks,
        )
        keys: list[tuple[int, str]] = []
        for each, size in wanted:
            if each not in listed:
                pages[each] = [
                    (row.mid, row.key, row.topic, row.serial) for row in rows[each.lane.lane]
                ]
            added = each.add(pages[each], size)
            if each.at_rest:
                tx.key_states.assume_absent(added)
            else:
                keys += added
        tx.key_states.load(keys)


def head_of(lane: Lane, size: int, behind: int = 0, ranks: tuple[int, int] = ALL_RANKS) -> Read:
    """See `read_heads`."""
    lowest, highest = ranks
    place = max((lane.first_rank, lane.first_pos), (lowest, FIRST_POS))
    return ("head_of", lane.lane, *place, highest, size, behind)


def read_heads(
    tx: Transaction, wanted: Mapping[int, tuple[int, int]], ranks: tuple[int, int] | None = None
) -> dict[int, list[Row]]:
    """
    Read the next messages of these lanes, in their order. `wanted`: by lane how many, and behind
    how many others. `ranks`: only those whose rank is between these two.
    """
    rows: dict[int, list[Row]] = {number: [] for number in wanted}
    reads: list[Read] = []
    places: list[tuple[int, ...]] = []
    few: defaultdict[int, list[Lane]] = defaultdict(list)
    """By offset: lanes of which the message there is read."""
    for number, (size, behind) in wanted.items():
        lane = tx.lane_cache.lanes[number]
        if ranks is None and not behind and lane.ranks and tx.keeps_deleted:
            places += ((number, *place, size) for place in lane.first_places())
        elif ranks is None and size <= FEW_HEADS:
            for offset in range(behind, behind + size):
                few[offset].append(lane)
        else:
            reads.append(head_of(lane, size, behind, ranks or ALL_RANKS))
    if places:
        reads.append(("ranked_heads", *map(tx.array, zip(*places, strict=True))))
    for offset, lanes in sorted(few.items()):
        first_ranks = tx.array([lane.first_rank for lane in lanes if tx.keeps_deleted])
        first_positions = tx.array([lane.first_pos for lane in lanes if tx.keeps_deleted])
        reads.append(
            ("heads", tx.array([lane.lane for lane in lanes]), first_ranks, first_positions, offset)
        )
    heads = [head for page in tx.pages(reads) for head in page]
    for row in tx.messages.adopt(heads):
        rows[row.lane].append(row)
    return rows

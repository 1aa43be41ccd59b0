"""
`Queue.put`: accept, merge or refuse messages.

First everything that the messages need is read, then each of them is decided in memory; the rows
are written together (see `tables`).
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from laneway import subscriptions
from laneway.engines.base import SIGNALS_HEADER, UNTIL_SIGNALLED_US
from laneway.engines.shared.copies import (
    MOST_AT_ONCE,
    copies_of,
    count_within,
    expiries,
    is_copied,
    receipt_of_copies,
)
from laneway.engines.shared.naming import PARTITION, merge_key
from laneway.engines.shared.refusals import (
    DROPPED,
    check_cost,
    check_draft,
    explicit_due,
    full,
)
from laneway.engines.shared.states import (
    ASLEEP,
    DELAYED,
    DUE,
    EXPIRES,
    HOLD,
    IDLE,
    PARKED,
    READY,
    YIELD,
)
from laneway.engines.sqlite import merging, messages, results
from laneway.engines.sqlite.rows import Lane, Row, line_of, rank_of
from laneway.engines.sqlite.views import oldest_of
from laneway.headers import COST
from laneway.message import Receipt
from laneway.policy import gate_names
from laneway.topic_groups import GROUP, group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from laneway.engines.sqlite.transaction import Transaction
    from laneway.message import Draft
    from laneway.policy import Resolved

_SERIAL = {None: 0, "hold": HOLD, "yield": YIELD}
_dumps = msgspec.json.Encoder().encode


def put(
    tx: Transaction,
    drafts: Sequence[Draft],
    *,
    keeps_order: bool = False,
    is_whole: bool = True,
) -> list[Receipt]:
    """
    Put messages in their order. `keeps_order`: after a refused message, refuse the later ones of
    its topic. `is_whole` False: it may put only the first ones, where they have many copies. Raises
    BadMessage before anything is changed.
    """
    if not drafts:
        return []
    topics = [draft.topic for draft in drafts]
    if _are_appended(tx, drafts, topics):
        if not any(draft.key is not None for draft in drafts):
            return _put_plain(tx, drafts, topics)
        receipts = _Keyed(tx).put(drafts, topics)
        if receipts is not None:
            return receipts
    tx.has_due_later = any(draft.delay_us or draft.at_us is not None for draft in drafts)
    policies = tx.policies(topics)
    plains = [
        policy.accepts_plainly and _has_no_options(draft)
        for draft, policy in zip(drafts, policies, strict=True)
    ]
    if not all(plains) and any(map(is_copied, drafts, policies)):
        return _put_copied(tx, drafts, policies, keeps_order=keeps_order, is_whole=is_whole)
    for draft, policy, plain in zip(drafts, policies, plains, strict=True):
        if not plain or len(draft.body) > policy.max_body:
            _check(tx, draft, policy)
    tx.load_names({draft.topic for draft, plain in zip(drafts, plains, strict=True) if plain})
    intake = _Intake(tx, only_plain=False)
    receipts = _put_special(intake, drafts, policies, plains, keeps_order=keeps_order)
    intake.end()
    return receipts


def _check(tx: Transaction, draft: Draft, policy: Resolved) -> None:
    """Raise BadMessage if the message cannot be published."""
    check_draft(draft, policy, tx.now)
    if draft.headers is not None and COST in draft.headers and not (draft.own or draft.signal):
        names = [*gate_names(policy.gate)]
        group = group_of(policy.group, policy.buckets_pattern or draft.topic)
        if group is not None:
            names.append(GROUP + group)
        states = [(name, tx.gate(name)) for name in names]
        check_cost(
            draft, policy, [(name, state.whole) for name, state in states if state is not None]
        )


def _are_appended(tx: Transaction, drafts: Sequence[Draft], topics: Sequence[str]) -> bool:
    """Whether all messages are appended to their topics' lanes, or parked behind their keys."""
    if tx.rules.has_backlog_limit:
        return False
    policies = tx.policies(list(set(topics)))
    return (
        all(policy.accepts_plainly for policy in policies)
        and max(len(draft.body) for draft in drafts) <= min(each.max_body for each in policies)
        and _have_no_options(drafts, may_have_keys=True)
    )


def _put_plain(tx: Transaction, drafts: Sequence[Draft], topics: Sequence[str]) -> list[Receipt]:
    """
    Append plain messages to their topics' lanes, as `_Intake.append` does one: the counters are
    added up, and all rows are written together.
    """
    tx.load_names(set(topics))
    first = tx.next_seq()
    headers, priority = drafts[0].headers, drafts[0].priority
    are_alike = all(each.headers is headers and each.priority == priority for each in drafts)
    lanes: dict[str, _GrownLane] = {}
    values: list[Any] = []
    for mid, draft, topic in zip(count(first), drafts, topics, strict=False):
        grown = lanes.get(topic)
        if grown is None:
            grown = lanes[topic] = _GrownLane(tx.ensure_lane(topic, topic))
        body = draft.body
        grown.count += 1
        grown.bytes += len(body)
        if are_alike:
            values += (mid, grown.number, bytearray(body))
        else:
            text = _dumps(draft.headers).decode() if draft.headers else ""
            rank = rank_of(draft.priority, at_front=False)
            values += (mid, grown.number, rank, text, bytearray(body))
    if are_alike:
        shared_headers = _dumps(headers).decode() if headers else None
        rank = rank_of(priority, at_front=False)
        tx.insert_rows("message_insert_alike", (tx.now, rank, shared_headers), values, 3)
    else:
        tx.insert_rows("message_insert_together", (tx.now,), values, 5)
    return _appended(tx, topics, first, lanes.values())


def _appended(
    tx: Transaction, topics: Sequence[str], first: int, lanes: Iterable[_GrownLane]
) -> list[Receipt]:
    """Messages, numbered from `first` on, were inserted: make them ready, and count them."""
    shard, count = tx.shard, len(topics)
    tx.run("ready_insert_new", first, first + count - 1)
    size = 0
    for grown in lanes:
        size += grown.end(tx)
    shard.seq += count - 1
    shard.published += count
    shard.bytes += size
    shard.waiting += count
    prefix = f"{shard.nonce}-"
    return [Receipt(f"{prefix}{mid:x}", topic) for mid, topic in enumerate(topics, first)]


class _GrownLane:
    """A lane that messages are appended to: how many, how many parked ones, and how many bytes."""

    __slots__ = ("bytes", "count", "lane", "number", "parked")

    def __init__(self, lane: Lane) -> None:
        self.lane, self.number = lane, lane.lane
        self.count = self.bytes = self.parked = 0

    def end(self, tx: Transaction) -> int:
        """Count the messages in the lane, and place it. Returns their bytes."""
        lane = self.lane
        lane.published += self.count
        lane.bytes += self.bytes
        lane.ready += self.count - self.parked
        if self.parked:
            lane.parked += self.parked
            tx.touch(lane)
        else:
            tx.touch_grown(lane)
        if lane.place == IDLE:  # more ready messages do not change the place of others
            tx.place(lane)
            tx.has_arrivals = True
        return self.bytes


class _Keyed:
    """
    Appends messages with keys, which are plain otherwise, as `_Intake.accept` does one. Those whose
    serial key is busy are parked.
    """

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._heads: dict[tuple[int, str], int | None] = {}
        """By lane and serial key: the rank of the key's head; None: it is held."""

    def put(self, drafts: Sequence[Draft], topics: Sequence[str]) -> list[Receipt] | None:
        """Put the messages; None, and nothing is changed: one of them overtakes its key's head."""
        tx = self._tx
        tx.load_names(set(topics))
        lanes: dict[str, tuple[_GrownLane, int]] = {}
        for topic in topics:
            if topic not in lanes:
                serial = _SERIAL[tx.policy(topic).serial]
                lanes[topic] = _GrownLane(tx.ensure_lane(topic, topic)), serial
        places = [
            (grown.number, draft.key) if serial and draft.key is not None else None
            for draft in drafts
            for grown, serial in (lanes[draft.topic],)
        ]
        serials = [place for place in places if place is not None]
        ranks = [rank_of(draft.priority, at_front=False) for draft in drafts]
        if serials and not self._may_append(serials, places, ranks):
            return None
        first = tx.next_seq()
        values: list[Any] = []
        for mid, draft, place, rank in zip(count(first), drafts, places, ranks, strict=False):
            grown, serial = lanes[draft.topic]
            body = draft.body
            grown.count += 1
            grown.bytes += len(body)
            state = READY
            if place is not None and not self._leads(place, mid, rank):
                state = PARKED
                grown.parked += 1
                tx.parked.put((*place, rank, tx.now, mid), mid)
            values += (
                mid,
                grown.number,
                state,
                rank,
                serial if place is not None else 0,
                0 if draft.key is None else draft.key,
                _dumps(draft.headers).decode() if draft.headers else "",
                bytearray(body),
            )
        tx.insert_rows("message_insert_keyed", (tx.now,), values, 8)
        return _appended(tx, topics, first, [grown for grown, _ in lanes.values()])

    def _may_append(
        self,
        serials: Sequence[tuple[int, str]],
        places: Sequence[tuple[int, str] | None],
        ranks: Sequence[int],
    ) -> bool:
        """Read the heads of these serial keys. Returns whether no message overtakes one."""
        tx, heads = self._tx, self._heads
        tx.serial_keys.load(serials)
        waiting: dict[int, tuple[int, str]] = {}
        for place in serials:
            head = tx.serial_keys.get(*place)
            if head is not None:
                heads[place] = None
                if not head[1]:
                    waiting[head[0]] = place
        if waiting:
            ranks_of_heads = tx.all("message_ranks", _dumps([*waiting]))
            if len(ranks_of_heads) < len(waiting):
                return False  # the store lost a head: the next message takes its place
            heads.update((waiting[mid], rank) for mid, rank in ranks_of_heads)
        least = dict(heads)
        for key, rank in zip(places, ranks, strict=True):
            before = least.setdefault(key, rank) if key is not None else None
            if before is not None and rank < before:
                return False
        return True

    def _leads(self, place: tuple[int, str], mid: int, rank: int) -> bool:
        """Whether a message is its serial key's head now: the key was free."""
        if place in self._heads:
            return False
        self._heads[place] = rank
        self._tx.serial_keys.put(place, mid, 0)
        return True


def _put_special(
    intake: _Intake,
    drafts: Sequence[Draft],
    policies: Sequence[Resolved],
    plains: list[bool],
    *,
    keeps_order: bool,
) -> list[Receipt]:
    """Put messages of which some are not plain."""
    specials = list(map(intake.special, drafts, policies))
    intake.load(drafts, policies, specials)
    may_append = not intake.tx.rules.has_backlog_limit
    if keeps_order:
        return _put_in_order(intake, drafts, policies, specials)
    return [
        intake.append(draft) if plain and may_append else intake.accept(draft, policy, special)
        for draft, policy, special, plain in zip(drafts, policies, specials, plains, strict=True)
    ]


def _put_in_order(
    intake: _Intake,
    drafts: Sequence[Draft],
    policies: Sequence[Resolved],
    specials: Sequence[_Special],
) -> list[Receipt]:
    receipts: list[Receipt] = []
    full_topics: dict[str, str | None] = {}
    for draft, policy, special in zip(drafts, policies, specials, strict=True):
        topic = draft.topic
        if topic in full_topics:
            receipts.append(Receipt(draft.id or "", topic, "refused", None, full_topics[topic]))
            continue
        receipts.append(intake.accept(draft, policy, special))
        if receipts[-1].outcome == "refused":
            full_topics[topic] = receipts[-1].reason
    return receipts


def _put_copied(
    tx: Transaction,
    drafts: Sequence[Draft],
    policies: Sequence[Resolved],
    *,
    keeps_order: bool,
    is_whole: bool,
) -> list[Receipt]:
    """Put messages of which some have copies, or are not stored themselves."""
    copies = list(map(copies_of, drafts, policies))
    if not is_whole:
        copies = copies[: count_within(list(map(len, copies)), MOST_AT_ONCE)]
    every = [
        each
        for draft, its in zip(drafts, copies, strict=False)  # only the first ones
        for each in (draft, *its)
    ]
    every_policy = tx.policies([draft.topic for draft in every])
    plains = list(map(_is_stored_plainly, every, every_policy))
    for draft, policy, plain in zip(every, every_policy, plains, strict=True):
        if not plain or len(draft.body) > policy.max_body:
            _check(tx, draft, policy)
    intake = _Intake(tx, only_plain=False)
    entries = iter(intake.entries(every, every_policy, plains))
    receipts: list[Receipt] = []
    full: dict[str, Receipt] = {}
    for its in copies:
        entry = next(entries)
        topic = entry.draft.topic
        entries_of_copies = list(islice(entries, len(its)))
        if topic in full:
            receipts.append(msgspec.structs.replace(full[topic], id=entry.draft.id or ""))
            continue
        receipts.append(intake.accept_copied(entry, entries_of_copies))
        if keeps_order and receipts[-1].outcome == "refused":
            full[topic] = receipts[-1]
    intake.end()
    return receipts


def put_from_inbox(
    tx: Transaction, rows: Sequence[tuple[int, int, str, int, str, bytes, int | None]]
) -> list[int]:
    """
    Put messages of the inbox into their lanes: number, time, topic, rank, headers and body of each.
    One whose number was assigned meanwhile, by a program that knows no inbox, gets another. Returns
    the numbers.
    """
    tx.load_names({row[2] for row in rows})
    intake = _Intake(tx, only_plain=True)
    now, tx.now = tx.now, tx.shard.now
    numbers = []
    for mid, published, topic, rank, headers, body, _ in rows:
        tx.now = max(tx.now, published)
        tx.shard.seq = max(tx.shard.seq, mid - 1)
        numbers.append(intake.append_row(topic, rank, headers, body))
    tx.now = max(tx.now, now)
    intake.end()
    return numbers


def is_plain(draft: Draft, policy: Resolved) -> bool:
    """Whether the message only has to be appended to its topic's lane, as most messages."""
    return policy.accepts_plainly and _has_no_options(draft)


def _is_stored_plainly(draft: Draft, policy: Resolved) -> bool:
    """As `is_plain`, for a message that may have copies."""
    return policy.stores_plainly and _has_no_options(draft)


def _has_no_options(draft: Draft) -> bool:
    return _have_no_options((draft,))


def _have_no_options(drafts: Sequence[Draft], *, may_have_keys: bool = False) -> bool:
    seen = None
    for draft in drafts:
        headers = draft.headers
        if headers is not seen:  # the calls of a task have the same ones
            if headers is not None and (SIGNALS_HEADER in headers or COST in headers):
                return False
            seen = headers
        if (
            draft.id is not None
            or (draft.key is not None and not may_have_keys)
            or draft.delay_us
            or draft.at_us is not None
            or draft.ttl_us is not None
            or draft.signal is not None
            or draft.sticky
            or draft.at_front
        ):
            return False
    return True


class _Special(NamedTuple):
    """What is known of a message before it is decided, for all of the call's messages together."""

    name: str
    """Its lane; "": the next of its topic's partitions in turn."""
    rule: str
    mkey: bytes | None
    is_blocked: bool


class _Entry(NamedTuple):
    """A message or a copy, with what is known of it. `special`: None for a plain one."""

    draft: Draft
    policy: Resolved
    special: _Special | None


class _Intake:
    """One call of put: reads what its messages need, then decides each of them."""

    def __init__(self, tx: Transaction, *, only_plain: bool) -> None:
        self.tx = tx
        self.only_plain = only_plain  # then nothing reads their rows before the end
        self.messages: list[tuple[int, int, int, int, str, bytearray]] = (
            [] if only_plain else tx.messages.plain
        )
        self.ready: list[tuple[int, int, int, int, int]] = [] if only_plain else tx.ready.appended
        self.arrivals: dict[int, Lane] = {}
        self._lanes: dict[str, Lane] = {}  # by topic, where plain messages were appended
        self._headers: tuple[object, str] = (None, "")

    def special(self, draft: Draft, policy: Resolved) -> _Special:
        """Determine the lane and the merge key of a message that is not plain."""
        is_blocked = draft.headers is not None and SIGNALS_HEADER in draft.headers
        mkey = (
            merge_key(draft) if policy.merge is not None and not (is_blocked or draft.own) else None
        )
        if policy.partitions == 1 and policy.buckets is None:
            return _Special(draft.topic, draft.topic, mkey, is_blocked)
        spread_by = (
            draft.key.encode()
            if draft.key is not None
            else draft.body
            if mkey is not None
            else None
        )
        if spread_by is None and (policy.buckets is None or policy.buckets_pattern is None):
            return _Special("", "", mkey, is_blocked)
        name, rule = self.tx.lane_of(policy, draft.topic, spread_by, 0)
        return _Special(name, rule, mkey, is_blocked)

    def load(
        self, drafts: Sequence[Draft], policies: Sequence[Resolved], specials: Sequence[_Special]
    ) -> None:
        """Read the rows that decide these messages, all of one table in one statement."""
        tx = self.tx
        tx.load_names({special.name for special in specials if special.name})
        ids: list[tuple[str, str]] = []
        merge_keys: list[tuple[int, bytes]] = []
        serial_keys: list[tuple[int, str]] = []
        edges: list[tuple[str, bytes]] = []
        for draft, policy, special in zip(drafts, policies, specials, strict=True):
            if draft.id is not None:
                ids.append((draft.id, draft.topic))
            lane = tx.find_lane(special.name) if special.name else None
            if special.mkey is not None:
                if lane is not None:
                    merge_keys.append((lane.lane, special.mkey))
                if policy.window is not None and policy.edge == "leading":
                    edges.append((draft.topic, special.mkey))
            if draft.key is not None and policy.serial is not None and lane is not None:
                line = line_of(draft.topic if lane.topic is None else None, draft.key)
                serial_keys.append((lane.lane, line or ""))
        mids: list[int] = []
        if ids:
            tx.idents.load(ids)
            if any(draft.signal is not None for draft in drafts):
                known = (tx.idents.get(*key) for key in ids)
                mids += [ident[0] for ident in known if ident is not None and ident[0]]
        if edges:
            tx.edges.load(edges)
        if merge_keys:
            tx.merge_keys.load(merge_keys)
            mids += [row[0] for key in merge_keys if (row := tx.merge_keys.get(*key)) is not None]
        if serial_keys:
            tx.serial_keys.load(serial_keys)
            heads = (tx.serial_keys.get(*key) for key in serial_keys)
            mids += [head[0] for head in heads if head is not None and not head[1]]
        if mids:
            tx.messages.load(mids)

    def end(self) -> None:
        """Write plain messages, and place the lanes that messages came to."""
        tx = self.tx
        if self.only_plain:
            tx.insert("message_insert_plain", self.messages)
            tx.insert("ready_insert", self.ready)
        for lane in self.arrivals.values():
            # More ready messages do not change the place of a lane that had some. (A merge may have
            # taken its last one.)
            if lane.place == IDLE or not lane.ready:
                tx.place(lane)
                tx.has_arrivals = True

    def append(self, draft: Draft) -> Receipt:
        """Accept a plain message, see `is_plain`: like `accept`, in a third of the time."""
        headers = self._headers_of(draft) if draft.headers else ""
        rank = rank_of(draft.priority, at_front=False)
        mid = self.append_row(draft.topic, rank, headers, draft.body)
        return Receipt(f"{self.tx.shard.nonce}-{mid:x}", draft.topic)

    def _headers_of(self, draft: Draft) -> str:
        """Its headers as JSON; the calls of a task have the same ones."""
        if draft.headers is not self._headers[0]:
            self._headers = draft.headers, _dumps(draft.headers).decode()
        return self._headers[1]

    def append_row(self, topic: str, rank: int, headers: str, body: bytes) -> int:
        """Append a plain message; `headers` as JSON. Returns its number."""
        tx = self.tx
        shard, now = tx.shard, tx.now
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = tx.ensure_lane(topic, topic)
            self.arrivals[lane.lane] = lane
            tx.touch_grown(lane)
        mid = tx.next_seq()
        size = len(body)
        lane.published += 1
        lane.bytes += size
        lane.ready += 1
        shard.published += 1
        shard.bytes += size
        shard.waiting += 1
        self.ready.append((lane.lane, rank, now, mid, mid))
        self.messages.append((mid, lane.lane, rank, now, headers, bytearray(body)))
        return mid

    def accept_copied(self, entry: _Entry, copies: Sequence[_Entry]) -> Receipt:
        """Accept a message with all its copies, or none of them: it is known, or one is refused."""
        tx, draft = self.tx, entry.draft
        if not is_copied(draft, entry.policy):
            return self._accept_entry(entry)
        is_stored = entry.policy.own_backlog
        if is_stored and draft.id is not None and messages.is_known(tx, draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        if expires := expiries(entry.policy):
            copies = [copy for copy in copies if not self._is_unused(copy, expires)]
        for copy in copies:
            reason = self._why_full(*copy)
            if reason is not None:
                return Receipt(draft.id or "", copy.draft.topic, "refused", None, reason)
        receipt = self._accept_entry(entry) if is_stored else None
        if receipt is not None and receipt.outcome == "refused":
            return receipt
        if (
            receipt is None
            and copies
            and (reason := make_room(tx, draft, entry.policy, "", _NAMESPACE)) is not None
        ):
            return Receipt(draft.id or "", draft.topic, "refused", None, reason)
        receipts = [
            self.append(copy.draft)
            if copy.special is None
            else self.accept(copy.draft, copy.policy, copy.special, is_copy=True)
            for copy in copies
        ]
        if receipt is not None:
            return receipt
        if not copies:
            tx.shard.published += 1
            tx.shard.removed += 1
            tx.tallies.count_unrouted(tx, draft.topic, entry.policy.tier)
        return receipt_of_copies(draft, receipts)

    def _is_unused(self, copy: _Entry, expires: Mapping[str, int]) -> bool:
        """Whether the subscription of a copy has not been used for too long."""
        tx, policy, topic = self.tx, copy.policy, copy.draft.topic
        after_us = expires.get(subscriptions.split(topic)[1])
        if after_us is None or policy.paused:
            return False
        lanes = _lanes_of(tx, topic, policy, topic)
        return (
            any(lane.ready for lane in lanes)
            and not any(
                lane.leased or (lane.place == ASLEEP and (lane.wake or 0) > tx.now)
                for lane in lanes
            )
            and tx.now - max(lane.seen for lane in lanes) >= after_us
            # last, because it reads; messages of this call are not old
            and min(oldest_of(tx, [lane.lane for lane in lanes]).values(), default=tx.now)
            <= tx.now - after_us
        )

    def entries(
        self, drafts: Sequence[Draft], policies: Sequence[Resolved], plains: Sequence[bool]
    ) -> list[_Entry]:
        """Read what messages and copies need. Plain ones need only their lanes."""
        self.tx.load_names(
            {draft.topic for draft, plain in zip(drafts, plains, strict=True) if plain}
        )
        entries = [
            _Entry(draft, policy, None if plain else self.special(draft, policy))
            for draft, policy, plain in zip(drafts, policies, plains, strict=True)
        ]
        others = [
            (draft, policy, special) for draft, policy, special in entries if special is not None
        ]
        if others:
            self.load(*zip(*others, strict=True))
        return entries

    def _accept_entry(self, entry: _Entry) -> Receipt:
        draft, policy, special = entry
        if special is None:
            if not self.tx.rules.has_backlog_limit:
                return self.append(draft)
            special = self.special(draft, policy)
        return self.accept(draft, policy, special)

    def _why_full(self, draft: Draft, policy: Resolved, special: _Special | None) -> str | None:
        """Why a copy refuses its message: there is no room for it, and none can be made."""
        tx = self.tx
        if special is None or not policy.limits_backlog:
            return None
        if draft.id is not None and messages.is_known(tx, draft.topic, draft.id):
            return None
        lane = tx.find_lane(special.name) if special.mkey is not None else None
        if lane is not None and special.mkey is not None:
            row = merging.waiting_message(tx, lane, special.mkey)
            if row is not None and (policy.merge != "all" or row.parts + 1 < policy.merge_limit):
                return None
        return make_room(tx, draft, policy, special.name, _TOPIC, may_drop=False)

    def accept(
        self, draft: Draft, policy: Resolved, special: _Special, *, is_copy: bool = False
    ) -> Receipt:
        """
        Decide one message: duplicate, merged, refused or accepted, checked in this order.
        `is_copy`: it is not refused; see `accept_copied`.
        """
        tx = self.tx
        topic = draft.topic
        if draft.signal is not None:
            return self._signal(draft)
        name, rule, mkey, is_blocked = special
        if not name:
            name, rule = tx.lane_of(policy, topic, None, tx.shard.seq + 1)
        if draft.id is not None and messages.is_known(tx, topic, draft.id):
            return Receipt(draft.id, topic, "duplicate")
        if mkey is not None:
            joined = self._join(draft, policy, name, mkey)
            if joined is not None:
                return joined
        is_limited = (
            policy.max_backlog is not None
            or policy.max_backlog_bytes is not None
            or tx.rules.has_backlog_limit
        )
        if is_limited and not draft.own:
            reason = make_room(tx, draft, policy, name, _TOPIC if is_copy else _EVERY)
            if reason is not None and not is_copy:
                return Receipt(draft.id or "", topic, "refused", None, reason)
        lane = tx.ensure_lane(name, rule)
        self.arrivals[lane.lane] = lane
        mid = self._insert(draft, policy, lane, mkey, is_blocked=is_blocked)
        return Receipt(draft.id or f"{tx.shard.nonce}-{mid:x}", topic)

    def _signal(self, draft: Draft) -> Receipt:
        receipt, lane = results.signal(self.tx, draft)
        if lane is not None:
            self.arrivals[lane.lane] = lane
        return receipt

    def _join(self, draft: Draft, policy: Resolved, name: str, mkey: bytes) -> Receipt | None:
        tx = self.tx
        lane = tx.find_lane(name)
        row = (
            merging.waiting_message(tx, lane, mkey)
            if lane is not None and not lane.forgotten
            else None
        )
        if lane is None or row is None or not merging.join(tx, lane, row, draft, policy):
            return None
        self.arrivals[lane.lane] = lane
        survivor = tx.id_of(row)
        return Receipt(draft.id or survivor, draft.topic, "merged", survivor)

    def _insert(
        self, draft: Draft, policy: Resolved, lane: Lane, mkey: bytes | None, *, is_blocked: bool
    ) -> int:
        tx = self.tx
        now = tx.now
        mid = tx.next_seq()
        since = now
        if is_blocked:
            since = UNTIL_SIGNALLED_US
        elif draft.delay_us > 0 or draft.at_us is not None:
            since = explicit_due(draft, tx.now) or now
        elif mkey is not None and policy.window is not None:
            since = merging.window_due(tx, draft.topic, mkey, policy) or now
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        expires = now + ttl if ttl is not None and not (is_blocked or draft.own) else None
        rank = rank_of(draft.priority, at_front=draft.at_front)
        serial = _SERIAL[policy.serial] if draft.key is not None else 0
        row_topic = draft.topic if lane.topic is None else None
        headers = _dumps(draft.headers).decode() if draft.headers else None
        odd = int(since > now or draft.at_front)
        if draft.headers and COST in draft.headers:
            messages.expect_costs(tx, lane)
        tx.shard.published += 1
        lane.published += 1
        if draft.id is not None:
            tx.idents.put((draft.id, draft.topic), mid, 0, None)
        if serial or mkey is not None:
            row = Row(
                mid,
                lane.lane,
                READY,
                rank,
                mid,
                since,
                now,
                expires,
                serial,
                odd,
                draft.key,
                draft.id,
                row_topic,
                mkey,
                headers,
                0,
                0,
                0,
                0,
                0,
                int(draft.sticky),
                draft.body,
            )
            messages.begin_waiting(tx, lane, row)
            tx.messages.add(row)
            return mid
        size = len(draft.body)
        lane.bytes += size
        tx.shard.bytes += size
        tx.shard.waiting += 1
        state = READY
        if since > now:
            state = DELAYED
            lane.delayed += 1
            tx.touch(lane)
            tx.events.put((since, DUE, mid), 0)
        else:
            lane.ready += 1
            tx.touch_grown(lane)
            self.ready.append((lane.lane, rank, since if rank & 1 else -mid, mid, mid))
        if expires is not None:
            tx.events.put((expires, EXPIRES, mid), 0)
        if (
            not (odd or draft.sticky)
            and expires is None
            and draft.key is None
            and draft.id is None
            and row_topic is None
        ):
            self.messages.append((mid, lane.lane, rank, now, headers or "", bytearray(draft.body)))
        else:
            tx.messages.appended.append(
                (
                    mid,
                    lane.lane,
                    state,
                    rank,
                    mid,
                    since,
                    now,
                    expires or 0,
                    0,
                    odd,
                    0 if draft.key is None else draft.key,
                    0 if draft.id is None else draft.id,
                    0 if row_topic is None else row_topic,
                    0,
                    0 if headers is None else headers,
                    int(draft.sticky),
                    bytearray(draft.body),
                )
            )
        return mid


# Backlog limits

_EVERY, _TOPIC, _NAMESPACE = slice(4), slice(2), slice(2, 4)
"""Which of the four limits count: those of the topic and of the namespace, by count and size."""


def make_room(
    tx: Transaction,
    draft: Draft,
    policy: Resolved,
    name: str,
    which: slice = _EVERY,
    *,
    may_drop: bool = True,
) -> str | None:
    """
    Check the backlog limits of the topic and the namespace, and drop the oldest messages where the
    policy says so (`may_drop` False: later). Returns why there is no room; None: there is.
    """
    rules, size = tx.rules, len(draft.body)
    lanes = _lanes_of(tx, draft.topic, policy, name)
    while True:
        count, held = _waiting_of(tx, draft.topic, lanes, policy)
        limits: tuple[tuple[int | None, int, int, str, str, str], ...] = (
            (policy.max_backlog, count, 1, f"topic {draft.topic}", "messages", policy.on_full),
            (policy.max_backlog_bytes, held, size, f"topic {draft.topic}", "bytes", policy.on_full),
            (rules.max_backlog, tx.shard.waiting, 1, "the namespace", "messages", rules.on_full),
            (
                rules.max_backlog_bytes,
                tx.shard.bytes,
                size,
                "the namespace",
                "bytes",
                rules.on_full,
            ),
        )
        over = next(
            (
                entry
                for entry in limits[which]
                if entry[0] is not None and entry[1] + entry[2] > entry[0]
            ),
            None,
        )
        if over is None:
            return None
        limit, waiting, needed, whose, unit, on_full = over[0] or 0, *over[1:]
        if not may_drop and on_full == "drop_oldest" and needed <= limit:
            return None
        # A message that is larger than the limit by itself would drop all others in vain.
        if on_full != "drop_oldest" or needed > limit or not _drop_oldest(tx, lanes, draft.topic):
            return full(whose, waiting, unit, limit)


def _lanes_of(tx: Transaction, topic: str, policy: Resolved, name: str) -> list[Lane]:
    names = [name]
    if policy.partitions > 1:
        names = [f"{topic}{PARTITION}{n}" for n in range(policy.partitions)]
        tx.load_names(names)
    lanes = (tx.find_lane(each) for each in names)
    return [lane for lane in lanes if lane is not None]


def _waiting_of(
    tx: Transaction, topic: str, lanes: list[Lane], policy: Resolved
) -> tuple[int, int]:
    if policy.buckets is not None:
        count, held = tx.one("topic_waiting", topic)
        return int(count), int(held)
    return sum(lane.waiting for lane in lanes), sum(lane.bytes for lane in lanes)


def _drop_oldest(tx: Transaction, lanes: list[Lane], topic: str) -> bool:
    """Drop the oldest message of the lowest priority; False: none may be dropped."""
    victims = [
        (*victim, lane.lane) for lane in lanes if (victim := _victim(tx, lane, topic)) is not None
    ]
    if not victims:
        return False
    *_, mid, number = min(victims)
    lane, row = tx.lane(number), messages.read(tx, mid)
    if row is None:
        return False
    messages.take_out(tx, lane, row)
    if row.serial:
        messages.free_key(tx, lane, row.line, row.mid)
    lane.removed += 1
    tx.shard.removed += 1
    messages.bury(tx, lane, row, DROPPED, None)
    tx.place(lane)
    return True


def _victim(tx: Transaction, lane: Lane, topic: str) -> tuple[int, int, int, int] | None:
    """(priority, since, sequence number, message) of the first message to drop in a lane."""
    if lane.topic is None:
        victim = tx.one("topic_victim", topic)
        return (*victim[1:], victim[0]) if victim else None
    kinds = (
        ("ready", (lane.lane,)),
        ("aside", (lane.lane, DELAYED)),
        ("aside", (lane.lane, PARKED)),
    )
    return min((each for kind, where in kinds for each in _victims(tx, kind, where)), default=None)


def _victims(tx: Transaction, kind: str, where: tuple[int, ...]) -> list[tuple[int, int, int, int]]:
    """The oldest messages of the lowest priority in one table: one for each of its two ranks."""
    victims: list[tuple[int, int, int, int]] = []
    rank = 1 << 40
    while (prior := tx.one(f"{kind}_prior_rank", *where, rank)) is not None:
        rank = prior[0]
        priority = -(rank >> 1)
        if victims and priority != victims[0][0]:
            break
        query = "ready_victim_at_front" if kind == "ready" and not rank & 1 else f"{kind}_victim"
        victim = tx.one(query, *where, rank)
        if victim is not None:
            victims.append((priority, victim[1], victim[2], victim[0]))
    return victims

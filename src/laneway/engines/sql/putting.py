"""
`Queue.put`: accept, merge or refuse messages.

First everything that the messages need is read, then each of them is decided in memory; the rows
are written together (see `tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter

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
from laneway.engines.shared.naming import BUCKET, lane_names, merge_key
from laneway.engines.shared.refusals import (
    check_cost,
    check_draft,
    explicit_due,
    may_merge,
)
from laneway.engines.shared.states import (
    ASLEEP,
    HOLD,
    IDLE,
    YIELD,
)
from laneway.engines.sql import backlog_limits, merging, messages, results
from laneway.engines.sql.backlog_limits import EVERY, NAMESPACE, TOPIC
from laneway.engines.sql.rows import Lane, Row, line_of, rank_of, to_json
from laneway.engines.sql.store import Read
from laneway.engines.sql.transaction import Transaction
from laneway.engines.sql.views import oldest_of
from laneway.headers import COST
from laneway.message import Draft, Receipt
from laneway.policy import Resolved, gate_names
from laneway.topic_groups import GROUP, group_of

_SERIAL = {None: 0, "hold": HOLD, "yield": YIELD}
_IS_COPIED = attrgetter("is_copied")


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
    policies = tx.policies([draft.topic for draft in drafts])
    if keeps_order or any(map(_IS_COPIED, policies)):
        return _put_in_turn(tx, drafts, policies, keeps_order=keeps_order, is_whole=is_whole)
    intake = _Intake(tx)
    entries = intake.read(drafts, policies)
    receipts = list(map(intake.accept, entries))
    intake.end()
    return receipts


def _check_cost(tx: Transaction, draft: Draft, policy: Resolved) -> None:
    """Raise BadMessage if the message costs more than its policy, a gate or its group allows."""
    if draft.own or draft.signal:
        return
    names = [*gate_names(policy.gate)]
    group = group_of(policy.group, policy.buckets_pattern or draft.topic)
    if group is not None:
        names.append(GROUP + group)
    states = [(name, tx.gate(name)) for name in names]
    check_cost(draft, policy, [(name, state.whole) for name, state in states if state is not None])


def _put_in_turn(
    tx: Transaction,
    drafts: Sequence[Draft],
    policies: Sequence[Resolved],
    *,
    keeps_order: bool,
    is_whole: bool,
) -> list[Receipt]:
    """Put messages whose answers depend on those before them, or that may have copies."""
    copies = list(map(copies_of, drafts, policies))
    if not is_whole:
        copies = copies[: count_within(list(map(len, copies)), MOST_AT_ONCE)]
    every = [
        each
        for draft, its in zip(drafts, copies, strict=False)  # only the first ones
        for each in (draft, *its)
    ]
    intake = _Intake(tx)
    entries = iter(intake.read(every, tx.policies([draft.topic for draft in every])))
    receipts: list[Receipt] = []
    full: dict[str, Receipt] = {}
    for its in copies:
        entry = next(entries)
        draft = entry[0]
        topic = draft.topic
        entries_of_copies = list(islice(entries, len(its)))
        if topic in full:
            receipts.append(msgspec.structs.replace(full[topic], id=draft.id or ""))
            continue
        receipts.append(intake.accept_copied(entry, entries_of_copies))
        if keeps_order and receipts[-1].outcome == "refused":
            full[topic] = receipts[-1]
    intake.end()
    return receipts


def reads(drafts: Sequence[Draft]) -> Iterator[Read]:
    """What a put of these reads if nothing is cached: the lanes that have their topics' names."""
    names = tuple(dict.fromkeys(draft.topic for draft in drafts))
    yield ("lanes_by_name", names) if len(names) > 1 else ("lane_by_name", *names)


def put_from_inbox(
    tx: Transaction, rows: Sequence[tuple[int, int, str, int, str, bytes, int | None]]
) -> list[int]:
    """
    Put messages of the inbox into their lanes: number, time, topic, rank, headers and body of each.
    One whose number was assigned meanwhile, by a program that knows no inbox, gets another. Returns
    the numbers.
    """
    tx.load_names({row[2] for row in rows}, creates=True, inbox=True)
    intake = _Intake(tx)
    now, tx.now = tx.now, tx.shard.now
    numbers = []
    for mid, published, topic, rank, headers, body, _ in rows:
        tx.now = max(tx.now, published)
        tx.shard.seq = max(tx.shard.seq, mid - 1)
        draft = Draft(topic, body, priority=-(rank >> 1))
        lane = intake.lane(topic, topic)
        numbers.append(intake.insert(draft, tx.policy(topic), lane, None, headers))
    tx.now = max(tx.now, now)
    intake.end()
    return numbers


_Entry = tuple["Draft", "Resolved", str, str, "bytes | None"]
"""
A message or a copy, with what is known of it before it is decided: its policy; the name of its lane
("": the next of its topic's partitions in turn) and whose policy that has; its merge key.
"""


class _Intake:
    """One call of put: reads what its messages need, then decides each of them."""

    def __init__(self, tx: Transaction) -> None:
        self.tx = tx
        self._is_limited = tx.rules.has_backlog_limit
        tx.backlogs.clear()
        self._lanes: dict[str, Lane] = {}
        """By name: the lanes that messages came to."""
        self._headers: tuple[object, str | None] = (None, None)

    def read(self, drafts: Sequence[Draft], policies: Sequence[Resolved]) -> list[_Entry]:
        """
        Check the messages, and read the rows that decide them, all of one table in one statement.
        """
        tx = self.tx
        now = tx.now
        entries: list[_Entry] = []
        decided: list[_Entry] = []
        limited: list[tuple[Draft, Resolved]] = []
        for draft, policy in zip(drafts, policies, strict=True):
            check_draft(draft, policy, now)
            if draft.headers is not None and COST in draft.headers:
                _check_cost(tx, draft, policy)
            if draft.delay_us or draft.at_us is not None:
                tx.has_due_later = True
            merges = policy.merge is not None
            if merges or policy.partitions > 1 or policy.buckets is not None:
                entry = self._entry(draft, policy)
            else:
                entry = draft, policy, draft.topic, draft.topic, None
            entries.append(entry)
            has_line = draft.key is not None and policy.serial is not None
            if merges or has_line or draft.id is not None:
                decided.append(entry)
            is_limited = policy.limits_backlog or self._is_limited
            if is_limited and not draft.own and draft.signal is None:
                limited.append((draft, policy))
        tx.load_names(dict.fromkeys(entry[2] for entry in entries if entry[2]), creates=True)
        if decided:
            self._load(decided)
        if limited:
            backlog_limits.read(tx, limited)
        return entries

    def _entry(self, draft: Draft, policy: Resolved) -> _Entry:
        """Determine the lane and the merge key of a message."""
        mkey = None
        if policy.merge is not None and may_merge(draft) and not draft.own:
            mkey = merge_key(draft)
        if policy.partitions == 1 and policy.buckets is None:
            return draft, policy, draft.topic, draft.topic, mkey
        spread_by = (
            draft.key.encode()
            if draft.key is not None
            else draft.body
            if mkey is not None
            else None
        )
        if spread_by is None and (policy.buckets is None or policy.buckets_pattern is None):
            return draft, policy, "", "", mkey
        return draft, policy, *self.tx.lane_of(policy, draft.topic, spread_by, 0), mkey

    def _load(self, entries: Sequence[_Entry]) -> None:
        """Read the rows of ids and keys."""
        tx = self.tx
        ids: list[tuple[str, str]] = []
        merge_keys: list[tuple[int, bytes]] = []
        serial_keys: list[tuple[int, str]] = []
        edges: list[tuple[str, bytes]] = []
        for draft, policy, name, _, mkey in entries:
            if draft.id is not None:
                ids.append((draft.id, draft.topic))
            lane = tx.find_lane(name) if name else None
            if mkey is not None:
                if lane is not None:
                    merge_keys.append((lane.lane, mkey))
                if policy.window is not None and policy.edge == "leading":
                    edges.append((draft.topic, mkey))
            if draft.key is not None and policy.serial is not None and lane is not None:
                line = line_of(draft.topic if lane.topic is None else None, draft.key)
                serial_keys.append((lane.lane, line or ""))
        mids: list[int] = []
        if ids:
            tx.idents.load(ids)
            if any(draft.signal is not None for draft, *_ in entries):
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
        """Place the lanes that messages came to."""
        tx = self.tx
        if tx.backlogs:
            backlog_limits.end(tx)
        # More ready messages do not change the place of a lane that had some. (A merge may have
        # taken its last one.)
        arrived = [lane for lane in self._lanes.values() if lane.place == IDLE or not lane.ready]
        if arrived:
            tx.load_gates(tx.gate_keys(arrived))
            tx.has_arrivals = True
        for lane in arrived:
            tx.place(lane)

    def lane(self, name: str, rule: str) -> Lane:
        """The lane of a message that is accepted."""
        lane = self._lanes[name] = self.tx.ensure_lane(name, rule)
        return lane

    def _headers_of(self, draft: Draft) -> str | None:
        """Its headers as JSON; the calls of a task have the same ones."""
        headers = draft.headers
        if headers is not self._headers[0]:
            self._headers = headers, to_json(headers).decode() if headers else None
        return self._headers[1]

    def accept_copied(self, entry: _Entry, copies: Sequence[_Entry]) -> Receipt:
        """Accept a message with all its copies, or none of them: it is known, or one is refused."""
        tx, draft, policy = self.tx, entry[0], entry[1]
        if not is_copied(draft, policy):
            return self.accept(entry)
        is_stored = policy.own_backlog
        if is_stored and draft.id is not None and messages.is_known(tx, draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        if expires := expiries(policy):
            copies = [copy for copy in copies if not self._is_unused(copy, expires)]
        for copy in copies:
            reason = self._why_full(copy)
            if reason is not None:
                return Receipt(draft.id or "", copy[0].topic, "refused", None, reason)
        receipt = self.accept(entry) if is_stored else None
        if receipt is not None and receipt.outcome == "refused":
            return receipt
        if (
            receipt is None
            and copies
            and self._is_limited
            and (reason := backlog_limits.make_room(tx, draft, None, NAMESPACE)) is not None
        ):
            return Receipt(draft.id or "", draft.topic, "refused", None, reason)
        receipts = [self.accept(copy, is_copy=True) for copy in copies]
        if receipt is not None:
            return receipt
        if not copies:
            tx.shard.published += 1
            tx.shard.removed += 1
            tx.tallies.count_unrouted(tx, draft.topic, policy.tier)
        return receipt_of_copies(draft, receipts)

    def _is_unused(self, copy: _Entry, expires: Mapping[str, int]) -> bool:
        """Whether the subscription of a copy has not been used for too long."""
        tx, policy, topic = self.tx, copy[1], copy[0].topic
        after_us = expires.get(subscriptions.split(topic)[1])
        if after_us is None or policy.paused:
            return False
        lanes = tx.lanes_named(lane_names(policy, topic))
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

    def _why_full(self, copy: _Entry) -> str | None:
        """Why a copy refuses its message: there is no room for it, and none can be made."""
        tx = self.tx
        draft, policy, name, _, mkey = copy
        if not policy.limits_backlog:
            return None
        if draft.id is not None and messages.is_known(tx, draft.topic, draft.id):
            return None
        lane = tx.find_lane(name) if mkey is not None else None
        if lane is not None and mkey is not None:
            row = merging.waiting_message(tx, lane, mkey)
            if row is not None and (policy.merge != "all" or row.parts + 1 < policy.merge_limit):
                return None
        return backlog_limits.make_room(tx, draft, None, TOPIC)

    def accept(self, entry: _Entry, *, is_copy: bool = False) -> Receipt:
        """
        Decide one message: duplicate, merged, refused or accepted, checked in this order.
        `is_copy`: it is not refused; see `accept_copied`.
        """
        tx = self.tx
        draft, policy, name, rule, mkey = entry
        topic = draft.topic
        if draft.signal is not None:
            return self._signal(draft)
        if not name:
            name, rule = tx.lane_of(policy, topic, None, tx.shard.seq + 1)
        if draft.id is not None and messages.is_known(tx, topic, draft.id):
            return Receipt(draft.id, topic, "duplicate")
        if mkey is not None:
            joined = self._join(draft, policy, name, mkey)
            if joined is not None:
                return joined
        if (policy.limits_backlog or self._is_limited) and not draft.own:
            reason = backlog_limits.make_room(tx, draft, self._lanes, TOPIC if is_copy else EVERY)
            if reason is not None and not is_copy:
                return Receipt(draft.id or "", topic, "refused", None, reason)
        lane = self._lanes.get(name) or self.lane(name, rule)
        headers = None if draft.headers is None else self._headers_of(draft)
        mid = self.insert(draft, policy, lane, mkey, headers)
        return Receipt(draft.id or f"{tx.shard.nonce}-{mid:x}", topic)

    def _signal(self, draft: Draft) -> Receipt:
        receipt, lane = results.signal(self.tx, draft)
        if lane is not None:
            self._lanes[lane.name] = lane
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
        self._lanes[lane.name] = lane
        survivor = tx.id_of(row)
        return Receipt(draft.id or survivor, draft.topic, "merged", survivor)

    def insert(
        self, draft: Draft, policy: Resolved, lane: Lane, mkey: bytes | None, headers: str | None
    ) -> int:
        """Store a message in its lane; `headers` as JSON. Returns its number."""
        tx = self.tx
        since = now = tx.now
        is_blocked = headers is not None and _is_blocked(draft)
        if is_blocked:
            since = UNTIL_SIGNALLED_US
        elif draft.delay_us > 0 or draft.at_us is not None:
            since = explicit_due(draft, now) or now
        elif mkey is not None and policy.window is not None:
            since = merging.window_due(tx, draft.topic, mkey, policy) or now
        expires = None
        if (policy.ttl is not None or draft.ttl_us is not None) and not (is_blocked or draft.own):
            expires = policy.expires_us(draft.ttl_us, now)
        mid = tx.next_seq()
        row = Row(
            mid,
            lane.lane,
            rank_of(draft.priority, at_front=draft.at_front),
            mid,
            since,
            now,
            expires,
            draft.key,
            draft.id,
            headers,
            draft.body,
            _SERIAL[policy.serial] if draft.key is not None else 0,
        )
        if since > now or draft.at_front:
            row.odd = 1
        if lane.name[0] == BUCKET:
            row.topic = draft.topic
        if mkey is not None:
            row.mkey = mkey
        if draft.sticky:
            row.sticky = 1
        if draft.id is not None:
            tx.idents.put((draft.id, draft.topic), mid, 0, None)
        tx.shard.published += 1
        lane.published += 1
        tx.messages.add(row)
        messages.begin_waiting(tx, lane, row)
        return mid


def _is_blocked(draft: Draft) -> bool:
    """Whether the message waits for signals."""
    return draft.headers is not None and SIGNALS_HEADER in draft.headers

"""The hot path of the model: housekeeping, publishing, serving, settling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

import msgspec

from laneway import headers as control
from laneway.engines.base import (
    BACK_OFF_FIRST_US,
    BACK_OFF_MAX_US,
    FLOW_HEADER,
    FORWARDED_US,
    HOUSEKEEPING_LIMIT,
    MOST_SPARE_DROPS,
    UNHANDLED_FIRST_US,
    UNHANDLED_MAX_US,
    UNTIL_SIGNALLED_US,
    housekeeping_of_lease,
)
from laneway.engines.shared import adaptive, fairness
from laneway.engines.shared.refusals import (
    AT_MOST_ONCE,
    check_names,
    finished_without_ack,
    retries_used_up,
)
from laneway.errors import BacklogFull, BadMessage
from laneway.message import Batch, Draft, Lease, Receipt, Settlement, SettlementAnswer
from laneway.policy import Resolved, gate_names
from laneway.topic_groups import GROUP, TOPIC, group_of
from tests.model.lanes import Lanes
from tests.model.state import (
    FIRST_COST_US,
    MAX_WAIT_WINDOWS,
    RATE_WINDOW_US,
    STEP,
    Call,
    Candidate,
    GroupQueue,
    HeldLease,
    Lane,
    MergeKey,
    Message,
    TierQueue,
    copies_of,
    earliest_and_latest,
    explicit_due,
    first_of,
    has_copies,
    is_past,
    merge_key,
    moving_mean,
    signals_needed,
    size_of,
    spread_by,
)

LATEST_AT_ONCE = 8

Event = tuple[int, int, int, Callable[[Any], None], Any]
"""(time, kind, number, function, its argument)"""

_ANSWERS_AT_MOST_ONCE: dict[str, SettlementAnswer] = {"ack": "acked", "dead": "died"}


class Engine(Lanes):
    """Publish, lease, settle, extend and tick."""

    # Housekeeping

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        self.now = self._time(now_us)
        self._housekeeping(budget)
        return self._next_wake()

    def _housekeeping(self, budget: int) -> None:
        """
        Due messages arrive, leases run out, events happen, gates and lanes wake, idle lanes go.

        At most `budget` of each.
        """
        self._come_due(budget)
        for next_one in (self._next_lease_end, self._next_event):
            for _ in range(budget):
                event = next_one()
                if event is None or event[0] > self.now:
                    break
                event[3](event[4])
        for of_key, key in first_of(
            budget,
            [
                (lane, key)
                for lane in self.lanes.values()
                for key, state in lane.key_states.items()
                if state.wake and state.wake <= self.now
            ],
            lambda found: found[0].key_states[found[1]].wake,
        ):
            self._wake_key(of_key, key)
            if of_key.place == "idle":
                self._place(of_key)
        for gate in first_of(
            budget,
            [gate for gate in self.gates.values() if is_past(gate.wake, self.now)],
            lambda gate: (gate.wake, gate.name),
        ):
            self._set_gate_wake(gate)
        for lane in earliest_and_latest(
            budget, self._lanes_to_wake("asleep"), lambda lane: (lane.wake, lane.number)
        ):
            self._place(lane)
        for lane in first_of(
            budget, self._lanes_to_wake("idle"), lambda lane: (lane.wake, lane.number)
        ):
            self._forget(lane)

    def _next_lease_end(self) -> Event | None:
        ends: list[Event] = [
            (lease.deadline, 1, lease.fence, self._lease_ran_out, lease)
            for lease in self.leases.values()
        ]
        return min(ends, key=lambda event: event[:3], default=None)

    def _next_event(self) -> Event | None:
        """The next event, ordered by time, then kind, then handle."""
        events: list[Event] = []
        for message in self.messages:
            if message.state == "waiting" and message.expires is not None:
                events.append((message.expires, 1, message.handle, self._expire_waiting, message))
            if message.death is not None:
                events.append((message.death.until, 2, message.handle, self._delete_dead, message))
        return min(events, key=lambda event: event[:3], default=None)

    def _lanes_to_wake(self, place: str) -> list[Lane]:
        return [
            lane
            for lane in self.lanes.values()
            if lane.place == place and is_past(lane.wake, self.now)
        ]

    def _next_wake(self) -> int | None:
        """
        The next time at which housekeeping has something to do.

        An engine may also answer a deadline that a lease had before it was settled or extended.
        """
        events = [self._next_lease_end(), self._next_event()]
        times = [event[0] if event is not None else None for event in events]
        times += [lane.timer for lane in self.lanes.values() if self._delayed(lane)]
        times += [lane.wake for lane in self.lanes.values() if lane.place in ("asleep", "idle")]
        times += [gate.wake for gate in self.gates.values()]
        times += [
            state.wake or None for lane in self.lanes.values() for state in lane.key_states.values()
        ]
        return (
            max((min(known), self.now))
            if (known := [time for time in times if time is not None])
            else None
        )

    def _come_due(self, budget: int) -> None:
        """
        Delayed messages whose time has come arrive; lanes share the budget.

        If there are too many lanes, one message of each of the first ones arrives, and several of
        the latest ones. A lane without such messages, whose timer was too early, counts as one.
        """
        is_flood = False
        while budget > 0 and not is_flood:
            lanes = sorted(
                (
                    lane
                    for lane in self.lanes.values()
                    if lane.timer <= self.now and self._delayed(lane)
                ),
                key=lambda lane: (lane.timer, lane.number),
            )
            if not lanes:
                return
            is_flood, half = len(lanes) >= budget, budget // 2
            if is_flood:
                due = {lane: self._due(lane, 1) for lane in lanes[: budget - half]}
                count = 0
                for lane in lanes[::-1][:half]:
                    if count < half:
                        due[lane] = self._due(lane, LATEST_AT_ONCE)
                        count += max(len(due[lane]), 1)
            else:
                due = {lane: self._due(lane, budget // len(lanes)) for lane in lanes}
            for message in sorted(chain(*due.values()), key=lambda one: (one.since, one.handle)):
                message.delayed = False
                if message.lane.place == "idle":
                    self._place(message.lane)
            for lane, found in due.items():
                lane.timer = next((max(one.since, self.now) for one in self._delayed(lane)), 0)
                budget -= max(len(found), 1)

    def _due(self, lane: Lane, most: int) -> list[Message]:
        return [one for one in self._delayed(lane) if one.since <= self.now][:most]

    def _expire_waiting(self, message: Message) -> None:
        lane = message.lane
        self._expire(message)
        self._place(lane)

    # Publishing

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        if not drafts:
            return []
        self._check_drafts(drafts, self._time(now_us))
        self.now = self._time(now_us)
        return self._put(drafts)

    def forward(
        self, drafts: Sequence[Draft], *, spool: str, batch: str, now_us: int | None = None
    ) -> list[Receipt]:
        self._check_drafts(drafts, self._time(now_us))
        self.now = self._time(now_us)
        if spool not in self.forwarded:
            for other, (_, _, at) in list(self.forwarded.items()):
                if at < self.now - FORWARDED_US:
                    del self.forwarded[other]
        name, before, _ = self.forwarded.get(spool, ("", frozenset(), 0))
        taken = set(before) if name == batch else set()
        receipts = [Receipt(draft.id or "", draft.topic, "duplicate") for draft in drafts]
        left = [n for n, draft in enumerate(drafts) if (draft.topic, draft.id) not in taken]
        for n, receipt in zip(left, self._put([drafts[n] for n in left], {}), strict=True):
            receipts[n] = receipt
            if receipt.outcome != "refused":
                taken.add((receipt.topic, receipt.id))
        self.forwarded[spool] = (batch, frozenset(taken), self.now)
        return receipts

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        policies = [self.policy_table.resolve(draft.topic) for draft in drafts]
        return not any(policy.limits_backlog or has_copies(policy) for policy in policies)

    def _check_drafts(self, drafts: Iterable[Draft], now: int) -> None:
        for draft in drafts:
            policy = self.policy_table.resolve(draft.topic)
            self._check_drafts(copies_of(draft, policy), now)
            check_names(draft)
            if draft.signal is not None:
                continue
            if len(draft.body) > policy.max_body:
                raise BadMessage("over max_body")
            group = group_of(policy.group, policy.buckets_pattern or draft.topic)
            gates = [*gate_names(policy.gate), *([GROUP + group] if group is not None else [])]
            if control.cost(draft.headers) > self._largest_cost(gates, policy) and not draft.own:
                raise BadMessage("its cost is too high")
            ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
            due = explicit_due(draft, now)
            if (
                ttl is not None
                and due is not None
                and due >= now + ttl
                and not signals_needed(draft.headers)
            ):
                raise BadMessage("its delay outlasts its ttl")

    def _put(
        self, drafts: Iterable[Draft], full_topics: dict[str, str] | None = None
    ) -> list[Receipt]:
        """
        `full_topics`: topics that refuse everything after the first refused message, with the topic
        whose backlog is full: their own or a copy's.
        """
        arrivals: list[Lane] = []
        receipts: list[Receipt] = []
        self.spare_drops = MOST_SPARE_DROPS
        for draft in drafts:
            if full_topics is not None and draft.topic in full_topics:
                full = full_topics[draft.topic]
                receipts.append(Receipt(draft.id or "", full, "refused", None, "full"))
                continue
            policy = self.policy_table.resolve(draft.topic)
            receipts.append(self._accept_with_copies(draft, policy, arrivals))
            if full_topics is not None and receipts[-1].outcome == "refused":
                full_topics[draft.topic] = receipts[-1].topic
        for lane in arrivals:
            if lane.place == "idle" or not self._ready(lane):
                self._place(lane)
        return receipts

    def _accept_with_copies(self, draft: Draft, policy: Resolved, arrivals: list[Lane]) -> Receipt:
        """Accept a message and all copies for its subscriptions, or nothing."""
        if draft.signal is not None or not has_copies(policy):
            return self._accept(draft, policy, arrivals)
        if policy.own_backlog and draft.id is not None and self._is_known(draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        copies = [
            (copy, self.policy_table.resolve(copy.topic))
            for copy in copies_of(draft, policy)
            if not self._is_unused(copy.topic, policy)
        ]
        for copy, its_policy in copies:
            if not self._takes_copy(copy, its_policy):
                return Receipt(draft.id or "", copy.topic, "refused", None, "full")
        receipt = self._accept(draft, policy, arrivals) if policy.own_backlog else None
        if receipt is not None and receipt.outcome == "refused":
            return receipt
        if receipt is None and copies and self._reached(draft, policy, "namespace"):
            return Receipt(draft.id or "", draft.topic, "refused", None, "full")
        answers = [self._accept(copy, its, arrivals, is_copy=True) for copy, its in copies]
        if receipt is not None:
            return receipt
        if not copies:
            self.counts.update(("published", "removed"))
            return Receipt(draft.id or "", draft.topic, "unrouted")
        best = min(
            answers, key=lambda answer: ("accepted", "merged", "duplicate").index(answer.outcome)
        )
        return Receipt(best.id, draft.topic, best.outcome, best.joined)

    def _is_unused(self, topic: str, policy: Resolved) -> bool:
        """Whether its messages have been ready for too long, and none is or was delivered since."""
        after_us = {f"#{each.name}": each.expires_us for each in policy.subscriptions}[
            topic[topic.index("#") :]
        ]
        lanes = self._lanes_of(topic)
        return (
            after_us is not None
            and not self.policy_table.resolve(topic).paused
            and any(
                self.now - message.since >= after_us
                for lane in lanes
                for message in self._ready(lane)
            )
            and not any(self._leased(lane) or self._sleeps(lane) for lane in lanes)
            and self.now - max(lane.window_from for lane in lanes) >= after_us
        )

    def _sleeps(self, lane: Lane) -> bool:
        """Whether its rate or a back-off delivers nothing until a later time."""
        return lane.place == "asleep" and lane.wake is not None and lane.wake > self.now

    def _takes_copy(self, copy: Draft, policy: Resolved) -> bool:
        """Whether there is room for a copy, or can be made, or it needs none."""
        if copy.id is not None and self._is_known(copy.topic, copy.id):
            return True
        merges_by = merge_key(copy.key, copy.body) if policy.merge else None
        name, _ = self._lane_name(policy, copy.topic, spread_by(copy.key, merges_by), 0)
        if merges_by is not None and name in self.lanes:
            waiting = self.lanes[name].collectors.get((copy.topic, *merges_by))
            if waiting is not None and (
                policy.merge != "all" or len(waiting.bodies) < policy.merge_limit
            ):
                return True
        over = self._reached(copy, policy, "topic")
        return over is None or (over[2] == "drop_oldest" and over[1] <= over[0])

    def _accept(
        self, draft: Draft, policy: Resolved, arrivals: list[Lane], *, is_copy: bool = False
    ) -> Receipt:
        """
        Answer duplicate, merged, refused or accepted, checked in this order. A copy is not refused.
        """
        if draft.signal is not None:
            return self._signal(draft, draft.signal, arrivals)
        if draft.id is not None and self._is_known(draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        merges_by = (
            merge_key(draft.key, draft.body)
            if policy.merge
            and not signals_needed(draft.headers)
            and FLOW_HEADER not in (draft.headers or {})
            else None
        )
        name, rule = self._lane_name(
            policy, draft.topic, spread_by(draft.key, merges_by), self.number + 1
        )
        survivor = self._join(self.lanes.get(name), draft, policy, merges_by)
        if survivor is not None:
            arrivals.append(survivor.lane)
            return Receipt(draft.id or survivor.id, draft.topic, "merged", survivor.id)
        which = "topic" if is_copy else "all"
        if not self._has_room(draft, policy, which, arrivals) and not is_copy:
            return Receipt(draft.id or "", draft.topic, "refused", None, "full")
        lane = self._make_lane(name, rule)
        arrivals.append(lane)
        return Receipt(self._insert(draft, policy, lane, merges_by).id, draft.topic)

    def _insert(
        self, draft: Draft, policy: Resolved, lane: Lane, merges_by: MergeKey | None
    ) -> Message:
        self.number += 1
        waits = signals_needed(draft.headers) > 0
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message = Message(
            handle=self.number,
            number=self.number,
            id=draft.id or f"generated-{self.number}",
            topic=draft.topic,
            bodies=[draft.body],
            key=draft.key,
            priority=draft.priority,
            at_front=draft.at_front,
            headers=draft.headers or None,
            published=self.now,
            since=UNTIL_SIGNALLED_US if waits else self._first_due(draft, policy, merges_by),
            expires=self.now + ttl if ttl is not None and not waits else None,
            signals=set() if waits else None,
            serial=policy.serial if draft.key is not None else None,
            merges_by=merges_by,
            sticky=draft.sticky,
            lane=lane,
        )
        self.messages.append(message)
        self._count(lane, "published")
        self._wait(message)
        return message

    def _signal(self, draft: Draft, number: int, arrivals: list[Lane]) -> Receipt:
        """
        Add a signal to the message that waits for it: its body is added to the message's bodies.

        With the last signal, or number 0, the message becomes ready.
        """
        message = next(
            (one for one in self.messages if (one.topic, one.id) == (draft.topic, draft.id)), None
        )
        if (
            message is None
            or message.signals is None
            or not message.delayed
            or number in message.signals
        ):
            return Receipt(draft.id or "", draft.topic, "duplicate")
        message.signals.add(number)
        message.bodies.append(draft.body)
        if number == 0 or len(message.signals) >= signals_needed(message.headers):
            ttl = self.policy_table.resolve(message.topic).ttl
            message.signals, message.since = None, explicit_due(draft, self.now) or self.now
            message.expires = self.now + ttl if ttl is not None else None
            if draft.ttl_us is not None:
                message.expires = message.published + draft.ttl_us
            self._wait(message)
            arrivals.append(message.lane)
        return Receipt(draft.id or "", draft.topic)

    def _first_due(self, draft: Draft, policy: Resolved, merges_by: MergeKey | None) -> int:
        """When a new message is due: an explicit time precedes the policy's window."""
        due = explicit_due(draft, self.now)
        if due is not None or merges_by is None or policy.window is None:
            return due or self.now
        if policy.edge == "trailing":
            return self.now + policy.window
        ends = self.edges.get((draft.topic, merges_by), 0)
        due = max(self.now, ends)
        self.edges[draft.topic, merges_by] = due + policy.window
        return due

    # Merging

    def _join(
        self,
        lane: Lane | None,
        draft: Draft,
        policy: Resolved,
        merges_by: MergeKey | None,
    ) -> Message | None:
        """
        Merge a new message into a waiting one as the policy says; None: there is none to join.
        """
        message = (
            lane.collectors.get((draft.topic, *merges_by))
            if lane is not None and merges_by is not None
            else None
        )
        if (
            lane is None
            or message is None
            or (policy.merge == "all" and len(message.bodies) >= policy.merge_limit)
        ):
            return None
        if policy.merge == "all":
            message.bodies.append(draft.body)
        due = self._due_after_join(message, draft, policy)
        if policy.merge == "last":
            self._replace_content(message, draft, policy)
        if policy.merge == "last" or due != message.since:
            if message.is_held_back or due > self.now:
                self._leave_key(message)
            message.since = due
            self._wait(message)
        if draft.id is not None:
            message.joined.append(draft.id)
        message.sticky = message.sticky or draft.sticky
        self._count(lane, "merged")
        return message

    def _due_after_join(self, message: Message, draft: Draft, policy: Resolved) -> int:
        due = explicit_due(draft, self.now) if policy.merge == "last" else None
        if (
            due is None
            and policy.debounce
            and policy.window is not None
            and message.since > self.now
        ):
            most = (
                policy.max_wait if policy.max_wait is not None else MAX_WAIT_WINDOWS * policy.window
            )
            due = max(self.now, min(message.published + most, self.now + policy.window))
        return due if due is not None else message.since

    def _replace_content(self, message: Message, draft: Draft, policy: Resolved) -> None:
        message.bodies, message.headers = [draft.body], draft.headers or None
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message.expires = self.now + ttl if ttl is not None else None
        message.attempts = 0
        self._change_priority(message, draft.priority, at_front=draft.at_front)

    def _change_priority(self, message: Message, priority: int, *, at_front: bool) -> None:
        """A new priority gives a new number, as if the message was removed and published."""
        if (priority, at_front) != (message.priority, message.at_front):
            message.priority, message.at_front = priority, at_front
            self.number += 1
            message.number = self.number

    def _merge_with_waiting(self, message: Message) -> bool:
        """
        Merge the message that waits under the merge key of a returning one into it.

        The waiting message counts as the later one. False: together they have too many bodies, and
        both remain.
        """
        other = (
            message.lane.collectors.get((message.topic, *message.merges_by))
            if message.merges_by is not None
            else None
        )
        if other is None:
            return True
        policy = self.policy_table.resolve(message.topic)
        if policy.merge == "all":
            if len(message.bodies) + len(other.bodies) > policy.merge_limit:
                return False
            message.bodies += other.bodies
        elif policy.merge == "last":
            message.bodies, message.headers, message.expires = (
                other.bodies,
                other.headers,
                other.expires,
            )
            self._change_priority(message, other.priority, at_front=other.at_front)
        message.joined += [*other.joined, other.id]
        message.sticky = message.sticky or other.sticky
        self._remove(other)
        self._count(message.lane, "merged")
        return True

    # Backlog limits

    def _reached(self, draft: Draft, policy: Resolved, which: str) -> tuple[int, int, str] | None:
        """
        The first limit that a message exceeds, what it needs of it, and what happens then.

        `which`: "topic", "namespace" or "all"; None: it exceeds none.
        """
        waiting, size = self._waiting_all(), len(draft.body)
        mine = [message for message in waiting if message.topic == draft.topic]
        limits: list[tuple[int | None, int, int, str]] = []
        if which != "namespace":
            limits += [
                (policy.max_backlog, len(mine), 1, policy.on_full),
                (policy.max_backlog_bytes, size_of(mine), size, policy.on_full),
            ]
        if which != "topic":
            limits += [
                (self.max_backlog, len(waiting), 1, self.on_full),
                (self.max_backlog_bytes, size_of(waiting), size, self.on_full),
            ]
        for limit, used, need, on_full in limits:
            if limit is not None and used + need > limit:
                return limit, need, on_full
        return None

    def _has_room(self, draft: Draft, policy: Resolved, which: str, arrivals: list[Lane]) -> bool:
        """Whether the backlog limits admit it, after dropping the oldest messages if configured."""
        spare = self.spare_drops + 1
        while (over := self._reached(draft, policy, which)) is not None:
            limit, need, on_full = over
            if on_full != "drop_oldest" or need > limit:
                return False
            if not spare:
                return True
            mine = [message for message in self._waiting_all() if message.topic == draft.topic]
            if not self._drop_oldest(mine, arrivals):
                return False
            spare -= 1
            self.spare_drops = min(self.spare_drops, spare)
        return True

    def _drop_oldest(self, among: list[Message], arrivals: list[Lane]) -> bool:
        """
        Make the oldest message of the lowest priority a dead letter.

        A message that holds its serial key is never dropped, nor is an end notice.
        """
        may_go = [
            message
            for message in among
            if message.lane.holders.get(message.serial_key) is not message
            and not message.is_end_notice
        ]
        if not may_go:
            return False
        victim = min(may_go, key=lambda message: (message.priority, message.since, message.number))
        lane = victim.lane
        self._count(lane, "removed")
        self._bury(victim, "dropped: the backlog was full", None)
        arrivals.append(lane)
        return True

    # Serving

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        max_lease_us: int | None = None,
        priorities: tuple[int, int] | None = None,
        holder: str | None = None,
        now_us: int | None = None,
    ) -> Batch:
        self.now = self._time(now_us)
        startable = n if startable is None else startable
        left = HOUSEKEEPING_LIMIT
        while True:
            self._housekeeping(housekeeping_of_lease(n))
            left -= housekeeping_of_lease(n)
            call = Call(startable, record_start, max_lease_us, priorities, holder)
            if topics is None:
                self._serve_pool(call, pool, n)
                self._mix(call)
            else:
                self._serve_topics(call, topics, pool, n)
            for lane in dict.fromkeys(call.visited):
                self._place(lane, was_visited=True, was_refused=lane in call.refused)
            wake = self._next_wake()
            if call.leases or wake != self.now or left <= 0:
                return Batch(call.leases, self.now, wake)

    def _serve_pool(self, call: Call, pool: str, room: int) -> None:
        """
        Serve strict tiers first, then the others by their shares.

        What a tier cannot use is divided among the others. One that lets others go first at a gate
        is not limited by them, so it keeps no larger claim.
        """
        tier_queues = [
            self.tier_queues[pool, tier] for tier in self.tiers if (pool, tier) in self.tier_queues
        ]
        for tier_queue in tier_queues:
            if self.tiers[tier_queue.tier].share == "strict":
                room -= self._serve(call, tier_queue, room)
                if call.withheld:
                    return
        call.tier_queues = [
            tier_queue
            for tier_queue in tier_queues
            if self.tiers[tier_queue.tier].share != "strict"
        ]
        every = {each.tier: self._tier_share(each) for each in call.tier_queues}
        carry = {each.tier: each.carry for each in call.tier_queues}
        taken = dict.fromkeys(every, 0)
        shares = {
            each.tier: every[each.tier]
            for each in call.tier_queues
            if self._count_deliverable(call, each)
        }
        waits: set[str] = set()
        while room > 0 and (shares or call.yielded) and not call.withheld:
            if not shares:  # nobody took what they left
                shares, call.yielded, call.yields = call.yielded, {}, False
            step = (
                room
                if len(shares) == 1 or call.startable >= room
                else call.startable or min(room, STEP)
            )
            call.claims = fairness.carries(every, carry, taken, every)
            took = self._serve_shares(call, pool, step, shares)
            for tier, number in took.items():
                taken[tier] += number
            room -= sum(took.values())
            waits = {tier for tier in waits if not took.get(tier)} | call.yielded.keys()
            if any(took.values()):
                back = shares.keys() | call.yielded.keys()
                shares = {tier: every[tier] for tier in every if tier in back}
                call.yielded = {}
        carry = fairness.carries(every, carry, taken, shares.keys() - waits)
        for each in call.tier_queues:
            each.carry = carry[each.tier]

    def _tier_share(self, tier_queue: TierQueue) -> float:
        return float(self.tiers[tier_queue.tier].share)

    def _mix(self, call: Call) -> None:
        """
        Order the leases: those of strict tiers first, then those of the others evenly interleaved.

        Fences grow in that order.
        """
        by_tier = {
            tier: [lease for its_tier, lease in call.taken if its_tier == tier]
            for tier in self.tiers
            if tier in {its_tier for its_tier, _ in call.taken}
        }
        strict = [leases for tier, leases in by_tier.items() if self.tiers[tier].share == "strict"]
        shared = [leases for tier, leases in by_tier.items() if self.tiers[tier].share != "strict"]
        heads = [iter(leases) for leases in shared]
        order = [lease for leases in strict for lease in leases] + [
            next(heads[n]) for n in fairness.interleave(list(map(len, shared)))
        ]
        leases = [lease for lease in order if lease is not None]
        held = [self.leases.pop(lease.fence) for lease in leases]
        for fence, lease, hold in zip(
            sorted(lease.fence for lease in leases), leases, held, strict=True
        ):
            lease.fence = hold.fence = fence
            self.leases[fence] = hold
        call.leases = leases

    def _serve_shares(
        self,
        call: Call,
        pool: str,
        room: int,
        shares: dict[str, float],
    ) -> dict[str, int]:
        """
        Divide `room` once; returns what the tiers took.

        Tiers that cannot use their part are removed from `shares`.
        """
        parts = fairness.split(room, shares, call.claims)
        taken: dict[str, int] = {}
        call.left = {self.tier_queues[pool, tier]: part for tier, part in parts.items()}
        for tier, part in parts.items():
            if part == 0:
                continue
            tier_queue = self.tier_queues[pool, tier]
            call.has_yielded = False
            taken[tier] = self._serve(call, tier_queue, part)
            call.left[tier_queue] -= taken[tier]
            if call.withheld:
                break
            if taken[tier] < part:
                share = shares.pop(tier)
                if call.has_yielded:
                    call.yielded[tier] = share
        return taken

    def _deliverable(self, call: Call, tier_queue: TierQueue) -> list[Candidate]:
        """
        What can deliver now, in order: lanes without a group, groups of lanes without gates, and
        the first lane at each open gate, which has the position of its entry.
        """
        found = [
            Candidate(*self._order_in_tier(lane), lane, None)
            for lane in self.lanes.values()
            if lane.tier_queue is tier_queue
            and lane.place == "runnable"
            and lane not in call.left_out
        ]
        for name in self.gates:
            first = self._first_at(call, name, tier_queue)
            if first is not None:
                found.append(Candidate(*self._order_in_tier(first), first, name))
        return sorted(found, key=lambda one: one[:4])

    @staticmethod
    def _order_in_tier(lane: Lane) -> tuple[int, int, int, int]:
        if lane.group is None:
            return lane.virtual, lane.number, 0, 0
        return lane.group.virtual, lane.group.number, lane.virtual, lane.number

    def _lanes_left(self, call: Call, group: GroupQueue) -> list[Lane]:
        """The lanes of the group without gates that can deliver more in this call."""
        return [
            lane
            for lane in self._lanes_in(group)
            if lane.place == "runnable" and lane not in call.left_out
        ]

    def _first_at(self, call: Call, name: str, tier_queue: TierQueue) -> Lane | None:
        """
        The first lane at a gate that admits it; None if it is the turn of another tier that this
        call serves, too.
        """
        first = self._first_in(call, name, tier_queue)
        if first is None or not self._gate_room(name, first):
            return None
        if call.yields and any(
            self._goes_before(call, name, first, each) for each in call.tier_queues
        ):
            call.has_yielded = True
            return None
        return first

    def _goes_before(self, call: Call, name: str, lane: Lane, tier_queue: TierQueue) -> bool:
        """
        Whether a lane of another tier precedes the lane at a gate, and can be served in this call,
        or needs the last that the gate admits. A slot is not kept for a lane that its tier will not
        serve soon.
        """
        other = self._first_in(call, name, tier_queue)
        if other is None or lane.tier_queue is tier_queue:
            return False
        if self._order_at(other) >= self._order_at(lane):
            return False
        if call.left.get(tier_queue, 0) > 0:
            return True
        return self._gate_room(name, lane) == 1 and (
            self.gates[name].concurrency is None or self._is_due(call, other)
        )

    def _is_due(self, call: Call, lane: Lane) -> bool:
        """
        Whether its tier is owed a part of a delivery, or has reached the lane in its order, or
        whether no lane competes with it for the slots of workers.
        """
        tier_queue, group = lane.tier_queue, lane.group
        if call.claims[tier_queue.tier] >= fairness.OWED:
            return True
        if group is None and lane.virtual < tier_queue.virtual:
            return True
        if group is not None and (group.virtual < tier_queue.virtual or lane.virtual < group.inner):
            return True
        return not any(
            other.place == "runnable" and other.tier_queue in call.tier_queues
            for other in self.lanes.values()
        )

    def _first_in(self, call: Call, name: str, tier_queue: TierQueue) -> Lane | None:
        waiting = [lane for lane in self._waiting_at(name, tier_queue) if lane not in call.left_out]
        return min(waiting, key=self._order_at, default=None)

    def _count_deliverable(self, call: Call, tier_queue: TierQueue) -> int:
        """How many lanes and groups compete; a group counts once at each gate."""
        runnable = {
            lane.group or lane
            for lane in self.lanes.values()
            if lane.tier_queue is tier_queue
            and lane.place == "runnable"
            and lane not in call.left_out
        }
        at_gates = 0
        for name in self.gates:
            first = self._first_in(call, name, tier_queue)
            if first is not None and self._gate_room(name, first):
                waiting = self._waiting_at(name, tier_queue)
                left = [lane for lane in waiting if lane not in call.left_out]
                at_gates += len({self._entry(lane, name) for lane in left})
        return len(runnable) + at_gates

    def _can_deliver(self, lane: Lane) -> bool:
        return lane.place == "runnable" or (
            lane.place == "at_gate" and self._gates_room(lane, lane.gates) > 0
        )

    def _serve(self, call: Call, tier_queue: TierQueue, room: int) -> int:
        """
        Visit the lane or group with the smallest virtual time until room or lanes are used up.
        """
        taken = 0
        entries = min(room, self._count_deliverable(call, tier_queue))
        while taken < room and not call.withheld:
            candidates = self._deliverable(call, tier_queue)
            if not candidates:
                break
            first = candidates[0]
            if first.gate is not None:
                taken += self._serve_gate(call, first.lane, first.gate, room - taken, entries)
            elif first.lane.group is not None:
                taken += self._serve_group(call, first.lane.group, room - taken, entries)
            else:
                taken += self._serve_lane(call, first.lane, room - taken, entries)
        return taken

    def _serve_lane(self, call: Call, lane: Lane, room: int, lanes: int) -> int:
        if not call.startable and self._is_limited(lane, self._policy(lane)):
            # Passed over, the lane would starve while this caller keeps its buffer full.
            call.withheld = True
            return 0
        got = self._visit(call, lane, room, lanes)
        (call.refused.discard if got else call.refused.add)(lane)
        if not got or not self._allowance(lane, self._policy(lane)):
            call.left_out.add(lane)
        return got

    def _serve_gate(self, call: Call, lane: Lane, name: str, room: int, entries: int) -> int:
        """Visit the first lane at a gate. If others do not admit it, it goes to one of them."""
        if self._waits_for_pool(call, name, lane, room):
            return 0
        group = lane.group
        if group is not None:
            room = fairness.chunk(room, entries, self._group_weight(group))
        got = self._serve_lane(call, lane, room, entries)
        if not call.withheld and lane.gate != name:
            call.moves[lane] += 1
            if call.moves[lane] <= 2 * len(lane.gates):
                call.left_out.discard(lane)
        if got and group is not None:
            before = group.tier_queue.virtual
            group.virtual = max(group.virtual, before - self._credit(lane))
            self._charge_group(group, got, got * self._expected_cost(lane), alone=entries <= 1)
            group.tier_queue.virtual = max(group.tier_queue.virtual, before)
        return got

    def _serve_group(self, call: Call, group: GroupQueue, room: int, entries: int) -> int:
        """
        Visit the group's lanes for as many messages as a lane of its weight would get.
        """
        room = fairness.chunk(room, entries, self._group_weight(group))
        competing = sum(lane.place == "runnable" for lane in self._lanes_in(group))
        lanes = max(competing, entries) if competing > 1 else 1
        taken, work = 0, 0
        while taken < room and not call.withheld and (left := self._lanes_left(call, group)):
            lane = min(left, key=lambda one: (one.virtual, one.number))
            got = self._serve_lane(call, lane, room - taken, lanes)
            taken, work = taken + got, work + got * self._expected_cost(lane)
        if taken:
            self._charge_group(group, taken, work, alone=entries <= 1)
        return taken

    def _charge_group(self, group: GroupQueue, taken: int, work: int, *, alone: bool) -> None:
        """`work`: what the messages are expected to cost, fair by time."""
        tier_queue, weight = group.tier_queue, self._group_weight(group)
        before, chunk = group.virtual, fairness.chunk(taken, 2, weight)
        if self._is_fair_by_time(tier_queue):
            group.virtual += fairness.stride_of_work(work, weight)
            one_chunk = fairness.stride_of_work(work * chunk // taken, weight)
        else:
            group.virtual += fairness.stride(taken, weight)
            one_chunk = fairness.stride(chunk, weight)
        tier_queue.virtual = before
        if alone:
            tier_queue.virtual = fairness.reached(before, group.virtual, one_chunk)

    def _visit(
        self,
        call: Call,
        lane: Lane,
        room: int,
        lanes: int,
        topic: str | None = None,
        *,
        in_order: bool = True,
    ) -> int:
        """
        Take what all limits admit, and advance the lane's virtual time.

        `topic`: only this topic's messages of a bucket. `in_order`: only if it is the lane's turn
        at its gates.
        """
        policy = self._policy(lane)
        call.visited.append(lane)
        here = lane.gate if lane.place == "at_gate" else None
        ready = [
            message
            for message in self._ready(lane)
            if topic in (None, message.topic)
            and (
                call.priorities is None
                or call.priorities[0] <= message.priority <= call.priorities[1]
            )
        ]
        take = min(
            room,
            len(ready),
            fairness.chunk(room, lanes, policy.weight),
            self._allowance(lane, policy),
        )
        if self._is_limited(lane, policy):
            take = min(take, call.startable)
        if take <= 0:
            return 0
        gates = self._gates_of(lane, policy)
        blocked = [
            name
            for name in gates
            if not self._gate_room(name, lane)
            or (
                in_order
                and name != here
                and not self._has_spare(name)
                and not self._is_turn(call, lane, name)
            )
        ]
        if blocked:
            if here is not None and in_order and here not in blocked:
                cost = min(ready[0].cost, self._largest_cost(gates, policy))
                self._move_to_gate(call, lane, blocked, cost)
            return 0
        take = min(take, self._gates_room(lane, gates))
        ready = self._within_key_limits(lane, ready, take, policy)
        if not ready:
            return 0
        largest = self._largest_cost(gates, policy)
        costs = [min(message.cost, largest) for message in ready]
        costs = self._admitted(call, lane, policy, gates, costs)
        take = len(costs)
        if take == 0:
            return 0
        call.startable -= take if self._is_limited(lane, policy) else 0
        self._pass_gates(lane, gates, costs, policy.weight)
        self._charge(lane, policy, costs, alone=lanes <= 1)
        shared = policy.shared
        if shared is not None and shared.rate is not None and take < len(self._ready(lane)):
            clock = (self.gates[TOPIC + lane.rule].tat, self.now, shared.rate)
            self._throttle(lane, fairness.next_permit_us(*clock, shared.effective_burst))
        if policy.lane_adapts:
            lane.flow = lane.flow or adaptive.Flow(changed=self.now)
            limit = adaptive.limit_of(lane.flow, policy.min_concurrency, policy.max_concurrency)
            adaptive.delivered(lane.flow, self._leased(lane) + take, limit)
        for message in ready[:take]:
            if (key := self._limited_key(message, policy)) is not None:
                self._take_key(lane, key, policy)
        for message in ready[:take]:
            self._deliver(call, message, policy)
        return take

    def _admitted(
        self, call: Call, lane: Lane, policy: Resolved, gates: Sequence[str], costs: list[int]
    ) -> list[int]:
        """
        The costs of the first messages, as many as all rates admit.

        What stops the first message waits for its permits: the lane, or else a gate.
        """
        rated = [self.gates[name] for name in gates if self.gates[name].limits.rate is not None]
        if not policy.lane_rate and not rated:
            return costs
        taken: list[int] = []
        lane.need = 1
        for cost in costs:
            if policy.lane_rate and not fairness.admits(
                fairness.take_permits(lane.tat, self.now, policy.lane_rate, sum(taken)),
                self.now,
                policy.lane_rate,
                policy.lane_burst,
                cost,
            ):
                lane.need = cost
                break
            short = [gate for gate in rated if not self._gate_admits(gate, sum(taken), cost)]
            if short:
                if not taken:
                    self._wait_for_permits(call, lane, short, cost)
                break
            taken.append(cost)
        return taken

    def _largest_cost(self, gates: Iterable[str], policy: Resolved) -> int:
        """The most that a delivery is charged, by the policy and by gates that are defined."""
        of_gates = [
            self.gates[name].limits.largest_cost
            for name in gates
            if name in self.gates and not name.startswith(TOPIC)
        ]
        return min([policy.largest_cost, *of_gates])

    def _charge(self, lane: Lane, policy: Resolved, costs: list[int], *, alone: bool) -> None:
        take = len(costs)
        tier_queue = lane.tier_queue
        least = 0
        if lane.place == "at_gate":
            least = self._inner(lane)
            lane.virtual = max(lane.virtual, least - self._credit(lane))
        reached = lane.virtual
        lane.virtual += self._stride(lane, policy, take)
        if alone:
            one_chunk = self._stride(lane, policy, fairness.chunk(take, 2, policy.weight))
            reached = fairness.reached(reached, lane.virtual, one_chunk)
        reached = max(reached, least)
        if lane.group is not None:
            lane.group.inner = reached
        else:
            tier_queue.virtual = reached
        if policy.lane_rate:
            lane.tat = fairness.take_permits(lane.tat, self.now, policy.lane_rate, sum(costs))
            lane.owes = max(costs)
        tier_queue.delivered += take
        self._count(lane, "delivered", take)
        elapsed = self.now - lane.window_from
        if elapsed >= RATE_WINDOW_US:
            lane.in_window_before = lane.in_window if elapsed < 2 * RATE_WINDOW_US else 0
            lane.in_window, lane.window_from = 0, self.now
        lane.in_window += take

    def _credit(self, lane: Lane) -> int:
        """How far a lane that waited at a gate may be behind its tier: a delivery of weight 1."""
        if self._is_fair_by_time(lane.tier_queue):
            return fairness.stride_of_work(self._expected_cost(lane), 1.0)
        return fairness.stride(1, 1.0)

    def _stride(self, lane: Lane, policy: Resolved, take: int) -> int:
        if self._is_fair_by_time(lane.tier_queue):
            return fairness.stride_of_work(take * self._expected_cost(lane), policy.weight)
        return fairness.stride(take, policy.weight)

    def _is_fair_by_time(self, tier_queue: TierQueue) -> bool:
        return self._fair_by(tier_queue) == "time"

    def _expected_cost(self, lane: Lane) -> int:
        return lane.mean or lane.tier_queue.mean or FIRST_COST_US

    def _deliver(self, call: Call, message: Message, policy: Resolved) -> None:
        lane = message.lane
        if is_past(message.expires, self.now):  # housekeeping has not got to it yet
            self._uncount_delivery(lane, policy)
            self._free_key_slot(lane, self._limited_key(message, policy))
            self._expire(message)
            call.taken.append((lane.tier_queue.tier, None))
            return
        self.fence += 1
        length = policy.lease
        if call.max_lease_us is not None:
            length = min(length, call.max_lease_us)
        deadline = self.now + length
        self.deadlines_given.add(deadline)
        charge = self._expected_cost(lane) if self._is_fair_by_time(lane.tier_queue) else 0
        started = message.suspect and call.record_start
        serial_key = message.serial_key if message.serial is not None else None
        held = HeldLease(
            self.fence,
            message.handle,
            message,
            lane,
            message.topic,
            deadline,
            self.now,
            charge,
            started,
            self._gates_of(lane, policy),
            serial_key,
            self._limited_key(message, policy),
            call.holder,
        )
        self.leases[self.fence] = held
        self._stop_waiting(message)
        message.state = "leased"
        if serial_key is not None:
            lane.holders[serial_key] = message
        collects = len(message.bodies) > 1 or (
            message.merges_by is not None and policy.merge == "all"
        )
        lease = Lease(
            message.handle,
            self.fence,
            message.id,
            message.topic,
            message.bodies[0],
            deadline,
            message.attempts + 1,
            message.deliveries + 1,
            message.key,
            message.priority,
            message.headers,
            message.published,
            message.suspect,
            list(message.bodies) if collects else None,
            self._is_limited(lane, policy),
        )
        call.leases.append(lease)
        call.taken.append((lane.tier_queue.tier, lease))
        if policy.delivery == "at_most_once":
            self._finish_at_delivery(held, message)

    def _uncount_delivery(self, lane: Lane, policy: Resolved) -> None:
        self._count(lane, "delivered", -1)
        for name in self._gates_of(lane, policy):
            self.gates[name].leased -= 1
            self._set_gate_wake(self.gates[name])

    def _finish_at_delivery(self, held: HeldLease, message: Message) -> None:
        self._finish(message)
        held.message, held.finished = None, message
        if held.serial_key is not None:
            held.lane.holders[held.serial_key] = held

    def _serve_topics(self, call: Call, topics: Sequence[str], pool: str, room: int) -> None:
        """Serve topics in the given order, whatever their tiers."""
        for topic in topics:
            for lane in self._lanes_of(topic):
                if room <= 0 or lane.tier_queue.pool != pool or not self._can_deliver(lane):
                    continue
                if not call.startable and self._is_limited(lane, self._policy(lane)):
                    return
                got = self._visit(call, lane, room, 1, topic, in_order=False)
                room -= got
                if got and lane.group is not None:
                    work = got * self._expected_cost(lane)
                    self._charge_group(lane.group, got, work, alone=True)

    # Leases

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        self.now = self._time(now_us)
        valid = [self._valid(handle, fence) for handle, fence in leases]
        for lease in valid:
            if lease is not None:
                lease.started = True
        return [lease is not None for lease in valid]

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        self.now = self._time(now_us)
        valid = [self._valid(handle, fence) for handle, fence in leases]
        for lease in valid:
            if lease is not None:
                lease.deadline = max(lease.deadline, self.now + by_us)
                self.deadlines_given.add(lease.deadline)
        return [lease is not None for lease in valid]

    def _valid(self, handle: int, fence: int) -> HeldLease | None:
        """The lease, valid until it is settled or taken back, even past its deadline."""
        lease = self.leases.get(fence)
        return lease if lease is not None and lease.handle == handle and not lease.gone else None

    # Settling

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        if not settlements:
            return []
        before = deepcopy(self.__dict__) if publish else {}
        follow = {
            n: self._with_derived_ids(settlements[n], drafts)
            for n, drafts in (publish or {}).items()
        }
        self._check_drafts(
            [draft for drafts in follow.values() for draft in drafts], self._time(now_us)
        )
        self.now = self._time(now_us)
        ended: list[Lane] = []
        answers = [self._settle(settlement, ended) for settlement in settlements]
        for lane in sorted(set(ended), key=lambda lane: lane.number):
            self._place(lane)
        for settlement, answer in zip(settlements, answers, strict=True):
            if (
                settlement.outcome is not None
                and settlement.id is not None
                and settlement.topic is not None
                and answer in ("acked", "died")
            ):
                self.outcomes[settlement.topic, settlement.id] = settlement.outcome
        receipts = self._put(
            [
                draft
                for n, answer in enumerate(answers)
                if answer in ("acked", "died")
                for draft in follow.get(n, ())
            ]
        )
        if any(receipt.outcome == "refused" for receipt in receipts):
            self.__dict__ = before
            raise BacklogFull("a message published with an ack is refused")
        return answers

    def _with_derived_ids(self, settlement: Settlement, drafts: Sequence[Draft]) -> list[Draft]:
        """
        Drafts published with an ack or a reject get ids derived from the message's id.

        None if the lease is lost.
        """
        lease = self._valid(settlement.handle, settlement.fence)
        if lease is None or settlement.action not in ("ack", "dead"):
            return []
        parent = lease.message.id if lease.message is not None else f"generated-{lease.handle}"
        return [
            msgspec.structs.replace(draft, id=draft.id or f"{parent}:{n}", sticky=True)
            for n, draft in enumerate(drafts)
        ]

    def _settle(self, settlement: Settlement, ended: list[Lane]) -> SettlementAnswer:
        lease = self.leases.get(settlement.fence)
        if lease is None or lease.handle != settlement.handle:
            return "lost"
        if lease.gone:
            del self.leases[lease.fence]
            return "gone"
        lane, message = lease.lane, lease.message
        ended.append(lane)
        self._end(lease, settlement.cost_us)
        settlement = self._adapt(lane, settlement)
        if settlement.action == "ack" and lane.back_off_us and lease.fence > lane.back_off_fence:
            lane.back_off_us = lane.backs_off_until = 0
        if settlement.action == "back_off":
            self._back_off(lease, settlement.delay_us, ended)
        if message is None:
            self._report_finished(lease, settlement)
            return _ANSWERS_AT_MOST_ONCE.get(settlement.action, "released")
        if settlement.action == "ack":
            self._finish(message)
            return "acked"
        message.deliveries += 1
        if settlement.action == "retry":
            return self._retry(message, settlement)
        if settlement.action == "dead":
            message.attempts += 1
            reason = settlement.reason or "the handler refused it"
            self._add_to_history(message, reason, settlement.error)
            return self._die(message, reason, settlement.error)
        if settlement.action == "unhandled":
            return self._unhandled(message)
        if settlement.action == "release" and not settlement.begun:
            self._return_permits(lease, message.cost)
        delay = (settlement.delay_us or 0) if settlement.action == "release" else 0
        self._come_back(message, self.now + delay if delay > 0 else None)
        return "released"

    def _report_finished(self, lease: HeldLease, settlement: Settlement) -> None:
        """Store the outcome of an at-most-once message whose handler did not succeed."""
        if lease.finished is None or settlement.action == "ack":
            return
        reason = finished_without_ack(settlement.action, settlement.error, settlement.reason)
        self._store_outcome(lease.finished, "dead", reason)

    def _adapt(self, lane: Lane, settlement: Settlement) -> Settlement:
        """
        Adapt the limit of concurrency="auto" to the end of a lease.

        Above the least limit an unavailable destination only delays its message.
        """
        policy = self._policy(lane)
        flow, gate = lane.flow, None
        if policy.shared is not None:
            gate = self.gates[TOPIC + lane.rule]
            flow = gate.flow
        if flow is None or not policy.adapts:
            return settlement
        least, most = policy.min_concurrency, max(policy.min_concurrency, policy.max_concurrency)
        reason = adaptive.reason_of(settlement.action, settlement.overload)
        if reason is not None:
            is_borne = adaptive.bears(flow, settlement.fence, least, most)
            adaptive.overloaded(flow, reason, settlement.fence, self.fence, least, most, self.now)
            if gate is not None:
                self._set_gate_wake(gate)
            is_for_a_time = settlement.action != "back_off" or settlement.delay_us is not None
            if is_borne and not is_for_a_time and not lane.back_off_us:
                return msgspec.structs.replace(
                    settlement, action="release", delay_us=BACK_OFF_FIRST_US, begun=True
                )
        elif settlement.action == "ack":
            here = adaptive.limit_of(flow, least, most)
            adaptive.succeeded(flow, settlement.cost_us, least, most, here, self.now)
            if gate is not None:
                self._set_gate_wake(gate)
        return settlement

    def _end(self, lease: HeldLease, cost_us: int) -> None:
        """Free what the lease holds, and correct its cost."""
        del self.leases[lease.fence]
        self._free_gates(lease)
        self._free_key_slot(lease.lane, lease.limited_key)
        if lease.message is None:
            self._free_serial_key(lease.lane, lease.serial_key, lease)
        if lease.charge:
            self._correct_cost(lease, cost_us)

    def _correct_cost(self, lease: HeldLease, cost_us: int) -> None:
        """
        Fair by time: charge the lane the real cost of its message.

        The lane never falls behind its tier queue.
        """
        lane, tier_queue = lease.lane, lease.lane.tier_queue
        cost = max(0, min(cost_us, lease.deadline - lease.granted))
        more = cost - lease.charge
        corrected = lane.virtual + fairness.stride_of_work(more, self._policy(lane).weight)
        lane.virtual = max(corrected, min(self._inner(lane), lane.virtual))
        if lane.group is not None:
            group = lane.group
            corrected = group.virtual + fairness.stride_of_work(more, self._group_weight(group))
            group.virtual = max(corrected, min(tier_queue.virtual, group.virtual))
        if cost:
            lane.mean = moving_mean(self._expected_cost(lane), cost)
            tier_queue.mean = moving_mean(tier_queue.mean or FIRST_COST_US, cost)

    def _retry(self, message: Message, settlement: Settlement) -> SettlementAnswer:
        policy = self.policy_table.resolve(message.topic)
        what = settlement.reason or "failed"
        message.attempts += 1
        self._add_to_history(message, what, settlement.error)
        if message.attempts > policy.retries:
            return self._die(
                message,
                retries_used_up(message.attempts, settlement.error, settlement.reason),
                settlement.error,
            )
        delay = settlement.delay_us
        if delay is None:
            delay = policy.backoff.delay_us(
                message.attempts, self.random() if policy.backoff.jitter else 1.0
            )
        self._count(message.lane, "retried")
        if message.serial == "yield":
            self._free_serial_key(message.lane, message.serial_key, message)
        self._come_back(message, self.now + max(delay, 0))
        return "retried"

    def _unhandled(self, message: Message) -> SettlementAnswer:
        if message.unhandled_from is None:
            message.unhandled_from = self.now
        longest = self.policy_table.resolve(message.topic).on_unhandled
        if longest is not None and self.now - message.unhandled_from >= longest:
            reason = "no handler: no worker had a handler for it within on_unhandled"
            self._add_to_history(message, reason, None)
            return self._die(message, reason, None)
        delay = min(UNHANDLED_FIRST_US << min(message.unhandled_times, 16), UNHANDLED_MAX_US)
        message.unhandled_times += 1
        self._come_back(message, self.now + delay)
        return "released"

    def _back_off(self, lease: HeldLease, asked: int | None, ended: list[Lane]) -> None:
        """
        The destination is unavailable: all lanes of the topic back off.

        Reports by leases from before the back-off are ignored.
        """
        lane = lease.lane
        if lease.fence <= lane.back_off_fence:
            return
        step = min(lane.back_off_us * 2, BACK_OFF_MAX_US) if lane.back_off_us else BACK_OFF_FIRST_US
        if asked is not None:
            step = max(asked, 1)
        for each in [lane] if lane.topic is None else self._lanes_of(lane.topic):
            each.back_off_us, each.backs_off_until, each.back_off_fence = (
                step,
                self.now + step,
                self.fence,
            )
            ended.append(each)

    def _return_permits(self, lease: HeldLease, cost: int) -> None:
        policy, since = self._policy(lease.lane), self.now - lease.granted
        cost = min(cost, self._largest_cost(lease.gates, policy))
        if policy.lane_rate:
            lease.lane.tat = fairness.return_permits(lease.lane.tat, policy.lane_rate, cost, since)
        key = lease.limited_key
        state = lease.lane.key_states.get(key) if key is not None else None
        if key is not None and state is not None and policy.key_rate is not None:
            state.give_back(policy.key_rate, since)
            if state.room(policy, self.now):
                self._bring_forward(lease.lane, key, 1)
            self._rest_key(lease.lane, key)
        for gate in (self.gates[name] for name in lease.gates):
            if gate.limits.rate is not None:
                gate.tat = fairness.return_permits(gate.tat, gate.limits.rate, cost, since)
                self._set_gate_wake(gate)

    def _come_back(self, message: Message, due: int | None) -> None:
        """
        The message waits again: delayed until `due`, its new since, or at once with the old one.

        Past its ttl it expires.
        """
        if is_past(message.expires, self.now):
            self._expire(message)
            return
        if due is not None:
            message.since = due
        self._wait(message, collects=self._merge_with_waiting(message))

    def _lease_ran_out(self, lease: HeldLease) -> None:
        """A lease was not settled in time."""
        if lease.gone:
            del self.leases[lease.fence]
            return
        self._end(lease, lease.deadline - lease.granted)
        if lease.message is not None:
            self._become_suspect(lease.message, started=lease.started)
        elif lease.finished is not None:
            self._store_outcome(lease.finished, "dead", AT_MOST_ONCE)
        self._place(lease.lane)

    def _become_suspect(self, message: Message, *, started: bool) -> None:
        message.deliveries += 1
        message.suspect = True
        if started:
            reason = "lease ran out after its start was recorded"
            message.attempts += 1
            self._add_to_history(message, reason, None)
            if message.attempts > self.policy_table.resolve(message.topic).retries:
                self._die(message, reason, None)
                return
        self._come_back(message, None)

"""The hot path: housekeeping, publishing, serving, settling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import msgspec

from laneway.engines.base import (
    BACK_OFF_FIRST_US,
    BACK_OFF_MAX_US,
    HOUSEKEEPING_LIMIT,
    UNHANDLED_FIRST_US,
    UNHANDLED_MAX_US,
    UNTIL_SIGNALLED_US,
)
from laneway.engines.shared import fairness
from laneway.engines.shared.refusals import retries_used_up
from laneway.errors import BacklogFull, BadMessage
from laneway.message import Batch, Draft, Lease, Receipt, Settlement
from laneway.policy import Resolved
from tests.model.lanes import Lanes
from tests.model.things import (
    FIRST_COST_US,
    MAX_WAIT_WINDOWS,
    RATE_WINDOW_US,
    STEP,
    Call,
    GateState,
    Held,
    Lane,
    Message,
    TierQueue,
    explicit_due,
    first_of,
    is_past,
    merge_key,
    moved,
    signals_needed,
    size_of,
    spread_by,
)


class Engine(Lanes):
    """The protocol `Engine`."""

    # The clock

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        self.now = self._time(now_us)
        self._keep_house(budget)
        return self._next_wake()

    def _keep_house(self, budget: int) -> None:
        """
        Events one by one, then gates and lanes that wake, then lanes to forget; at most `budget` of
        each.
        """
        for _ in range(budget):
            event = self._next_event()
            if event is None or event[0] > self.now:
                break
            event[3](event[4])
        for gate in first_of(
            budget,
            [gate for gate in self.gates.values() if is_past(gate.wake, self.now)],
            lambda gate: (gate.wake, gate.name),
        ):
            self._look_at_gate(gate)
        for lane in first_of(
            budget, self._lanes_to_wake("asleep"), lambda lane: (lane.wake, lane.number)
        ):
            self._place(lane)
        for lane in first_of(
            budget, self._lanes_to_wake("idle"), lambda lane: (lane.wake, lane.number)
        ):
            del self.lanes[lane.name]

    def _next_event(self) -> tuple[int, int, int, Callable[[Any], None], Any] | None:
        """
        (when, kind, number, what happens, to what): by time, then by kind, then by fence or by the
        order of acceptance.
        """
        events: list[tuple[int, int, int, Callable[[Any], None], Any]] = [
            (lease.deadline, 1, lease.fence, self._run_out, lease) for lease in self.leases.values()
        ]
        for message in self.messages:
            if message.state == "waiting" and message.delayed:
                events.append((message.since, 2, message.handle, self._come_due, message))
            if message.state == "waiting" and message.expires is not None:
                events.append((message.expires, 3, message.handle, self._expire_waiting, message))
            if message.death is not None:
                events.append((message.death.until, 4, message.handle, self._forget_dead, message))
        return min(events, key=lambda event: event[:3], default=None)

    def _lanes_to_wake(self, place: str) -> list[Lane]:
        return [
            lane
            for lane in self.lanes.values()
            if lane.place == place and is_past(lane.wake, self.now)
        ]

    def _next_wake(self) -> int | None:
        """
        When there is something to do again. An engine may also name a deadline that a lease had
        before it was settled or extended.
        """
        event = self._next_event()
        times = [event[0] if event is not None else None]
        times += [lane.wake for lane in self.lanes.values() if lane.place in ("asleep", "idle")]
        times += [gate.wake for gate in self.gates.values()]
        return (
            max((min(known), self.now))
            if (known := [time for time in times if time is not None])
            else None
        )

    def _come_due(self, message: Message) -> None:
        message.delayed = False
        if message.lane.place == "idle":
            self._place(message.lane)

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

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        return not any(self.book.resolve(draft.topic).limits_backlog for draft in drafts)

    def _check_drafts(self, drafts: Iterable[Draft], now: int) -> None:
        for draft in drafts:
            policy = self.book.resolve(draft.topic)
            if draft.signal is not None:
                continue
            if len(draft.body) > policy.max_body:
                raise BadMessage("over max_body")
            ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
            due = explicit_due(draft, now)
            if (
                ttl is not None
                and due is not None
                and due >= now + ttl
                and not signals_needed(draft.headers)
            ):
                raise BadMessage("its delay outlasts its ttl")

    def _put(self, drafts: Iterable[Draft]) -> list[Receipt]:
        arrivals: list[Lane] = []
        receipts = [
            self._accept(draft, self.book.resolve(draft.topic), arrivals) for draft in drafts
        ]
        for lane in arrivals:
            if lane.place == "idle" or not self._ready(lane):
                self._place(lane)
        return receipts

    def _accept(self, draft: Draft, policy: Resolved, arrivals: list[Lane]) -> Receipt:
        """Known, merged, refused or accepted, in this order."""
        if draft.signal is not None:
            return self._signal(draft, draft.signal, arrivals)
        if draft.id is not None and self._is_known(draft.topic, draft.id):
            return Receipt(draft.id, draft.topic, "duplicate")
        merges_by = (
            merge_key(draft.key, draft.body)
            if policy.merge and not signals_needed(draft.headers)
            else None
        )
        name, rule = self._lane_name(
            policy, draft.topic, spread_by(draft.key, merges_by), self.number + 1
        )
        survivor = self._join(self.lanes.get(name), draft, policy, merges_by)
        if survivor is not None:
            arrivals.append(survivor.lane)
            return Receipt(draft.id or survivor.id, draft.topic, "merged", survivor.id)
        if not self._has_room(draft, policy):
            return Receipt(draft.id or "", draft.topic, "refused", None, "full")
        lane = self._make_lane(name, rule)
        arrivals.append(lane)
        return Receipt(self._insert(draft, policy, lane, merges_by).id, draft.topic)

    def _insert(
        self, draft: Draft, policy: Resolved, lane: Lane, merges_by: tuple[str, str | bytes] | None
    ) -> Message:
        self.number += 1
        waits = signals_needed(draft.headers) > 0
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message = Message(
            handle=self.number,
            number=self.number,
            id=draft.id or f"made-{self.number}",
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
        One more for a message that waits for some, whose body joins its own; with the last, or
        number 0, it becomes ready.
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
            ttl = self.book.resolve(message.topic).ttl
            message.signals, message.since = None, explicit_due(draft, self.now) or self.now
            message.expires = self.now + ttl if ttl is not None else None
            if draft.ttl_us is not None:
                message.expires = message.published + draft.ttl_us
            self._wait(message)
            arrivals.append(message.lane)
        return Receipt(draft.id or "", draft.topic)

    def _first_due(
        self, draft: Draft, policy: Resolved, merges_by: tuple[str, str | bytes] | None
    ) -> int:
        """Its own delay or time goes before the policy's window."""
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
        merges_by: tuple[str, str | bytes] | None,
    ) -> Message | None:
        """
        The waiting message that a new one joins, changed as the policy says; None if it has to
        queue.
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
            self._take_last_word(message, draft, policy)
        if policy.merge == "last" or due != message.since:
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

    def _take_last_word(self, message: Message, draft: Draft, policy: Resolved) -> None:
        message.bodies, message.headers = [draft.body], draft.headers or None
        ttl = draft.ttl_us if draft.ttl_us is not None else policy.ttl
        message.expires = self.now + ttl if ttl is not None else None
        message.attempts = 0
        self._change_priority(message, draft.priority, at_front=draft.at_front)

    def _change_priority(self, message: Message, priority: int, *, at_front: bool) -> None:
        """Another priority gives another number; the old one counts as removed."""
        if (priority, at_front) != (message.priority, message.at_front):
            message.priority, message.at_front = priority, at_front
            self.number += 1
            message.number = self.number

    def _take_in_the_waiting_one(self, message: Message) -> bool:
        """
        A message comes back while another waits under its merge key: that one joins it, as if it
        had been published later. False: they are too many bodies for one, both stay.
        """
        other = (
            message.lane.collectors.get((message.topic, *message.merges_by))
            if message.merges_by is not None
            else None
        )
        if other is None:
            return True
        policy = self.book.resolve(message.topic)
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

    def _has_room(self, draft: Draft, policy: Resolved) -> bool:
        """Whether no backlog limit is reached, after dropping the oldest where that is wanted."""
        while True:
            topics = [message for message in self._waiting_all() if message.topic == draft.topic]
            limits = (
                (policy.max_backlog, len(topics), 1, policy.on_full),
                (policy.max_backlog_bytes, size_of(topics), len(draft.body), policy.on_full),
                (self.max_backlog, len(self._waiting_all()), 1, self.on_full),
                (
                    self.max_backlog_bytes,
                    size_of(self._waiting_all()),
                    len(draft.body),
                    self.on_full,
                ),
            )
            over = [
                (limit, need, on_full)
                for limit, there, need, on_full in limits
                if limit is not None and there + need > limit
            ]
            if not over:
                return True
            limit, need, on_full = over[0]
            if on_full != "drop_oldest" or need > limit or not self._drop_oldest(topics):
                return False

    def _drop_oldest(self, among: list[Message]) -> bool:
        """
        The lowest priority's oldest goes to the dead letters; never one that holds its serial key.
        """
        may_go = [
            message for message in among if message.lane.holders.get(message.line) is not message
        ]
        if not may_go:
            return False
        victim = min(may_go, key=lambda message: (message.priority, message.since, message.number))
        lane = victim.lane
        self._count(lane, "removed")
        self._bury(victim, "dropped: the backlog was full", None)
        self._place(lane)
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
        now_us: int | None = None,
    ) -> Batch:
        self.now = self._time(now_us)
        self._keep_house(HOUSEKEEPING_LIMIT)
        call = Call(n if startable is None else startable, record_start)
        if topics is None:
            self._serve_pool(call, pool, n)
            self._mix(call)
        else:
            self._serve_topics(call, topics, pool, n)
        for lane in call.visited:
            self._place(lane)
        return Batch(call.leases, self.now, self._next_wake())

    def _serve_pool(self, call: Call, pool: str, room: int) -> None:
        """
        Strict tiers first; the others by their shares, and what one cannot use is divided again.
        """
        tier_queues = [
            self.tier_queues[pool, tier] for tier in self.tiers if (pool, tier) in self.tier_queues
        ]
        for tier_queue in tier_queues:
            if self.tiers[tier_queue.tier].share == "strict":
                room -= self._serve(call, self._line(tier_queue), room)
                if call.withheld:
                    return
        lines: dict[str, list[Lane]] = {}
        shares: dict[str, float] = {}
        for tier_queue in tier_queues:
            share = self.tiers[tier_queue.tier].share
            if share == "strict":
                continue
            if self._line(tier_queue):
                shares[tier_queue.tier] = float(share)
            else:
                tier_queue.carry = 0
        while room > 0 and shares and not call.withheld:
            step = (
                room
                if len(shares) == 1 or call.startable >= room
                else call.startable or min(room, STEP)
            )
            room -= self._serve_shares(call, pool, step, shares, lines)

    def _mix(self, call: Call) -> None:
        """
        What several tiers gave is begun evenly spread, behind what strict ones gave; fences grow in
        that order.
        """
        given = {
            tier: [lease for its_tier, lease in call.taken if its_tier == tier]
            for tier in self.tiers
            if tier in {its_tier for its_tier, _ in call.taken}
        }
        strict = [leases for tier, leases in given.items() if self.tiers[tier].share == "strict"]
        shared = [leases for tier, leases in given.items() if self.tiers[tier].share != "strict"]
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
        lines: dict[str, list[Lane]],
    ) -> int:
        """Divide `room` once; tiers that cannot use their part leave `shares`."""
        tier_queues = {tier: self.tier_queues[pool, tier] for tier in shares}
        carries, divided = (
            {tier: tier_queue.carry for tier, tier_queue in tier_queues.items()},
            dict(shares),
        )
        parts, kept = fairness.split(room, divided, carries)
        taken: dict[str, int] = {}
        for tier, part in parts.items():
            tier_queues[tier].carry = kept[tier]
            if part == 0:
                continue
            lines.setdefault(tier, self._line(tier_queues[tier]))
            taken[tier] = self._serve(call, lines[tier], part)
            if call.withheld:
                break
            if taken[tier] < part:
                del shares[tier]
                tier_queues[tier].carry = 0
        if call.withheld:
            for tier, owed in fairness.settle_carry(divided, carries, taken).items():
                tier_queues[tier].carry = owed
        return sum(taken.values())

    def _line(self, tier_queue: TierQueue) -> list[Lane]:
        """The lanes of a tier that can deliver now."""
        return [
            lane
            for lane in self.lanes.values()
            if lane.tier_queue is tier_queue and self._can_deliver(lane)
        ]

    def _can_deliver(self, lane: Lane) -> bool:
        return lane.place == "runnable" or (
            lane.place == "at_gate" and lane.gate is not None and self._gate_room(lane.gate) > 0
        )

    def _serve(self, call: Call, line: list[Lane], room: int) -> int:
        """
        Visit the lane with the smallest virtual time, again and again, until room or line is used
        up.
        """
        lanes, taken = min(room, len(line)), 0
        while taken < room and line:
            lane = min(line, key=lambda one: (one.virtual, one.number))
            line.remove(lane)
            if not call.startable and self._policy(lane).limited:
                call.withheld = (
                    True  # passed over, it would starve behind a caller who keeps his buffer full
                )
                break
            got = self._visit(call, lane, room - taken, lanes)
            taken += got
            if got and self._allowance(lane, self._policy(lane)):
                line.append(lane)
        return taken

    def _visit(
        self, call: Call, lane: Lane, room: int, lanes: int, topic: str | None = None
    ) -> int:
        """
        Take what all limits admit (of a bucket of which one topic was named, that topic's), and
        advance its virtual time, in one step.
        """
        policy = self._policy(lane)
        call.visited.append(lane)
        ready = [message for message in self._ready(lane) if topic in (None, message.topic)]
        take = min(
            room,
            len(ready),
            fairness.chunk(room, lanes, policy.weight),
            self._allowance(lane, policy),
        )
        if policy.gate is not None:
            take = min(take, self._gate_room(policy.gate))
        if policy.limited:
            take = min(take, call.startable)
        if take <= 0:
            return 0
        call.startable -= take if policy.limited else 0
        if policy.gate is not None:
            self._take_from_gate(self.gates[policy.gate], take)
        self._charge(lane, policy, take, alone=lanes <= 1)
        for message in ready[:take]:
            self._hand_out(call, message, policy)
        return take

    def _take_from_gate(self, gate: GateState, take: int) -> None:
        gate.leased += take
        if gate.limits.rate is not None:
            gate.tat = fairness.take_permits(gate.tat, self.now, gate.limits.rate, take)
        self._look_at_gate(gate)

    def _charge(self, lane: Lane, policy: Resolved, take: int, *, alone: bool) -> None:
        tier_queue = lane.tier_queue
        tier_queue.virtual = lane.virtual
        lane.virtual += self._stride(lane, policy, take)
        if alone:
            one_chunk = self._stride(lane, policy, fairness.chunk(take, 2, policy.weight))
            tier_queue.virtual = fairness.reached(tier_queue.virtual, lane.virtual, one_chunk)
        if policy.rate is not None:
            lane.tat = fairness.take_permits(lane.tat, self.now, policy.lane_rate, take)
        tier_queue.delivered += take
        self._count(lane, "delivered", take)
        elapsed = self.now - lane.window_from
        if elapsed >= RATE_WINDOW_US:
            lane.in_window_before = lane.in_window if elapsed < 2 * RATE_WINDOW_US else 0
            lane.in_window, lane.window_from = 0, self.now
        lane.in_window += take

    def _stride(self, lane: Lane, policy: Resolved, take: int) -> int:
        if self._is_fair_by_time(lane.tier_queue):
            return fairness.stride_of_work(take * self._expected_cost(lane), policy.weight)
        return fairness.stride(take, policy.weight)

    def _is_fair_by_time(self, tier_queue: TierQueue) -> bool:
        return self._fair_by(tier_queue) == "time"

    def _expected_cost(self, lane: Lane) -> int:
        return lane.mean or lane.tier_queue.mean or FIRST_COST_US

    def _hand_out(self, call: Call, message: Message, policy: Resolved) -> None:
        lane = message.lane
        if is_past(message.expires, self.now):  # housekeeping had too much to do to see it before
            self._uncount_hand_out(lane, policy)
            self._expire(message)
            call.taken.append((lane.tier_queue.tier, None))
            return
        self.fence += 1
        deadline = self.now + policy.lease
        self.deadlines_given.add(deadline)
        charge = self._expected_cost(lane) if self._is_fair_by_time(lane.tier_queue) else 0
        started = message.suspect and call.record_start
        line = message.line if message.serial is not None else None
        held = Held(
            self.fence,
            message.handle,
            message,
            lane,
            message.topic,
            deadline,
            self.now,
            charge,
            started,
            policy.gate,
            line,
        )
        self.leases[self.fence] = held
        self._stop_waiting(message)
        message.state = "leased"
        if line is not None:
            lane.holders[line] = message
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
            policy.limited,
        )
        call.leases.append(lease)
        call.taken.append((lane.tier_queue.tier, lease))
        if policy.delivery == "at_most_once":
            self._finish_at_hand_out(held, message)

    def _uncount_hand_out(self, lane: Lane, policy: Resolved) -> None:
        self._count(lane, "delivered", -1)
        if policy.gate is not None:
            self.gates[policy.gate].leased -= 1
            self._look_at_gate(self.gates[policy.gate])

    def _finish_at_hand_out(self, held: Held, message: Message) -> None:
        self._finish(message)
        held.message = None
        if held.line is not None:
            held.lane.holders[held.line] = held

    def _serve_topics(self, call: Call, topics: Sequence[str], pool: str, room: int) -> None:
        """Strictly in the order named, tiers aside."""
        for topic in topics:
            for lane in self._lanes_of(topic):
                if room <= 0 or lane.tier_queue.pool != pool or not self._can_deliver(lane):
                    continue
                if not call.startable and self._policy(lane).limited:
                    return
                room -= self._visit(call, lane, room, 1, topic)

    # Leases

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        self.now = self._time(now_us)
        found = [self._alive(handle, fence) for handle, fence in leases]
        for lease in found:
            if lease is not None:
                lease.started = True
        return [lease is not None for lease in found]

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        self.now = self._time(now_us)
        found = [self._alive(handle, fence) for handle, fence in leases]
        for lease in found:
            if lease is not None:
                lease.deadline = max(lease.deadline, self.now + by_us)
                self.deadlines_given.add(lease.deadline)
        return [lease is not None for lease in found]

    def _alive(self, handle: int, fence: int) -> Held | None:
        """A lease is valid until it is settled or taken back, also past its deadline."""
        lease = self.leases.get(fence)
        return lease if lease is not None and lease.handle == handle and not lease.gone else None

    # Settling

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[str]:
        if not settlements:
            return []
        before = deepcopy(self.__dict__) if publish else {}
        follow = {n: self._derived(settlements[n], drafts) for n, drafts in (publish or {}).items()}
        self._check_drafts(
            [draft for drafts in follow.values() for draft in drafts], self._time(now_us)
        )
        self.now = self._time(now_us)
        ended: list[Lane] = []
        answers = [self._settle(settlement, ended) for settlement in settlements]
        for lane in ended:
            self._place(lane)
        for settlement, answer in zip(settlements, answers, strict=True):
            if (
                settlement.outcome is not None
                and settlement.id is not None
                and answer in ("acked", "died")
            ):
                self.outcomes[settlement.id] = settlement.outcome
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

    def _derived(self, settlement: Settlement, drafts: Sequence[Draft]) -> list[Draft]:
        """
        What is published with an ack, or a refusal, has ids made of its message's; none where the
        lease is lost.
        """
        lease = self._alive(settlement.handle, settlement.fence)
        if lease is None or settlement.action not in ("ack", "dead"):
            return []
        parent = lease.message.id if lease.message is not None else f"made-{lease.handle}"
        return [
            msgspec.structs.replace(draft, id=draft.id or f"{parent}:{n}", sticky=True)
            for n, draft in enumerate(drafts)
        ]

    def _settle(self, settlement: Settlement, ended: list[Lane]) -> str:
        lease = self.leases.get(settlement.fence)
        if lease is None or lease.handle != settlement.handle:
            return "lost"
        if lease.gone:
            del self.leases[lease.fence]
            return "gone"
        lane, message = lease.lane, lease.message
        ended.append(lane)
        self._end(lease, settlement.cost_us)
        if settlement.action == "ack" and lane.rest_step and lease.fence > lane.rest_fence:
            lane.rest_step = lane.rest_until = 0
        if settlement.action == "rest":
            self._rest(lease, settlement.delay_us, ended)
        if message is None:
            return {"ack": "acked", "dead": "died"}.get(settlement.action, "released")
        if settlement.action == "ack":
            self._finish(message)
            return "acked"
        message.deliveries += 1
        if settlement.action == "retry":
            return self._retry(message, settlement)
        if settlement.action == "dead":
            reason = settlement.reason or "the handler refused it"
            self._note(message, reason, settlement.error)
            return self._die(message, reason, settlement.error)
        if settlement.action == "unhandled":
            return self._unhandled(message)
        if settlement.action == "release" and not settlement.begun:
            self._return_permit(lease)
        delay = (settlement.delay_us or 0) if settlement.action == "release" else 0
        self._come_back(message, self.now + delay if delay > 0 else None)
        return "released"

    def _end(self, lease: Held, cost_us: int) -> None:
        """Free what the lease held, and put its cost right."""
        del self.leases[lease.fence]
        self._free_gate(lease)
        if lease.message is None:
            self._free_line(lease.lane, lease.line, lease)
        if lease.charge:
            self._correct_cost(lease, cost_us)

    def _correct_cost(self, lease: Held, cost_us: int) -> None:
        """
        Fair by time: the lane pays what its message really took, and is never put behind its tier.
        """
        lane, tier_queue = lease.lane, lease.lane.tier_queue
        cost = max(0, min(cost_us, lease.deadline - lease.granted))
        corrected = lane.virtual + fairness.stride_of_work(
            cost - lease.charge, self._policy(lane).weight
        )
        lane.virtual = max(corrected, min(tier_queue.virtual, lane.virtual))
        if cost:
            lane.mean = moved(self._expected_cost(lane), cost)
            tier_queue.mean = moved(tier_queue.mean or FIRST_COST_US, cost)

    def _retry(self, message: Message, settlement: Settlement) -> str:
        policy = self.book.resolve(message.topic)
        what = settlement.reason or "failed"
        message.attempts += 1
        self._note(message, what, settlement.error)
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
            self._free_line(message.lane, message.line, message)
        self._come_back(message, self.now + max(delay, 0))
        return "retried"

    def _unhandled(self, message: Message) -> str:
        if message.unhandled_from is None:
            message.unhandled_from = self.now
        longest = self.book.resolve(message.topic).on_unhandled
        if longest is not None and self.now - message.unhandled_from >= longest:
            reason = "no handler: no worker had a handler for it within on_unhandled"
            self._note(message, reason, None)
            return self._die(message, reason, None)
        delay = min(UNHANDLED_FIRST_US << min(message.unhandled_times, 16), UNHANDLED_MAX_US)
        message.unhandled_times += 1
        self._come_back(message, self.now + delay)
        return "released"

    def _rest(self, lease: Held, asked: int | None, ended: list[Lane]) -> None:
        """
        The destination is unwell: all lanes that the topic has rest. Reports from before the rest
        do not count.
        """
        lane = lease.lane
        if lease.fence <= lane.rest_fence:
            return
        step = min(lane.rest_step * 2, BACK_OFF_MAX_US) if lane.rest_step else BACK_OFF_FIRST_US
        if asked is not None:
            step = max(asked, 1)
        for each in [lane] if lane.topic is None else self._lanes_of(lane.topic):
            each.rest_step, each.rest_until, each.rest_fence = step, self.now + step, self.fence
            ended.append(each)

    def _return_permit(self, lease: Held) -> None:
        policy = self._policy(lease.lane)
        if policy.rate is not None:
            lease.lane.tat = fairness.return_permits(lease.lane.tat, policy.lane_rate, 1)
        gate = self.gates[lease.gate] if lease.gate is not None else None
        if gate is not None and gate.limits.rate is not None:
            gate.tat = fairness.return_permits(gate.tat, gate.limits.rate, 1)
            self._look_at_gate(gate)

    def _come_back(self, message: Message, due: int | None) -> None:
        """
        It waits again: delayed until `due`, its new since, or at once with its old one. Past its
        ttl it expires.
        """
        if is_past(message.expires, self.now):
            self._expire(message)
            return
        if due is not None:
            message.since = due
        self._wait(message, collects=self._take_in_the_waiting_one(message))

    def _run_out(self, lease: Held) -> None:
        """Nobody settled it in time."""
        if lease.gone:
            del self.leases[lease.fence]
            return
        self._end(lease, lease.deadline - lease.granted)
        if lease.message is not None:
            self._become_suspect(lease.message, started=lease.started)
        self._place(lease.lane)

    def _become_suspect(self, message: Message, *, started: bool) -> None:
        message.deliveries += 1
        message.suspect = True
        if started:
            reason = "lease ran out after its start was recorded"
            message.attempts += 1
            self._note(message, reason, None)
            if message.attempts > self.book.resolve(message.topic).retries:
                self._die(message, reason, None)
                return
        self._come_back(message, None)

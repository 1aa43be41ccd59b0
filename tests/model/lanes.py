"""The state of the model, the rules that place lanes, and the ends of messages."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable
from typing import Literal

import msgspec

from laneway.engines.base import RESULT_TTL_HEADER, STICKY_US, LaneState
from laneway.engines.shared import adaptive, fairness, key_limits
from laneway.engines.shared.adaptive import Flow
from laneway.engines.shared.key_limits import KeyState
from laneway.engines.shared.refusals import EXPIRED
from laneway.policy import FOREVER, Gate, PolicyTable, Resolved
from laneway.tiers import Tier, TierLayers
from laneway.topic_groups import TOPIC, group_of
from tests.model.gates import Gates
from tests.model.state import (
    CAN_DELIVER,
    HISTORY,
    LINGER_US,
    Death,
    GateState,
    GroupQueue,
    HeldLease,
    Lane,
    MergeKey,
    Message,
    SerialKey,
    TierQueue,
    is_past,
)


class Lanes(Gates):
    """The state, and the steps that operations share."""

    def __init__(
        self,
        tiers: dict[str, Tier] | None = None,
        *,
        random: Callable[[], float] = lambda: 1.0,
        max_backlog: int | None = None,
        max_backlog_bytes: int | None = None,
        on_full: str = "refuse",
    ) -> None:
        self.tier_settings = TierLayers.new(tiers, None)
        self.random = random
        self.max_backlog, self.max_backlog_bytes, self.on_full = (
            max_backlog,
            max_backlog_bytes,
            on_full,
        )
        self.now = 0
        self.number = 0  # the last sequence number
        self.fence = 0
        self.deaths = 0
        self.lanes_created = 0
        self.counts: Counter[str] = Counter()
        self.messages: list[Message] = []
        self.forwarded: dict[str, tuple[str, frozenset[tuple[str, str]], int]] = {}  # by spool
        self.leases: dict[int, HeldLease] = {}
        self.lanes: dict[str, Lane] = {}
        self.tier_queues: dict[tuple[str, str], TierQueue] = {}
        self.group_queues: dict[tuple[str, str, str], GroupQueue] = {}
        self.gates: dict[str, GateState] = {}
        # (topic, id): how long the id stays known; None: forever
        self.finished: dict[tuple[str, str], int | None] = {}
        # (topic, merge key): when the window ends, with edge="leading"
        self.edges: dict[tuple[str, MergeKey], int] = {}
        self.outcomes: dict[tuple[str, str], bytes] = {}  # by topic and id
        self.spare_drops = 0  # how many messages the call may still drop besides one for each
        self.policy_table = PolicyTable(self.tiers)
        self.known_programs: dict[str, bytes] = {}
        self.election_records: dict[str, bytes] = {}
        self.kept_records: dict[tuple[str, str], bytes] = {}
        self.deadlines_given: set[int] = set()

    def _fair_by(self, tier_queue: TierQueue) -> str:
        """Lanes may remain in a tier that was removed."""
        tier = self.tiers.get(tier_queue.tier)
        return tier.fair_by if tier is not None else "messages"

    def _time(self, now_us: int | None) -> int:
        """The clock never goes back."""
        return max(self.now, now_us or 0)

    # Lanes

    def _lane_name(
        self, policy: Resolved, topic: str, spread_by: bytes | None, number: int
    ) -> tuple[str, str]:
        """The name of a message's lane, and the topic or pattern that sets its policy."""
        if policy.buckets is not None and policy.buckets_pattern is not None:
            return (
                f"bucket {zlib.crc32(topic.encode()) % policy.buckets} of {policy.buckets_pattern}",
                policy.buckets_pattern,
            )
        if policy.partitions > 1:
            part = (zlib.crc32(spread_by) if spread_by is not None else number) % policy.partitions
            return f"{topic} part {part}", topic
        return topic, topic

    def _lanes_of(self, topic: str) -> list[Lane]:
        """The existing lanes of a topic; of a folded topic, its bucket."""
        policy = self.policy_table.resolve(topic)
        names = [self._lane_name(policy, topic, None, n)[0] for n in range(policy.partitions)]
        return [self.lanes[name] for name in names if name in self.lanes]

    def _make_lane(self, name: str, rule: str) -> Lane:
        if name not in self.lanes:
            policy = self.policy_table.resolve(rule)
            tier_queue = self._tier_queue(policy.pool, policy.tier)
            group = self._group_queue(tier_queue, group_of(policy.group, rule))
            self.lanes_created += 1
            topic = None if name.startswith("bucket ") else rule
            self.lanes[name] = Lane(
                self.lanes_created,
                name,
                rule,
                topic,
                tier_queue,
                group,
                group.inner if group is not None else tier_queue.virtual,
                window_from=self.now,
            )
        return self.lanes[name]

    def _tier_queue(self, pool: str, tier: str) -> TierQueue:
        return self.tier_queues.setdefault((pool, tier), TierQueue(pool, tier))

    # Groups

    def _group_queue(self, tier_queue: TierQueue, name: str | None) -> GroupQueue | None:
        """The group's queue, made if it does not exist; it is numbered like a lane."""
        if name is None:
            return None
        key = (tier_queue.pool, tier_queue.tier, name)
        if key not in self.group_queues:
            self.lanes_created += 1
            self.group_queues[key] = GroupQueue(
                self.lanes_created, name, tier_queue, tier_queue.virtual
            )
        return self.group_queues[key]

    def _leave_group(self, lane: Lane) -> None:
        """A group that has no lane is forgotten."""
        group, lane.group = lane.group, None
        if group is not None and not self._lanes_in(group):
            tier_queue = group.tier_queue
            del self.group_queues[tier_queue.pool, tier_queue.tier, group.name]

    def _lanes_in(self, group: GroupQueue) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.group is group]

    def _runnable_in(self, group: GroupQueue) -> int:
        """How many of its lanes are runnable."""
        return sum(lane.place == "runnable" for lane in self._lanes_in(group))

    def _forget(self, lane: Lane) -> None:
        del self.lanes[lane.name]
        self._leave_group(lane)
        if not any(each.rule == lane.rule != each.name for each in self.lanes.values()):
            self.gates.pop(TOPIC + lane.rule, None)

    # Waiting

    def _wait(self, message: Message, *, collects: bool = True) -> None:
        """
        The message waits from now on: delayed if its `since` is in the future.

        `collects`: new messages with its merge key join it.
        """
        message.state = "waiting"
        message.delayed = message.since > self.now
        if message.delayed:
            lane = message.lane
            others = any(one is not message for one in self._delayed(lane))
            lane.timer = min(lane.timer, message.since) if others else message.since
        if message.merges_by is not None:
            where = (message.topic, *message.merges_by)
            if collects:
                message.lane.collectors[where] = message

    def _waiting_all(self) -> list[Message]:
        return [message for message in self.messages if message.state == "waiting"]

    def _waiting(self, lane: Lane) -> list[Message]:
        return [
            message
            for message in self.messages
            if message.state == "waiting" and message.lane is lane
        ]

    def _delayed(self, lane: Lane) -> list[Message]:
        """The messages that are not due yet, or whose time has come unseen, in order."""
        delayed = [message for message in self._waiting(lane) if message.delayed]
        return sorted(delayed, key=lambda message: (message.since, message.handle))

    def _ready(self, lane: Lane) -> list[Message]:
        """The messages that can be delivered, in order."""
        ready = [
            message
            for message in self._waiting(lane)
            if not message.delayed and not self._is_parked(message)
        ]
        return sorted(ready, key=lambda message: message.order)

    def _is_parked(self, message: Message) -> bool:
        """
        Whether it waits for its serial key.

        The key belongs to its holder; a free key to the first due message in order.
        """
        if message.serial is None or message.delayed:
            return message.is_held_back
        holder = message.lane.holders.get(message.serial_key)
        if holder is not None:
            return holder is not message
        due = [
            one
            for one in self._waiting(message.lane)
            if not one.delayed and one.serial is not None and one.serial_key == message.serial_key
        ]
        return message is not min(due, key=lambda one: one.order)

    def _leased(self, lane: Lane) -> int:
        return sum(lease.lane is lane and not lease.gone for lease in self.leases.values())

    # Limits per key

    def _limited_key(self, message: Message, policy: Resolved) -> SerialKey | None:
        """The key whose limits hold for the message; a serial message has none."""
        is_limited = policy.key_limited and message.key is not None and message.serial is None
        return message.serial_key if is_limited else None

    def _within_key_limits(
        self, lane: Lane, ready: list[Message], most: int, policy: Resolved
    ) -> list[Message]:
        """
        The first messages that the limits of their keys admit, at most so many.

        Those before them whose keys are at a limit are parked.
        """
        admitted: list[Message] = []
        planned: Counter[SerialKey] = Counter()
        for message in ready:
            if len(admitted) == most:
                break
            key = self._limited_key(message, policy)
            if key is not None:
                state = lane.key_states.get(key, KeyState())
                if planned[key] >= state.room(policy, self.now):
                    self._hold_back(message, key, policy)
                    continue
                planned[key] += 1
            admitted.append(message)
        return admitted

    def _hold_back(self, message: Message, key: SerialKey, policy: Resolved) -> None:
        lane = message.lane
        message.is_held_back = True
        lane.key_limits = policy.key_limits
        lane.key_states.setdefault(key, KeyState()).parked += 1
        self._rest_key(lane, key)

    def _take_key(self, lane: Lane, key: SerialKey, policy: Resolved) -> None:
        state = lane.key_states.setdefault(key, KeyState())
        state.take(policy, self.now)
        if policy.key_rate is not None:
            lane.keys_recover = max(lane.keys_recover, key_limits.recovered_us(state.tat))
        self._rest_key(lane, key)

    def _rest_key(self, lane: Lane, key: SerialKey) -> None:
        if lane.key_states[key].rest(self._policy(lane), self.now):
            del lane.key_states[key]

    def _free_key_slot(self, lane: Lane, key: SerialKey | None) -> None:
        """A lease of the key ended: the first message that its limits parked becomes ready."""
        state = lane.key_states.get(key) if key is not None else None
        if key is None or state is None:
            return
        state.leased = max(state.leased - 1, 0)
        if state.room(self._policy(lane), self.now):
            self._bring_forward(lane, key, 1)
        self._rest_key(lane, key)

    def _bring_forward(self, lane: Lane, key: SerialKey, count: int) -> None:
        held_back = [
            message
            for message in self._waiting(lane)
            if message.is_held_back and message.serial_key == key
        ]
        for message in sorted(held_back, key=lambda one: one.order)[:count]:
            message.is_held_back = False
            lane.key_states[key].parked -= 1

    def _wake_key(self, lane: Lane, key: SerialKey) -> None:
        """The key may have room: as many of its messages as it has room for become ready."""
        lane.key_states[key].woken()
        self._bring_forward(lane, key, lane.key_states[key].room(self._policy(lane), self.now))
        self._rest_key(lane, key)

    def _leave_key(self, message: Message) -> None:
        """
        A message is about to stop waiting, or becomes delayed, without a delivery. If it was ready,
        the next one of its key becomes ready in its place.
        """
        lane, key = message.lane, message.serial_key
        state = lane.key_states.get(key)
        if message.state != "waiting" or message.delayed or message.serial or state is None:
            return
        if message.is_held_back:
            message.is_held_back = False
            state.parked -= 1
        else:
            self._bring_forward(lane, key, 1)
        self._rest_key(lane, key)

    # Placing

    def _policy(self, lane: Lane) -> Resolved:
        return self.policy_table.resolve(lane.rule)

    def _place(self, lane: Lane, *, was_visited: bool = False, was_refused: bool = False) -> None:
        """Move the lane to its place, by the rules of docs/specification.md, "Placing"."""
        policy = self._policy(lane)
        group = group_of(policy.group, lane.rule)
        if (lane.tier_queue.pool, lane.tier_queue.tier, lane.group and lane.group.name) != (
            policy.pool,
            policy.tier,
            group,
        ):
            self._leave_group(lane)
            lane.tier_queue = self._tier_queue(policy.pool, policy.tier)
            lane.group = self._group_queue(lane.tier_queue, group)
            lane.virtual, lane.place, lane.wake = self._inner(lane), "idle", None
            lane.turns = {}
            self._end_holds(lane)
            lane.gates = ()
        if lane.key_limits != policy.key_limits and any(
            state.parked for state in lane.key_states.values()
        ):
            lane.key_limits = policy.key_limits
            for key in [key for key, state in lane.key_states.items() if state.parked]:
                self._wake_key(lane, key)
        if policy.lane_rate:
            lane.tat = fairness.rebase(
                lane.tat, self.now, policy.lane_rate, policy.lane_burst, lane.owes
            )
        if fairness.recovered(lane.tat, self.now):
            lane.owes = 1
        if policy.shared is not None:
            self._share(TOPIC + lane.rule, policy.shared)
        place, wake = self._where(lane, policy, was_visited=was_visited, was_refused=was_refused)
        backs_off = lane.back_off_us and lane.backs_off_until > self.now
        if (place != "asleep" or backs_off) and not (place == "at_gate" and policy.shared):
            self._throttle(lane, 0)
        comes = place in CAN_DELIVER and lane.place not in CAN_DELIVER
        if comes or (place, lane.place) == ("runnable", "at_gate"):
            # neither sleeping nor waiting earns credit
            if lane.group is not None and not self._runnable_in(lane.group):
                lane.group.virtual = max(lane.group.virtual, lane.tier_queue.virtual)
            lane.virtual = max(lane.virtual, self._inner(lane))
        was_at_gate = lane.place == "at_gate"
        if was_at_gate and place != "at_gate":
            self._end_holds(lane)
        lane.gates = self._gates_of(lane, policy) if place == "at_gate" else ()
        if place == "at_gate" and (not was_at_gate or lane.gate not in lane.gates):
            self._come_to_gate(lane, self._choose_gate(lane))
        lane.place, lane.wake = place, wake

    @staticmethod
    def _inner(lane: Lane) -> int:
        """The virtual time of the lane served last among those that it competes with."""
        return lane.group.inner if lane.group is not None else lane.tier_queue.virtual

    def _where(
        self, lane: Lane, policy: Resolved, *, was_visited: bool, was_refused: bool
    ) -> tuple[LaneState, int | None]:
        if policy.paused and self._waiting(lane):
            return "paused", None
        if not self._ready(lane):
            lane.need = 1
            return "idle", (
                None
                if self._waiting(lane) or self._leased(lane)
                else self._forgotten_at(lane, policy)
            )
        if lane.back_off_us and lane.backs_off_until > self.now:
            return "asleep", lane.backs_off_until
        if self._slots(lane, policy) <= 0:
            return "full", None
        if policy.lane_rate:
            permit = fairness.next_permit_us(
                lane.tat, self.now, policy.lane_rate, policy.lane_burst, lane.need
            )
            if permit > self.now:
                self._throttle(lane, permit)
                return "asleep", permit
        gates = self._gates_of(lane, policy)
        if gates and lane.place in CAN_DELIVER and not was_visited:
            return lane.place, None
        if not all(map(self._has_spare_for, gates)):
            is_far_ahead = not was_refused and self._is_far_ahead(lane, policy)
            return ("runnable" if is_far_ahead else "at_gate"), None
        for name in gates:
            self.gates[name].claimed += 1
        return "runnable", None

    def _is_far_ahead(self, lane: Lane, policy: Resolved) -> bool:
        """
        Whether the tier serves the lane, or its group, so late that a gate whose first lane it is
        would have to wait for it: it stays in the order of its tier.
        """
        tier_queue, group = lane.tier_queue, lane.group
        weight = policy.weight if group is None else self._group_weight(group)
        ahead = (lane if group is None else group).virtual - tier_queue.virtual
        return (
            weight <= fairness.SMALL_WEIGHT
            and ahead >= fairness.stride(1, fairness.SMALL_WEIGHT)
            and policy.shared is None
            and self._fair_by(tier_queue) == "messages"
        )

    def _forgotten_at(self, lane: Lane, policy: Resolved) -> int:
        linger = LINGER_US[self._fair_by(lane.tier_queue)]
        at = (
            lane.wake
            if lane.place == "idle" and lane.wake is not None
            else self.now + (adaptive.KEPT_US if self._flow_of(lane, policy) else linger)
        )
        if lane.back_off_us:
            at = max(at, lane.backs_off_until)
        if policy.lane_rate:
            at = max(at, -(-lane.tat // fairness.TICKS))  # when fairness.recovered
        if policy.shared is not None:
            at = max(at, -(-self.gates[TOPIC + lane.rule].tat // fairness.TICKS))
        return max(at, lane.keys_recover)

    def _throttle(self, lane: Lane, until: int) -> None:
        """A rate holds the lane back until then, if that is later than now."""
        lane.throttled += self._throttled(lane, self.now)
        lane.held_since, lane.held_until = (self.now, until) if until > self.now else (0, 0)

    @staticmethod
    def _throttled(lane: Lane, now: int) -> int:
        """For how long a rate has held the lane back since `held_since`."""
        return max(0, min(now, lane.held_until) - lane.held_since)

    def _slots(self, lane: Lane, policy: Resolved) -> int:
        """How many leases its concurrency still admits; one while the topic probes."""
        limit = 1 if lane.back_off_us else policy.lane_concurrency
        if limit is not None and policy.lane_adapts and not lane.back_off_us:
            limit = adaptive.limit_of(lane.flow, policy.min_concurrency, limit)
        return limit - self._leased(lane) if limit is not None else 1 << 30

    def _allowance(self, lane: Lane, policy: Resolved) -> int:
        """How many messages the lane's own limits admit now."""
        allowed = min(len(self._ready(lane)), self._slots(lane, policy))
        if policy.lane_rate:
            rate, burst = policy.lane_rate, policy.lane_burst
            permits = fairness.permits(lane.tat, self.now, rate, burst)
            if not fairness.admits(lane.tat, self.now, rate, burst, lane.need):
                permits = 0
            allowed = min(allowed, permits)
        return max(allowed, 0)

    # Gates

    def _flow_of(self, lane: Lane, policy: Resolved) -> Flow | None:
        """What is known of the destination, by the lane or by what its topic's partitions share."""
        if policy.shared is not None and TOPIC + lane.rule in self.gates:
            return lane.flow or self.gates[TOPIC + lane.rule].flow
        return lane.flow

    def _share(self, name: str, limits: Gate) -> None:
        """Set the gate that the partitions of a topic share."""
        gate = self.gates.setdefault(name, GateState(name))
        if gate.code != limits:
            gate.code = limits
            if limits.rate is not None:
                clock = (limits.rate, limits.effective_burst, gate.owes)
                gate.tat = fairness.rebase(gate.tat, self.now, *clock)
            self._set_gate_wake(gate)

    def _is_limited(self, lane: Lane, policy: Resolved) -> bool:
        return policy.limited or bool(self._gates_of(lane, policy))

    # Ends of messages

    def _finish(self, message: Message) -> None:
        """Acked, or delivered at most once: its ids stay known for the dedupe window."""
        self._count(message.lane, "done")
        self._remove(message, remember_ids=True)

    def _remove(self, message: Message, *, remember_ids: bool = False) -> None:
        self._leave_key(message)
        self._stop_waiting(message)
        self._free_serial_key(message.lane, message.serial_key, message)
        self.messages.remove(message)
        if remember_ids:
            self._remember_ids(message)

    def _remember_ids(self, message: Message) -> None:
        window = self.policy_table.resolve(message.topic).dedupe or 0
        if window != FOREVER:
            window = max(window, STICKY_US if message.sticky else 0)
        for each in (message.id, *message.joined):
            if window:
                self.finished[message.topic, each] = (
                    None if window == FOREVER else self.now + window
                )

    def _stop_waiting(self, message: Message) -> None:
        """New messages with its merge key no longer join it."""
        collectors = message.lane.collectors
        for where in [where for where, collector in collectors.items() if collector is message]:
            del collectors[where]

    def _free_serial_key(
        self, lane: Lane, serial_key: SerialKey | None, holder: Message | HeldLease
    ) -> None:
        """Free the serial key if `holder` holds it."""
        if serial_key is not None and lane.holders.get(serial_key) is holder:
            del lane.holders[serial_key]

    def _die(self, message: Message, reason: str, error: str | None) -> Literal["died"]:
        self._count(message.lane, "died")
        self._bury(message, reason, error)
        return "died"

    def _expire(self, message: Message) -> None:
        self._count(message.lane, "expired")
        if self.policy_table.resolve(message.topic).on_expiry == "drop":
            self._store_outcome(message, "expired", EXPIRED)
            self._remove(message)
        else:
            self._bury(message, EXPIRED, None)

    def _store_outcome(self, message: Message, status: str, reason: str | None = None) -> None:
        """Store the outcome of a message that ended without a handler, if its results are kept."""
        if RESULT_TTL_HEADER in (message.headers or {}):
            outcome = {
                "status": status,
                **({} if reason is None else {"reason": reason}),
                "topic": message.topic,
                "published_us": message.published,
            }
            self.outcomes[message.topic, message.id] = msgspec.json.encode(outcome)

    def _bury(self, message: Message, reason: str, error: str | None) -> None:
        self._store_outcome(message, "expired" if reason.startswith("expired") else "dead", reason)
        self._leave_key(message)
        self._stop_waiting(message)
        self._free_serial_key(message.lane, message.serial_key, message)
        self.deaths += 1
        message.state = "dead"
        message.delayed = False
        message.death = Death(
            self.deaths,
            self.now,
            self.now + self.policy_table.resolve(message.topic).dead_ttl,
            reason,
            error,
        )

    def _delete_dead(self, message: Message) -> None:
        self.messages.remove(message)

    def _add_to_history(self, message: Message, what: str, error: str | None) -> None:
        message.history = [*message.history, {"at_us": self.now, "what": what, "error": error}][
            -HISTORY:
        ]

    def _count(self, lane: Lane, what: str, n: int = 1) -> None:
        lane.counts[what] += n
        self.counts[what] += n

    # Ids

    def _find(self, message_id: str, topic: str | None = None) -> Message | None:
        for message in self.messages:
            if topic in (None, message.topic) and (
                message.id == message_id or message_id in message.joined
            ):
                return message
        return None

    def _is_known(self, topic: str, message_id: str) -> bool:
        return self._find(message_id, topic) is not None or self._is_finished(
            topic, message_id, self.now
        )

    def _is_finished(self, topic: str, message_id: str, now: int) -> bool:
        return (topic, message_id) in self.finished and not is_past(
            self.finished[topic, message_id], now
        )

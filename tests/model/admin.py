"""Administration of the model: tiers, policies, gates, topics, dead letters and views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from laneway.engines.base import (
    BY_OPERATOR,
    RESULT_TTL_HEADER,
    UNTIL_SIGNALLED_US,
    CancelAnswer,
    Explanation,
    HeldState,
    IdState,
    LaneRate,
    MessageState,
    MessageView,
    MoveAnswer,
    MoveTarget,
    Overview,
    RecordChange,
    RecordKind,
    StorePart,
    TierStats,
    TopicOrder,
    TopicStats,
)
from laneway.engines.shared import adaptive, fairness, gates
from laneway.errors import BadPolicy, TopicInUse, UsageError
from laneway.policy import (
    Gate,
    Layer,
    Layers,
    PolicyTable,
    Resolved,
    check_changes,
    check_pattern,
    gate_names,
    is_pattern,
    matches,
    sources,
)
from laneway.subscriptions import base_of
from laneway.tiers import Tier, TierLayers, moves_lanes
from laneway.topic_groups import GROUP, TOPIC, group_of
from tests.model.engine import Engine
from tests.model.state import (
    COUNTERS,
    GateState,
    Lane,
    Message,
    TierQueue,
    lane_shape,
    rate_now,
    size_of,
    spread_by,
)


class Model(Engine):
    """A whole engine: the hot path of `Engine`, and administration."""

    # Tiers

    def tier_layers(self) -> TierLayers:
        return self.tier_settings

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        self._change_tiers(self.tier_settings.change(layer, changes, self._tier_named_by), now_us)

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        before = self.tier_settings
        self._change_tiers(before.reset(name, self._tier_named_by), now_us)
        return self.tier_settings is not before

    def _tier_named_by(self, tier: str) -> str | None:
        return next(
            (
                pattern
                for _, pattern, fields in self.policy_table.rows()
                if fields.get("tier") == tier
            ),
            None,
        )

    def _change_tiers(self, after: TierLayers, now_us: int | None) -> None:
        """New shares hold from the next lease. Lanes whose default tier has changed move."""
        self.now = self._time(now_us)
        before, self.tier_settings = self.tiers, after
        self.policy_table = self._copy_of_book()
        if moves_lanes(before, self.tiers):
            for lane in self.lanes.values():
                self._place(lane)

    # Policies and gates

    def policies(self) -> PolicyTable:
        policy_table = PolicyTable(self.tiers, self.policy_own)
        policy_table.load(row for row in self.policy_table.stored_rows() if is_pattern(row[1]))
        return policy_table

    def policy_own(self, topic: str) -> Layers:
        return {} if is_pattern(topic) else self.policy_table.layers(topic)

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        names = sorted(
            {
                name
                for _, name, _ in self.policy_table.rows()
                if not is_pattern(name) and name > after
            }
        )[:limit]
        return [(name, self.policy_table.layers(name)) for name in names], (
            names[-1] if len(names) == limit else None
        )

    def _copy_of_book(self) -> PolicyTable:
        policy_table = PolicyTable(self.tiers)
        policy_table.load(self.policy_table.stored_rows())
        return policy_table

    def policy_of(self, topic: str) -> Resolved:
        return self.policy_table.resolve(topic)

    def policy_set(
        self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None
    ) -> dict[str, Any]:
        return self.policy_set_many(layer, [(pattern, fields)], now_us=now_us)[0]

    def policy_set_many(
        self,
        layer: str,
        changes: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        as_stored: bool = False,
        now_us: int | None = None,
    ) -> list[dict[str, Any]]:
        checked = check_changes(changes)
        named = {gate for _, fields in checked for gate in gate_names(fields.get("gate"))}
        if not named <= self.gates.keys():
            raise BadPolicy("the gate is not defined")
        return self._change_policies(layer, checked, now_us, as_stored=as_stored)

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        fields = sources(self.policy_table.layers(pattern)).get(layer)
        if fields:
            self._change_policies(layer, [(pattern, dict.fromkeys(fields))], now_us)
        else:
            self.now = self._time(now_us)
        return bool(fields)

    def _change_policies(
        self,
        layer: str,
        changes: list[tuple[str, dict[str, Any]]],
        now_us: int | None,
        *,
        as_stored: bool = False,
    ) -> list[dict[str, Any]]:
        """
        Change policies, unless a changed pattern, or one under it, would be invalid, or a topic in
        use would get other lanes.
        """
        policy_table = self._copy_of_book()
        for name, fields in changes:
            policy_table.put(layer, name, fields)
        changed = [
            name
            for name in dict(changes)
            if policy_table.layers(name) != self.policy_table.layers(name)
        ]
        for under in {under for name in changed for under in policy_table.names_under(name)}:
            if is_pattern(under) or under in changed:
                policy_table.check(under, as_stored=as_stored)
        for topic in self._topics_in_use():
            if any(matches(name, topic) for name in changed) and lane_shape(
                policy_table.resolve(topic)
            ) != lane_shape(self.policy_table.resolve(topic)):
                raise TopicInUse("partitions and buckets change only while a topic is empty")
        self.policy_table, self.now = policy_table, self._time(now_us)
        for name in changed:
            for lane in (
                self._lanes_under(base_of(name)) if is_pattern(name) else self._lanes_of(name)
            ):
                self._place(lane)
        return [sources(policy_table.layers(name)).get(layer, {}) for name, _ in changes]

    def programs(self) -> dict[str, bytes]:
        return dict(self.known_programs)

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        return self.election_records.get(name), self._time(now_us)

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        del durable, now_us
        if self.election_records.get(name) != before:
            return False
        self.election_records[name] = after
        return True

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        return sorted(name for name in self.election_records if name > after)[:limit]

    def record_read(self, kind: RecordKind, names: Sequence[str]) -> list[bytes | None]:
        return [self.kept_records.get((kind, name)) for name in names]

    def record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> bool:
        if self.kept_records.get((kind, name)) != before:
            return False
        self.kept_records.pop((kind, name), None)
        if after is not None:
            self.kept_records[kind, name] = after
        return True

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        return [self.record_swap(kind, *change) for change in changes]

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        found = [
            (name, record)
            for (of_kind, name), record in self.kept_records.items()
            if of_kind == kind and name > after
        ]
        return sorted(found)[:limit]

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        if self.known_programs.get(name) != before:
            return False
        self.known_programs.pop(name, None)
        if after is not None:
            self.known_programs[name] = after
        return True

    def _lanes_under(self, pattern: str) -> list[Lane]:
        """
        In the order of names; buckets are first under `*`, else last. The order decides which of
        two groups that begin together is the older one. An engine may place lanes beyond
        `HOUSEKEEPING_LIMIT` in later calls.
        """
        return sorted(
            (
                lane
                for lane in self.lanes.values()
                if pattern == lane.rule or matches(pattern, lane.rule.removesuffix(".*"))
            ),
            key=lambda lane: ((lane.topic is None) != (pattern == "*"), lane.rule, lane.name),
        )

    def _topics_in_use(self) -> set[str]:
        """
        Topics with waiting or leased messages. A lease of an at-most-once message counts only if
        the lane is not a bucket.
        """
        leased = {
            lease.topic
            for lease in self.leases.values()
            if not lease.gone and lease.lane.topic is not None
        }
        return leased | {message.topic for message in self.messages if message.state != "dead"}

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        self.now = self._time(now_us)
        state = self.gates.setdefault(name, GateState(name))
        if layer == "operator":
            state.operator = gate
        else:
            state.code = gate
        if state.limits.rate is not None:
            state.tat = fairness.rebase(
                state.tat, self.now, state.limits.rate, state.limits.effective_burst, state.owes
            )
        self._set_gate_wake(state)

    def gate_reset(self, name: str, *, now_us: int | None = None) -> bool:
        self.now = self._time(now_us)
        if name not in self.gates:
            return False
        gate = self.gates[name]
        gate.tat, gate.holder, gate.need, gate.held_until, gate.owes = 0, 0, 0, 0, 1
        self._set_gate_wake(gate)
        return True

    def gate_list(self, *, now_us: int | None = None) -> list[dict[str, Any]]:
        return gates.of_gates(self._all_gates(now_us))

    def topic_group_list(self, *, now_us: int | None = None) -> list[dict[str, Any]]:
        return gates.of_groups(self._all_gates(now_us))

    def _all_gates(self, now_us: int | None) -> list[dict[str, Any]]:
        return [
            self._gate_view(self.gates[name], self._time(now_us))
            for name in sorted(self.gates)
            if not name.startswith(TOPIC)
        ]

    def topic_group_set(
        self, name: str, settings: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        self.gate_set(GROUP + name, settings, layer=layer, now_us=now_us)

    def _gate_view(self, gate: GateState, now: int) -> dict[str, Any]:
        limits = gate.limits
        burst = limits.effective_burst if limits.rate is not None else None
        permit = (
            fairness.next_permit_us(gate.tat, now, limits.rate, limits.effective_burst)
            if limits.rate is not None
            else None
        )
        waiting = sum(gate.name in lane.gates for lane in self.lanes.values())
        return {
            "name": gate.name,
            **({"weight": limits.weight or 1.0} if gate.name.startswith(GROUP) else {}),
            "rate": limits.rate,
            "burst": burst,
            "concurrency": limits.concurrency,
            "max_cost": limits.largest_cost if limits.rate or limits.max_cost else None,
            "leased": gate.leased,
            "next_permit_us": permit,
            "waiting": waiting,
        }

    # Purging and deleting topics

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        self.now = self._time(now_us)
        purged = [
            message
            for message in self._waiting_all()
            if message.topic == topic and not message.is_end_notice
        ]
        for message in purged:
            self._store_outcome(message, "cancelled")
            self._count(message.lane, "removed")
            self._remove(message)
        for lane in self._lanes_of(topic):
            self._place(lane)
        return len(purged)

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        removed = self.topic_purge(topic, now_us=now_us) + self.dead_drop(
            topic, limit=len(self.messages), now_us=now_us
        )
        lanes = self._lanes_of(topic)
        leases = [lease for lease in self.leases.values() if lease.lane in lanes and not lease.gone]
        for lease in leases:
            if lease.message is not None and lease.topic == topic and lease.message.is_end_notice:
                del self.leases[lease.fence]
                self._end(lease, self.now - lease.granted)
                lease.message.deliveries += 1
                self._come_back(lease.message, None)
                continue
            if lease.message is not None and lease.topic == topic:
                self._count(lease.lane, "removed")
                self._store_outcome(lease.message, "cancelled")
                self._remove(lease.message)
            elif lease.lane.topic is None:
                # another topic of the bucket, or an at-most-once message, which has ended
                continue
            elif lease.finished is not None:
                self._store_outcome(lease.finished, "cancelled")
            self._free_serial_key(lease.lane, lease.serial_key, lease)
            self._end(lease, self.now - lease.granted)
            lease.gone = True
            self.leases[lease.fence] = lease
            removed += 1
        for lane in lanes:
            if lane.topic is None or any(message.lane is lane for message in self._waiting_all()):
                self._place(lane)
            else:
                # an engine may wake at these times, and only then delete the states
                states = lane.key_states.values()
                self.deadlines_given |= {state.wake for state in states if state.wake}
                self._forget(lane)
        self.finished = {
            where: until for where, until in self.finished.items() if where[0] != topic
        }
        self.edges = {where: until for where, until in self.edges.items() if where[0] != topic}
        return removed

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> CancelAnswer:
        """Remove a message and end its lease."""
        message = self._find(message_id, topic)
        if message is None:
            return "unknown"
        if message.death is not None:
            return "dead"
        self.now = self._time(now_us)
        lease = next((lease for lease in self.leases.values() if lease.message is message), None)
        if lease is not None:
            self._end(lease, self.now - lease.granted)
        self._store_outcome(message, "cancelled")
        self._count(message.lane, "removed")
        self._remove(message)
        self._place(message.lane)
        return "cancelled" if lease is None else "aborted"

    def message_move(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        to: MoveTarget,
        reason: str = BY_OPERATOR,
        now_us: int | None = None,
    ) -> MoveAnswer:
        """Make a delayed message ready, or a waiting one a dead letter."""
        message = self._find(message_id, topic)
        if message is None:
            return "unknown"
        if message.death is not None:
            return "dead"
        if any(lease.message is message for lease in self.leases.values()):
            return "leased"
        if to == "ready" and (not message.delayed or message.since == UNTIL_SIGNALLED_US):
            return "waiting"
        self.now = self._time(now_us)
        if to == "dead":
            self._add_to_history(message, reason, None)
            self._die(message, reason, None)
        else:
            self._stop_waiting(message)
            message.since = min(message.since, self.now)
            taken = (
                message.merges_by is not None
                and (message.topic, *message.merges_by) in message.lane.collectors
            )
            self._wait(message, collects=not taken)
        self._place(message.lane)
        return "moved"

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        """All lanes of the topic back off."""
        self.now = self._time(now_us)
        lanes = self._lanes_of(topic)
        for lane in lanes:
            lane.back_off_us, lane.back_off_fence = by_us, self.fence
            lane.backs_off_until = self.now + by_us if by_us else 0
            self._place(lane)
        return len(lanes)

    # Dead letters

    def _dead(self, topic: str | None, ids: Sequence[str] | None, limit: int) -> list[Message]:
        """Dead letters, each once: by id in the given order, else the oldest first."""
        if ids is not None:
            named = [self._find(each, topic) for each in ids[:limit]]
            return list(
                dict.fromkeys(
                    message
                    for message in named
                    if message is not None and message.death is not None
                )
            )
        dead = [
            message
            for message in self.messages
            if message.death is not None and topic in (None, message.topic)
        ]
        return sorted(dead, key=lambda message: message.death.number if message.death else 0)[
            :limit
        ]

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        dead = [
            (message.death.number, message)
            for message in self._dead(topic, None, len(self.messages))
            if message.death is not None
        ]
        return [(number, self._view(message)) for number, message in dead if number > after][:limit]

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        first_us: int = 0,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        self.now = self._time(now_us)
        letters = self._dead(topic, ids, limit)
        for n, message in enumerate(letters):
            self._put_back(message, self.now + first_us + n * spacing_us)
        for message in letters:
            self._place(message.lane)
        return len(letters)

    def _put_back(self, message: Message, since: int) -> None:
        """Requeue with a new number and since; attempts, suspect and ttl start again."""
        policy = self.policy_table.resolve(message.topic)
        self.number += 1
        if RESULT_TTL_HEADER in (message.headers or {}):
            self.outcomes.pop((message.topic, message.id), None)
        message.number, message.since, message.death, message.signals = (
            self.number,
            since,
            None,
            None,
        )
        message.attempts, message.suspect, message.unhandled_from, message.unhandled_times = (
            0,
            False,
            None,
            0,
        )
        message.expires = since + policy.ttl if policy.ttl is not None else None
        message.lane = self._make_lane(
            *self._lane_name(
                policy, message.topic, spread_by(message.key, message.merges_by), self.number
            )
        )
        taken = (
            message.merges_by is not None
            and (message.topic, *message.merges_by) in message.lane.collectors
        )
        self._wait(message, collects=not taken)

    def dead_drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        now_us: int | None = None,
    ) -> int:
        self.now = self._time(now_us)
        letters = self._dead(topic, ids, limit)
        for message in letters:
            self._delete_dead(message)
        return len(letters)

    # Views

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, IdState]:
        return {each: self._state_of(topic, each, self._time(now_us)) for each in ids}

    def _state_of(self, topic: str, message_id: str, now: int) -> IdState:
        message = self._find(message_id, topic)
        if message is not None:
            return message.state
        return "finished" if self._is_finished(topic, message_id, now) else "unknown"

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        message = self._find(message_id, topic)
        return self._view(message) if message is not None else None

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        """The facts only: without sentences and the estimated time."""
        message = self._find(message_id, topic)
        if message is None:
            finished = topic is not None and self._is_finished(
                topic, message_id, self._time(now_us)
            )
            return Explanation(
                id=message_id, topic=topic, state="finished" if finished else "unknown"
            )
        view = self._view(message)
        ahead = None
        if message.state == "waiting":
            ahead = (
                sum(one.order < message.order for one in self._ready(message.lane))
                if not message.delayed
                else 0
            )
        return Explanation(
            id=message.id, topic=message.topic, state=view.state, ahead=ahead, message=view
        )

    def _view(self, message: Message) -> MessageView:
        view = MessageView(
            id=message.id,
            topic=message.topic,
            state=self._view_state(message),
            body=message.bodies[0],
            key=message.key,
            priority=message.priority,
            headers=message.headers,
            seq=message.number,
            published_us=message.published,
            since_us=message.since,
            expires_us=message.expires,
            attempts=message.attempts,
            deliveries=message.deliveries,
            suspect=message.suspect,
            bodies=list(message.bodies) if len(message.bodies) > 1 else None,
            history=message.history,
        )
        if message.death is not None:
            view.reason, view.error, view.died_us = (
                message.death.reason,
                message.death.error,
                message.death.at,
            )
        for lease in self.leases.values():
            if lease.message is message and not lease.gone:
                view.handle, view.fence = lease.handle, lease.fence
                view.leased_us, view.deadline_us = lease.granted, lease.deadline
                view.holder = lease.holder
                view.deliveries = message.deliveries + 1
        return view

    def _view_state(self, message: Message) -> MessageState:
        if message.state != "waiting":
            return message.state
        return "delayed" if message.delayed else "parked" if self._is_parked(message) else "ready"

    def topic_peek(
        self,
        topic: str,
        *,
        limit: int = 10,
        state: HeldState | None = None,
        now_us: int | None = None,
    ) -> list[MessageView]:
        """Ready messages, then parked ones, then delayed ones."""
        if state == "leased":
            held = [
                lease.message
                for lease in self.leases.values()
                if not lease.gone and lease.message is not None and lease.message.topic == topic
            ]
            held.sort(key=lambda one: (one.since, one.number))
            return [self._view(message) for message in held[:limit]]
        waiting = [message for message in self._waiting_all() if message.topic == topic]
        if state is not None:
            waiting = [message for message in waiting if self._view_state(message) == state]
        ready = sorted(
            (one for one in waiting if self._view_state(one) == "ready"),
            key=lambda one: one.order,
        )
        parked = sorted(
            (one for one in waiting if self._view_state(one) == "parked"),
            key=lambda one: (one.since, one.number),
        )
        delayed = sorted(
            (one for one in waiting if one.delayed), key=lambda one: (one.since, one.number)
        )
        return [self._view(message) for message in [*ready, *parked, *delayed][:limit]]

    def delayed_counts(
        self, topic: str, until_us: Sequence[int], *, now_us: int | None = None
    ) -> list[int]:
        counts = [0] * (len(until_us) + 1)
        for message in self._waiting_all():
            if message.topic == topic and message.delayed:
                counts[sum(message.since >= end for end in until_us)] += 1
        return counts

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """
        By priority: the scan cursor and the done cursor.

        Each is one less than the first number that was never delivered, or is not finished.
        """
        lanes = self._lanes_of(topic)
        here = [
            message
            for message in self.messages
            if message.lane in lanes and message.state != "dead"
        ]
        cursors = {}
        for priority in sorted({0, *(message.priority for message in here)}, reverse=True):
            open_ = [message for message in here if message.priority == priority]
            unseen = [
                message.number
                for message in open_
                if message.state == "waiting" and not message.deliveries
            ]
            cursors[priority] = (
                min(unseen, default=self.number + 1) - 1,
                min((one.number for one in open_), default=self.number + 1) - 1,
            )
        return cursors

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        stats = self._stats(topic, self._time(now_us))
        stats.cursors = self.cursors(topic)
        return stats

    def _stats(self, topic: str, now: int) -> TopicStats:
        """
        Waiting messages are the topic's own; state and counters are those of its lanes.

        A folded topic has no lane of its own, and no counters.
        """
        policy = self.policy_table.resolve(topic)
        lanes = self._lanes_of(topic)
        own = [lane for lane in lanes if lane.topic is not None]
        mine = [message for message in self.messages if message.topic == topic]
        states = Counter(self._view_state(message) for message in mine)
        active = next((lane for lane in lanes if lane.place != "idle"), None)
        leased = sum(map(self._leased, own)) if policy.buckets is None else states["leased"]
        counters: dict[str, Any] = {
            name: sum(lane.counts[name] for lane in own) for name in COUNTERS
        }
        backs_off = [
            lane.backs_off_until
            for lane in lanes
            if lane.back_off_us and lane.backs_off_until > now
        ]
        return TopicStats(
            topic,
            backs_off_until_us=max(backs_off, default=None),
            waiting=states["ready"] + states["delayed"] + states["parked"],
            ready=states["ready"],
            delayed=states["delayed"],
            parked=states["parked"],
            leased=leased,
            dead=states["dead"],
            bytes=size_of([one for one in mine if one.state == "waiting"]),
            oldest_us=min(
                (one.since for one in mine if self._view_state(one) == "ready"), default=None
            ),
            state=active.place if active else "idle",
            wake_us=active.wake if active else None,
            pool=policy.pool,
            tier=policy.tier,
            group=group_of(policy.group, policy.buckets_pattern or topic),
            limit=self._adaptive_limit(policy, own),
            throttled_us=sum(lane.throttled + self._throttled(lane, now) for lane in own),
            rate_now=sum((rate_now(lane, now) for lane in own), 0.0),
            **counters,
        )

    def _adaptive_limit(self, policy: Resolved, lanes: list[Lane]) -> int | None:
        if not policy.adapts or not lanes:
            return None
        if policy.shared is not None:
            return self.gates[TOPIC + lanes[0].rule].concurrency
        bounds = policy.min_concurrency, policy.max_concurrency
        return sum(adaptive.limit_of(lane.flow, *bounds) for lane in lanes)

    def topic_list(
        self,
        *,
        order: TopicOrder = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
        now_us: int | None = None,
    ) -> list[TopicStats]:
        measures: dict[str, Callable[[TopicStats], float]] = {
            "backlog": lambda stats: stats.waiting + stats.leased / (1 << 21),
            "age": lambda stats: now - stats.oldest_us + 1 if stats.oldest_us is not None else 0,
            "rate": lambda stats: stats.rate_now,
            "throttled": lambda stats: stats.throttled_us,
            "dead": lambda stats: stats.dead,
        }
        now = self._time(now_us)
        if order != "name" and order not in measures:
            raise UsageError("unknown order")
        check_pattern(pattern)
        names = sorted(name for name in self._topics() if matches(pattern, name))
        if order == "name":
            return [self._stats(name, now) for name in names if after is None or name > after][
                :limit
            ]
        measure = measures[order]
        ranked = sorted(
            (self._stats(name, now) for name in names),
            key=lambda stats: (-measure(stats), stats.topic),
        )
        return [stats for stats in ranked if measure(stats) > 0][:limit]

    def _topics(self) -> set[str]:
        return {message.topic for message in self.messages} | {
            lane.topic for lane in self.lanes.values() if lane.topic is not None
        }

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        del topic
        return self._time(now_us)

    def lane_rates(self, limit: int, *, now_us: int | None = None) -> list[LaneRate]:
        now = self._time(now_us)
        lanes = sorted(self.lanes.values(), key=lambda lane: -len(self._waiting(lane)))
        return [
            LaneRate(lane.tier_queue.tier, rate_now(lane, now))
            for lane in lanes[:limit]
            if lane.place == "runnable"
        ]

    def store_parts(self) -> list[StorePart]:
        return [StorePart(name="model", what="memory", shards=1, used=0)]

    def overview(self, *, now_us: int | None = None) -> Overview:
        waiting = self._waiting_all()
        return Overview(
            now_us=self._time(now_us),
            topics=len(self.lanes),
            waiting=len(waiting),
            bytes=size_of(waiting),
            leased=sum(not lease.gone for lease in self.leases.values()),
            dead=len(self._dead(None, None, len(self.messages))),
            last_number=self.number,
            tiers=[self._tier_stats(tier_queue) for tier_queue in self.tier_queues.values()],
            **{name: self.counts[name] for name in COUNTERS},
        )

    def _tier_stats(self, tier_queue: TierQueue) -> TierStats:
        runnable = sum(
            lane.tier_queue is tier_queue and lane.place == "runnable"
            for lane in self.lanes.values()
        )
        share = self.tiers[tier_queue.tier].share if tier_queue.tier in self.tiers else 0
        return TierStats(tier_queue.pool, tier_queue.tier, share, tier_queue.delivered, runnable)

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        now = self._time(now_us)
        return {
            "now_us": now,
            "totals": msgspec.structs.asdict(self.overview(now_us=now_us)),
            "topics": {
                name: msgspec.structs.asdict(self._stats(name, now))
                for name in sorted(self._topics())
            },
            "messages": [
                msgspec.structs.asdict(self._view(one))
                for one in sorted(self.messages, key=lambda one: one.number)
            ],
            "gates": self._all_gates(now_us),
            "policies": self.policy_table.stored_rows(),
        }

"""
Why a message does not run yet: the sentences of `Admin.explain`, from the facts of an engine.
"""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from laneway import headers as control
from laneway.engines.base import UNTIL_SIGNALLED_US, Cause, Explanation, MessageView
from laneway.engines.shared import adaptive, fairness
from laneway.topic_groups import GROUP, TOPIC
from laneway.units import SECOND, counted, rate_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.shared.adaptive import Flow, Share
    from laneway.policy import Resolved

CLOCK_SLACK_US = SECOND
"""A clock that is further behind the store's time is mentioned."""

ITS_RATE = "its rate admits the next delivery"
"""Part of the sentence about a gate or a group that is shut by its rate, not by its concurrency."""

OWES_MUCH_US = 10 * SECOND
"""Of a gate that is shut for longer by a high cost, the reason says how to reset it."""

COUNTED = 10_000
"""Messages and lanes that are ahead are counted up to this number."""


class GateFacts(msgspec.Struct, kw_only=True):
    """The state of a gate that the message's topic goes through."""

    name: str
    room: int
    leased: int
    wake_us: int | None
    need: int = 1
    """The permits for which it is held."""
    owes: int = 0
    """The cost of its last delivery, if above 1."""
    shares: Sequence[Share] = ()
    """Of the gate of a topic whose concurrency adapts: those of all shards."""


class GroupFacts(msgspec.Struct, kw_only=True):
    """The group of the message's topic in its tier."""

    name: str
    before: int
    """Topics without a group and groups of its tier queue that are served before it."""


class KeyFacts(msgspec.Struct, kw_only=True):
    """What the message's key has used of its limits."""

    leased: int
    permit_us: int
    """When the rate of the key admits the next message."""


class Facts(msgspec.Struct, kw_only=True):
    """The facts about a message that waits, and its lane."""

    now_us: int
    """The store's time, which never goes back."""
    clock_us: int
    """The clock's time, which may have been set back."""
    view: MessageView
    policy: Resolved
    is_runnable: bool
    leased: int
    back_off_step: int
    rest_until_us: int
    tat: int
    need: int
    """What its next message costs, as far as that is known; above 1: it waits for these permits."""
    owes: int
    """The cost of the last message that it delivered."""
    rate_now: float
    tier: str
    share: str
    """The share of its tier in words, see `tiers.share_text`."""
    ahead: int
    """Messages before it in its lane."""
    lanes_before: int
    """Lanes of its group, or lanes and groups of its tier queue, that are served before its own."""
    group: GroupFacts | None = None
    busy_with: str | None = None
    """If it is parked: the id of the message that its serial key is busy with."""
    key: KeyFacts | None = None
    """If its key has limits: what it has used of them."""
    flow: Flow | None = None
    """What its lane knows of the destination, with `concurrency="auto"`."""
    gates: Sequence[GateFacts] = ()
    unhandled_us: int | None = None
    """When a worker first had no handler for it."""

    def left(self, at: int) -> str:
        """The duration until this time, as text."""
        return _left(self.now_us, self.clock_us, at)


def absent(message_id: str, topic: str | None, *, finished: bool) -> Explanation:
    """Explain a message that the store does not have; `finished`: its id is still known."""
    if finished:
        return Explanation(
            id=message_id,
            topic=topic,
            state="finished",
            reasons=["it was finished; its id is still known"],
            causes=["finished"],
        )
    return Explanation(
        id=message_id,
        topic=topic,
        state="unknown",
        reasons=[
            (
                "no message with this id waits, is leased or is dead: it was finished, removed, or"
                " never published here"
            )
        ],
        causes=["unknown"],
    )


def not_waiting(view: MessageView, now_us: int, clock_us: int) -> Explanation:
    """Explain a dead letter, or a message that is leased."""
    explanation = Explanation(
        id=view.id, topic=view.topic, state=view.state, message=view, now_us=clock_us
    )
    if view.state == "dead":
        is_expired = (view.reason or "").startswith("expired")
        again = "; its topic's ttl, if any, begins again then" if is_expired else ""
        explanation.add(
            "dead",
            f"it became a dead letter {_duration(now_us - (view.died_us or now_us))} ago:"
            f" {view.reason}; redrive it to try again{again}",
        )
    else:
        explanation.add(
            "leased",
            f"it is leased (fence {view.fence}) for"
            f" {_left(now_us, clock_us, view.deadline_us)} more, unless the lease is extended",
        )
        _add_clock(explanation, now_us, clock_us)
    return explanation


def _add_clock(explanation: Explanation, now_us: int, clock_us: int) -> None:
    """Add a reason if the clock was set back: the store's time waits until it has caught up."""
    behind = now_us - clock_us
    if behind > CLOCK_SLACK_US:
        until = datetime.fromtimestamp(now_us / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        explanation.add(
            "clock",
            f"the store's clock is stopped until {until}, for {_duration(behind)} more:"
            " it was set back",
        )


def waiting(facts: Facts) -> Explanation:
    """Explain a message that waits: the decisive reason first, and when it will probably start."""
    now, view, policy = facts.now_us, facts.view, facts.policy
    explanation = Explanation(
        id=view.id,
        topic=view.topic,
        state=view.state,
        message=view,
        ahead=facts.ahead,
        now_us=facts.clock_us,
    )
    starts = now
    _add_clock(explanation, now, facts.clock_us)
    if policy.paused:
        explanation.add("paused", "the topic is paused; resume it")
    is_blocked = view.state == "delayed" and view.since_us == UNTIL_SIGNALLED_US
    if is_blocked:
        needed = control.signals_needed(view.headers) or 1
        explanation.add(
            "jobs",
            f"it waits for {needed - len(view.bodies or [view.body]) + 1:,} of {needed:,} jobs"
            " before it",
        )
    elif view.state == "delayed" and facts.unhandled_us is not None:
        explanation.add(
            "unhandled",
            f"{_no_handler(facts)}; it is delivered again in {facts.left(view.since_us)}; start a"
            " worker that has a handler",
        )
        starts = view.since_us
    elif facts.unhandled_us is not None:
        explanation.add("unhandled", _no_handler(facts))
    elif view.state == "delayed" and view.since_us > now:
        explanation.add("due", f"it is due in {facts.left(view.since_us)}")
        starts = view.since_us
    of_key: int | None = now
    if view.state in ("parked", "ready") and facts.key is not None:
        of_key = _key_limits(facts, facts.key, explanation)
    elif view.state == "parked":
        explanation.busy_with = facts.busy_with
        explanation.add(
            "key",
            f'its key "{view.key}" is busy with {facts.busy_with or "another message"}; they run'
            " one at a time, in order",
        )
    later = _limits(facts, explanation)
    later = max(later, of_key) if later is not None and of_key is not None else None
    if facts.ahead and not explanation.reasons and later is not None:
        explanation.add(
            "worker",
            f'its topic can deliver now: it waits for a free worker of pool "{policy.pool}"',
        )
    if facts.ahead:
        explanation.add(
            "ahead",
            "1 message of its topic is ahead of it"
            if facts.ahead == 1
            else f"{_counted(facts.ahead)} messages of its topic are ahead of it",
        )
    if facts.is_runnable:
        _add_turn(facts, explanation)
    if not explanation.reasons:
        explanation.add(
            "worker",
            f'nothing holds it back: it waits for a free worker of pool "{policy.pool}"; tier'
            f' "{facts.tier}", {facts.share}',
        )
    if policy.group is not None and facts.group is None:
        explanation.add(
            "no_group", f'it has no group: "{view.topic}" lacks a part that "{policy.group}" names'
        )
    if (
        not policy.paused
        and view.state != "parked"
        and not is_blocked
        and facts.unhandled_us is None
        and later is not None
    ):
        begins = max(starts, later)
        explanation.starts_us = (
            begins if begins > now else min(now, facts.clock_us)
        ) + _time_ahead(facts)
    return explanation


def _add_turn(facts: Facts, explanation: Explanation) -> None:
    """Add what is served before the message's topic, and before its group."""
    tier = f'tier "{facts.tier}" ({facts.share})'
    group = facts.group
    if group is not None and group.before:
        explanation.add(
            "turn",
            f"{_served_first(group.before, 'topics and groups', 'topic or group', tier)} its group"
            f' "{group.name}"',
        )
    if facts.lanes_before:
        whole = f'its group "{group.name}"' if group is not None else tier
        explanation.add(
            "turn", f"{_served_first(facts.lanes_before, 'topics', 'topic', whole)} its own"
        )


def _served_first(count: int, many: str, one: str, whole: str) -> str:
    if count == 1:
        return f"1 {one} of {whole} is served before"
    return f"{_counted(count)} {many} of {whole} are served before"


def _counted(number: int) -> str:
    return f"{number:,}{'+' if number == COUNTED else ''}"


def _no_handler(facts: Facts) -> str:
    longest = facts.policy.on_unhandled
    first = facts.unhandled_us or facts.now_us
    end = f" (a dead letter after {_duration(longest)})" if longest is not None else ""
    return f"no worker has had a handler for it for {_duration(facts.now_us - first)}{end}"


def _limits(facts: Facts, explanation: Explanation) -> int | None:
    """
    Add the reasons of the lane's limits. Returns when they admit the next delivery; None: when
    another delivery ends.
    """
    now, policy = facts.now_us, facts.policy
    at: int | None = now
    if facts.back_off_step and facts.rest_until_us > now:
        explanation.add(
            "back_off",
            f"the topic backs off for {facts.left(facts.rest_until_us)}: its destination was"
            " reported as unavailable",
        )
        at = facts.rest_until_us
    elif facts.back_off_step and facts.leased:
        explanation.add(
            "probe", "the topic probes whether its destination is available, one delivery at a time"
        )
        at = None
    if (reason := _full(facts)) is not None:
        explanation.add("full", reason)
        at = None
    if policy.lane_rate:
        tat = fairness.rebase(facts.tat, now, policy.lane_rate, policy.lane_burst, facts.owes)
        permit = fairness.next_permit_us(
            tat, now, policy.lane_rate, policy.lane_burst, facts.need or 1
        )
        if permit > now:
            cost = f", of cost {facts.need}," if facts.need > 1 else ""
            explanation.add(
                "rate",
                f"the topic's rate ({rate_text(policy.rate)}) admits the next delivery{cost} in"
                f" {facts.left(permit)}",
            )
            at = max(at, permit) if at is not None else None
    for gate in facts.gates:
        if gate.name.startswith(TOPIC):
            if not gate.room:
                cause: Cause = "full" if gate.wake_us is None else "rate"
                explanation.add(cause, _shared(facts, gate))
                wake = gate.wake_us
                at = max(at, wake) if wake is not None and at is not None else None
        elif not gate.room:
            held = f"; it is held for a delivery of cost {gate.need}" if gate.need > 1 else ""
            cause, what, is_shut = "gate", f'the gate "{gate.name}"', "is shut"
            if gate.name.startswith(GROUP):
                name = gate.name.removeprefix(GROUP)
                cause, is_shut = "group", "is reached"
                what = f'the limit of its topic group "{name}"'
            wake = gate.wake_us
            why = f": {ITS_RATE} in {facts.left(wake)}" if wake is not None else ""
            cure = _cure(gate, now) if cause == "gate" else ""
            through = _leases_through(gate.leased)
            explanation.add(cause, f"{what} {is_shut}{why}; {through}{held}{cure}")
            at = max(at, wake) if wake is not None and at is not None else None
    return at


def _cure(gate: GateFacts, now: int) -> str:
    """What opens a gate that owes much."""
    if gate.owes <= 1 or gate.wake_us is None or gate.wake_us < now + OWES_MUCH_US:
        return ""
    name = shlex.quote(gate.name)
    return f"; it owes a cost of {gate.owes:,}, which `laneway gate reset {name}` forgets"


def _leases_through(count: int) -> str:
    return f"{counted(count, 'lease')} {'goes' if count == 1 else 'go'} through it"


def _shared(facts: Facts, gate: GateFacts) -> str:
    """Why what the topic's partitions share admits nothing more now."""
    policy = facts.policy
    if gate.wake_us is not None:
        cost = f", of cost {gate.need}," if gate.need > 1 else ""
        return (
            f"the topic's rate ({rate_text(policy.rate)}) admits the next delivery{cost} in"
            f" {facts.left(gate.wake_us)}"
        )
    rest = "; partitions on other shards have the rest for now"
    if gate.shares:
        leased = sum(share.leased for share in gate.shares)
        limit = adaptive.limit_of_all(gate.shares)
        run = _adapting(facts, leased, limit, adaptive.latest(gate.shares))
        return run + rest if leased < limit else run
    run = f"{_leased(gate.leased)}, and its concurrency is {policy.concurrency}"
    if isinstance(policy.concurrency, int) and gate.leased < policy.concurrency:
        run += rest
    return run


def _adapting(facts: Facts, leased: int, limit: int, flow: Flow) -> str:
    """What a limit that adapts is, and why."""
    policy = facts.policy
    why = adaptive.REASONS[flow.reason].format(ago=_duration(facts.now_us - flow.changed))
    return (
        f"{_leased(leased)}, and its concurrency is {limit} now (auto,"
        f" {policy.min_concurrency} to {policy.max_concurrency}): {why}"
    )


def _key_limits(facts: Facts, key: KeyFacts, explanation: Explanation) -> int | None:
    """
    Add the reasons of the limits of its key. Returns when they admit the next message of the key;
    None: when a lease of the key ends.
    """
    policy, name = facts.policy, facts.view.key
    limit = policy.key_concurrency
    is_full = limit is not None and key.leased >= limit
    if is_full:
        explanation.add("key_full", f'its key "{name}" has {key.leased} of {limit} leased')
    if key.permit_us > facts.now_us:
        explanation.add(
            "key_rate",
            f'the rate of its key "{name}" ({rate_text(policy.key_rate)}) admits the next message'
            f" in {facts.left(key.permit_us)}",
        )
    elif facts.view.state == "parked" and not is_full:
        explanation.add("key_full", f'messages of its key "{name}" are before it')
    return None if is_full else key.permit_us


def _full(facts: Facts) -> str | None:
    """Why the lane's concurrency admits nothing more now; None: it does."""
    policy, limit = facts.policy, facts.policy.lane_concurrency
    if limit is None:
        return None
    if policy.lane_adapts:
        limit = adaptive.limit_of(facts.flow, policy.min_concurrency, limit)
    if facts.leased < limit:
        return None
    if policy.lane_adapts:
        return _adapting(facts, facts.leased, limit, facts.flow or adaptive.Flow())
    return f"{_leased(facts.leased)}, and its concurrency is {policy.concurrency}"


def _leased(count: int) -> str:
    return counted(count, "message of its topic is leased", "messages of its topic are leased")


def _time_ahead(facts: Facts) -> int:
    """How long the messages ahead will take, by the topic's rate or its recent deliveries."""
    speeds = [rate for rate in (facts.policy.rate, facts.rate_now) if rate]
    return round(facts.ahead / min(speeds) * SECOND) if speeds else 0


def _left(now_us: int, clock_us: int, at: int | None) -> str:
    """The duration until this time, measured by the clock that has to reach it."""
    return _duration(at - min(now_us, clock_us) if at is not None and at > now_us else 0)


def _duration(us: int) -> str:
    if us < SECOND:
        return f"{max(us, 0) / 1000:.0f} ms"
    seconds = us / SECOND
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"

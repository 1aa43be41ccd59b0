"""
Why a message is not running: the sentences of `Desk.explain`, from what an engine knows of it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from laneway import headers as control
from laneway.engines.base import UNTIL_SIGNALLED_US, Explanation
from laneway.engines.shared import fairness
from laneway.units import SECOND

if TYPE_CHECKING:
    from laneway.engines.base import MessageView
    from laneway.policy import Resolved

CLOCK_SLACK_US = SECOND
"""A clock may be so far behind the store's time before it is worth a word."""

COUNTED = 10_000
"""Messages and topics ahead are counted up to here."""


class GateFacts(msgspec.Struct, kw_only=True):
    """The gate that a message has to pass."""

    room: int
    leased: int
    wake_us: int | None


class Facts(msgspec.Struct, kw_only=True):
    """What an engine knows of a message that waits, and of its lane."""

    now_us: int
    """The store's time, which never goes back."""
    clock_us: int
    """What its clock says, which somebody may have set back."""
    view: MessageView
    policy: Resolved
    is_runnable: bool
    leased: int
    rest_step: int
    rest_until_us: int
    tat: int
    rate_now: float
    tier: str
    share: str
    """What its tier has, see `tiers.share_text`."""
    ahead: int
    """Messages of its lane before it."""
    lanes_before: int
    """Lanes of its tier that are served before its own."""
    busy_with: str | None = None
    """Who has its serial key, where it is parked."""
    gate: GateFacts | None = None
    unhandled_us: int | None = None
    """When a worker first had no handler for it."""

    def left(self, at: int) -> str:
        """How long it is until then."""
        return _left(self.now_us, self.clock_us, at)


def absent(message_id: str, topic: str | None, *, finished: bool) -> Explanation:
    """Of a message that is not here."""
    if finished:
        return Explanation(
            id=message_id,
            topic=topic,
            state="finished",
            reasons=["it was finished; its id is kept as known"],
        )
    return Explanation(
        id=message_id,
        topic=topic,
        state="unknown",
        reasons=[
            (
                "no message of that id waits, is leased or dead: it was finished, removed, or never"
                " published here"
            )
        ],
    )


def not_waiting(view: MessageView, now_us: int, clock_us: int) -> Explanation:
    """Of a dead letter, or one that is leased."""
    told = Explanation(
        id=view.id, topic=view.topic, state=view.state, message=view, now_us=clock_us
    )
    if view.state == "dead":
        told.reasons = [
            (
                f"it is a dead letter since {_duration(now_us - (view.died_us or now_us))} ago:"
                f" {view.reason}; redrive it to try again"
            )
        ]
    else:
        told.reasons = [
            (
                f"a worker holds it (fence {view.fence}), for"
                f" {_left(now_us, clock_us, view.deadline_us)} more unless it is extended"
            )
        ]
        told.reasons += _stands_still(now_us, clock_us)
    return told


def _stands_still(now_us: int, clock_us: int) -> list[str]:
    """Where the clock was set back, the store's time stands still until the clock has caught up."""
    behind = now_us - clock_us
    if behind <= CLOCK_SLACK_US:
        return []
    until = datetime.fromtimestamp(now_us / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return [
        (
            f"the store's clock stands still until {until}, for {_duration(behind)} more:"
            " it was set back"
        )
    ]


def waiting(facts: Facts) -> Explanation:
    """What it waits for, the binding reason first, and when it will likely start."""
    now, view, policy = facts.now_us, facts.view, facts.policy
    told = Explanation(
        id=view.id,
        topic=view.topic,
        state=view.state,
        message=view,
        ahead=facts.ahead,
        now_us=facts.clock_us,
    )
    starts = now
    told.reasons += _stands_still(now, facts.clock_us)
    if policy.paused:
        told.reasons.append("the topic is paused; resume it")
    is_deferred = view.state == "delayed" and view.since_us == UNTIL_SIGNALLED_US
    if is_deferred:
        needed = control.signals_needed(view.headers) or 1
        told.reasons.append(
            f"it waits for {needed - len(view.bodies or [view.body]) + 1:,} of {needed:,} jobs"
            " before it"
        )
    elif view.state == "delayed" and facts.unhandled_us is not None:
        told.reasons.append(
            f"{_no_handler(facts)}; a worker gets it again in {facts.left(view.since_us)}; start"
            " one that has a handler"
        )
        starts = view.since_us
    elif facts.unhandled_us is not None:
        told.reasons.append(_no_handler(facts))
    elif view.state == "delayed":
        told.reasons.append(f"it is due in {facts.left(view.since_us)}")
        starts = view.since_us
    if view.state == "parked":
        told.reasons.append(
            f'its key "{view.key}" is busy with {facts.busy_with or "another message"}; they run'
            " one at a time, in order"
        )
    later = _limits(facts, told)
    if facts.ahead and not told.reasons and later is not None:
        told.reasons.append(
            f'its topic can deliver now: it waits for a free worker of pool "{policy.pool}"'
        )
    if facts.ahead:
        told.reasons.append(
            f"{facts.ahead:,}{'+' if facts.ahead == COUNTED else ''} messages of its topic are"
            " ahead of it"
        )
    if facts.is_runnable and facts.lanes_before:
        more = "+" if facts.lanes_before == COUNTED else ""
        told.reasons.append(
            f'{facts.lanes_before:,}{more} topics of tier "{facts.tier}" ({facts.share}) are served'
            " before its own"
        )
    if not told.reasons:
        told.reasons.append(
            f'nothing holds it back: it waits for a free worker of pool "{policy.pool}"; tier'
            f' "{facts.tier}", {facts.share}'
        )
    if (
        not policy.paused
        and view.state != "parked"
        and not is_deferred
        and facts.unhandled_us is None
        and later is not None
    ):
        begins = max(starts, later)
        told.starts_us = (begins if begins > now else min(now, facts.clock_us)) + _time_ahead(facts)
    return told


def _no_handler(facts: Facts) -> str:
    longest = facts.policy.on_unhandled
    first = facts.unhandled_us or facts.now_us
    end = f" (a dead letter after {_duration(longest)})" if longest is not None else ""
    return (
        f"no worker that got it had a handler for it, for {_duration(facts.now_us - first)}"
        f" now{end}"
    )


def _limits(facts: Facts, told: Explanation) -> int | None:
    """
    Add what its lane's limits say; returns when they admit the next delivery, None where no clock
    tells.
    """
    now, policy = facts.now_us, facts.policy
    at: int | None = now
    if facts.rest_step and facts.rest_until_us > now:
        told.reasons.append(
            f"the topic rests for {facts.left(facts.rest_until_us)}, because its destination is"
            " unwell"
        )
        at = facts.rest_until_us
    elif facts.rest_step and facts.leased:
        told.reasons.append(
            "the topic probes whether its destination is well again, one delivery at a time"
        )
        at = None
    concurrency = policy.lane_concurrency
    if concurrency is not None and facts.leased >= concurrency:
        told.reasons.append(
            f"{facts.leased} of its topic run, and its concurrency is {policy.concurrency}"
        )
        at = None
    if policy.rate is not None:
        tat = fairness.rebase(facts.tat, now, policy.lane_rate, policy.lane_burst)
        permit = fairness.next_permit_us(tat, now, policy.lane_rate, policy.lane_burst)
        if permit > now:
            told.reasons.append(
                f"the topic may send again in {facts.left(permit)} (rate {policy.rate:g}/s)"
            )
            at = max(at, permit) if at is not None else None
    if policy.gate is not None and (facts.gate is None or not facts.gate.room):
        told.reasons.append(
            f'the gate "{policy.gate}" is shut'
            + (f", {facts.gate.leased} run through it" if facts.gate is not None else "")
        )
        wake = facts.gate.wake_us if facts.gate is not None else None
        at = max(at, wake) if wake is not None and at is not None else None
    return at


def _time_ahead(facts: Facts) -> int:
    """
    How long those ahead will take: by the rate they are limited to, or at which they were delivered
    lately.
    """
    speeds = [rate for rate in (facts.policy.lane_rate, facts.rate_now) if rate]
    return round(facts.ahead / min(speeds) * SECOND) if speeds else 0


def _left(now_us: int, clock_us: int, at: int | None) -> str:
    """How long it is until then, by the clock that has to reach it."""
    return _duration(at - min(now_us, clock_us) if at is not None and at > now_us else 0)


def _duration(us: int) -> str:
    if us < SECOND:
        return f"{max(us, 0) / 1000:.0f} ms"
    seconds = us / SECOND
    for unit, size in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"

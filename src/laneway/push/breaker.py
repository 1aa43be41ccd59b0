"""
When a sender stops sending to an endpoint that fails, and what it writes down about it.

The breaker is the topic's back-off in the engine, so all senders obey it and nothing is polled: a
message that opens it is settled as a back-off, which uses no attempt. After the back-off the engine
delivers one message as a probe. Its failure makes the topic back off for twice as long; its
success closes the breaker.

Here is only the decision. Each sender has a `Window` for each endpoint in memory, and shares the
`Condition` of the endpoint's record.
"""

from __future__ import annotations

import random
from typing import Literal

import msgspec

from laneway import units
from laneway.push.answers import Verdict
from laneway.push.table import Condition, Record

ATTEMPTS = 20.0
"""How many attempts the window holds."""

HALF_LIFE = 60.0
"""Seconds after which an attempt counts half."""

LEAST_FAILED = 4.5
"""Five failures; the first ones count a little less."""

TIMEOUTS = 5
"""This number of consecutive timeouts opens the breaker."""

FIRST_SECONDS, MAX_SECONDS = 5.0, 300.0
JITTER = 0.2

FIRST_BUSY_SECONDS = 1.0
"""
How long a topic backs off after its endpoint's first 429 or 503 without `Retry-After`. The store
doubles it from the second one on.
"""

MANY_BUSY = 3
"""After this number of consecutive busy answers, a short `Retry-After` is lengthened."""

BUSY_PART = 4
"""The pause is at least this part of what it would be without `Retry-After`."""

SHOWN_BUSY_SECONDS = 10.0
"""An endpoint that asks for a pause this long is shown as busy after its first answer."""

AUTH_FAILURES = 10
MISCONFIGURED = 3
"""After this number of consecutive answers, somebody should look at the endpoint."""

DISABLE_US = 5 * 86_400 * units.SECOND
"""An endpoint with nothing but failures for this time is disabled."""

DISABLE_SPAN_US = 12 * 3_600 * units.SECOND
"""The minimum time between its first and its last failure."""

DISABLE_FAILURES = 20

WRITE_SECONDS = 60.0
"""How often a failure that changes nothing else is written down at most."""

Event = Literal["opened", "warning", "disabled", "recovered", "misconfigured"]


class Window(msgspec.Struct):
    """
    The last attempts of one sender at an endpoint, older ones counting less.

    `good`, `bad`, `of_message`: successes, failures, failures that are the message's; `at`: when
    they were last counted (monotonic seconds). `timeouts`, `auth`, `misconfigured`: in a row.
    """

    good: float = 0.0
    bad: float = 0.0
    of_message: float = 0.0
    at: float = 0.0
    timeouts: int = 0
    auth: int = 0
    misconfigured: int = 0
    failures: int = 0
    """Failures that are not yet written down."""
    written_at: float = 0.0
    """When this sender last wrote the endpoint's condition (monotonic seconds)."""

    def count(self, verdict: Verdict, now: float) -> None:
        """Count an attempt."""
        elapsed = now - self.at
        if elapsed > 1.0:
            factor = 0.5 ** (elapsed / HALF_LIFE)
            self.good *= factor
            self.bad *= factor
            self.of_message *= factor
            self.at = now
        health = verdict.health
        if health == "success":
            if self.good > ATTEMPTS - 1 and not (self.bad or self.of_message):
                self.good = ATTEMPTS
                self.timeouts = self.auth = self.misconfigured = 0
                return
            self.good += 1
            self.timeouts = self.auth = self.misconfigured = 0
        elif health == "message":
            self.of_message += 1
            self.timeouts = 0
        elif health in ("failure", "auth"):
            self.bad += 1
            self.failures += 1
            self.timeouts = self.timeouts + 1 if verdict.is_timeout else 0
            self.auth = self.auth + 1 if health == "auth" else 0
        elif health == "misconfigured":
            self.misconfigured += 1
            if verdict.effect == "retry":
                self.bad += 1
                self.failures += 1
        total = self.good + self.bad + self.of_message
        if total > ATTEMPTS:
            factor = ATTEMPTS / total
            self.good *= factor
            self.bad *= factor
            self.of_message *= factor

    def should_open(self) -> bool:
        """Whether the breaker opens after a failure."""
        bad = self.bad + (self.of_message if self.of_message > ATTEMPTS / 2 else 0.0)
        return self.timeouts >= TIMEOUTS or (bad >= LEAST_FAILED and bad >= self.good)


def back_off_seconds(opens: int) -> float:
    """How long a topic backs off after its breaker opened, or its probe failed, `opens` times."""
    seconds = min(FIRST_SECONDS * 2.0 ** min(max(opens - 1, 0), 16), MAX_SECONDS)
    return jittered(seconds)


def jittered(seconds: float) -> float:
    """About as long, so that back-offs that began together do not end together."""
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)


def busy_seconds(delay: float | None, count: int) -> float | None:
    """
    How long a topic backs off after `count` busy answers in a row. The last one asked for
    `delay` seconds, or None for twice as long as before.
    """
    if delay is None:
        return FIRST_BUSY_SECONDS if count == 1 else None
    if count < MANY_BUSY:
        return delay
    return max(delay, doubled_seconds(count) / BUSY_PART)


def doubled_seconds(count: int) -> float:
    """The pause after `count` busy answers in a row without `Retry-After`, about."""
    return min(FIRST_BUSY_SECONDS * 2.0 ** min(count - 1, 16), MAX_SECONDS)


def after_busy(record: Record, text: str, count: int, since_us: int) -> None:
    """Write a busy answer into an endpoint's condition."""
    condition = record.condition
    condition.busy_since_us = condition.busy_since_us or since_us
    condition.busy = count
    condition.text = text[:200]


def after_failure(record: Record, text: str, failures: int, now_us: int, *, opens: bool) -> None:
    """Write a failure into an endpoint's condition. `opens`: the breaker opened, or stays open."""
    condition = record.condition
    if not condition.failing_since_us:
        condition.failing_since_us = now_us
    condition.failures += failures
    condition.failed_us = now_us
    condition.text = text[:200]
    condition.busy_since_us = condition.busy = 0
    if opens:
        condition.opened_us = condition.opened_us or now_us
        condition.opens += 1


def should_disable(condition: Condition, now_us: int) -> bool:
    """Whether the endpoint has failed long enough to be disabled."""
    since = condition.failing_since_us
    return (
        since > 0
        and now_us - since >= DISABLE_US
        and condition.failed_us - since >= DISABLE_SPAN_US
        and condition.failures >= DISABLE_FAILURES
    )


def should_warn(condition: Condition, now_us: int) -> bool:
    """Whether half of the time is over after which it is disabled, and nobody was warned."""
    since = condition.failing_since_us
    return (
        since > 0
        and not condition.warned_us
        and now_us - since >= DISABLE_US // 2
        and condition.failures >= DISABLE_FAILURES
    )


def after_success(record: Record) -> None:
    """Write a success into an endpoint's condition."""
    record.condition = Condition()

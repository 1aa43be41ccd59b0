"""Why a topic stands still, with what its endpoint says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from laneway.admin import topic_reasons
from laneway.admin.topic_reasons import TopicExplanation, TopicReason
from laneway.push import table
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laneway.engines.base import FullEngine
    from laneway.push.table import Record

WAITS = frozenset(("back_off", "probe", "retry"))
"""What a topic waits for if its endpoint fails."""

STANDS = frozenset(("paused", "backlog", "unserved"))
"""What holds a topic back whatever its endpoint answers."""


def explain_topic(
    engine: FullEngine,
    topic: str,
    *,
    max_backlog: int | None = None,
    shows_others: bool = True,
    shows_endpoint: bool = True,
) -> TopicExplanation:
    """
    As `topic_reasons.explain`, with the condition of the topic's endpoint before or behind, if
    `shows_endpoint`.
    """
    found = topic_reasons.explain(engine, topic, max_backlog=max_backlog, shows_others=shows_others)
    record = table.find(engine, topic) if shows_endpoint else None
    if record is not None:
        now_us = engine.time_us(topic)
        own = list(_of_record(topic, record, now_us))
        if record.disabled is not None:
            # Disabling pauses the topic; the reason for both is one.
            found.reasons = [
                each
                for each in found.reasons
                if each.cause != "paused" or "by an operator" in each.text
            ]
        if _decides(record, found, now_us):
            found.reasons = own + found.reasons
        else:
            found.reasons += own
    return found


def _decides(record: Record, found: TopicExplanation, now_us: int) -> bool:
    """Whether the endpoint is the first reason."""
    first = found.reasons[0].cause if found.reasons else "empty"
    if record.disabled is not None or first in STANDS:
        return record.disabled is not None
    is_unsigned = bool(record.secrets) and not table.live_secrets(record, now_us)
    return bool(record.condition.attention) or is_unsigned or first in WAITS


def _of_record(topic: str, record: Record, now_us: int) -> Iterator[TopicReason]:
    condition, quoted = record.condition, shlex.quote(topic)
    if record.disabled is not None:
        yield TopicReason(
            "disabled",
            f"its endpoint is disabled{_ago(record.disabled_us, now_us)}, so nothing is sent:"
            f" {record.disabled}",
            f"laneway endpoint enable {quoted}",
        )
    if record.secrets and not table.live_secrets(record, now_us):
        yield TopicReason(
            "secrets",
            "all secrets of its endpoint have expired, so requests are not signed",
            f"laneway endpoint rotate {quoted}",
        )
    if condition.failing_since_us and record.disabled is None:
        what = "needs attention" if condition.attention else "fails"
        if condition.opened_us:
            what += ", and its breaker is open"
        answer = condition.attention or condition.text
        last = f"; it said: {condition.text}" if condition.text not in answer else ""
        yield TopicReason(
            "endpoint",
            f"its endpoint {what}: {answer}{last}; about {condition.failures:,} attempts failed,"
            f" the first one{_ago(condition.failing_since_us, now_us)}",
            f"laneway endpoint test {quoted}",
        )


def _ago(us: int, now_us: int) -> str:
    if not us:
        return ""
    return f" {topic_reasons.duration(max(0, now_us - us) / SECOND)} ago"

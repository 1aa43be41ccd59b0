"""Why a topic or a message stands still, with what its endpoint says."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from laneway.admin import topic_reasons, workers
from laneway.admin.topic_reasons import TopicExplanation, TopicReason
from laneway.push import table
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from laneway.engines.base import Explanation, FullEngine
    from laneway.push.table import Record

WAITS = frozenset(("back_off", "probe", "retry"))
"""What a topic waits for if its endpoint fails."""

SHOWN_EVENTS = 10
"""Event types of an endpoint that are named."""

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
    elif shows_endpoint and shows_others and _lacks_one(engine, found):
        quoted = shlex.quote(topic)
        text = "it has no endpoint, and topics beside it have one"
        found.reasons.insert(
            0, TopicReason("no_endpoint", text, f"laneway endpoint set {quoted} URL")
        )
    return found


def explain_message(
    engine: FullEngine, message_id: str, topic: str | None, *, shows_endpoint: bool = True
) -> Explanation:
    """
    As `workers.explain`; if its topic is paused because its endpoint is disabled, that is said, for
    `shows_endpoint`.
    """
    found = workers.explain(engine, message_id, topic)
    if not shows_endpoint or found.topic is None or "paused" not in found.causes:
        return found
    record = table.find(engine, found.topic)
    if record is None or record.disabled is None:
        return found
    text = (
        f"its endpoint is disabled: {record.disabled}; `laneway endpoint enable"
        f" {shlex.quote(found.topic)}` sends a message as a probe, then the others"
    )
    _, layer, _ = engine.policies().why(found.topic).get("paused", (None, "", ""))
    if layer == "operator":  # paused in addition
        found.add("paused", text)
    else:
        at = found.causes.index("paused")
        found.drop("paused")
        found.add("paused", text, at)
    return found


def _lacks_one(engine: FullEngine, found: TopicExplanation) -> bool:
    """Whether no worker has a handler for a topic, and the topics beside it have endpoints."""
    if not found.reasons or found.reasons[0].cause != "unhandled":
        return False
    beside = found.topic.rpartition(".")[0] + "."
    names = engine.records("endpoint", limit=1, after=beside)
    return any(name.startswith(beside) for name, _ in names)


def _decides(record: Record, found: TopicExplanation, now_us: int) -> bool:
    """Whether the endpoint is the first reason."""
    first = found.reasons[0].cause if found.reasons else "empty"
    if first == "empty" and record.events:
        return True
    if record.disabled is not None or first in STANDS:
        return record.disabled is not None
    is_unsigned = bool(record.secrets) and not table.live_secrets(record, now_us)
    return bool(record.condition.attention) or is_unsigned or first in WAITS


def _of_record(topic: str, record: Record, now_us: int) -> Iterator[TopicReason]:
    condition, quoted = record.condition, shlex.quote(topic)
    if record.disabled is not None:
        yield TopicReason(
            "disabled",
            f"its endpoint was disabled{_ago(record.disabled_us, now_us)}, so nothing is sent:"
            f" {record.disabled}",
            f"laneway endpoint enable {quoted}",
        )
    if record.events:
        yield TopicReason(
            "events",
            f"its endpoint takes only the events {', '.join(record.events[:SHOWN_EVENTS])}"
            f"{', …' if len(record.events) > SHOWN_EVENTS else ''}; messages of other types are"
            " acked without a request, and are not in its delivery log",
            f"laneway endpoint show {quoted}",
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
            f"its endpoint {what}: {answer}{last}; about {condition.failures:,}"
            f" attempt{'s' * (condition.failures != 1)} failed,"
            f" the first one{_ago(condition.failing_since_us, now_us)}",
            f"laneway endpoint test {quoted}",
        )


def _ago(us: int, now_us: int) -> str:
    if not us:
        return ""
    return f" {topic_reasons.duration(max(0, now_us - us) / SECOND)} ago"

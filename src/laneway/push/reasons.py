"""Why a topic or a message is blocked, with the state of its endpoint."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from laneway.admin import topic_reasons, workers
from laneway.admin.topic_reasons import TopicExplanation, TopicReason
from laneway.engines.base import Explanation, FullEngine
from laneway.policy import handling_patterns
from laneway.push import delivery_log, table
from laneway.push.secret_store import KEY_VARIABLE
from laneway.units import SECOND, counted

WAITS = frozenset(("back_off", "probe", "retry"))
"""What a topic waits for if its endpoint fails."""

ENDS = frozenset(("paused", "back_off", "probe"))
"""What a message waits for if its topic's endpoint is disabled or fails."""

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
    shows_who: bool = True,
    shows_endpoint: bool = True,
) -> TopicExplanation:
    """
    As `topic_reasons.explain`, with the condition of the topic's endpoint before or behind, if
    `shows_endpoint`.
    """
    found = topic_reasons.explain(
        engine, topic, max_backlog=max_backlog, shows_others=shows_others, shows_who=shows_who
    )
    record = table.find(engine, topic) if shows_endpoint else None
    if record is not None:
        now_us = engine.time_us(topic)
        own = list(_of_record(engine, topic, record, now_us))
        if record.disabled is not None:
            found.reasons = [each for each in found.reasons if each.cause != "disabled"]
        decides = _decides(record, found, own)
        _add_next_try(engine, found, own, now_us)
        found.reasons = own + found.reasons if decides else found.reasons + own
        if not own and found.reasons[0].cause == "empty":
            _add_last_attempt(engine, found, now_us)
    elif shows_endpoint and shows_others and (others := _have_one(engine, found)):
        advice = f"laneway endpoint set {shlex.quote(topic)} URL"
        found.reasons[0] = TopicReason("no_endpoint", f"it has no endpoint, and {others}", advice)
    return found


def explain_message(
    engine: FullEngine,
    message_id: str,
    topic: str | None,
    *,
    shows_endpoint: bool = True,
    shows_workers: bool = True,
) -> Explanation:
    """
    As `topic_reasons.explain_message`. With `shows_endpoint`, it includes the endpoint's answer
    that holds the topic up, or that it is disabled, and when an ended message was sent.
    """
    found = topic_reasons.explain_message(engine, message_id, topic, shows_workers=shows_workers)
    topic = found.topic or topic
    is_gone = found.state in ("finished", "unknown")
    waits_for = ENDS.intersection(found.causes)
    if not shows_endpoint or topic is None or not (is_gone or waits_for):
        return found
    record = table.find(engine, topic)
    if is_gone:
        if record is not None:
            _add_sent(engine, found, topic, record)
        return found
    if record is None:
        return found
    answer = _condition_text(record, engine.time_us(topic))
    if answer is not None and waits_for != {"paused"}:
        found.add("endpoint", f"its topic's {answer}", 0)
    if record.disabled is None or "paused" not in waits_for:
        return found
    text = (
        f"its endpoint is disabled: {record.disabled}; `laneway endpoint enable"
        f" {shlex.quote(topic)}` sends a message as a probe, then the others"
    )
    if engine.policies().why(topic).get("paused", (False,))[0]:  # in addition
        found.add("paused", text)
    else:
        at = found.causes.index("paused")
        found.drop("paused")
        found.add("paused", text, at)
    return found


def _add_sent(engine: FullEngine, found: Explanation, topic: str, record: table.Record) -> None:
    """Add what the delivery log has of a message that has ended."""
    last = delivery_log.last_attempt(engine, topic, found.id)
    if last is not None:
        command = f"laneway endpoint attempts {shlex.quote(topic)} --id {shlex.quote(found.id)}"
        when = _when(last, engine.time_us(topic))
        found.drop("unknown")
        found.add(
            "sent",
            f"it was sent{when} (attempt {last.attempt}): {_result(last)}; `{command}` shows all",
            0,
        )
    elif record.events:
        found.add("events", _events_text(record))


def _have_one(engine: FullEngine, found: TopicExplanation) -> str:
    """What shows that a topic whose messages nobody handles needs an endpoint, or ""."""
    if not found.reasons or found.reasons[0].cause != "unhandled":
        return ""
    beside = found.topic.rpartition(".")[0] + "."
    names = engine.records("endpoint", limit=1, after=beside)
    if any(name.startswith(beside) for name, _ in names):
        return f"other topics of {beside}* have one"
    covering = set(handling_patterns(found.topic))
    pushing = (
        each
        for each in workers.read_all(engine)
        if each.state == "running" and each.facts.keys is not None
    )
    is_pushed = any(covering.intersection(each.facts.patterns or ()) for each in pushing)
    return "workers push the messages of its pattern" if is_pushed else ""


def _decides(record: table.Record, found: TopicExplanation, own: list[TopicReason]) -> bool:
    """Whether the endpoint is the first reason."""
    first = found.reasons[0].cause if found.reasons else "empty"
    if first == "empty" and record.events:
        return True
    if record.disabled is not None or first in STANDS:
        return record.disabled is not None
    has_bad_secrets = any(each.cause == "secrets" for each in own)
    return bool(record.condition.attention) or has_bad_secrets or first in WAITS


def _of_record(
    engine: FullEngine, topic: str, record: table.Record, now_us: int
) -> Iterator[TopicReason]:
    quoted = shlex.quote(topic)
    if record.disabled is not None:
        yield TopicReason(
            "disabled",
            f"its endpoint was disabled{_ago(record.disabled_us, now_us)}, so nothing is sent:"
            f" {record.disabled}",
            f"laneway endpoint enable {quoted}",
        )
    if (text := _lacks_key(engine, record, now_us)) is not None:
        advice = f"export {KEY_VARIABLE}=… where the worker runs, and start it again"
        yield TopicReason("secrets", text, advice)
    if record.secrets and not table.live_secrets(record, now_us):
        yield TopicReason(
            "secrets",
            "all secrets of its endpoint have expired, so requests are not signed",
            f"laneway endpoint rotate {quoted}",
        )
    if (text := _condition_text(record, now_us)) is not None:
        yield TopicReason("endpoint", text, f"laneway endpoint test {quoted}")
    if record.events:
        yield TopicReason("events", _events_text(record), f"laneway endpoint show {quoted}")


def _add_next_try(
    engine: FullEngine, found: TopicExplanation, own: list[TopicReason], now_us: int
) -> None:
    """Make the back-off a part of the endpoint's reason: it follows from the answers."""
    until_us = engine.topic_stats(found.topic).backs_off_until_us or 0
    causes = [each.cause for each in own]
    if "endpoint" in causes and until_us > now_us:
        found.reasons = [each for each in found.reasons if each.cause != "back_off"]
        at, left = causes.index("endpoint"), topic_reasons.duration((until_us - now_us) / SECOND)
        text = f"{own[at].text}; next try in {left}"
        own[at] = TopicReason("endpoint", text, own[at].advice)


def _lacks_key(engine: FullEngine, record: table.Record, now_us: int) -> str | None:
    """That workers which push lack the key of an endpoint's secrets."""
    needed = table.missing_key(record, (), now_us)
    if needed is None:
        return None
    keys = {
        each.facts.id: each.facts.keys
        for each in workers.read_all(engine)
        if each.state == "running" and each.facts.keys is not None
    }
    lacking = [name for name, has in keys.items() if table.missing_key(record, has, now_us)]
    if not lacking:
        return None
    needed = table.missing_key(record, keys[lacking[0]] or (), now_us)
    who = "no running worker has" if len(lacking) == len(keys) else f"{lacking[0]} does not have"
    return f"the secrets of its endpoint need the key {needed}, which {who}"


def _condition_text(record: table.Record, now_us: int) -> str | None:
    """What its endpoint answers, if that holds messages up."""
    condition = record.condition
    if record.disabled is not None:
        return None
    if condition.busy_since_us:
        since = _ago(condition.busy_since_us, now_us)
        often = (
            f"; {condition.busy:,} answers in a row, the first one" if condition.busy > 1 else ""
        )
        return f"endpoint asks for pauses: {condition.text}{often or ','}{since}"
    if not condition.failing_since_us:
        return None
    what = "needs attention" if condition.attention else "fails"
    if condition.opened_us:
        what += ", and its breaker is open"
    answer = condition.attention or condition.text
    last = f"; last answer: {condition.text}" if condition.text not in answer else ""
    return (
        f"endpoint {what}: {answer}{last}; about"
        f" {counted(condition.failures, 'attempt')} failed,"
        f" the first one{_ago(condition.failing_since_us, now_us)}"
    )


def _events_text(record: table.Record) -> str:
    return (
        f"its endpoint takes only the events {', '.join(record.events[:SHOWN_EVENTS])}"
        f"{', …' if len(record.events) > SHOWN_EVENTS else ''}; messages of other types are"
        " acked without a request, and are not in its delivery log"
    )


def _add_last_attempt(engine: FullEngine, found: TopicExplanation, now_us: int) -> None:
    """Say when a topic in which nothing waits was last sent something, and that it takes more."""
    quoted = shlex.quote(found.topic)
    last = delivery_log.last_attempt(engine, found.topic)
    if last is None:
        text = "it has an endpoint, and the delivery log has no attempt"
        found.reasons.append(TopicReason("sent", text, f"laneway endpoint test {quoted}"))
        return
    text = f"its endpoint got {last.id}{_when(last, now_us)}: {_result(last)}"
    advice = f"laneway endpoint attempts {quoted}"
    found.reasons.insert(0, TopicReason("sent", f"nothing waits; {text}", advice))
    found.reasons = [each for each in found.reasons if each.cause != "empty"]


def _when(attempt: delivery_log.AttemptInfo, now_us: int) -> str:
    return _ago(round(attempt.at * SECOND), now_us)


def _result(attempt: delivery_log.AttemptInfo) -> str:
    answer = attempt.text or f"HTTP {attempt.status}"
    return f"{attempt.result}, {answer[: topic_reasons.MOST_TEXT]}"


def _ago(us: int, now_us: int) -> str:
    if not us:
        return ""
    return f" {topic_reasons.duration(max(0, now_us - us) / SECOND)} ago"

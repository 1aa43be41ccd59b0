"""From requests to messages, and from what the engine answers to what is sent."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec

from laneway import codec, units
from laneway.engines.base import Check, MessageView, Overview, TopicStats
from laneway.errors import BadMessage
from laneway.gateway import receipts
from laneway.gateway.operations import Operation
from laneway.gateway.problems import Problem
from laneway.gateway.schema import (
    NULL,
    CheckAnswer,
    DeliveryAnswer,
    EventAnswer,
    MessageAnswer,
    MessageBody,
    OperationAnswer,
    OverviewAnswer,
    TierAnswer,
    TopicAnswer,
)
from laneway.headers import cost
from laneway.message import RAW, Draft, Lease, Message
from laneway.printable import without_passwords

_read_json = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Requests


def draft_of(topic: str, message: MessageBody, raw: bytes | None = None) -> Draft:
    """
    Check and encode a message of a request. `raw`: its body, if that is not JSON.

    A JSON body is stored as it was sent. Raises BadMessage.
    """
    if raw is not None:
        return _draft(topic, raw, message)
    if message.body_base64 is not None:
        return _draft(topic, _bytes_of(topic, message), message)
    body = checked_json(topic, message.body)
    if _options(message) == _NO_OPTIONS:
        return codec.draft_of_json(topic, body)
    draft = _draft(topic, None, message)
    draft.body = body
    return draft


def set_sticky_id(draft: Draft, sticky_id: str) -> None:
    """
    Set a message's id, and keep it known for 24 hours. Raises BadMessage if it has another one.
    """
    if draft.id is not None and draft.id != sticky_id:
        raise BadMessage(
            f"message to {draft.topic}: the id {draft.id!r:.80} and the Idempotency-Key"
            f" {sticky_id!r:.80} differ; give one of them"
        )
    draft.id = codec.draft(Message(draft.topic, id=sticky_id)).id
    draft.sticky = True


def message_of(draft: Draft, message: MessageBody) -> Message:
    """The message of a draft, for middlewares."""
    return Message(
        draft.topic,
        codec.decode(draft.body, draft.headers),
        message.key,
        message.priority,
        message.delay,
        message.at,
        message.ttl,
        draft.id,
        message.headers,
        message.at_front,
        cost=message.cost,
    )


def checked_json(topic: str, body: msgspec.Raw) -> bytes:
    """
    The bytes of a JSON body that every consumer can decode. Raises BadMessage.
    """
    encoded = bytes(body) or b"null"  # a request without content
    try:
        _read_json(encoded)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"message to {topic}: the body is not valid JSON ({error})") from error
    return encoded


_options = attrgetter("key", "id", "headers", "priority", "delay", "at", "ttl", "at_front", "cost")
_NO_OPTIONS = _options(MessageBody())


def _draft(topic: str, body: Any, message: MessageBody) -> Draft:
    return codec.draft(
        Message(
            topic,
            body,
            message.key,
            message.priority,
            message.delay,
            message.at,
            message.ttl,
            message.id,
            message.headers,
            message.at_front,
            cost=message.cost,
        )
    )


def _bytes_of(topic: str, message: MessageBody) -> bytes:
    if bytes(message.body) != bytes(NULL):
        raise BadMessage(
            f"message to {topic}: body and body_base64 contradict each other; give one of them"
        )
    try:
        return base64.b64decode(message.body_base64 or "", validate=True)
    except (ValueError, binascii.Error) as error:
        raise BadMessage(f"message to {topic}: body_base64 is not base64 ({error})") from error


# Answers


def moment(us: int) -> datetime:
    """A time of the engine (microseconds since 1970); as far as RFC 3339 can say it."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def moment_or_none(us: int | None) -> datetime | None:
    """As `moment`; None stays."""
    return None if us is None else moment(us)


def _body_of(
    body: bytes, bodies: list[bytes] | None, headers: dict[str, str] | None
) -> tuple[msgspec.Raw, str | None]:
    """The JSON of a body, or its base64. Several bodies are a list."""
    is_raw = headers is not None and headers.get(codec.CONTENT_TYPE) == RAW
    parts = [body] if bodies is None else bodies
    if not is_raw:
        try:
            for part in parts:
                _read_json(part)
        except (ValueError, RecursionError):  # written by another program
            is_raw = True
    if not is_raw:
        return msgspec.Raw(body if bodies is None else b"[" + b",".join(bodies) + b"]"), None
    if bodies is None:
        return NULL, base64.b64encode(body).decode()
    encoded = [base64.b64encode(part).decode() for part in bodies]
    return msgspec.Raw(msgspec.json.encode(encoded)), None


def delivery_of(lease: Lease, key: bytes) -> DeliveryAnswer:
    """A leased message, with its receipt."""
    body, encoded = _body_of(lease.body, lease.bodies, lease.headers)
    return DeliveryAnswer(
        receipt=receipts.write(key, lease.handle, lease.fence),
        id=lease.id,
        topic=lease.topic,
        body=body,
        body_base64=encoded,
        key=lease.key,
        priority=lease.priority,
        cost=cost(lease.headers),
        headers=lease.headers,
        attempt=lease.attempt,
        deliveries=lease.deliveries,
        deadline=moment(lease.deadline_us),
        published_at=moment(lease.published_us),
    )


def topic_fields(stats: TopicStats, now_us: int) -> dict[str, Any]:
    """The fields of a `TopicAnswer`."""
    names = {field for field in TopicAnswer.__struct_fields__ if hasattr(stats, field)}
    oldest = stats.oldest_us
    return {
        **{name: getattr(stats, name) for name in names},
        "oldest_age": None if oldest is None else max(0.0, (now_us - oldest) / units.SECOND),
        "wakes_at": moment_or_none(stats.wake_us),
        "backs_off_until": moment_or_none(stats.backs_off_until_us),
        "rate": stats.rate_now,
        "throttled": stats.throttled_us / units.SECOND,
    }


def message_answer(view: MessageView, *, shows_body: bool, shows_holder: bool) -> MessageAnswer:
    """A message. `shows_body`, `shows_holder`: whether its body and its holder may be seen."""
    body, encoded = _body_of(view.body, view.bodies, view.headers) if shows_body else (NULL, None)
    return MessageAnswer(
        id=view.id,
        topic=view.topic,
        state=view.state,
        body=body,
        body_base64=encoded,
        body_hidden=not shows_body,
        key=view.key,
        priority=view.priority,
        cost=cost(view.headers),
        headers=view.headers,
        sequence=view.seq,
        published_at=moment(view.published_us),
        since=moment(view.since_us),
        expires_at=moment_or_none(view.expires_us),
        attempts=view.attempts,
        deliveries=view.deliveries,
        suspect=view.suspect,
        deadline=moment_or_none(view.deadline_us),
        holder=view.holder if shows_holder else None,
        reason=view.reason,
        error=view.error,
        died_at=moment_or_none(view.died_us),
        history=[
            EventAnswer(moment(event.get("at_us", 0)), event.get("what", ""), event.get("error"))
            for event in view.history
        ],
    )


def overview_answer(found: Overview) -> OverviewAnswer:
    """The totals of a namespace."""
    same = {
        name: getattr(found, name)
        for name in OverviewAnswer.__struct_fields__
        if name not in ("now", "tiers")
    }
    return OverviewAnswer(
        now=moment(found.now_us),
        tiers=[
            TierAnswer(tier.pool, tier.tier, tier.share, tier.delivered, tier.runnable)
            for tier in found.tiers
        ],
        **same,
    )


def operation_answer(operation_id: str, operation: Operation) -> OperationAnswer:
    """An operation as it is answered."""
    return OperationAnswer(
        id=operation_id,
        kind=operation.kind,
        state=operation.state,
        topic=operation.topic,
        fingerprint=operation.fingerprint,
        done=operation.done,
        total=operation.total,
        detail=operation.detail,
        who=operation.who,
        started=moment(operation.started_us),
        ended=moment_or_none(operation.ended_us),
        checks=[_check_answer(each) for each in operation.checks] if operation.checks else None,
    )


def _check_answer(check: Check) -> CheckAnswer:
    """A finding of the doctor, without passwords of URLs."""
    return CheckAnswer(
        check.name,
        check.ok,
        without_passwords(check.detail),
        without_passwords(check.advice),
        check.available,
    )


# Times in the parameters of a URL


def past_us(name: str, text: str, now_us: int) -> int:
    """
    Read a past time, in microseconds since 1970: RFC 3339, Unix seconds, or how long ago ("10m").

    Raises Problem.
    """
    try:
        return units.past_us(text.replace(" ", "+") if "T" in text else text, now_us)
    except (ValueError, OverflowError) as error:
        raise Problem(
            "bad-request",
            f'query: {name}: expected a time such as 2026-11-22T12:00:00Z, Unix seconds, or "10m"'
            f' ago, got "{text:.80}" ({error})',
            pointer=f"#/{name}",
        ) from None

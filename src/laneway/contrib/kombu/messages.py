"""Messages of kombu as messages of Laneway, and back."""

from __future__ import annotations

import contextlib
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import msgspec
from kombu.utils.json import dumps, loads

from laneway import BadMessage, Delivery
from laneway.producing.publish_options import PublishOptions

ROUTING_KEY = "kombu-routing-key"
"""The header of a message to an exchange by which subscriptions choose."""

BASE64 = "base64"
"""The encoding of bodies that are bytes."""

ENCODINGS = (None, "utf-8", BASE64)
"""The encodings of bodies."""

MILLISECONDS = 1000


def body_of(message: dict[str, Any]) -> msgspec.Raw:
    """The body of a message: kombu's own dict as JSON, with the types that it knows."""
    return msgspec.Raw(dumps(message).encode())


def payload_of(delivery: Delivery) -> dict[str, Any]:
    """
    The dict that `body_of` has encoded, with the tag of this delivery.

    Raises BadMessage for a message that something else has published: an error of another class
    would end the worker, again for each delivery.
    """
    try:
        payload = loads(delivery.lease.body)
        properties = payload["properties"]
        info = properties["delivery_info"]
        info["redelivered"] = delivery.deliveries > 1
        _check(payload, properties, info)
    except Exception as error:  # decoders of kombu raise any class
        raise BadMessage(
            f"message {delivery.id} in {delivery.topic} was not published by kombu; Celery's"
            " workers can only run tasks that Celery has published"
        ) from error
    properties["delivery_tag"] = delivery.fence
    return payload


def _check(payload: dict[str, Any], properties: dict[str, Any], info: dict[str, Any]) -> None:
    """Check what kombu and Celery use without a check. Raises ValueError or another error."""
    body, headers, encoding = payload["body"], payload["headers"], properties.get("body_encoding")
    texts = [
        payload.get("content-type"),
        payload.get("content-encoding"),
        info.get("exchange"),
        info.get("routing_key"),
        *(headers.get(each) for each in ("task", "id", "group", "shadow")),
    ]
    if not (isinstance(body, str) and isinstance(headers, dict) and encoding in ENCODINGS):
        raise ValueError("the body, its encoding or the headers have another type")
    if not all(each is None or isinstance(each, str) for each in texts):
        raise ValueError("a content type, an exchange, a routing key or an id is not text")
    if encoding == BASE64:
        b64decode(body)


def options_of(message: dict[str, Any], queue_ttl: int | None) -> PublishOptions:
    """
    The options with which a message is published: its priority, its time, and how long it may wait.

    `queue_ttl`: milliseconds that a message may wait in the queue, or None for no limit.
    """
    options: PublishOptions = {}
    properties = message["properties"]
    with contextlib.suppress(TypeError, ValueError):
        if priority := int(properties.get("priority") or 0):
            options["priority"] = priority
    due = _due(message)
    if due is not None:
        options["at"] = due
    lives = [
        ms for ms in (_milliseconds(properties.get("expiration")), queue_ttl) if ms is not None
    ]
    if lives:
        # A ttl counts from the publish, and what is not due yet has not begun to wait.
        begins = 0.0 if due is None else max(0.0, (due - datetime.now(UTC)).total_seconds())
        options["ttl"] = begins + max(1, min(lives)) / MILLISECONDS
    return options


def _due(message: dict[str, Any]) -> datetime | None:
    """When a task with an ETA or countdown is due; without a time zone it is UTC."""
    eta = (message.get("headers") or {}).get("eta")
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None
    if not isinstance(eta, datetime):
        return None
    return eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)


def _milliseconds(text: object) -> int | None:
    try:
        return None if text is None else int(str(text))
    except ValueError:
        return None

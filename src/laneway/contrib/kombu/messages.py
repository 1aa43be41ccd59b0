"""Messages of kombu as messages of Laneway, and back."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from kombu.utils.json import dumps, loads

from laneway import BadMessage

if TYPE_CHECKING:
    from laneway import Delivery
    from laneway.producing.publish_options import PublishOptions

ROUTING_KEY = "kombu-routing-key"
"""The header of a message to an exchange by which subscriptions choose."""

MILLISECONDS = 1000


def body_of(message: dict[str, Any]) -> msgspec.Raw:
    """The body of a message: kombu's own dict as JSON, with the types that it knows."""
    return msgspec.Raw(dumps(message).encode())


def payload_of(delivery: Delivery) -> dict[str, Any]:
    """
    The dict that `body_of` has encoded, with the tag of this delivery.

    Raises BadMessage for a message that something else has published.
    """
    try:
        payload = loads(delivery.lease.body)
        properties = payload["properties"]
        info = properties["delivery_info"]
        info["redelivered"] = delivery.deliveries > 1
    except (ValueError, LookupError, TypeError) as error:
        raise BadMessage(
            f"message {delivery.id} in {delivery.topic} was not published by kombu; Celery's"
            " workers can only run tasks that Celery has published"
        ) from error
    properties["delivery_tag"] = delivery.fence
    return payload


def options_of(message: dict[str, Any], queue_ttl: int | None) -> PublishOptions:
    """
    The options with which a message is published: its priority, its time, and how long it may wait.

    `queue_ttl`: milliseconds that a message may wait in the queue; None: any time.
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

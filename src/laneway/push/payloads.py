"""The body of a request, made of a message; and which messages an endpoint wants."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from laneway import codec, units
from laneway.errors import Reject, UsageError
from laneway.message import Lease

Content = Literal["body", "standard", "cloudevents", "cloudevents-binary"]
"""
What a request's body is. `"body"`: the message's, as it was published. `"standard"`: an object with
`type`, `timestamp` and `data`. `"cloudevents"`: a CloudEvent 1.0 in structured mode;
`"cloudevents-binary"`: the message's body, and headers `ce-…`.
"""

JSON = "application/json"
OCTETS = "application/octet-stream"
EVENT_HEADER = "event"
"""The message's header with its event type; without it, the field `type` of its body."""

MAX_EVENT = 1_000
"""Characters of an event type that can stand in a header."""

MAX_TEMPLATE_DEPTH = 16
MAX_TEMPLATE_NODES = 500


def of_lease(lease: Lease, content: Content, template: Any) -> tuple[bytes, str]:
    """The body and content type of the request for a message. Raises Reject."""
    if content in ("body", "cloudevents-binary") and template is None:
        if lease.bodies is not None:
            return _encoded(codec.decode_lease(lease)), JSON
        return lease.body, (lease.headers or {}).get(codec.CONTENT_TYPE, JSON)
    if content == "cloudevents" and template is None:
        return _encoded(_event(lease)), "application/cloudevents+json"
    try:
        body = codec.decode_lease(lease) if lease.bodies is not None else _decoded(lease)
    except ValueError as error:
        raise Reject(
            f"its body is not JSON, which the endpoint's content needs: {error}"
        ) from error
    if template is not None:
        return _encoded(_filled(template, body, lease)), JSON
    event = event_of(lease) or lease.topic
    return _encoded({"type": event, "timestamp": _time(lease), "data": body}), JSON


def _event(lease: Lease) -> dict[str, Any]:
    """The CloudEvent of a message in structured mode. A body that is not JSON is base64."""
    event = {
        "specversion": "1.0",
        "id": lease.id,
        "source": _source(lease),
        "type": event_of(lease) or lease.topic,
        "time": _time(lease),
        "datacontenttype": JSON,
    }
    try:
        event["data"] = codec.decode_lease(lease) if lease.bodies is not None else _decoded(lease)
    except ValueError as error:
        if lease.bodies is not None:
            raise Reject(f"its bodies are not JSON: {error}") from error
        event["datacontenttype"] = (lease.headers or {}).get(codec.CONTENT_TYPE, OCTETS)
        event["data_base64"] = base64.b64encode(lease.body).decode()
    return event


def _source(lease: Lease) -> str:
    return f"/topics/{quote(lease.topic, safe=_IN_SEGMENT)}"


_IN_SEGMENT = "!$&'()*+,;=:@"
"""The characters that a segment of a path has as they are, besides letters, digits and `-._~`."""


def event_headers(lease: Lease) -> list[bytes]:
    """The headers of a CloudEvent in binary mode, for the request of a message. Raises Reject."""
    event = event_of(lease) or lease.topic
    if len(event) > MAX_EVENT:  # no server takes it, which is no fault of this endpoint
        raise Reject(
            f"its event type has {len(event):,} characters; the header ce-type takes at most"
            f" {MAX_EVENT:,}"
        )
    values = {
        "specversion": "1.0",
        "id": lease.id,
        "source": _source(lease),
        "type": event,
        "time": _time(lease),
    }
    return [f"ce-{name}: {quote(text, _UNQUOTED)}".encode() for name, text in values.items()]


_UNQUOTED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""The characters that a header of a CloudEvent has as they are."""


def _decoded(lease: Lease) -> Any:
    if (lease.headers or {}).get(codec.CONTENT_TYPE, JSON).partition(";")[0].strip() != JSON:
        raise ValueError(f"its content type is {(lease.headers or {})[codec.CONTENT_TYPE]:.80}")
    return msgspec.json.decode(lease.body)


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise Reject(f"its body cannot be sent as JSON: {error}") from error


def _time(lease: Lease) -> str:
    moment = datetime.fromtimestamp(lease.published_us / units.SECOND, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# Events


def event_of(lease: Lease) -> str | None:
    """The event type of a message, or None if it has none."""
    if lease.headers is not None and (event := lease.headers.get(EVENT_HEADER)) is not None:
        return event
    try:
        found = msgspec.json.decode(lease.body, type=_WithType).type
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found or None


class _WithType(msgspec.Struct):
    type: str = ""


def wants(events: Sequence[str], lease: Lease) -> bool:
    """Whether an endpoint wants the message: `events` has its type, or a prefix `order.*`."""
    if not events:
        return True
    event = event_of(lease)
    return event is not None and any(
        event.startswith(each[:-1]) if each.endswith("*") else event == each for each in events
    )


# Templates


def check_template(template: Any) -> Any:
    """
    Check a template: JSON whose texts that begin with `$` are replaced.

    `$` is the body, `$.order.id` a field in it, `$id`, `$topic`, `$key`, `$event`, `$published_at`
    and `$attempt` are the message's; `$$…` is a text that begins with `$`. Raises UsageError.
    """
    left = [MAX_TEMPLATE_NODES]

    def check(value: Any, depth: int) -> None:
        left[0] -= 1
        if depth > MAX_TEMPLATE_DEPTH or left[0] < 0:
            raise UsageError(
                f"endpoint: expected template to have at most {MAX_TEMPLATE_NODES} values,"
                f" {MAX_TEMPLATE_DEPTH} levels deep"
            )
        if isinstance(value, dict):
            for name, each in value.items():
                if not isinstance(name, str):
                    raise UsageError(
                        f"endpoint: expected names in template to be text, got {name!r:.80}"
                    )
                check(each, depth + 1)
        elif isinstance(value, list):
            for each in value:
                check(each, depth + 1)
        elif isinstance(value, str):
            if value.startswith("$") and not _is_known(value):
                raise UsageError(
                    f"endpoint: template: unknown value {value!r:.80}; available: $, $.field,"
                    f" {', '.join(_FIELDS)}, and $$ for a text that begins with $"
                )
        elif not isinstance(value, (int, float, bool, type(None))):
            raise UsageError(f"endpoint: expected template to be JSON, got {value!r:.80}")

    check(template, 0)
    return template


_FIELDS: dict[str, Callable[[Lease], Any]] = {
    "$id": lambda lease: lease.id,
    "$topic": lambda lease: lease.topic,
    "$key": lambda lease: lease.key,
    "$event": event_of,
    "$published_at": _time,
    "$attempt": lambda lease: lease.attempt,
}


def _is_known(text: str) -> bool:
    return text == "$" or text.startswith(("$.", "$$")) or text in _FIELDS


def _filled(template: Any, body: Any, lease: Lease) -> Any:
    if isinstance(template, dict):
        return {name: _filled(each, body, lease) for name, each in template.items()}
    if isinstance(template, list):
        return [_filled(each, body, lease) for each in template]
    if not isinstance(template, str) or not template.startswith("$"):
        return template
    if template.startswith("$$"):
        return template[1:]
    if template in _FIELDS:
        return _FIELDS[template](lease)
    return _at(body, template[2:].split(".") if template != "$" else [])


def _at(body: Any, path: Sequence[str]) -> Any:
    """The value at a path in the body, or None if it has none."""
    for name in path:
        if isinstance(body, dict):
            body = body.get(name)
        elif isinstance(body, list) and name.isascii() and name.isdigit() and len(name) < 10:
            body = body[int(name)] if int(name) < len(body) else None
        else:
            return None
    return body

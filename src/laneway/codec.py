"""
Encode and decode bodies (JSON, or bytes as they are), and check every message that is published.

`draft` is the one place where a user's `Message` becomes an engine's `Draft`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from laneway import headers as control, storable, units
from laneway.errors import BadMessage
from laneway.message import RAW, Draft, Lease, Message, Settlement
from laneway.policy import CONTROL, MAX_KEY_BYTES, MAX_TOPIC_BYTES, check_publish_topic

MAX_ID_CHARACTERS = 255
MAX_PRIORITY = (1 << 52) - 1
MIN_PRIORITY = -MAX_PRIORITY
"""The server's Lua computes twice a priority as a double, which is exact up to 2^53."""
MAX_HEADERS_BYTES = 32 * 1024
"""Most bytes of all headers of a message, names and values."""
CONTENT_TYPE = "content-type"
MAX_DELAY_US = units.MAX_SECONDS * units.SECOND


def plain(value: Any) -> Any:
    """Convert values that msgspec does not know: pydantic's models."""
    dump = getattr(value, "model_dump", None)
    if dump is None or isinstance(value, type):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(mode="json")


_encode = msgspec.json.Encoder(enc_hook=plain).encode
_decode = msgspec.json.Decoder().decode


def encode(body: Any, topic: str) -> bytes:
    """
    Encode a body as JSON.

    Raises BadMessage, which names the topic and the part of the body that JSON cannot hold.
    """
    try:
        encoded = _encode(body)
    except Exception as error:  # a user's model runs its code here
        raise BadMessage(f"message to {topic}: {_fault(body, error)}") from error
    # msgspec writes NaN and infinity as null, so only a body with a null in it may contain them.
    if encoded.find(b"null") >= 0:  # half of what `in` costs
        for path, value in _leaves(body, "body"):
            if isinstance(value, float) and not math.isfinite(value):
                raise BadMessage(
                    f"message to {topic}: {path} is {value!r}, which JSON cannot hold; send None or"
                    " a number"
                )
    return encoded


def _fault(body: Any, error: Exception) -> str:
    """Name the part of the body that cannot be encoded: the first leaf that fails by itself."""
    if not isinstance(error, RecursionError):
        for path, value in _leaves(body, "body"):
            try:
                _encode(value)
            except Exception as fault:  # noqa: BLE001
                return (
                    f"{path} is of type {type(value).__name__}, which JSON cannot hold"
                    f" ({storable.of(fault)}); convert it first"
                )
    return f"the body cannot be written as JSON ({storable.of(error)}); convert it first"


def _leaves(value: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > 100:  # deeper bodies are reported as a whole
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"the key {key!r} of {path}", {key: None}
            yield from _leaves(item, f"{path}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]", depth + 1)
    else:
        yield path, value


def decode(body: bytes, headers: Mapping[str, str] | None) -> Any:
    """Decode a body as it was published. Raises BadMessage if it is neither raw nor JSON."""
    if headers is not None and headers.get(CONTENT_TYPE) == RAW:
        return body
    try:
        return _decode(body)
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise BadMessage(
            f"the body is not JSON ({error}); publish bytes, with the header {CONTENT_TYPE}: {RAW}"
        ) from error


def decode_lease(lease: Lease) -> Any:
    """Decode the body of a lease; a list of bodies if several were merged."""
    if lease.bodies is not None:
        return [decode(body, lease.headers) for body in lease.bodies]
    return decode(lease.body, lease.headers)


def message_of(lease: Lease) -> Message:
    """Return the message that a handler receives for a lease. Raises BadMessage."""
    return Message(
        lease.topic,
        decode(lease.body, lease.headers) if lease.bodies is None else decode_lease(lease),
        lease.key,
        lease.priority,
        id=lease.id,
        headers=lease.headers,
        attempt=lease.attempt,
        deliveries=lease.deliveries,
        published_at=lease.published_us / units.SECOND,
        cost=control.cost(lease.headers) if lease.headers is not None else 1,
    )


# "#" is between " and $, "*" between ) and +
_usual_topic = re.compile(rf"[ -\"$-)+-~]{{1,{MAX_TOPIC_BYTES}}}").fullmatch


MOST_TOPICS = 10_000
"""Names of topics that are remembered as valid."""

_valid_topics: set[str] = set()


def _check_topic(topic: Any) -> None:
    """Raise BadMessage if a topic's name is not valid. A usual one is remembered as valid."""
    if type(topic) is not str or _usual_topic(topic) is None:
        check_publish_topic(topic)
        return
    if len(_valid_topics) >= MOST_TOPICS:
        _valid_topics.clear()
    _valid_topics.add(topic)


def draft_of(topic: str, body: Any, headers: dict[str, str] | None = None) -> Draft:
    """Check and encode a message without options. Raises BadMessage, as `draft`."""
    if type(topic) is not str or topic not in _valid_topics:
        _check_topic(topic)
    if headers is not None and type(headers) is not CheckedHeaders:
        _check_headers(topic, headers)
    if type(body) is str and headers is None:  # nothing else can be wrong with most of them
        try:
            return Draft(topic, _encode(body))
        except UnicodeEncodeError:
            pass  # `encode` says what is wrong
    elif isinstance(body, (bytes, bytearray, memoryview)):
        return Draft(topic, bytes(body), headers={**(headers or {}), CONTENT_TYPE: RAW})
    encoded = encode(body, topic)
    if headers is not None and headers.get(CONTENT_TYPE) == RAW:
        raise BadMessage(
            f"message to {topic}: the header {CONTENT_TYPE} is {RAW}, but the body is not"
            " bytes; remove the header"
        )
    return Draft(topic, encoded, headers=headers)


def draft_of_json(topic: str, body: bytes) -> Draft:
    """Check the topic of a message without options whose body is valid JSON already."""
    if type(topic) is not str or topic not in _valid_topics:
        _check_topic(topic)
    return Draft(topic, body)


def draft(message: Message) -> Draft:
    """
    Check and encode a message.

    Raises BadMessage, which names the topic, the option and what was expected.
    """
    topic = message.topic
    encoded = draft_of(topic, message.body, message.headers)
    if message.key is not None:
        encoded.key = _check_key(topic, message.key)
    if message.priority != 0:
        encoded.priority = _check_priority(topic, message.priority)
    if message.id is not None:
        encoded.id = _check_id(topic, message.id)
    if message.delay is not None or message.at is not None or message.ttl is not None:
        _set_times(encoded, message)
    if message.at_front:
        encoded.at_front = True
    if message.cost != 1 or message.cost is True:
        encoded.headers = {
            **(encoded.headers or {}),
            control.COST: cost_text(f"message to {topic}", message.cost),
        }
    return encoded


def checked(settlement: Settlement) -> Settlement:
    """
    Make a settlement storable and return it: the one place where texts of handlers and callers are
    cleaned.

    Lone surrogates are escaped; texts and delays are cut to their bounds. A text that was changed
    says so.
    """
    if settlement.reason is not None:
        settlement.reason = storable.clean(settlement.reason, storable.MAX_REASON)
    if settlement.error is not None:
        settlement.error = storable.clean(settlement.error, storable.MAX_ERROR)
    if settlement.delay_us is not None:
        settlement.delay_us = min(max(settlement.delay_us, 0), MAX_DELAY_US)
    return settlement


class CheckedHeaders(dict[str, str]):
    """Headers of many messages that Laneway itself has made: they are not checked each time."""


def _check_headers(topic: str, headers: object) -> None:
    if not isinstance(headers, dict):
        raise BadMessage(
            f"message to {topic}: expected headers to be a dict of text by name, got"
            f" {headers!r:.80}"
        )
    size = 0
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadMessage(
                f"message to {topic}: expected the header {name!r:.80} to be text, got"
                f" {value!r:.80}"
            )
        if name.isascii() and value.isascii():
            size += len(name) + len(value)
        else:
            size += len(_utf8(topic, "name of a header", name)) + len(
                _utf8(topic, f"header {name:.80}", value)
            )
        if name in control.CHECKED:
            control.check(topic, name, value)
    if size > MAX_HEADERS_BYTES:
        raise BadMessage(
            f"message to {topic}: its headers have {size:,} bytes, at most {MAX_HEADERS_BYTES:,}"
            " are allowed; move data into the body"
        )


def _check_key(topic: str, key: object) -> str:
    if not isinstance(key, str) or not key or "\0" in key:
        kind = "non-empty text" if key == "" else "text without NUL"
        raise BadMessage(f"message to {topic}: expected key to be {kind}, got {key!r:.80}")
    if len(_utf8(topic, "key", key)) > MAX_KEY_BYTES:
        raise BadMessage(
            f"message to {topic}: the key {key[:40]!r}… is longer than {MAX_KEY_BYTES} bytes;"
            " shorten or hash it"
        )
    return key


def _check_priority(topic: str, priority: object) -> int:
    if (
        isinstance(priority, bool)
        or not isinstance(priority, int)
        or not MIN_PRIORITY <= priority <= MAX_PRIORITY
    ):
        raise BadMessage(
            f"message to {topic}: expected priority to be a whole number from {MIN_PRIORITY:,} to"
            f" {MAX_PRIORITY:,}, got {priority!r:.80}"
        )
    return priority


def cost_text(whose: str, cost: object) -> str:
    """A checked cost, as the header has it. Raises BadMessage."""
    if isinstance(cost, bool) or not isinstance(cost, int) or not 1 <= cost <= control.MAX_COST:
        raise BadMessage(
            f"{whose}: expected cost to be a whole number from 1 to {control.MAX_COST:,}, got"
            f" {cost!r:.80}"
        )
    return str(cost)


def _check_id(topic: str, message_id: object) -> str:
    if (
        not isinstance(message_id, str)
        or not 0 < len(message_id) <= MAX_ID_CHARACTERS
        or CONTROL.search(message_id)
    ):
        raise BadMessage(
            f"message to {topic}: expected id to be 1 to {MAX_ID_CHARACTERS} characters without"
            f" control characters, got {message_id!r:.80}"
        )
    _utf8(topic, "id", message_id)
    return message_id


def _utf8(topic: str, what: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadMessage(
            f"message to {topic}: the {what} {text!r:.80} is not valid Unicode ({error.reason})"
        ) from error


def _set_times(encoded: Draft, message: Message) -> None:
    topic = message.topic
    if message.delay is not None and message.at is not None:
        raise BadMessage(
            f"message to {topic}: delay and at contradict each other; give one of them"
        )
    option = "delay"
    try:
        if message.delay is not None:
            encoded.delay_us = units.microseconds(message.delay)
            if encoded.delay_us < 0:
                raise ValueError(f"expected at least 0, got {message.delay!r}")
        option = "at"
        if message.at is not None:
            encoded.at_us = units.moment(message.at)
            if encoded.at_us > (time.time() + units.MAX_SECONDS) * units.SECOND:
                raise ValueError(f"expected at most 100 years from now, got {message.at!r:.80}")
        option = "ttl"
        if message.ttl is not None:
            encoded.ttl_us = units.microseconds(message.ttl)
            if encoded.ttl_us <= 0:
                raise ValueError(f"expected a time above 0, got {message.ttl!r}")
    except (ValueError, OverflowError, OSError) as error:
        raise BadMessage(f"message to {topic}: {option}: {error}") from error

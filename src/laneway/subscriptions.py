"""
Subscriptions: their names, their settings, and which messages they get a copy of.

The subscription `audit` of the topic `orders` is the topic `orders#audit`. A policy stores its
settings as the field `subscription:audit`, so patterns, layers and programs apply to it as to any
other field.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import msgspec

from laneway import units
from laneway.errors import BadPolicy

SEPARATOR = "#"
"""Between a topic and the name of its subscription; no other name contains it."""

ANY = "*"
"""Stands for the name of any subscription in a handler's pattern."""

FIELD = "subscription:"
"""The prefix of the names of policy fields that declare subscriptions."""

Kind = Literal["shared", "exclusive", "failover"]
"""
How the consumers of a subscription divide its messages.

`"shared"`: they compete. `"exclusive"`: only one consumer; a second one is refused. `"failover"`:
one consumer at a time; the next one takes over when it ends.
"""

Start = Literal["now", "all waiting"]
"""
The first messages of a new subscription. `"now"`: only messages that are published from now on.
`"all waiting"`: copies of the messages that wait in its topic, too.
"""

Where = dict[str, "str | list[str]"]
"""Values by header; a value may end in `*`, and several are alternatives."""

LEAST_EXPIRES = 60.0
"""Seconds. Engines know the time of the last delivery to within ten seconds."""

LEAST_FORGET_AFTER = 1.0
"""The minimum of `forget_after`, in seconds."""

MAX_POOL = 100
"""Characters of a pool's name."""

MAX_SUBSCRIPTIONS = 1024
"""Most subscriptions of a topic: each message is stored with its copies in one step."""

MAX_HEADERS, MAX_VALUES = 20, 100
"""Most headers that `where` names, and most values of one of them."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Subscription(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """
    A named reader of a topic, with a copy of each message.

    - `kind`: see `Kind`.
    - `where`: by header, the values with which a message is copied; a `*` at the end matches any
      rest. All headers must match. If it is empty, every message is copied.
    - `expires_us`: the subscription counts as unused, and gets no more copies, if a message has
      been ready for this long (microseconds), none is leased, and none was delivered meanwhile.
      None if it never expires.
    """

    name: str
    kind: Kind = "shared"
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()
    expires_us: int | None = None

    def takes(self, headers: Mapping[str, str] | None) -> bool:
        """Whether a message with these headers is copied."""
        if not self.where:
            return True
        if headers is None:
            return False
        return all(
            (text := headers.get(header)) is not None
            and any(
                text.startswith(value[:-1]) if value.endswith("*") else text == value
                for value in values
            )
            for header, values in self.where
        )

    @property
    def where_by_header(self) -> Where:
        """`where` as it was written."""
        return {
            header: values[0] if len(values) == 1 else list(values) for header, values in self.where
        }


def is_copy(topic: str) -> bool:
    """Whether the name is that of a subscription's topic."""
    return SEPARATOR in topic


def topic_of(base: str, name: str) -> str:
    """The name of the topic of a subscription."""
    return f"{base}{SEPARATOR}{name}"


def split(topic: str) -> tuple[str, str]:
    """The part of a topic's name before `#`, and the subscription's name, "" for a plain topic."""
    base, _, name = topic.partition(SEPARATOR)
    return base, name


def base_of(topic: str) -> str:
    """The part of a topic's name before `#`, which decides its shard."""
    return topic.partition(SEPARATOR)[0]


def consumer_pool(topic: str) -> str:
    """The pool of an exclusive or failover subscription, from the name of its topic."""
    if len(topic) <= MAX_POOL:
        return topic
    return f"{SEPARATOR}{hashlib.blake2b(topic.encode(), digest_size=12).hexdigest()}"


def check_name(name: object) -> str:
    """Return the name of a subscription. Raises BadPolicy."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadPolicy(
            f"subscription {name!r:.80}: expected a name of 1 to 64 letters, digits, - and _"
        )
    return name


def field_of(name: object) -> str:
    """The policy field that declares a subscription. Raises BadPolicy."""
    return FIELD + check_name(name)


def read(field: str, value: Mapping[str, Any]) -> Subscription:
    """The subscription that a checked policy field declares."""
    return Subscription(
        field.removeprefix(FIELD),
        value.get("kind", "shared"),
        tuple(
            (header, (values,) if isinstance(values, str) else tuple(values))
            for header, values in value.get("where", {}).items()
        ),
        round(value["expires"] * units.SECOND) if "expires" in value else None,
    )


def check_field(field: str, value: Any) -> dict[str, Any]:
    """Check the settings of a subscription and return them as JSON values. Raises BadPolicy."""
    check_name(field.removeprefix(FIELD))
    if not isinstance(value, dict):
        raise BadPolicy(f"expected settings by name, got {value!r:.80}")
    unknown = value.keys() - SETTINGS.keys()
    if unknown:
        raise BadPolicy(
            f"unknown settings {sorted(unknown)!r:.80}; available: {', '.join(SETTINGS)}"
        )
    checked = {
        name: read_setting(value[name])
        for name, read_setting in SETTINGS.items()
        if value.get(name) is not None
    }
    return {"kind": "shared", **checked}


def _kind(value: Any) -> str:
    if value not in get_args(Kind):
        names = ", ".join(f'"{name}"' for name in get_args(Kind))
        raise BadPolicy(f"expected kind to be one of {names}, got {value!r:.80}")
    return str(value)


def _where(value: Any) -> Where:
    if not isinstance(value, dict) or not value or len(value) > MAX_HEADERS:
        raise BadPolicy(
            f"expected where to have 1 to {MAX_HEADERS} headers with their values, like"
            f' {{"type": "order.*"}}, got {value!r:.80}'
        )
    for header, values in value.items():
        alternatives = values if isinstance(values, (list, tuple)) else [values]
        if (
            not isinstance(header, str)
            or not header
            or not 0 < len(alternatives) <= MAX_VALUES
            or not all(map(_is_value, alternatives))
        ):
            raise BadPolicy(
                "expected where to have texts by header, or lists of them, with * at the end of a"
                f" text only, got {header!r:.40}: {values!r:.80}"
            )
    return {
        header: list(values) if isinstance(values, tuple) else values
        for header, values in value.items()
    }


def _is_value(value: Any) -> bool:
    return isinstance(value, str) and "*" not in value[:-1] and is_unicode(value)


def is_unicode(text: str) -> bool:
    """Return whether the text can be encoded; text with lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _span(setting: str, least: float, value: Any) -> float:
    seconds = units.seconds(value)
    if not least <= seconds <= units.MAX_SECONDS:
        raise BadPolicy(f"expected {setting} to be at least {least:g} s, got {value!r:.80}")
    return seconds


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "kind": _kind,
    "where": _where,
    "expires": partial(_span, "expires", LEAST_EXPIRES),
    "forget_after": partial(_span, "forget_after", LEAST_FORGET_AFTER),
}
"""Every setting of a subscription: the function that checks its value."""

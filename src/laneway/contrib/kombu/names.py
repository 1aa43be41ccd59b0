"""
What queues, exchanges and bindings of AMQP are called in a store.

- A queue is the topic of its name.
- What is published to a direct exchange without a queue that the publisher knows is in a topic of
  the exchange and the routing key. A consumer of a queue consumes those of its bindings, too.
- A fanout or topic exchange is a topic without a backlog of its own; a queue that is bound to it is
  a subscription.

Topics that are no queues begin with `kombu.`, so that the patterns of this module set what holds
for them.
"""

from __future__ import annotations

import hashlib
import re

OWN = "kombu."
"""The beginning of all topics that are no queues."""

POOL = "kombu"
"""The pool of these topics, so that workers that serve every queue do not get their messages."""

EXCHANGES = "kombu.exchange.*"
DIRECT = "kombu.direct.*"
REPLIES = "kombu.reply.*"
"""The patterns of topics: of exchanges, and of the messages of direct exchanges."""

_REFUSED = re.compile(r"[\x00-\x1f\x7f-\x9f#*%]")
_NOT_IN_SUBSCRIPTIONS = re.compile(r"[^A-Za-z0-9_-]+")

MAX_TOPIC_BYTES = 255
"""Most bytes of a topic's name."""

MAX_SUBSCRIPTION = 64
"""Most characters of the name of a subscription."""


def queue(name: str) -> str:
    """The topic of a queue."""
    escaped = _REFUSED.sub(_escaped, name)
    if escaped.startswith(OWN):  # it is no topic of this module
        escaped = f"kombu%2E{escaped.removeprefix(OWN)}"
    return _bounded(escaped)


def pattern(name: str) -> str | None:
    """The pattern that a consumed queue's name is, like `push.*`, or None if it is a queue."""
    return name if name == "*" or (name.endswith(".*") and "*" not in name[:-1]) else None


def direct(exchange: str, routing_key: str, *, is_durable: bool) -> str:
    """The topic of what is published to a direct exchange with a routing key."""
    stem = DIRECT if is_durable else REPLIES
    first = _REFUSED.sub(_escaped, exchange).replace(":", "%3A")
    return _bounded(f"{stem[:-1]}{first}:{_REFUSED.sub(_escaped, routing_key)}")


def exchange(name: str) -> str:
    """The topic of a fanout or topic exchange."""
    return _bounded(EXCHANGES[:-1] + _REFUSED.sub(_escaped, name))


def subscription(name: str) -> str:
    """The name of the subscription that a queue is."""
    plain = _NOT_IN_SUBSCRIPTIONS.sub("_", name)
    if plain == name and len(name) <= MAX_SUBSCRIPTION:
        return name
    return f"{plain[: MAX_SUBSCRIPTION - 17]}-{_digest(name)}"


def _escaped(found: re.Match[str]) -> str:
    return f"%{ord(found.group()):02X}"


def _bounded(topic: str) -> str:
    """A topic's name within the bounds of its length."""
    encoded = topic.encode(errors="replace")
    if len(encoded) <= MAX_TOPIC_BYTES:
        return topic
    return encoded[: MAX_TOPIC_BYTES - 20].decode(errors="ignore") + "-" + _digest(topic)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()

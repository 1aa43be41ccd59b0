"""
Remove subscriptions that nobody declares again: `subscribe(forget_after=)`.

Each call of `subscribe` stores a value that expires after `forget_after`, and removes the
subscriptions of its topic whose value has expired. No process has to watch them, and a topic whose
readers change keeps few subscriptions.
"""

from __future__ import annotations

import hashlib
import logging

from laneway import subscriptions
from laneway.admin.values import MAX_NAME, Values
from laneway.policy import Layers, sources
from laneway.runtime.runtime import Runtime
from laneway.subscriptions import FIELD
from laneway.units import Duration

log = logging.getLogger("laneway.subscriptions")

FORGET_AFTER = "forget_after"
"""The setting of a subscription."""


def renew(runtime: Runtime, pattern: str, name: str, forget_after: Duration) -> None:
    """Record that a subscription is in use. Call this before declaring it."""
    Values(runtime).put(_mark(pattern, name), b"1", ttl=forget_after)


def unused(runtime: Runtime, pattern: str, layers: Layers) -> list[str]:
    """The names of the subscriptions that a topic or pattern declares and nobody has renewed."""
    names = [
        field.removeprefix(FIELD)
        for fields in sources(layers).values()
        for field, value in fields.items()
        if field.startswith(FIELD) and value is not None and FORGET_AFTER in value
    ]
    marks = Values(runtime).get_many(_mark(pattern, name) for name in names)
    found = [name for name, mark in zip(names, marks, strict=True) if mark is None]
    if found:
        log.info("%s: forgetting unused subscriptions: %s", pattern, ", ".join(found))
    return found


def _mark(pattern: str, name: str) -> str:
    """The name of the value that marks the subscription as in use."""
    mark = f"subscription {subscriptions.topic_of(pattern, name)}"
    if len(mark) <= MAX_NAME:
        return mark
    return f"subscription {hashlib.blake2b(mark.encode(), digest_size=16).hexdigest()}"

"""The options of `publish`, and the messages that a call describes."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from laneway import config
from laneway.message import Message
from laneway.units import Duration


class PublishOptions(TypedDict, total=False):
    """The options of `publish`; `Message` documents them."""

    key: str | None
    priority: int
    delay: Duration | None
    at: datetime | float | None
    ttl: Duration | None
    id: str | None
    headers: dict[str, str] | None
    at_front: bool
    cost: int


KNOWN = frozenset(PublishOptions.__annotations__)


def message_from(call: str, topic: str, body: Any, options: PublishOptions) -> Message:
    """
    The message that a call of `publish` describes.

    `call`: the function's name for errors. Raises UsageError for an unknown option.
    """
    if options and not KNOWN.issuperset(options):
        config.refuse_unknown(call, options.keys() - KNOWN, {*KNOWN, "connection", "timeout"})
    return Message(topic, body, **options)

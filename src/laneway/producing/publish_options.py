"""What a call of `publish` can say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from laneway import config
from laneway.message import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from datetime import datetime

    from laneway.units import Duration


class PublishOptions(TypedDict, total=False):
    """The options of `publish`; what each means is said at `Message`."""

    key: str | None
    priority: int
    delay: Duration | None
    at: datetime | float | None
    ttl: Duration | None
    id: str | None
    headers: dict[str, str] | None
    at_front: bool


BATCH = 1_000
"""Messages of an async stream that are published together."""

KNOWN = frozenset(PublishOptions.__annotations__)


def message_from(call: str, topic: str, body: Any, options: PublishOptions) -> Message:
    """The message that is meant. Raises UsageError where the call says something unknown."""
    if options and not KNOWN.issuperset(options):
        config.refuse_unknown(call, options.keys() - KNOWN, {*KNOWN, "timeout"})
    return Message(topic, body, **options)


async def batches_of(messages: AsyncIterable[Message]) -> AsyncIterator[list[Message]]:
    """An async stream, by batches."""
    batch: list[Message] = []
    async for message in messages:
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch

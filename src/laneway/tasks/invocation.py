"""`Invocation`: one call of a task, encoded."""

from __future__ import annotations

from typing import Any

import msgspec

from laneway.message import Message
from laneway.producing.publish_options import PublishOptions


class Invocation(msgspec.Struct, frozen=True):
    """
    One call of a task, ready to be published.

    `topic`: the topic of the message. `body`: the encoded arguments, as `publish` takes them.
    `options`: the other options of `publish`, headers included.
    """

    topic: str
    body: Any
    options: PublishOptions

    def message(self) -> Message:
        """The call as a message."""
        return Message(self.topic, self.body, **self.options)

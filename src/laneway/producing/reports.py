"""Reports of messages that a buffer or spool accepted and the store did not, by log and hook."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from laneway import codec, headers as control, storable
from laneway.errors import LanewayError, UsageError
from laneway.message import Draft, Message
from laneway.units import SECOND

Hook = Callable[[Message, LanewayError], object]

logger = logging.getLogger("laneway.producer")


class UnsentReports:
    """Logs messages that could not be sent, and calls the program's hooks with each of them."""

    def __init__(self) -> None:
        self._hooks: list[Hook] = []

    def add(self, hook: Hook) -> None:
        """Register a hook. Raises UsageError."""
        if not callable(hook):
            raise UsageError(f"on_unsent: expected a function, got {hook!r:.80}")
        self._hooks.append(hook)

    def report(self, drafts: Sequence[Draft], error: LanewayError) -> None:
        """Report messages that will not be sent. One log line for all of them."""
        if not drafts:
            return
        first = drafts[0]
        which = f"message {first.id} to {first.topic}"
        if len(drafts) > 1:
            which = f"{len(drafts):,} messages (the first is {which})"
        logger.error("%s: not sent: %s", which, storable.of(error, 500))
        for hook in self._hooks:
            for draft in drafts:
                try:
                    hook(message_of(draft), error)
                except Exception:
                    logger.exception(
                        "the on_unsent hook %s failed with message %s to %s",
                        getattr(hook, "__qualname__", repr(hook)),
                        draft.id,
                        draft.topic,
                    )


def message_of(draft: Draft) -> Message:
    """The message that was published as this draft."""
    return Message(
        draft.topic,
        codec.decode(draft.body, draft.headers),
        draft.key,
        draft.priority,
        delay=draft.delay_us / SECOND if draft.delay_us else None,
        at=draft.at_us / SECOND if draft.at_us is not None else None,
        ttl=draft.ttl_us / SECOND if draft.ttl_us is not None else None,
        id=draft.id,
        headers=draft.headers,
        at_front=draft.at_front,
        cost=control.cost(draft.headers),
    )

"""
Every error that Laneway raises, grouped by what the caller should do about it.

```
LanewayError
├── UsageError            fix the program
│   ├── BadPolicy         a setting that cannot be
│   ├── BadMessage        a body, topic, key or option that cannot be published
│   └── UnknownHandler    nothing is registered under that name
├── Refused               the state of the system says no
│   ├── BacklogFull       wait, or raise `max_backlog`
│   └── TopicInUse        drain the topic first
├── LeaseLost             somebody else has the message now
├── EngineUnavailable     try again (says whether the change may have happened)
│   ├── NoNamespace       nobody has published there yet
│   └── EngineCorrupt     the store is damaged: `laneway doctor`
├── SchemaMismatch        this file belongs to another version of Laneway
└── HandlerSignal         what handlers raise, not a failure: Retry, Reject, DestinationUnavailable
```

Each message has one line in four parts: what, which, the values, and what to do now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.units import Duration


class LanewayError(Exception):
    """The base of all errors that Laneway raises."""


class UsageError(LanewayError, ValueError):
    """The program asks for something that cannot be; it has to be changed."""


class BadPolicy(UsageError):
    """A policy, gate or tier setting that is unknown, out of range or impossible together."""


class BadMessage(UsageError):
    """
    A message that cannot be published: its body, topic, key, priority or an option is at fault.
    """


class UnknownHandler(UsageError):
    """No handler or task is registered under that name."""


class Refused(LanewayError):
    """The request was fine, the state of the system does not allow it now."""


class BacklogFull(Refused):
    """
    A topic or the namespace holds as much as its `max_backlog` allows.

    `receipts` tells, for a `publish_many`, what became of each message.
    """

    def __init__(self, text: str, receipts: list[object] | None = None) -> None:
        super().__init__(text)
        self.receipts = receipts or []


class TopicInUse(Refused):
    """A change that is only possible while the topic is empty."""


class LeaseLost(LanewayError):
    """The lease had ended before it was settled or extended; nothing was changed."""

    def __init__(self, text: str, message_id: str = "", fence: int = 0) -> None:
        super().__init__(text)
        self.message_id = message_id
        self.fence = fence


class EngineUnavailable(LanewayError, ConnectionError):
    """
    The store does not answer, is full, or cannot be written.

    `applied` is False where nothing was changed, None where that is not known: publishing the
    same ids again is then safe.
    """

    def __init__(self, text: str, *, applied: bool | None = False) -> None:
        super().__init__(text)
        self.applied = applied


class NoNamespace(EngineUnavailable):
    """The server answers, and nobody has published to that namespace there yet."""


class EngineCorrupt(EngineUnavailable):
    """The store is damaged, or is not one of Laneway's."""


class SchemaMismatch(LanewayError):
    """The store was written by another version of Laneway, which this one cannot read."""


class HandlerSignal(LanewayError):
    """What a handler raises to say how its message is to go on."""


class Retry(HandlerSignal):
    """
    Try this message again, after `delay` (seconds, `timedelta` or `"10m"`; default: the policy's
    backoff).

    Counts as an attempt. When the policy's retries are used up, the message becomes a dead letter.
    """

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.reason = reason
        self.delay = delay


class Reject(HandlerSignal):
    """
    Never try this message again: it becomes a dead letter with this reason. `error`: what lies
    behind it, kept with the letter.
    """

    def __init__(
        self, reason: str = "rejected by the handler", *, error: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class DestinationUnavailable(HandlerSignal):
    """
    Not this message is at fault but where it goes: the whole topic rests, then probes again.

    `retry_after` (seconds, `timedelta` or `"10m"`) is what the destination asked for; without it
    the rest is one second, doubled at each failing probe up to five minutes. No message's retries
    are used.
    """

    def __init__(self, reason: str = "", *, retry_after: Duration | None = None) -> None:
        super().__init__(reason or "the destination is unwell")
        self.reason = reason
        self.retry_after = retry_after


class JobFailed(LanewayError):
    """
    A task ended without a result, and its own error cannot be raised here; its class and text are
    in the message.
    """


class JobCancelled(JobFailed):
    """The task was cancelled, or stopped while it ran."""


class JobExpired(JobFailed):
    """The task waited longer than its ttl allows."""


class JobDead(JobFailed):
    """
    The task became a dead letter without an end of its own: nothing handled it, or the workers that
    ran it died.
    """


class DependencyFailed(LanewayError):
    """
    A job that this one depends on failed, so this one never began. `details`: what is told of the
    error of the other.
    """

    def __init__(self, message: str, details: object = None) -> None:
        super().__init__(message)
        self.details = details

"""
Every error that Laneway raises, grouped by what the caller should do about it.

```
LanewayError
├── UsageError            correct the program
│   ├── BadPolicy         a policy, gate or tier setting is not valid
│   ├── BadMessage        a body, topic, key or option cannot be published
│   └── UnknownHandler    nothing is registered under that name
├── Refused               the state of the system does not allow it now
│   ├── BacklogFull       wait, or raise `max_backlog`
│   │   └── ProducerFull  wait, or raise the bounds of the producer's buffer or spool
│   └── TopicInUse        empty the topic first
├── LeaseLost             the lease has ended; another worker may have the message
├── TermLost              this process does not hold the election's term any more
├── StepAborted           an atomic step of a holder was aborted, because its term is ending
├── EngineUnavailable     try again (`applied` tells whether the change may have happened)
│   ├── NoNamespace       nobody has published there yet
│   └── EngineCorrupt     the store is damaged: run `laneway doctor`
├── SchemaMismatch        the store belongs to another version of Laneway
├── HandlerSignal         handlers raise these; they are not failures
│   ├── Retry             try the message again
│   ├── Reject            make it a dead letter
│   └── DestinationUnavailable  the topic backs off
├── JobFailed             a job ended without a result
│   ├── JobCancelled      it was cancelled
│   ├── JobExpired        it waited longer than its ttl
│   └── JobDead           no handler reported its end
└── DependencyFailed      a job that this one depends on failed
```

The text of each error is one line in four parts: what, which, the values, and what to do now.
Each class has a `kind`, a name in snake case that does not change: the type of an HTTP problem, a
field of log records, and the type in the CLI's JSON.
"""

from __future__ import annotations

from typing import ClassVar

from laneway.units import Duration


class LanewayError(Exception):
    """The base of all errors that Laneway raises."""

    kind: ClassVar[str] = "laneway_error"
    """A stable name of this class of errors, in snake case."""


class UsageError(LanewayError, ValueError):
    """The call or setting is not valid; correct the program."""

    kind = "usage_error"


class BadPolicy(UsageError):
    """A policy, gate or tier setting is unknown, out of range, or contradicts another."""

    kind = "bad_policy"


class BadMessage(UsageError):
    """A message cannot be published: its body, topic, key, priority or an option is not valid."""

    kind = "bad_message"


class UnknownHandler(UsageError):
    """No handler or task is registered under that name."""

    kind = "unknown_handler"


class Refused(LanewayError):
    """The request is valid, but the state of the system does not allow it now."""

    kind = "refused"


class BacklogFull(Refused):
    """
    A topic or the namespace holds as much as its `max_backlog` allows.

    `receipts`: of `publish_many`, one `Receipt` for each message; those that were refused have the
    outcome `"refused"`.
    """

    kind = "backlog_full"

    def __init__(self, text: str, receipts: list[object] | None = None) -> None:
        super().__init__(text)
        self.receipts = receipts or []


class ProducerFull(BacklogFull):
    """The producer's buffer or spool is full; the message was not taken."""

    kind = "producer_full"


class TopicInUse(Refused):
    """The change is possible only while the topic is empty."""

    kind = "topic_in_use"


class LeaseLost(LanewayError):
    """
    The lease had ended before it was settled or extended. Nothing was changed.

    `message_id`, `fence`: of the lease.
    """

    kind = "lease_lost"

    def __init__(self, text: str, message_id: str = "", fence: int = 0) -> None:
        super().__init__(text)
        self.message_id = message_id
        self.fence = fence


class TermLost(LanewayError):
    """
    The process does not hold the term of an election any more; another one may hold the next.

    It is raised in a career's plain function that still runs then; a coroutine is cancelled. Let it
    end the function. `number`: of the term.
    """

    kind = "term_lost"

    def __init__(self, text: str, number: int = 0) -> None:
        super().__init__(text)
        self.number = number


class StepAborted(LanewayError):
    """
    An atomic step (`term.atomic`) was aborted, because its term is ending. Let it end `execute`;
    `hand_over` is called next, if the term is still held.
    """

    kind = "step_aborted"


class EngineUnavailable(LanewayError, ConnectionError):
    """
    The store does not answer, is full, or cannot be written.

    `applied`: False: nothing was changed. None: unknown; publishing again with the same ids is
    safe.
    """

    kind = "engine_unavailable"

    def __init__(self, text: str, *, applied: bool | None = False) -> None:
        super().__init__(text)
        self.applied = applied


class NoNamespace(EngineUnavailable):
    """The server answers, but nobody has published to that namespace yet."""

    kind = "no_namespace"


class EngineCorrupt(EngineUnavailable):
    """The store is damaged, or is not one of Laneway's."""

    kind = "engine_corrupt"


class SchemaMismatch(LanewayError):
    """Another version of Laneway wrote the store, and this one cannot read it."""

    kind = "schema_mismatch"


class HandlerSignal(LanewayError):
    """The base of what a handler raises to say how its message continues."""

    kind = "handler_signal"


class Retry(HandlerSignal):
    """
    Try this message again. Counts as an attempt; when the policy's retries are used up, the message
    becomes a dead letter.

    `reason`: for the message's history. `delay`: until the next attempt (seconds, `timedelta` or
    `"10m"`); default: the policy's backoff.
    """

    kind = "retry"

    def __init__(self, reason: str = "", *, delay: Duration | None = None) -> None:
        super().__init__(reason or "the handler asked for a retry")
        self.reason = reason
        self.delay = delay


class Reject(HandlerSignal):
    """
    Never try this message again: it becomes a dead letter.

    `reason`: of the dead letter. `error`: a longer text, stored with it; default: none.
    """

    kind = "reject"

    def __init__(
        self, reason: str = "rejected by the handler", *, error: str | None = None
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class DestinationUnavailable(HandlerSignal):
    """
    The message's destination is unavailable, so the whole topic backs off: it delivers nothing for
    a time, then one message at a time as a probe. No message's retries are used.

    A topic with `concurrency="auto"` only lowers its limit, unless `retry_after` is given or the
    limit is at its minimum.

    `retry_after`: how long to back off, if the destination said so (seconds, `timedelta` or
    `"10m"`); default: one second, doubled by each failing probe up to five minutes.
    """

    kind = "destination_unavailable"

    def __init__(self, reason: str = "", *, retry_after: Duration | None = None) -> None:
        super().__init__(reason or "the destination is unavailable")
        self.reason = reason
        self.retry_after = retry_after


class JobFailed(LanewayError):
    """
    A job ended without a result, and its own error cannot be raised here. The text has the class
    and the text of that error.
    """

    kind = "job_failed"


class JobCancelled(JobFailed):
    """The job was cancelled before or while it ran."""

    kind = "job_cancelled"


class JobExpired(JobFailed):
    """The job waited longer than its ttl allows."""

    kind = "job_expired"


class JobDead(JobFailed):
    """
    The job became a dead letter and no handler reported an end: there was no handler for it, or the
    workers that ran it died.
    """

    kind = "job_dead"


class DependencyFailed(LanewayError):
    """
    A job that this one depends on failed, so this one did not start.

    `details`: the stored details of the other job's error.
    """

    kind = "dependency_failed"

    def __init__(self, message: str, details: object = None) -> None:
        super().__init__(message)
        self.details = details

"""
The log lines of messages that ended: a line each, up to a number a second, then a count.

Successes are logged on the event loop. Failures are logged in the engine thread, once the engine
has answered whether the message will be retried or is a dead letter.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from laneway import storable, units
from laneway.engines.base import TASK_HEADER, FullEngine
from laneway.errors import DependencyFailed, DestinationUnavailable, Reject, Retry
from laneway.message import Lease, Settlement
from laneway.printable import escaped, without_passwords
from laneway.working import tracebacks
from laneway.working.error_details import (
    ERROR_CHARACTERS,
    Details,
    RemoteFailure,
    RemoteTraceback,
    attribute,
    cause_of,
    error_text,
)
from laneway.working.handler import kind_of
from laneway.working.log_format import FIELDS

log = logging.getLogger("laneway.worker")


def _escape_traceback(record: logging.LogRecord) -> bool:
    """
    Escape control characters in a traceback, which may contain text of strangers.

    Programs with a formatter of their own, or none, write that text to a terminal as it is.
    """
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        try:
            record.exc_text = escaped(
                without_passwords(tracebacks.whole(record.exc_info[1]).rstrip("\n")), lines=True
            )
        except BaseException:  # noqa: BLE001  # the error's own code
            record.exc_text = "(the traceback cannot be formatted)"
    return True


log.addFilter(_escape_traceback)

LINES_PER_SECOND = 100
"""
How many successes, and how many failures, are logged one by one in a second; the others are only
counted. A line costs about ten microseconds.
"""


_PLACES = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
"""The file and the line of each frame in the text of an error."""


class _Failure(msgspec.Struct):
    lease: Lease
    error: BaseException
    cost_us: int


class OutcomeLog:
    """
    Logs how messages ended.

    The worker adds 1 to `count` at each success, and calls `succeeded` while `is_open`.
    """

    def __init__(
        self, engine: FullEngine, loop: asyncio.AbstractEventLoop, *, with_tracebacks: bool
    ) -> None:
        self.count = 0
        """How many messages succeeded in this second."""
        self.is_open = log.isEnabledFor(logging.INFO)
        """Whether the next success is logged one by one."""
        self._engine = engine
        self._loop = loop
        self._with_tracebacks = with_tracebacks
        self._logged = 0
        self._lock = threading.Lock()  # guards the next four
        self._failures: dict[int, _Failure] = {}
        self._failed_since = 0.0
        self._failures_logged = 0
        self._failures_counted = 0

    # Successes

    def succeeded(self, lease: Lease, cost_us: int) -> None:
        """Log a success; on the event loop."""
        if not self._logged:
            self._loop.call_later(1.0, self._begin_second)
        self._logged += 1
        self.is_open = self._logged < LINES_PER_SECOND
        log.info(
            "message %s in topic %s: %ssucceeded in %.3f s",
            lease.id,
            lease.topic,
            _task(lease),
            cost_us / units.SECOND,
            extra=_fields(lease, cost_us),
        )

    def _begin_second(self) -> None:
        more = self.count - self._logged
        if more > 0:
            log.info("%s more messages succeeded in the last second", f"{more:,}")
        self.count = self._logged = 0
        self.is_open = log.isEnabledFor(logging.INFO)
        self._log_failure_count()

    # Failures

    def expect(self, lease: Lease, error: BaseException, cost_us: int) -> None:
        """A handler has failed; log it once `settled` reports what became of the message."""
        if issubclass(type(error), DependencyFailed):  # its message is acked
            reason = storable.of(error, storable.MAX_REASON)
            log.info(
                "message %s in topic %s: %snot run: %s",
                lease.id,
                lease.topic,
                _task(lease),
                reason,
                extra=_fields(lease, cost_us, error),
            )
            return
        with self._lock:
            self._failures[lease.fence] = _Failure(lease, error, cost_us)

    def settled(self, settlement: Settlement, answer: str) -> None:
        """
        The engine's answer to a settlement that was not simply acked; in the engine thread.

        Never raises.
        """
        failure = self._failures.pop(settlement.fence, None)
        if (
            failure is None
            or (settlement.action == "unhandled" and answer != "died")
            or not self._may_log()
        ):
            return
        try:
            self._log(failure, settlement, answer)
        except BaseException:  # noqa: BLE001  # the error's own code, or a log handler of the program
            log.warning(
                "message %s in topic %s: its handler failed, and the error cannot be logged",
                failure.lease.id,
                failure.lease.topic,
            )

    def _may_log(self) -> bool:
        now = time.monotonic()
        if now - self._failed_since >= 1.0:
            self._log_failure_count()
            self._failed_since, self._failures_logged = now, 0
        with self._lock:
            if self._failures_logged < LINES_PER_SECOND:
                self._failures_logged += 1
                return True
            self._failures_counted += 1
            return False

    def _log_failure_count(self) -> None:
        with self._lock:
            more, self._failures_counted = self._failures_counted, 0
        if more:
            log.warning("%s more messages failed", f"{more:,}")

    def _log(self, failure: _Failure, settlement: Settlement, answer: str) -> None:
        lease, error = failure.lease, failure.error
        attempt = f"{_task(lease)}attempt {lease.attempt}"
        cause: BaseException | None = error
        kind = type(error)  # not isinstance, which asks the error's own `__class__`
        text = storable.of(error, storable.MAX_REASON)
        if issubclass(kind, Reject):
            is_refusal = attribute(error, "error") is None
            level, what = (
                logging.WARNING,
                f"rejected: {text}" if is_refusal else f"{attempt} failed: {text}",
            )
            cause = None if is_refusal else attribute(error, "__cause__") or error
        elif settlement.action == "unhandled":
            level, what, cause = logging.ERROR, text, None
        elif settlement.action == "release":
            level, what, cause = logging.INFO, f"released: {text}", None
        elif issubclass(kind, DestinationUnavailable):
            span = (
                ""
                if settlement.delay_us is None
                else f" for {settlement.delay_us / units.SECOND:.1f} s"
            )
            if settlement.delay_us is None and self._engine.policy_of(lease.topic).adapts:
                what = (
                    f"destination unavailable, its topic backs off or runs fewer handlers: {text}"
                )
            else:
                what = f"topic backs off{span}: {text}"
            level, cause = logging.WARNING, None
        elif issubclass(kind, Retry):
            level, what, cause = (
                logging.INFO,
                f"{attempt} requested a retry: {error_text(error).partition(chr(10))[0]}",
                cause_of(error),
            )
        else:
            level, what = logging.WARNING, f"{attempt} failed: {_in_one_line(error)}"
        is_last = answer == "died"
        if answer == "retried":
            what += self._next_attempt(lease, settlement)
        elif is_last and cause is not None:
            level = logging.ERROR
        if is_last:
            what += "; dead letter"
        if not log.isEnabledFor(level):
            return
        cause = None if cause is None else _as_raised(cause)
        shows = cause is not None and (is_last or self._with_tracebacks) and _can_be_shown(cause)
        log.log(
            level,
            "message %s in topic %s: %s",
            lease.id,
            lease.topic,
            escaped(what),
            exc_info=(
                (type(cause), cause, cause.__traceback__) if shows and cause is not None else None
            ),
            extra=_fields(lease, failure.cost_us, error),
        )

    def _next_attempt(self, lease: Lease, settlement: Settlement) -> str:
        policy = self._engine.policy_of(lease.topic)
        left = f"{max(policy.retries - lease.attempt + 1, 0):,} left"
        if settlement.delay_us is not None:
            return f"; next attempt in {settlement.delay_us / units.SECOND:.1f} s ({left})"
        delay_us = policy.backoff.delay_us(lease.attempt, 1.0)
        return (
            f"; next attempt {'within' if policy.backoff.jitter else 'in'}"
            f" {delay_us / units.SECOND:.1f} s ({left})"
        )

    def close(self) -> None:
        """Log how many messages were only counted."""
        more = self.count - self._logged
        if self._logged and more > 0:
            log.info("%s more messages succeeded", f"{more:,}")
        self.count = self._logged = 0
        self._log_failure_count()


def _as_raised(error: BaseException) -> BaseException:
    """The error to show; for one from a child process, the traceback that it had there."""
    details = attribute(error, "details")
    return RemoteTraceback(details.traceback) if type(details) is Details else error


def _can_be_shown(error: BaseException) -> bool:
    """Whether formatting the traceback has a bounded cost; a log formatter knows no bound."""
    try:
        return tracebacks.is_small(error)
    except BaseException:  # noqa: BLE001  # its class may be the user's
        return False


def _task(lease: Lease) -> str:
    task = lease.headers.get(TASK_HEADER) if lease.headers is not None else None
    return f"task {task} " if task is not None else ""


def _fields(lease: Lease, cost_us: int, error: BaseException | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "message": lease.id,
        "topic": lease.topic,
        "attempt": lease.attempt,
        "seconds": cost_us / units.SECOND,
    }
    if error is not None:
        fields["error"] = storable.type_name(type(error))
        if type(error) is RemoteFailure and error.details is not None:
            fields["error"] = error.details.type.rpartition(":")[2]
    return {FIELDS: fields}


def _in_one_line(error: BaseException) -> str:
    """Type, first line and place; the whole error is kept with the message."""
    if type(error) is RemoteFailure:  # its text has the frames of the child process
        text, places = storable.of(error, ERROR_CHARACTERS), _PLACES.findall(str(error))
        return " ".join([text.partition("\n")[0], *(f"({file}:{n})" for file, n in places[-1:])])
    first_line = storable.of(error, storable.MAX_REASON).partition("\n")[0]
    kind = storable.type_name(type(error))
    text = f"{kind}: {first_line}" if first_line else kind
    frame = tracebacks.where(error)
    return f"{text} ({frame.filename}:{frame.lineno})" if frame is not None else text


# Messages without a handler: one line a minute for each kind of message


WARN_SECONDS = 60.0
"""How long between two warnings about one kind of message; those between are counted."""

MAX_KINDS = 100
"""
How many kinds get a warning of their own; the others share one. Each topic without a dot is a kind,
and there may be a million.
"""


class UnhandledWarnings:
    """
    Warns of messages that are released because no handler takes them.

    A kind is the task that a message names, else the pattern one level above its topic.
    """

    def __init__(self) -> None:
        self._warned_at: dict[str, float] = {}
        self._unreported: dict[str, int] = {}

    def warn(self, leases: Iterable[Lease]) -> None:
        """Warn of these messages."""
        now = time.monotonic()
        for lease in leases:
            kind = kind_of(lease)
            if kind not in self._warned_at and len(self._warned_at) >= MAX_KINDS:
                kind = "further topics"
            if now - self._warned_at.get(kind, -WARN_SECONDS) < WARN_SECONDS:
                self._unreported[kind] = self._unreported.get(kind, 0) + 1
                continue
            self._warned_at[kind] = now
            more = self._unreported.pop(kind, 0)
            log.warning(
                "no handler for message %s in topic %s (%s); returned (a dead letter only after the"
                " policy's on_unhandled, if that is set)%s; register a handler, or give this"
                " program its own pool",
                lease.id,
                lease.topic,
                kind,
                f"; {more:,} more since the last warning" if more else "",
            )

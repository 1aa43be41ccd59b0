"""
What a worker logs of messages that ended: a line each, up to a number a second; of the others how
many there were.

Successes are told on the event loop. What failed is told in the engine thread, once the engine has
answered what became of it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from laneway import texts, units
from laneway.engines.base import TASK_HEADER
from laneway.errors import DependencyFailed, DestinationUnavailable, Reject, Retry
from laneway.safetext import escaped, without_passwords
from laneway.working import tracebacks
from laneway.working.error_details import attribute, cause_of, error_text
from laneway.working.log_format import FIELDS

if TYPE_CHECKING:
    import asyncio

    from laneway.engines.base import FullEngine
    from laneway.message import Lease, Settlement

log = logging.getLogger("laneway.worker")


def _escape_traceback(record: logging.LogRecord) -> bool:
    """
    Programs with a formatter of their own, or none, write this text as it is; what strangers wrote
    must do nothing in a terminal.
    """
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        try:
            record.exc_text = escaped(
                without_passwords(tracebacks.whole(record.exc_info[1]).rstrip("\n")), lines=True
            )
        except BaseException:  # noqa: BLE001  # the error's own code
            record.exc_text = "its traceback cannot be shown"
    return True


log.addFilter(_escape_traceback)

LINES_A_SECOND = 100
"""
Of successes, and as many of failures: a line costs some ten microseconds, and nobody reads
thousands a second.
"""


class _Failure(msgspec.Struct):
    lease: Lease
    error: BaseException
    cost_us: int


class OutcomeLog:
    """
    Tells how messages ended. The caller counts `count` up at each success, and calls `succeeded`
    while `is_open`.
    """

    def __init__(
        self, engine: FullEngine, loop: asyncio.AbstractEventLoop, *, with_tracebacks: bool
    ) -> None:
        self.count = 0
        """Successes of this second."""
        self.is_open = log.isEnabledFor(logging.INFO)
        self._engine = engine
        self._loop = loop
        self._with_tracebacks = with_tracebacks
        self._told = 0
        self._lock = threading.Lock()  # guards the next four
        self._failures: dict[int, _Failure] = {}
        self._failed_since = 0.0
        self._failures_told = 0
        self._failures_untold = 0

    # Successes

    def succeeded(self, lease: Lease, cost_us: int) -> None:
        """One line; on the event loop."""
        if not self._told:
            self._loop.call_later(1.0, self._begin_second)
        self._told += 1
        self.is_open = self._told < LINES_A_SECOND
        log.info(
            "message %s in %s: %ssucceeded in %.3f s",
            lease.id,
            lease.topic,
            _task(lease),
            cost_us / units.SECOND,
            extra=_about(lease, cost_us),
        )

    def _begin_second(self) -> None:
        more = self.count - self._told
        if more > 0:
            log.info("… %s more succeeded in the last second", f"{more:,}")
        self.count = self._told = 0
        self.is_open = log.isEnabledFor(logging.INFO)
        self._tell_untold()

    # Failures

    def expect(self, lease: Lease, error: BaseException, cost_us: int) -> None:
        """The handler has failed, and its settlement is on its way."""
        if issubclass(type(error), DependencyFailed):  # its message is acked
            said = texts.of(error, texts.MAX_REASON)
            log.info(
                "message %s in %s: %snot run: %s",
                lease.id,
                lease.topic,
                _task(lease),
                said,
                extra=_about(lease, cost_us, error),
            )
            return
        with self._lock:
            self._failures[lease.fence] = _Failure(lease, error, cost_us)

    def settled(self, settlement: Settlement, answer: str) -> None:
        """
        What became of a message that was not simply acked; in the engine thread. Never raises.
        """
        failure = self._failures.pop(settlement.fence, None)
        if (
            failure is None
            or (settlement.action == "unhandled" and answer != "died")
            or not self._may_tell()
        ):
            return
        try:
            self._tell(failure, settlement, answer)
        except BaseException:  # noqa: BLE001  # the error's own code, or a log handler of the program
            log.warning(
                "message %s in %s: its handler failed, and how cannot be told",
                failure.lease.id,
                failure.lease.topic,
            )

    def _may_tell(self) -> bool:
        now = time.monotonic()
        if now - self._failed_since >= 1.0:
            self._tell_untold()
            self._failed_since, self._failures_told = now, 0
        with self._lock:
            if self._failures_told < LINES_A_SECOND:
                self._failures_told += 1
                return True
            self._failures_untold += 1
            return False

    def _tell_untold(self) -> None:
        with self._lock:
            more, self._failures_untold = self._failures_untold, 0
        if more:
            log.warning("… %s more failed", f"{more:,}")

    def _tell(self, failure: _Failure, settlement: Settlement, answer: str) -> None:
        lease, error = failure.lease, failure.error
        attempt = f"{_task(lease)}attempt {lease.attempt}"
        cause: BaseException | None = error
        kind, said = (
            type(error),
            texts.of(error, texts.MAX_REASON),
        )  # not isinstance: it asks the error's own `__class__`
        if issubclass(kind, Reject):
            is_refusal = attribute(error, "error") is None
            level, what = (
                logging.WARNING,
                f"rejected: {said}" if is_refusal else f"{attempt} failed: {said}",
            )
            cause = None if is_refusal else attribute(error, "__cause__") or error
        elif settlement.action == "unhandled":
            level, what, cause = logging.ERROR, said, None
        elif issubclass(kind, DestinationUnavailable):
            span = (
                ""
                if settlement.delay_us is None
                else f" for {settlement.delay_us / units.SECOND:.1f} s"
            )
            level, what, cause = logging.WARNING, f"the topic backs off{span}: {said}", None
        elif issubclass(kind, Retry):
            level, what, cause = (
                logging.INFO,
                f"{attempt} asks to be tried again: {error_text(error).partition(chr(10))[0]}",
                cause_of(error),
            )
        else:
            level, what = logging.WARNING, f"{attempt} failed: {_shortly(error)}"
        is_last = answer == "died"
        if answer == "retried":
            what += self._again(lease, settlement)
        elif is_last and cause is not None:
            level = logging.ERROR
        if is_last:
            what += "; it is a dead letter now"
        if not log.isEnabledFor(level):
            return
        shows = cause is not None and (is_last or self._with_tracebacks) and _can_be_shown(cause)
        log.log(
            level,
            "message %s in %s: %s",
            lease.id,
            lease.topic,
            escaped(what),
            exc_info=(
                (type(cause), cause, cause.__traceback__) if shows and cause is not None else None
            ),
            extra=_about(lease, failure.cost_us, error),
        )

    def _again(self, lease: Lease, settlement: Settlement) -> str:
        policy = self._engine.policy_of(lease.topic)
        left = f"{max(policy.retries - lease.attempt + 1, 0):,} left"
        if settlement.delay_us is not None:
            return f"; again in {settlement.delay_us / units.SECOND:.1f} s ({left})"
        delay_us = policy.backoff.delay_us(lease.attempt, 1.0)
        return (
            f"; again {'within' if policy.backoff.jitter else 'in'} {delay_us / units.SECOND:.1f} s"
            f" ({left})"
        )

    def close(self) -> None:
        """Tell how many were not told."""
        more = self.count - self._told
        if self._told and more > 0:
            log.info("… %s more succeeded", f"{more:,}")
        self.count = self._told = 0
        self._tell_untold()


def _can_be_shown(error: BaseException) -> bool:
    """Whoever formats the line has no bound for it."""
    try:
        return tracebacks.is_small(error)
    except BaseException:  # noqa: BLE001  # its class may be of the user's own
        return False


def _task(lease: Lease) -> str:
    task = lease.headers.get(TASK_HEADER) if lease.headers is not None else None
    return f"task {task} " if task is not None else ""


def _about(lease: Lease, cost_us: int, error: BaseException | None = None) -> dict[str, Any]:
    about: dict[str, Any] = {
        "message": lease.id,
        "topic": lease.topic,
        "attempt": lease.attempt,
        "seconds": cost_us / units.SECOND,
    }
    if error is not None:
        about["error"] = texts.type_name(type(error))
    return {FIELDS: about}


def _shortly(error: BaseException) -> str:
    """Type, first line, and where; the whole is kept with the message."""
    said = texts.of(error, texts.MAX_REASON).partition("\n")[0]
    kind = texts.type_name(type(error))
    text = f"{kind}: {said}" if said else kind
    frame = tracebacks.where(error)
    return f"{text} ({frame.filename}:{frame.lineno})" if frame is not None else text

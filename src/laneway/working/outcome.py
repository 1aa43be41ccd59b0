"""How a delivery ends: from what its handler returned or raised to a settlement."""

from __future__ import annotations

import contextlib
import logging
import types
from typing import Any

from laneway import storable, units
from laneway.errors import DestinationUnavailable, Reject, Retry
from laneway.message import Overload, Settlement
from laneway.units import Duration
from laneway.working.error_details import (
    RemoteFailure,
    attribute,
    cause_of,
    error_text,
    text_attribute,
    text_of,
)
from laneway.working.time_limits import SoftTimeLimit, TimeLimit
from laneway.working.worker_delivery import WorkerDelivery

log = logging.getLogger("laneway.worker")


class Portable(bytes):
    """An encoded result that a handler in a child process sends to its worker."""


CANNOT_SETTLE = "cannot be settled: "
"""How a dead letter's reason begins if the store cannot take what its handler ended with."""


def settlement_for(
    delivery: WorkerDelivery, error: BaseException | None, cost_us: int
) -> Settlement:
    """How a lease ends if its handler raised `error`, or returned (None)."""
    if error is None:
        return Settlement(delivery.lease.handle, delivery.lease.fence, "ack", cost_us=cost_us)
    settlement = _settlement_of_failure(delivery, error, cost_us)
    if delivery.lease.limited:  # else no limit can adapt
        settlement.overload = overload_of(error)
    return settlement


def _settlement_of_failure(
    delivery: WorkerDelivery, error: BaseException, cost_us: int
) -> Settlement:
    handle, fence = delivery.lease.handle, delivery.lease.fence
    kind = type(error)  # not isinstance, which asks the error's own `__class__`
    if issubclass(kind, Reject):
        return Settlement(
            handle,
            fence,
            "dead",
            reason=text_attribute(error, "reason"),
            error=text_attribute(error, "error"),
            cost_us=cost_us,
        )
    if issubclass(kind, Retry):
        return _with_delay(
            Settlement(handle, fence, "retry", error=error_text(error), cost_us=cost_us),
            delivery,
            "delay",
            attribute(error, "delay"),
        )
    if issubclass(kind, DestinationUnavailable):
        settlement = Settlement(
            handle, fence, "back_off", error=text_attribute(error, "reason"), cost_us=cost_us
        )
        return _with_delay(settlement, delivery, "retry_after", attribute(error, "retry_after"))
    return Settlement(handle, fence, "retry", error=text_of(error), cost_us=cost_us)


def dead_letter_for_fault(
    delivery: WorkerDelivery, error: BaseException | None, fault: BaseException, cost_us: int
) -> Settlement:
    """
    A dead letter's settlement, for a message whose handler's end gives no valid one. `error`: what
    the handler raised. `fault`: what then went wrong.
    """
    reason = (
        f"{CANNOT_SETTLE}{storable.type_name(type(fault))}: "
        f"{storable.of(fault, storable.MAX_REASON // 2)}"
    )
    return Settlement(
        delivery.lease.handle,
        delivery.lease.fence,
        "dead",
        reason=reason,
        error=text_of(fault if error is None else error),
        cost_us=cost_us,
    )


def _with_delay(
    settlement: Settlement, delivery: WorkerDelivery, name: str, delay: Duration | None
) -> Settlement:
    """
    Set the delay that the handler requested, if any.

    An invalid one is reported in the message's history, and the policy's delay is used.
    """
    if delay is not None:
        try:
            settlement.delay_us = max(0, units.microseconds(delay))
        except BaseException as error:  # noqa: BLE001  # its class may be the user's
            fault = f"({name}: {storable.of(error, 200)}; using the policy's delay)"
            log.warning(
                "message %s in topic %s: invalid delay from its handler %s",
                delivery.lease.id,
                delivery.lease.topic,
                fault,
            )
            before = storable.clean(settlement.error or "", storable.MAX_ERROR - len(fault) - 1)
            settlement.error = f"{before} {fault}".lstrip()
    return settlement


def work_not_done(handler: str, returned: Any) -> TypeError | None:
    """
    The error of a handler that returned a coroutine or a generator: its work was never done. Else
    None.
    """
    if issubclass(type(returned), types.CoroutineType):
        with contextlib.suppress(Exception):
            returned.close()
        return TypeError(
            f'handler {handler} returned a coroutine that is never awaited; write it as "async def"'
        )
    if issubclass(type(returned), (types.GeneratorType, types.AsyncGeneratorType)):
        return TypeError(
            f"handler {handler} returned a generator that nobody runs; call list() on it"
        )
    return None


def release(delivery: WorkerDelivery, *, begun: bool, delay_us: int | None = None) -> Settlement:
    """
    A release, which counts no attempt.

    `begun`: whether its handler has begun; if not, its rate's permit is released too.
    """
    return Settlement(
        delivery.lease.handle, delivery.lease.fence, "release", begun=begun, delay_us=delay_us
    )


BUSY_STATUSES = (429, 503)
"""HTTP: too many requests; service unavailable."""

_STATUS_NAMES = ("status_code", "status", "code")
"""Where HTTP clients keep a response's status: httpx and requests, aiohttp, urllib."""


def overload_of(error: BaseException) -> Overload | None:
    """
    Whether a handler's error is a timeout, an answer of an overloaded destination, or neither.

    HTTP clients' errors are recognized by their names and attributes. A Retry or Reject counts as
    the error that it was raised from. Never raises.
    """
    kind = type(error)  # not isinstance, which asks the error's own `__class__`
    if issubclass(kind, (Retry, Reject)):
        cause = cause_of(error)
        if cause is None or issubclass(type(cause), (Retry, Reject)):
            return None
        return overload_of(cause)
    if issubclass(kind, (TimeLimit, SoftTimeLimit)) or _names_timeout(error):
        return "timeout"
    if issubclass(kind, ConnectionRefusedError) or _status(error) in BUSY_STATUSES:
        return "answer"
    return None


def _names_timeout(error: BaseException) -> bool:
    """Whether one of its classes is a timeout by name: `TimeoutError`, `httpx.ReadTimeout` …"""
    if type(error) is RemoteFailure and error.details is not None:
        return "Timeout" in error.details.type
    return any("Timeout" in each.__name__ for each in type(error).__mro__)


def _status(error: BaseException) -> int | None:
    """The status of the HTTP response that it is about."""
    for holder in (error, attribute(error, "response")):
        if holder is None:
            continue
        for name in _STATUS_NAMES:
            status = attribute(holder, name)
            if type(status) is int:
                return status
    return None

"""The one place where all endings of a handler become settlements."""

from __future__ import annotations

import contextlib
import logging
import types
from typing import TYPE_CHECKING, Any

from laneway import texts, units
from laneway.errors import DestinationUnavailable, Reject, Retry
from laneway.message import Settlement
from laneway.working.error_details import attribute, error_text, said, text_of

if TYPE_CHECKING:
    from laneway.units import Duration
    from laneway.working.delivery import WorkerDelivery

log = logging.getLogger("laneway.worker")


class Portable(bytes):
    """What a function returns that is to leave the child process in which it ran."""


CANNOT_SETTLE = "cannot be settled: "
"""
How the reason of a dead letter begins whose handler ended in a way that no settlement can say.
"""


def settlement_for(
    delivery: WorkerDelivery, error: BaseException | None, cost_us: int
) -> Settlement:
    """How a lease ends, from what its handler raised (None: it returned)."""
    handle, fence = delivery.lease.handle, delivery.lease.fence
    if error is None:
        return Settlement(handle, fence, "ack", cost_us=cost_us)
    kind = type(error)  # not isinstance: it asks the error's own `__class__`
    if issubclass(kind, Reject):
        return Settlement(
            handle,
            fence,
            "dead",
            reason=said(error, "reason"),
            error=said(error, "error"),
            cost_us=cost_us,
        )
    if issubclass(kind, Retry):
        return _again(
            Settlement(handle, fence, "retry", error=error_text(error), cost_us=cost_us),
            delivery,
            "delay",
            attribute(error, "delay"),
        )
    if issubclass(kind, DestinationUnavailable):
        settlement = Settlement(
            handle, fence, "back_off", error=said(error, "reason"), cost_us=cost_us
        )
        return _again(settlement, delivery, "retry_after", attribute(error, "retry_after"))
    return Settlement(handle, fence, "retry", error=text_of(error), cost_us=cost_us)


def dead_letter_for_fault(
    delivery: WorkerDelivery, error: BaseException | None, fault: BaseException, cost_us: int
) -> Settlement:
    """
    The dead letter of a message whose handler ended in a way that cannot be settled; `fault`: what
    went wrong with that.
    """
    reason = (
        f"{CANNOT_SETTLE}{texts.type_name(type(fault))}: {texts.of(fault, texts.MAX_REASON // 2)}"
    )
    return Settlement(
        delivery.lease.handle,
        delivery.lease.fence,
        "dead",
        reason=reason,
        error=text_of(fault if error is None else error),
        cost_us=cost_us,
    )


def _again(
    settlement: Settlement, delivery: WorkerDelivery, name: str, delay: Duration | None
) -> Settlement:
    """
    With the delay that the handler asked for. Of one that cannot be, the message's history tells,
    and the policy's is taken.
    """
    if delay is not None:
        try:
            settlement.delay_us = max(0, units.microseconds(delay))
        except BaseException as error:  # noqa: BLE001  # it may be of a class of the user's own
            fault = f"({name}: {texts.of(error, 200)}; the policy's is taken)"
            log.warning(
                "message %s in %s: its handler asks for a delay that cannot be %s",
                delivery.lease.id,
                delivery.lease.topic,
                fault,
            )
            before = texts.clean(settlement.error or "", texts.MAX_ERROR - len(fault) - 1)
            settlement.error = f"{before} {fault}".lstrip()
    return settlement


def unawaited_coroutine(handler: str, returned: Any) -> TypeError | None:
    """What a handler may return, but for a coroutine: its work was never done."""
    if issubclass(type(returned), types.CoroutineType):
        with contextlib.suppress(Exception):
            returned.close()
        return TypeError(
            f'handler {handler} returned a coroutine that nobody awaits; write it as "async def"'
        )
    return None


def release(delivery: WorkerDelivery, *, begun: bool, delay_us: int | None = None) -> Settlement:
    """A release: no attempt is counted; what was not begun gives its rate permit back too."""
    return Settlement(
        delivery.lease.handle, delivery.lease.fence, "release", begun=begun, delay_us=delay_us
    )

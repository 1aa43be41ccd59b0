"""Which producer an application has: the plain one, one with a buffer, or one with a spool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from laneway.errors import UsageError
from laneway.producing.buffer import Buffer, MessageBuffer
from laneway.producing.outbox_producer import OutboxProducer
from laneway.producing.producer import Producer
from laneway.producing.spool import MessageSpool, Spool

if TYPE_CHECKING:
    import os
    from concurrent.futures import Executor

    from laneway.producing import producer, spool
    from laneway.producing.reports import UnsentReports

    class Target(producer.Holder, spool.Target, Protocol):
        """The store to send to; it is opened at first use."""


def producer_of(
    holder: Target,
    threads: Executor,
    unsent: UnsentReports,
    *,
    buffer: Buffer | bool,
    spool: Spool | str | os.PathLike[str] | None,
) -> Producer:
    """The producer that `Laneway(buffer=…)` or `Laneway(spool=…)` asks for. Raises UsageError."""
    if spool is not None:
        if buffer is not False:
            raise UsageError(
                "Laneway: buffer and spool contradict each other; give one of them (a spool does"
                " not wait for the store either)"
            )
        options = spool if isinstance(spool, Spool) else Spool(spool)
        return OutboxProducer(holder, threads, lambda _: MessageSpool(options, holder, unsent))
    if buffer is False:
        return Producer(holder, threads)
    if buffer is True:
        buffer = Buffer()
    if not isinstance(buffer, Buffer):
        raise UsageError(
            f"Laneway: expected buffer to be True or a Buffer(…) with its bounds, got"
            f" {buffer!r:.80}"
        )
    return OutboxProducer(holder, threads, lambda put: MessageBuffer(buffer, put, unsent))

"""Which producer an application has: the plain one, one with a buffer, or one with a spool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import UsageError
from laneway.producing.buffer import Buffer
from laneway.producing.buffered import BufferedProducer
from laneway.producing.producer import Producer

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from laneway.producing.producer import Holder
    from laneway.producing.reports import UnsentReports


def producer_of(
    holder: Holder, threads: Executor, buffer: Buffer | bool, unsent: UnsentReports
) -> Producer:
    """The producer that `Laneway(buffer=…)` asks for. Raises UsageError."""
    if buffer is False:
        return Producer(holder, threads)
    if buffer is True:
        buffer = Buffer()
    if not isinstance(buffer, Buffer):
        raise UsageError(
            f"Laneway: expected buffer to be True or a Buffer(…) with its bounds, got"
            f" {buffer!r:.80}"
        )
    return BufferedProducer(holder, threads, buffer, unsent)

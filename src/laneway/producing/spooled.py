"""How an application with a spool publishes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from laneway import arguments
from laneway.errors import ProducerFull
from laneway.producing.producer import Producer
from laneway.producing.publisher import Publisher
from laneway.producing.spool import MessageSpool

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from laneway.errors import BacklogFull
    from laneway.message import Draft, Receipt
    from laneway.producing import producer, spool
    from laneway.producing.reports import UnsentReports
    from laneway.producing.spool import Spool
    from laneway.producing.spool_file import SpoolStatus
    from laneway.units import Duration

    class Target(producer.Holder, spool.Target, Protocol):
        """The store to forward to; it is opened at first use."""


class SpoolProducer(Producer):
    """
    Publishes into a spool, from which a thread forwards. Threads and coroutines share its
    transactions as they share those of a store. Flows go to the store directly, because they are
    stored whole or not at all.
    """

    overlaps = False
    spool: MessageSpool | None = None

    def __init__(
        self, target: Target, threads: Executor, options: Spool, unsent: UnsentReports
    ) -> None:
        self._target = target
        self._options = options
        self._unsent = unsent
        super().__init__(target, threads)

    def begin(self) -> None:
        super().begin()
        if self.spool is not None:
            self.spool.begin_in_child()
        self.spool = MessageSpool(self._options, self._target, self._unsent)
        self.publisher = Publisher(self.spool, self.threads)

    def parts(self) -> list[object]:
        return [*super().parts(), self.spool]

    def publish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:
        assert self.spool is not None
        if self._options.sync:  # else several threads share a wait for the disk
            receipt = self.spool.put_now(draft)
            if receipt is not None:
                return receipt
        return super().publish_draft(draft, timeout)

    def _has_to_wait(self, topic: str) -> bool:
        del topic
        assert self.spool is not None
        return self._options.on_full == "block" and not self.spool.is_forwarding_here

    def _note_refused(self, draft: Draft, reason: str) -> None:
        """The spool was full, not the store."""

    def _full(self, draft: Draft, receipt: Receipt) -> BacklogFull:
        return ProducerFull(f"topic {draft.topic}: {receipt.reason}", [receipt])

    def flush(self, timeout: Duration | None = None) -> int:
        assert self.spool is not None
        return self.spool.flush(arguments.seconds_or_none("flush", "timeout", timeout))

    def spool_status(self) -> SpoolStatus:
        assert self.spool is not None
        return self.spool.status()

    def close(self) -> None:
        assert self.spool is not None
        self.spool.close()

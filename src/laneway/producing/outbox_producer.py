"""How an application with a buffer or a spool publishes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from laneway import arguments
from laneway.errors import ProducerFull
from laneway.producing.buffer import MessageBuffer
from laneway.producing.producer import Producer
from laneway.producing.publisher import Publisher
from laneway.producing.spool import MessageSpool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from laneway.engine_holder import EngineHolder
    from laneway.errors import BacklogFull
    from laneway.message import Draft, Receipt
    from laneway.producing.outbox import Outbox
    from laneway.producing.spool_file import SpoolStatus
    from laneway.units import Duration


class OutboxProducer(Producer):
    """
    Publishes into an outbox, from which a thread sends. Flows go to the store directly, because
    they are stored whole or not at all.

    `new_outbox`: makes the outbox of a process; gets what puts messages into the store.
    """

    overlaps = False
    outbox: Outbox | None = None

    def __init__(
        self,
        holder: EngineHolder,
        threads: Executor,
        new_outbox: Callable[[Callable[[list[Draft]], list[Receipt]]], Outbox],
    ) -> None:
        self._new_outbox = new_outbox
        super().__init__(holder, threads)

    def begin(self) -> None:
        super().begin()
        if self.outbox is not None:
            self.outbox.begin_in_child()
        self.outbox = self._new_outbox(self._refusals.noted(self.publisher.put))
        self.publisher = Publisher(self.outbox, self.threads)

    def parts(self) -> list[object]:
        return [*super().parts(), self.flow_publisher, self.outbox]

    def publish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:
        assert self.outbox is not None
        receipt = self.outbox.put_now(draft)
        return super().publish_draft(draft, timeout) if receipt is None else receipt

    async def send(self, draft: Draft, timeout: Duration | None) -> Receipt:  # noqa: ASYNC109
        receipt = self.outbox.put_now(draft) if isinstance(self.outbox, MessageBuffer) else None
        return await super().send(draft, timeout) if receipt is None else receipt

    def _has_to_wait(self, topic: str) -> bool:
        del topic
        assert self.outbox is not None
        return (
            self.outbox.on_full == "block" and threading.current_thread() is not self.outbox.sender
        )

    def _note_refused(self, draft: Draft, reason: str) -> None:
        """The outbox was full, not the store."""

    def _full(self, draft: Draft, receipt: Receipt) -> BacklogFull:
        return ProducerFull(f"topic {draft.topic}: {receipt.reason}", [receipt])

    def flush(self, timeout: Duration | None = None) -> int:
        assert self.outbox is not None
        return self.outbox.flush(arguments.seconds_or_none("flush", "timeout", timeout))

    def spool_status(self) -> SpoolStatus:
        if isinstance(self.outbox, MessageSpool):
            return self.outbox.status()
        return super().spool_status()

    def close(self) -> None:
        assert self.outbox is not None
        self.outbox.close()

"""How an application with a buffer or a spool publishes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor

from laneway import arguments
from laneway.engine_holder import EngineHolder
from laneway.errors import BacklogFull, ProducerFull
from laneway.message import Draft, Receipt
from laneway.producing.buffer import MessageBuffer
from laneway.producing.producer import Producer
from laneway.producing.publisher import Publisher
from laneway.producing.send_queue import SendQueue
from laneway.producing.spool import MessageSpool
from laneway.producing.spool_file import SpoolStatus
from laneway.units import Duration


class QueuedProducer(Producer):
    """
    Publishes into a send queue; a thread sends from it. Flows go to the store directly, because
    they are stored whole or not at all.

    `new_queue`: makes the send queue of a process; gets what puts messages into the store.
    """

    overlaps = False
    queue: SendQueue | None = None

    def __init__(
        self,
        holder: EngineHolder,
        threads: Executor,
        new_queue: Callable[[Callable[[list[Draft]], list[Receipt]]], SendQueue],
    ) -> None:
        self._new_queue = new_queue
        super().__init__(holder, threads)

    def begin(self) -> None:
        super().begin()
        if self.queue is not None:
            self.queue.begin_in_child()
        self.queue = self._new_queue(self._refusals.noted(self.publisher.put))
        self.publisher = Publisher(self.queue, self.threads)

    def parts(self) -> list[object]:
        return [*super().parts(), self.flow_publisher, self.queue]

    def publish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:
        assert self.queue is not None
        receipt = self.queue.put_now(draft)
        return super().publish_draft(draft, timeout) if receipt is None else receipt

    async def send(self, draft: Draft, timeout: Duration | None) -> Receipt:  # noqa: ASYNC109
        receipt = self.queue.put_now(draft) if isinstance(self.queue, MessageBuffer) else None
        return await super().send(draft, timeout) if receipt is None else receipt

    def _has_to_wait(self, topic: str) -> bool:
        del topic
        assert self.queue is not None
        return self.queue.on_full == "block" and threading.current_thread() is not self.queue.sender

    def _note_refused(self, draft: Draft, reason: str) -> None:
        """The send queue was full, not the store."""

    def _full(self, draft: Draft, receipt: Receipt) -> BacklogFull:
        return ProducerFull(f"topic {draft.topic}: {receipt.reason}", [receipt])

    def flush(self, timeout: Duration | None = None) -> int:
        assert self.queue is not None
        return self.queue.flush(arguments.seconds_or_none("flush", "timeout", timeout))

    def spool_status(self) -> SpoolStatus:
        if isinstance(self.queue, MessageSpool):
            return self.queue.status()
        return super().spool_status()

    def close(self) -> None:
        assert self.queue is not None
        self.queue.close()

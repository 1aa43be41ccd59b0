"""How an application publishes: middlewares, group commit, and waiting for room in a backlog."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import ClassVar

from laneway import arguments, codec
from laneway.awaitable import async_variant
from laneway.engine_holder import EngineHolder
from laneway.errors import BacklogFull, BadMessage, ProducerFull, UsageError
from laneway.message import Draft, Message, Receipt
from laneway.producing.buffer import MessageBuffer
from laneway.producing.bulk import BATCH, batches_of, put_all, wait_for_room
from laneway.producing.middleware import Middlewares
from laneway.producing.publisher import Publisher
from laneway.producing.refused import Refusals
from laneway.producing.send_queue import SendQueue
from laneway.producing.spool import MessageSpool
from laneway.producing.spool_file import SpoolStatus
from laneway.units import Duration


class Producer:
    """Publishes an application's messages. `threads`: where coroutines wait for the engine."""

    overlaps: ClassVar[bool] = True
    """Whether `publish_many` encodes the next batch while the store takes one."""

    def __init__(self, holder: EngineHolder, threads: Executor) -> None:
        self._holder = holder
        self.threads = threads
        self.middlewares = Middlewares()
        self.begin()

    def begin(self) -> None:
        """Begin with nothing queued, in a new process."""
        holder = self._holder
        self._refusals = Refusals(holder)
        self.publisher = self.flow_publisher = Publisher(
            lambda drafts: holder.engine.put(drafts),  # noqa: PLW0108  # opened at first use
            self.threads,
            self._refusals.note,
        )

    def parts(self) -> list[object]:
        """What a forked child must not finalize, because the parent still uses it."""
        return [self.publisher]

    def flush(self, timeout: Duration | None = None) -> int:
        """See `Laneway.flush`; without a buffer or spool, everything has been sent."""
        arguments.seconds_or_none("flush", "timeout", timeout)
        return 0

    def spool_status(self) -> SpoolStatus:
        """See `Laneway.spool_status`."""
        raise UsageError(
            "spool_status: this application has no spool; give it one with Laneway(spool=path)"
        )

    def close(self) -> None:
        """Send what is buffered, before the engine is closed."""

    def publish(self, message: Message, timeout: Duration | None) -> Receipt:
        """Publish one message. Raises BadMessage, BacklogFull, EngineUnavailable."""
        if not self.middlewares:
            return self.publish_draft(codec.draft(message), timeout)
        with self.middlewares.around(message) as passage:
            passage.receipt = self.publish_draft(codec.draft(passage.message), timeout)
        return passage.receipt

    def apublish(self, message: Message, timeout: Duration | None) -> Awaitable[Receipt]:
        """The async variant of `publish`."""
        if not self.middlewares:
            return self.apublish_draft(codec.draft(message), timeout)
        return self._apublish_in_middlewares(message, timeout)

    async def _apublish_in_middlewares(
        self,
        message: Message,
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Receipt:
        with self.middlewares.around(message) as passage:
            passage.receipt = await self.apublish_draft(codec.draft(passage.message), timeout)
        return passage.receipt

    def publish_many(
        self,
        messages: Iterable[Message],
        *,
        progress: bool | None = None,
        timeout: Duration | None = None,
    ) -> list[Receipt]:
        """Publish messages in batches; returns their receipts in the same order."""
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise BadMessage(
                f"publish_many: expected an iterable of messages, got {messages!r:.80};"
                " publish takes a single one"
            )
        shown = sys.stderr.isatty() if progress is None else progress
        seconds = arguments.seconds_or_none("publish_many", "timeout", timeout)
        put, on_full = self.publisher.put, (self._has_to_wait, self._note_refused)
        if not self.middlewares:
            return put_all(
                messages, put, *on_full, timeout=seconds, progress=shown, overlaps=self.overlaps
            )
        with self.middlewares.around_many(messages, put) as stream:
            return put_all(stream, stream.put, *on_full, timeout=seconds, progress=shown)

    def publish_drafts(
        self, drafts: Iterable[Draft], timeout: Duration | None = None
    ) -> list[Receipt]:
        """Publish encoded messages in batches, past the middlewares."""
        seconds = arguments.seconds_or_none("publish_drafts", "timeout", timeout)
        return put_all(
            drafts,
            self.publisher.put,
            self._has_to_wait,
            self._note_refused,
            timeout=seconds,
            progress=False,
            overlaps=self.overlaps,
        )

    _publish_many_in_thread = async_variant(publish_many)

    async def apublish_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        progress: bool | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  # how long a full backlog may block it
    ) -> list[Receipt]:
        """The async variant of `publish_many`. Accepts an async iterable too."""
        if isinstance(messages, Iterable):
            return await self._publish_many_in_thread(messages, progress=progress, timeout=timeout)
        if not isinstance(messages, AsyncIterable):
            raise BadMessage(
                f"apublish_many: expected an iterable of messages, got {messages!r:.80};"
                " apublish takes a single one"
            )
        receipts: list[Receipt] = []
        async for batch in batches_of(messages):
            try:
                receipts += await self._publish_many_in_thread(
                    batch, progress=False, timeout=timeout
                )
            except Exception as error:
                error.add_note(
                    f"apublish_many: {len(receipts):,} messages of earlier batches had been"
                    " answered"
                )
                raise
        return receipts

    def publish_flow(self, messages: Sequence[Message], *, sticky: bool = False) -> list[Receipt]:
        """
        Publish a flow's messages apart from other calls; up to 1,000 in one call of the engine.
        `sticky`: their ids stay known for 24 hours.
        """

        def put(drafts: list[Draft]) -> list[Receipt]:
            for draft in drafts:
                draft.sticky = draft.sticky or sticky
            return self.flow_publisher.put_alone(drafts)

        put_flow = functools.partial(
            put_all,
            has_to_wait=self._store_has_to_wait,
            on_refused=self._refusals.note,
            timeout=None,
            progress=False,
            is_one=len(messages) <= BATCH,
        )
        if not self.middlewares:
            return put_flow(messages, put)
        with self.middlewares.around_many(messages, put) as stream:
            return put_flow(stream, stream.put)

    def publish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:
        """Publish an encoded message, past the middlewares. Raises BacklogFull and the others."""
        receipt = self.publisher.put([draft])[0]
        if receipt.outcome != "refused":
            return receipt
        return self._wait_for_room(draft, receipt, timeout)

    async def apublish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:  # noqa: ASYNC109
        """The async variant of `publish_draft`."""
        receipt = await self.send(draft, timeout)
        if receipt.outcome != "refused":
            return receipt
        return await self.await_room(draft, receipt, timeout)

    def send(self, draft: Draft, timeout: Duration | None) -> Awaitable[Receipt]:
        """
        The first half of `apublish_draft`, without a coroutine of its own. If the receipt
        shows that the message was refused, `await_room` is the second half.
        """
        del timeout  # used by the second half
        return self.publisher.send(draft)

    def _has_to_wait(self, topic: str) -> bool:
        return self._store_has_to_wait(topic)

    def _store_has_to_wait(self, topic: str) -> bool:
        on_full = (self._holder.settings.on_full, self._holder.engine.policy_of(topic).on_full)
        return "block" in on_full

    def _wait_for_room(
        self,
        draft: Draft,
        receipt: Receipt,
        timeout: Duration | None,
        given_up: threading.Event | None = None,
    ) -> Receipt:
        receipts, seconds = [receipt], arguments.seconds_or_none("publish", "timeout", timeout)
        wait_for_room([draft], receipts, self.publisher.put, self._has_to_wait, seconds, given_up)
        if receipts[0].outcome == "refused":
            self._note_refused(draft, receipts[0].reason or "")
            raise self._full(draft, receipts[0])
        return receipts[0]

    def _note_refused(self, draft: Draft, reason: str) -> None:
        self._refusals.note(draft, reason)

    def _full(self, draft: Draft, receipt: Receipt) -> BacklogFull:
        """The error for a message that there is no room for."""
        return BacklogFull(f"message to {draft.topic}: {receipt.reason}", [receipt])

    async def await_room(
        self,
        draft: Draft,
        receipt: Receipt,
        timeout: Duration | None,  # noqa: ASYNC109
    ) -> Receipt:
        """Wait for room for a refused message, where producers wait. Raises BacklogFull."""
        given_up = threading.Event()
        call = functools.partial(self._wait_for_room, draft, receipt, timeout, given_up)
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, call)
        finally:
            given_up.set()  # a cancelled caller's thread ends too, and publishes nothing later


# With a buffer or a spool


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
        self.publisher = Publisher(self.queue.put, self.threads)

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

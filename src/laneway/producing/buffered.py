"""How an application with a buffer publishes."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from laneway import arguments
from laneway.producing.buffer import MessageBuffer
from laneway.producing.producer import Producer

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from laneway.message import Draft, Receipt
    from laneway.producing.buffer import Buffer
    from laneway.producing.producer import Holder
    from laneway.producing.reports import UnsentReports
    from laneway.units import Duration


class BufferedProducer(Producer):
    """
    Publishes into a buffer in memory, from which a thread sends. Flows go to the store directly,
    because they are stored whole or not at all.
    """

    overlaps = False

    def __init__(
        self, holder: Holder, threads: Executor, options: Buffer, unsent: UnsentReports
    ) -> None:
        self._options = options
        self._unsent = unsent
        super().__init__(holder, threads)

    def begin(self) -> None:
        super().begin()
        self.buffer = MessageBuffer(
            self._options, self._refusals.noted(self.publisher.put), self._unsent
        )

    def publish_draft(self, draft: Draft, timeout: Duration | None = None) -> Receipt:
        receipt = self.buffer.add_now(draft)
        if receipt is not None:
            return receipt
        return self.buffer.add(draft, arguments.seconds_or_none("publish", "timeout", timeout))

    async def send(self, draft: Draft, timeout: Duration | None) -> Receipt:  # noqa: ASYNC109
        receipt = self.buffer.add_now(draft)
        if receipt is not None:
            return receipt
        call = functools.partial(self.publish_draft, draft, timeout)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)

    def _bulk_put(self, seconds: float | None) -> Callable[[list[Draft]], list[Receipt]]:
        return functools.partial(self.buffer.add_all, timeout=seconds)

    def _has_to_wait(self, topic: str) -> bool:
        del topic
        return False  # the buffer itself waits for room

    def flush(self, timeout: Duration | None = None) -> int:
        return self.buffer.flush(arguments.seconds_or_none("flush", "timeout", timeout))

    def close(self) -> None:
        self.buffer.close()

"""
`Laneway(buffer=…)`: `publish` puts messages into a bounded buffer in memory and returns; a thread
sends them in batches.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar, Never

from laneway import arguments, config
from laneway.errors import BacklogFull, BadMessage, EngineUnavailable, LanewayError
from laneway.message import Draft, Outcome, Receipt
from laneway.producing import send_queue
from laneway.producing.bulk import BATCH, BATCH_BYTES
from laneway.producing.reports import UnsentReports, logger
from laneway.producing.send_queue import OnProducerFull, SendQueue
from laneway.units import Duration

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0
"""
How long to wait before a batch is sent again while the store is away; the wait doubles from the
first to the second.
"""


class Buffer:
    """
    The options of `Laneway(buffer=…)`.

    `max_messages`: the maximum number of messages not sent yet. `max_bytes`: the maximum size of
    their bodies, a number or text like "64MB". `on_full`: what `publish` does beyond these limits:
    `"block"` waits for room, `"raise"` raises ProducerFull, `"drop"` drops and reports the new
    message. `flush_count`: send the buffer when it has this many messages. `flush_interval`: send
    it this long after the first of them, at the latest. `exit_timeout`: how long `close` and the
    end of the program wait until everything is sent; the rest is reported. Durations are seconds,
    `timedelta` or text like "10m". Raises UsageError.
    """

    def __init__(
        self,
        *,
        max_messages: int = 100_000,
        max_bytes: int | str = "64MiB",
        on_full: OnProducerFull = "block",
        flush_count: int = BATCH,
        flush_interval: Duration = 0.05,
        exit_timeout: Duration = 30.0,
        **unknown: Never,
    ) -> None:
        config.refuse_unknown("Buffer", unknown, OPTIONS)
        self.max_messages = arguments.whole("Buffer", "max_messages", max_messages)
        self.max_bytes = send_queue.size("Buffer", "max_bytes", max_bytes)
        self.on_full = send_queue.on_full("Buffer", on_full)
        self.flush_count = arguments.whole("Buffer", "flush_count", flush_count)
        self.flush_interval = arguments.seconds("Buffer", "flush_interval", flush_interval)
        self.exit_timeout = arguments.seconds("Buffer", "exit_timeout", exit_timeout)

    def __repr__(self) -> str:
        return f"Buffer({', '.join(f'{name}={getattr(self, name)!r}' for name in OPTIONS)})"


OPTIONS = (
    "max_messages",
    "max_bytes",
    "on_full",
    "flush_count",
    "flush_interval",
    "exit_timeout",
)


class MessageBuffer(SendQueue):
    """
    A send queue in memory.

    `put`: calls the engine; raises LanewayErrors. The thread that sends is started by the first
    message, and ends when the buffer is closed.
    """

    accepted: ClassVar[Outcome] = "buffered"
    sender: threading.Thread | None = None

    def __init__(
        self,
        options: Buffer,
        put: Callable[[list[Draft]], list[Receipt]],
        unsent: UnsentReports,
    ) -> None:
        super().__init__(options.on_full, unsent)
        self._options = options
        self._put = put
        self._changed = threading.Condition(self._mutex)  # the sender waits for messages
        self._answered = threading.Condition(self._mutex)  # callers wait for the end
        self._waiting: deque[Draft] = deque()
        self._sending: list[Draft] = []
        self._bytes = 0  # of the waiting and the sending ones
        self._accepted_count = 0
        self._answered_count = 0
        self._flush_to = 0  # send immediately until this many are answered
        self._closing = False
        self._outage: LanewayError | None = None

    @property
    def count(self) -> int:
        """How many messages are buffered and not answered yet."""
        return self._accepted_count - self._answered_count

    # Accepting

    def _accept(self, drafts: list[Draft]) -> tuple[int, str]:
        for count, draft in enumerate(drafts):
            if not self._accept_now(draft):
                options = self._options
                return count, (
                    f"the producer's buffer holds {self.count:,} messages with {self._bytes:,}"
                    f" bytes, of at most {options.max_messages:,} and {options.max_bytes:,};"
                    " publish less, or raise max_messages or max_bytes"
                )
        return len(drafts), ""

    def _accept_now(self, draft: Draft) -> bool:
        size = len(draft.body)
        options = self._options
        with self._mutex:
            count = self._accepted_count - self._answered_count
            if count >= options.max_messages or (self._bytes + size > options.max_bytes and count):
                return False
            self._bytes += size
            self._accepted_count += 1
            self._waiting.append(draft)
            count = len(self._waiting)
            if count in (1, options.flush_count):
                self._wake_sender()
        return True

    # Sending

    def _wake_sender(self) -> None:
        if self.sender is None:
            self._closing = False
            self.sender = threading.Thread(
                target=self._send_all, name="laneway-buffer", daemon=True
            )
            self.sender.start()
            self._close_at_exit()
        else:
            self._changed.notify()

    def _send_all(self) -> None:
        while drafts := self._next_batch():
            for error, unsent in self._send(drafts):
                self._unsent.report(unsent, error)
            with self._mutex:
                if self.sender is not threading.current_thread():
                    return  # closed meanwhile; what was left has been reported
                self._sending = []
                self._bytes -= sum(len(draft.body) for draft in drafts)
                self._answered_count += len(drafts)
                self._answered.notify_all()

    def _next_batch(self) -> list[Draft]:
        """Wait until there is something to send; an empty batch: the buffer was closed."""
        options = self._options
        with self._mutex:
            while not self._waiting:
                if self.sender is not threading.current_thread():
                    return []
                self._changed.wait()
            deadline = time.monotonic() + options.flush_interval
            while (
                len(self._waiting) < options.flush_count
                and self._flush_to <= self._answered_count
                and not self._closing
                and (left := deadline - time.monotonic()) > 0
            ):
                self._changed.wait(left)
            size = count = 0
            for draft in itertools.islice(self._waiting, BATCH):
                size += len(draft.body)
                if count and size > BATCH_BYTES:
                    break
                count += 1
            self._sending = [self._waiting.popleft() for _ in range(count)]
            return self._sending

    def _send(self, drafts: list[Draft]) -> list[tuple[LanewayError, list[Draft]]]:
        """Send a batch, again while the store is away. Returns what it refused, and why."""
        pause = MIN_RETRY_SECONDS
        while True:
            try:
                receipts = self._put(drafts)
            except EngineUnavailable as error:
                if not self._wait_for_store(error, pause):
                    return []
                pause = min(pause * 2, MAX_RETRY_SECONDS)
            except BadMessage as error:
                if len(drafts) == 1:
                    return [(error, drafts)]
                middle = len(drafts) // 2  # their ids make it safe to send some again
                return self._send(drafts[:middle]) + self._send(drafts[middle:])
            except LanewayError as error:
                return [(error, drafts)]
            else:
                self._store_is_back()
                return _refused(drafts, receipts)

    def _wait_for_store(self, error: EngineUnavailable, pause: float) -> bool:
        """Wait before the next attempt. False: the buffer was closed, and this batch reported."""
        with self._mutex:
            if self._outage is None:
                logger.warning(
                    "the store is unavailable (%s); %d messages wait in the buffer",
                    error,
                    self.count,
                )
            self._outage = error
            self._changed.wait_for(
                lambda: self.sender is not threading.current_thread(), timeout=pause
            )
            return self.sender is threading.current_thread()

    def _store_is_back(self) -> None:
        if self._outage is not None:
            self._outage = None
            logger.info("the store is available again; %d messages wait in the buffer", self.count)

    # Ending

    def flush(self, timeout: float | None = None) -> int:
        with self._mutex:
            goal = self._accepted_count
            self._flush_to = max(self._flush_to, goal)
            self._changed.notify_all()
            self._answered.wait_for(lambda: self._answered_count >= goal, timeout)
            return max(0, goal - self._answered_count)

    def close(self) -> None:
        """
        Send what is left within `exit_timeout`, and what hooks and others publish meanwhile;
        report the rest, and end the thread.
        """
        with self._mutex:
            thread = self.sender
            self._closing = True
            self._changed.notify_all()
        if thread is None or thread is threading.current_thread():
            return
        try:
            with self._mutex:
                self._answered.wait_for(lambda: not self.count, self._options.exit_timeout)
        finally:
            with self._mutex:
                unsent = [*self._sending, *self._waiting]
                self._waiting.clear()
                self._sending = []
                self._bytes = 0
                self._answered_count = self._accepted_count
                if self.sender is thread:
                    self.sender = None
                self._answered.notify_all()
                self._changed.notify_all()
            self._unsent.report(
                unsent,
                self._outage
                or EngineUnavailable(
                    f"the store did not answer within exit_timeout"
                    f" ({self._options.exit_timeout:g} s)",
                    applied=None,
                ),
            )


def _refused(
    drafts: list[Draft], receipts: list[Receipt]
) -> list[tuple[LanewayError, list[Draft]]]:
    """The messages over a backlog limit, by limit."""
    by_reason: dict[str, list[Draft]] = {}
    for draft, receipt in zip(drafts, receipts, strict=True):
        if receipt.outcome == "refused":
            by_reason.setdefault(receipt.reason or "a backlog limit", []).append(draft)
    return [(BacklogFull(reason), refused) for reason, refused in by_reason.items()]

"""
Forwards messages from a spool or an outbox to the store: in order within each topic, and each
exactly once.

A batch is written down in the source before it is sent, under a name of its own. The store
remembers the last batch of each source, for as long as the source exists (`Queue.forward`). If
an answer is lost, the same batch is sent again until it is answered, be it days later, and the
store takes it once. There is one such batch at a time, and one process that forwards.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from laneway import storable
from laneway.engine_holder import EngineHolder
from laneway.engines.base import FORWARD_AT_ONCE, FullEngine
from laneway.errors import BadMessage, LanewayError
from laneway.message import Draft, Receipt
from laneway.policy import Resolved
from laneway.producing.reports import UnsentReports, logger
from laneway.producing.spool_file import Row

if TYPE_CHECKING:

    class Source(Protocol):
        """Where messages wait: a spool's file, or an outbox in a database. For one thread."""

        @property
        def name(self) -> str:
            """The name in log lines, such as "spool /var/spool.db"."""

        def lead(self) -> bool:
            """Become the one that forwards. False: another process forwards."""

        def step_down(self) -> None:
            """Let another process forward."""

        def begin(self) -> tuple[str, str | None]:
            """Read from the first message on. Returns the source's id, and the last error."""

        def batch(self) -> tuple[str, list[Row]] | None:
            """The batch whose forwarding began, and was not finished: its name, its messages."""

        def next_rows(self, limit: int, max_bytes: int) -> list[Row]:
            """
            The next messages in order that were not read yet, with at most this many bytes of
            bodies (or one message).
            """

        def rows(self, seqs: Sequence[int]) -> list[Row]:
            """These messages, in the order of publish."""

        def next_batch(
            self,
            done: Sequence[Row],
            rejected: Sequence[tuple[Row, str]],
            batch: tuple[str, Sequence[int]] | None,
        ) -> None:
            """
            Remove the messages that the store has, put those that it refuses aside with their
            reasons, and write down the batch that is forwarded next. It survives any crash when
            this returns. Raises Superseded.
            """

        def note_error(self, error: str | None) -> None:
            """Note why the store cannot be used, or None if it can. Raises Superseded."""

        def close(self) -> None:
            """Close it, in any thread."""


BATCH_BYTES = 4_000_000
"""How many bytes of bodies one call has at most, unless one message is larger."""

POLL_SECONDS = 0.1
"""How often the forwarder looks for messages of other processes, in seconds."""

LOCK_SECONDS = 0.5
"""How often another process tries to become the forwarder, in seconds."""

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 5.0
"""
How long to wait before the next attempt while the store is away; the wait doubles from the first to
the second.
"""

RESTART_SECONDS = 30.0
"""
How long an outage may last that the end of the program waits for, in seconds: the store may be
restarting or failing over.
"""

MAX_YIELD_SECONDS = 0.05
"""How long the forwarder pauses at most after a batch, if the process published meanwhile."""

POLICY_SECONDS = 1.0
"""For how long the policies of topics are remembered, in seconds."""

MIN_ROOM_SECONDS, MAX_ROOM_SECONDS = 0.02, 1.0
"""How long a topic waits for room in its full backlog, likewise."""

MAX_SET_ASIDE = 100_000
"""
How many messages of topics without room are passed over. With more, the messages behind wait too.
"""


class Superseded(Exception):
    """Another process forwards meanwhile."""


class _FullTopic:
    """A topic whose backlog is full: its messages, in order, and when to try the next of them."""

    __slots__ = ("at", "pause", "seqs", "tried")

    def __init__(self) -> None:
        self.seqs: deque[int] = deque()
        self.pause = MIN_ROOM_SECONDS
        self.tried = 1
        self.at = 0.0


class Forwarder(threading.Thread):
    """
    The thread that forwards what is in a source, as long as it leads.

    `answered` is set after each answer of the store. `written` is called after each change of the
    source.
    """

    def __init__(
        self,
        source: Source,
        target: EngineHolder,
        unsent: UnsentReports,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="laneway-forwarder", daemon=True)
        self._source = source
        self._target = target
        self._unsent = unsent
        self._written = written
        self.answered = threading.Event()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._is_elsewhere = False  # another process forwards
        self._outage: Exception | None = None
        self._source_error = ""  # the last one that was logged
        self._was_reached = False  # the store, by this process
        self._away_at = -math.inf  # when an outage is no restart any more (monotonic)
        self._pause = MIN_RETRY_SECONDS
        self._has_error = False  # whether the source has one
        self._policies: dict[str, Resolved] = {}  # by topic
        self._policies_until = 0.0
        self._begin()

    def _begin(self) -> None:
        self._full: dict[str, _FullTopic] = {}
        self._set_aside = 0
        self._most = FORWARD_AT_ONCE
        self._next: deque[Row] = deque()  # of a batch that was split
        self._done: list[Row] = []
        self._rejected: list[tuple[Row, str]] = []

    @property
    def can_forward(self) -> bool:
        """
        Whether waiting for it may be of use: it forwards, and the store is not away. A store that
        this process has reached and that is away for less than RESTART_SECONDS may be back soon.
        """
        is_away = self._outage is not None and time.monotonic() >= self._away_at
        return not self._is_elsewhere and not is_away and self.is_alive()

    def wake(self) -> None:
        """Something was written."""
        if not self._news.is_set():
            self._news.set()

    def end(self) -> None:
        """End the thread; does not wait."""
        self._ended.set()
        self._news.set()

    def stop(self) -> None:
        """
        End the thread. A call of the store that runs is not waited for longer than a moment: its
        batch is written down.
        """
        self.end()
        if threading.current_thread() is not self:
            self.join(MAX_RETRY_SECONDS)

    def abandon(self) -> None:
        """In a forked child, where this thread does not run: leave the lead to the parent."""
        self._source.step_down()

    # The thread

    def run(self) -> None:
        source = self._source
        try:
            while not self._ended.is_set():
                try:
                    self._is_elsewhere = not source.lead()
                    if not self._is_elsewhere:
                        self._forward_all()
                except Superseded:
                    self._is_elsewhere = True
                except Exception as error:  # noqa: BLE001  # messages wait until the next attempt
                    if (text := storable.of(error, 500)) != self._source_error:
                        logger.error(
                            "%s: forwarding failed; retrying: %s",
                            source.name,
                            text,
                            exc_info=not isinstance(error, LanewayError),
                        )
                    self._source_error = text
                finally:
                    source.step_down()
                self._ended.wait(LOCK_SECONDS)
        finally:
            source.close()

    def _forward_all(self) -> None:
        self._begin()
        spool, error = self._source.begin()
        self._has_error = error is not None
        unclear = self._source.batch()
        if unclear is not None and unclear[1]:
            while not self._forward(spool, *unclear):
                if self._ended.is_set():
                    return
            self._write_down(None)
            self._begin()  # what it refused is still there, and is read again
            self._source.begin()
        self._forward_next(spool)

    def _forward_next(self, spool: str) -> None:
        while not self._ended.is_set():
            batch = self._next_batch()
            if batch is None:
                self._news.wait(self._seconds_until_next())
                self._news.clear()
                continue
            self._news.clear()
            began = time.monotonic()
            while not self._forward(spool, *batch):
                if self._ended.is_set():
                    return
            if self._news.is_set():  # this process publishes: leave it the interpreter as long
                self._ended.wait(min(time.monotonic() - began, MAX_YIELD_SECONDS))
        self._write_down(None)

    def _write_down(self, batch: tuple[str, list[Row]] | None) -> None:
        """Remove what was answered, and write the next batch down."""
        if batch is None and not (self._done or self._rejected):
            return
        named = None if batch is None else (batch[0], [row.seq for row in batch[1]])
        self._source.next_batch(self._done, self._rejected, named)
        self._done, self._rejected = [], []
        self._written()
        self.answered.set()

    # Which messages are next

    def _next_batch(self) -> tuple[str, list[Row]] | None:
        rows = self._rows()
        batch = (secrets.token_hex(8), rows) if rows else None
        self._write_down(batch)
        self._source_error = ""
        return batch

    def _rows(self) -> list[Row]:
        rows: list[Row] = []
        while self._next and len(rows) < self._most:
            self._take(self._next.popleft(), rows)
        if rows:
            return rows
        rows = self._rows_of_full_topics()
        while len(rows) < self._most and self._set_aside < MAX_SET_ASIDE:
            room = self._most - len(rows)
            page = self._source.next_rows(room, BATCH_BYTES)
            for row in page:
                self._take(row, rows)
            if len(page) < room:
                break
        return rows

    def _take(self, row: Row, rows: list[Row]) -> None:
        """Add a row to those of the next batch, or set it aside behind those of its full topic."""
        full = self._full.get(row.topic)
        if full is None:
            rows.append(row)
        else:
            full.seqs.append(row.seq)
            self._set_aside += 1

    def _rows_of_full_topics(self) -> list[Row]:
        """The first messages of topics that may have room again: one, then twice as many."""
        now = time.monotonic()
        seqs: list[int] = []
        for full in self._full.values():
            room = self._most - len(seqs)
            if room <= 0:
                break
            if full.at <= now:
                count = min(full.tried, room, len(full.seqs))
                seqs += [full.seqs.popleft() for _ in range(count)]
        self._set_aside -= len(seqs)
        return self._source.rows(seqs)

    def _seconds_until_next(self) -> float:
        now = time.monotonic()
        due = [full.at - now for full in self._full.values() if full.seqs]
        return max(0.0, min([POLL_SECONDS, *due]))

    # One batch

    def _forward(self, spool: str, name: str, rows: list[Row]) -> bool:
        """Send a batch. False: it has to be sent again, under the same name."""
        try:
            engine = self._target.engine
        except (LanewayError, MemoryError, OSError) as error:
            self._wait_for_store(error)
            return False
        self._was_reached = True
        try:
            receipts = self._send(engine, spool, name, self._drafts(rows, engine))
        except BadMessage as error:
            self._split(rows, error)
        except MemoryError as error:
            if len(rows) == 1:  # not the message's fault
                self._wait_for_store(error)
                return False
            self._split(rows, error)
        except (LanewayError, OSError) as error:
            self._wait_for_store(error)
            return False
        except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
            self._split(rows, error)
        else:
            self._take_answers(rows, receipts)
        if self._outage is not None:
            logger.info("%s: the store is available again", self._source.name)
            self._outage = None
        if self._has_error:
            self._has_error = False
            self._source.note_error(None)
        self._pause = MIN_RETRY_SECONDS
        return True

    def _drafts(self, rows: Sequence[Row], engine: FullEngine) -> list[Draft]:
        """The messages as the engine gets them: delay and ttl count from the call of publish."""
        now = time.time_ns() // 1000
        if time.monotonic() >= self._policies_until:
            self._policies, self._policies_until = {}, time.monotonic() + POLICY_SECONDS
        policies = self._policies
        drafts = []
        for row in rows:
            draft = row.draft()
            elapsed = max(0, now - row.at_us)
            if draft.topic not in policies:
                policies[draft.topic] = engine.policy_of(draft.topic)
            ttl = policies[draft.topic].ttl_us(draft.ttl_us)
            if ttl is not None:
                draft.ttl_us = max(1, ttl - elapsed)
            if draft.delay_us:
                draft.delay_us = max(0, draft.delay_us - elapsed)
            drafts.append(draft)
        return drafts

    @staticmethod
    def _send(engine: FullEngine, spool: str, name: str, drafts: list[Draft]) -> list[Receipt]:
        forward: Callable[..., list[Receipt]] | None = getattr(engine, "forward", None)
        if forward is not None:
            return forward(drafts, spool=spool, batch=name)
        return engine.put(drafts)  # of another package; sticky ids make a repeat safe for a day

    def _wait_for_store(self, error: Exception) -> None:
        text = storable.of(error, 500)
        if not isinstance(error, LanewayError):  # this machine's: "MemoryError: "
            text = f"{storable.type_name(type(error))}: {text}".removesuffix(": ")
        if self._outage is None:
            self._away_at = time.monotonic() + RESTART_SECONDS if self._was_reached else -math.inf
            logger.warning(
                "%s: the store cannot be used (%s); messages wait", self._source.name, text
            )
        self._source.note_error(text)
        self._outage, self._has_error = error, True
        self._ended.wait(self._pause)
        self._pause = min(self._pause * 2, MAX_RETRY_SECONDS)

    def _split(self, rows: list[Row], error: Exception) -> None:
        """
        One of them is refused, or together they need too much memory. Send fewer in one call;
        reject a message that is refused alone.
        """
        if len(rows) > 1:
            self._most = len(rows) // 2
            for row in reversed(rows):
                full = self._full.get(row.topic)
                if full is None:
                    self._next.appendleft(row)
                else:
                    full.seqs.appendleft(row.seq)
                    self._set_aside += 1
            return
        self._most = min(self._most * 2, FORWARD_AT_ONCE)
        row = rows[0]
        refusal = (
            error
            if isinstance(error, LanewayError)
            else BadMessage(
                f"message to {row.topic}: the store cannot hold it"
                f" ({storable.type_name(type(error))}: {storable.of(error, 200)})"
            )
        )
        self._rejected.append((row, storable.of(refusal, 1000)))
        self._unsent.report([row.draft()], refusal)

    def _take_answers(self, rows: list[Row], receipts: Sequence[Receipt]) -> None:
        self._most = min(self._most * 2, FORWARD_AT_ONCE)
        now = time.monotonic()
        refused: dict[str, list[int]] = {}
        answered: set[str] = set()
        for row, receipt in zip(rows, receipts, strict=True):
            if receipt.outcome == "refused":
                refused.setdefault(row.topic, []).append(row.seq)
            else:
                answered.add(row.topic)
                self._done.append(row)
        for topic, seqs in refused.items():
            full = self._full.setdefault(topic, _FullTopic())
            full.seqs.extendleft(reversed(seqs))
            self._set_aside += len(seqs)
            full.pause = (
                MIN_ROOM_SECONDS if topic in answered else min(full.pause * 2, MAX_ROOM_SECONDS)
            )
            full.at, full.tried = now + full.pause, 1
        for topic in answered - refused.keys():
            full_now = self._full.get(topic)
            if full_now is None:
                continue
            full_now.tried = min(full_now.tried * 2, FORWARD_AT_ONCE)
            full_now.at = now
            if not full_now.seqs:
                del self._full[topic]

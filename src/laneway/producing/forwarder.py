"""
Forwards a spool's messages to the store: in order within each topic, and each exactly once.

A batch is written down in the spool before it is sent, under a name of its own. The store
remembers the last batch of each spool, for as long as the spool exists (`Queue.forward`). So if an
answer is lost, the same batch is sent again until it is answered, be it days later, and the store
takes it once. There is one such batch at a time, and one process that forwards, which holds a lock.
"""

from __future__ import annotations

import fcntl
import math
import os
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from laneway import storable
from laneway.engines.base import FORWARD_AT_ONCE
from laneway.errors import BadMessage, LanewayError
from laneway.producing.reports import logger
from laneway.producing.spool_file import SpoolFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from laneway.engine_holder import EngineHolder
    from laneway.engines.base import FullEngine
    from laneway.message import Draft, Receipt
    from laneway.policy import Resolved
    from laneway.producing.reports import UnsentReports
    from laneway.producing.spool_file import Row


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
    The thread that forwards what is in a spool, as long as it holds the lock.

    `answered` is set after each answer of the store. `written` is called after each change of the
    file.
    """

    def __init__(
        self, path: str, target: EngineHolder, unsent: UnsentReports, written: Callable[[], None]
    ) -> None:
        super().__init__(name="laneway-spool", daemon=True)
        self.path = path
        self._file = SpoolFile(path, syncs=False, create=False)
        self._target = target
        self._unsent = unsent
        self._written = written
        self.answered = threading.Event()
        self._news = threading.Event()
        self._ended = threading.Event()
        self._lock = -1
        self._is_elsewhere = False  # another process forwards
        self._outage: Exception | None = None
        self._was_reached = False  # the store, by this process
        self._away_at = -math.inf  # when an outage is no restart any more (monotonic)
        self._pause = MIN_RETRY_SECONDS
        self._has_error = False  # whether the file has one
        self._policies: dict[str, Resolved] = {}  # by topic
        self._policies_until = 0.0
        self._begin()

    def _begin(self) -> None:
        self._cursor = 0  # all messages up to it are forwarded, in the batch, or of full topics
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

    def stop(self) -> None:
        """
        End the thread. A call of the store that runs is not waited for longer than a moment: its
        batch is written down.
        """
        self._ended.set()
        self._news.set()
        if threading.current_thread() is not self:
            self.join(MAX_RETRY_SECONDS)

    def abandon(self) -> None:
        """In a forked child, where this thread does not run: leave the lock to the parent."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # The thread

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                try:
                    if self._take_lock():
                        self._forward_all()
                except Exception:  # noqa: BLE001  # the file or the lock; messages wait until the next attempt
                    logger.exception("spool %s: forwarding failed; it goes on", self.path)
                finally:
                    self.abandon()
                self._ended.wait(LOCK_SECONDS)
        finally:
            self._file.close()

    def _take_lock(self) -> bool:
        if self._file.wrong(written=False) is not None:
            return False  # the lock at this path is of another file
        # Known before it is held: a forked child must not keep it.
        self._lock = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._is_elsewhere = True
            return False
        self._is_elsewhere = False
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)
        return True

    def _forward_all(self) -> None:
        self._begin()
        file = self._file
        spool: str = file.get("id")
        self._has_error = file.get("error") is not None
        unclear = file.batch()
        rows = [] if unclear is None else file.rows(unclear[1])
        if unclear is not None and rows:
            while not self._forward(spool, unclear[0], rows, file):
                if self._ended.is_set():
                    return
            self._write_down(file, None)
            self._begin()  # what it refused is still there, and is read again
        self._forward_next(spool, file)

    def _forward_next(self, spool: str, file: SpoolFile) -> None:
        while not self._ended.is_set():
            batch = self._next_batch(file)
            if batch is None:
                self._news.wait(self._seconds_until_next())
                self._news.clear()
                continue
            self._news.clear()
            began = time.monotonic()
            while not self._forward(spool, *batch, file):
                if self._ended.is_set():
                    return
            if self._news.is_set():  # this process publishes: leave it the interpreter as long
                self._ended.wait(min(time.monotonic() - began, MAX_YIELD_SECONDS))
        self._write_down(file, None)

    def _write_down(self, file: SpoolFile, batch: tuple[str, list[Row]] | None) -> None:
        """Remove what was answered, and write the next batch down."""
        if batch is None and not (self._done or self._rejected):
            return
        named = None if batch is None else (batch[0], [row.seq for row in batch[1]])
        file.next_batch(self._done, self._rejected, named)
        if named is not None:
            file.sync()  # a batch has to be known after any crash, before the store gets it
        self._done, self._rejected = [], []
        self._written()
        self.answered.set()

    # Which messages are next

    def _next_batch(self, file: SpoolFile) -> tuple[str, list[Row]] | None:
        rows = self._rows(file)
        batch = (secrets.token_hex(8), rows) if rows else None
        self._write_down(file, batch)
        return batch

    def _rows(self, file: SpoolFile) -> list[Row]:
        rows: list[Row] = []
        while self._next and len(rows) < self._most:
            row = self._next.popleft()
            full = self._full.get(row.topic)
            if full is None:
                rows.append(row)
            else:
                full.seqs.append(row.seq)
                self._set_aside += 1
        if rows:
            return rows
        rows = self._rows_of_full_topics(file)
        while len(rows) < self._most and self._set_aside < MAX_SET_ASIDE:
            room = self._most - len(rows)
            page = file.rows_after(self._cursor, room, BATCH_BYTES)
            for row in page:
                self._cursor = row.seq
                full = self._full.get(row.topic)
                if full is None:
                    rows.append(row)
                else:
                    full.seqs.append(row.seq)
                    self._set_aside += 1
            if len(page) < room:
                break
        return rows

    def _rows_of_full_topics(self, file: SpoolFile) -> list[Row]:
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
        return file.rows(seqs)

    def _seconds_until_next(self) -> float:
        now = time.monotonic()
        due = [full.at - now for full in self._full.values() if full.seqs]
        return max(0.0, min([POLL_SECONDS, *due]))

    # One batch

    def _forward(self, spool: str, name: str, rows: list[Row], file: SpoolFile) -> bool:
        """Send a batch. False: it has to be sent again, under the same name."""
        try:
            engine = self._target.engine
        except (LanewayError, MemoryError, OSError) as error:
            self._wait_for_store(error, file)
            return False
        self._was_reached = True
        try:
            receipts = self._send(engine, spool, name, self._drafts(rows, engine))
        except BadMessage as error:
            self._split(rows, error)
        except MemoryError as error:
            if len(rows) == 1:  # not the message's fault
                self._wait_for_store(error, file)
                return False
            self._split(rows, error)
        except (LanewayError, OSError) as error:
            self._wait_for_store(error, file)
            return False
        except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
            self._split(rows, error)
        else:
            self._take_answers(rows, receipts)
        if self._outage is not None:
            logger.info("spool %s: the store is back", self.path)
            self._outage = None
        if self._has_error:
            self._has_error = False
            with file.transaction():
                file.set("error", None)
                file.set("error_at", None)
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

    def _wait_for_store(self, error: Exception, file: SpoolFile) -> None:
        if self._outage is None:
            self._away_at = time.monotonic() + RESTART_SECONDS if self._was_reached else -math.inf
            text = storable.of(error, 500)
            if not isinstance(error, LanewayError):  # this machine's: "MemoryError: "
                text = f"{storable.type_name(type(error))}: {text}".removesuffix(": ")
            logger.warning(
                "spool %s: the store cannot be used (%s); messages wait", self.path, text
            )
            with file.transaction():
                file.set("error", text)
                file.set("error_at", time.time())
        self._outage, self._has_error = error, True
        self._ended.wait(self._pause)
        self._pause = min(self._pause * 2, MAX_RETRY_SECONDS)

    def _split(self, rows: list[Row], error: Exception) -> None:
        """
        One of them is refused, or they need too much memory at once. Send fewer at once; reject
        a message that is refused alone.
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


def forwarding_process(path: str) -> int | None:
    """The process that forwards from a spool now; None: none does."""
    try:
        lock = os.open(f"{path}-lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(lock, 20, 0)
        return int(text) if text.isdigit() else None
    finally:
        os.close(lock)
    return None

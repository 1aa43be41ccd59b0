"""
`Laneway(spool=…)`: `publish` writes messages into a local SQLite file and returns; a thread
forwards them to the store.
"""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar, Never

from laneway import arguments, config
from laneway.engine_holder import EngineHolder
from laneway.errors import UsageError
from laneway.message import Draft, Outcome
from laneway.printable import redacted
from laneway.producing import send_queue
from laneway.producing.forwarder import Forwarder
from laneway.producing.reports import UnsentReports, logger
from laneway.producing.send_queue import OnProducerFull, SendQueue
from laneway.producing.spool_file import SpoolFile, SpoolStatus, Usage, forwarding_process
from laneway.units import Duration

LOG_BYTES = 32_000_000
"""
The size of SQLite's write-ahead log above which it is moved into the main file. That costs two
waits for the disk, which no call of `publish` should have.
"""

AGE_SECONDS = 1.0
"""How often the age of the oldest message is read, in seconds."""

FLUSH_SECONDS = 0.01
"""How often `flush` looks whether everything was forwarded, in seconds."""

OPTIONS = ("path", "max_messages", "max_bytes", "max_age", "on_full", "sync", "exit_timeout")


class Spool:
    """
    The options of `Laneway(spool=…)`.

    `path`: the SQLite file, on a local disk; it is created at first use, and several processes may
    share it. `max_messages`: the spool is full while it holds this many (None: no limit).
    `max_bytes`: the same for its bodies, a number or text like "10GB". `max_age`: the spool is
    full while its oldest message is older (None: no limit). `on_full`: what `publish` does then:
    `"block"` waits for room, `"raise"` raises ProducerFull, `"drop"` drops and reports the new
    message. `sync`: how often the file is written to the disk; a power cut loses at most what was
    published in this last interval; 0 writes before each `publish` returns. `exit_timeout`: how
    long `close` and the end of the program wait while the store accepts messages, even through an
    outage of less than 30 s; the rest stays in the file. Durations are seconds, `timedelta` or
    text like "10m". Raises UsageError.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_messages: int | None = None,
        max_bytes: int | str | None = "10GB",
        max_age: Duration | None = None,
        on_full: OnProducerFull = "block",
        sync: Duration = 1.0,
        exit_timeout: Duration = 5.0,
        **unknown: Never,
    ) -> None:
        config.refuse_unknown("Spool", unknown, OPTIONS)
        if not isinstance(path, (str, os.PathLike)) or not str(path) or "\0" in str(path):
            raise UsageError(f"Spool: expected path to be the path of a file, got {path!r:.80}")
        self.path = os.path.abspath(path)  # the program may change its folder later
        self.max_messages = (
            None if max_messages is None else arguments.whole("Spool", "max_messages", max_messages)
        )
        self.max_bytes = (
            None if max_bytes is None else send_queue.size("Spool", "max_bytes", max_bytes)
        )
        self.max_age = arguments.seconds_or_none("Spool", "max_age", max_age)
        self.on_full = send_queue.on_full("Spool", on_full)
        self.sync = arguments.seconds("Spool", "sync", sync)
        self.exit_timeout = arguments.seconds("Spool", "exit_timeout", exit_timeout)

    def __repr__(self) -> str:
        return f"Spool({', '.join(f'{name}={getattr(self, name)!r}' for name in OPTIONS)})"


class MessageSpool(SendQueue):
    """
    A send queue in a file, for this process. It is opened by the first message.

    Messages survive the end of this process when `put` returns.
    """

    accepted: ClassVar[Outcome] = "spooled"
    sender: Forwarder | None = None

    def __init__(self, options: Spool, target: EngineHolder, unsent: UnsentReports) -> None:
        super().__init__(options.on_full, unsent)
        self.options = options
        self._target = target
        self._file: SpoolFile | None = None
        self._upkeep: _Upkeep | None = None

    # Publishing

    def _accept(self, drafts: list[Draft]) -> tuple[int, str]:
        with self._mutex:
            file, _ = self._open()
            if len(drafts) == 1:
                count = 0
                if self._fits(file.usage) or self._fits(file.refresh()):
                    file.append(drafts[0])
                    count = 1
            else:
                count = file.append_many(drafts, self._fits)
            reason = "" if count == len(drafts) else self._full(file.usage)
        self._wake()
        return count, reason

    def _accept_now(self, draft: Draft) -> bool:
        if not self.options.sync:
            return False  # in `put`, several threads share a wait for the disk
        with self._mutex:
            file = self._file
            if file is None or not self._fits(file.usage):
                return False
            file.check(written=False)
            file.append(draft)
        self._wake()
        return True

    def _wake(self) -> None:
        upkeep, forwarder = self._upkeep, self.sender
        if upkeep is not None and forwarder is not None:  # else it was closed meanwhile
            upkeep.wake()
            forwarder.wake()

    def _fits(self, usage: Usage) -> bool:
        options = self.options
        return not (
            (options.max_messages is not None and usage.messages >= options.max_messages)
            or (options.max_bytes is not None and usage.size >= options.max_bytes)
            or (options.max_age is not None and self._is_too_old())
        )

    def _is_too_old(self) -> bool:
        """Whether the oldest message is older than it may be."""
        assert self.options.max_age is not None
        oldest = None if self._upkeep is None else self._upkeep.oldest_us
        return oldest is not None and time.time() - oldest / 1e6 > self.options.max_age

    def _full(self, usage: Usage) -> str:
        options = self.options
        bounds = [
            f"{name}={getattr(options, name)!r}"
            for name in ("max_messages", "max_bytes", "max_age")
            if getattr(options, name) is not None
        ]
        return (
            f"spool {options.path}: {usage.messages:,} messages with {usage.size:,} bytes wait for"
            f" the store, its bounds are {', '.join(bounds)}; publish less, or raise them"
        )

    # The file and the threads

    def _open(self) -> tuple[SpoolFile, _Upkeep]:
        if self._file is None or self._upkeep is None:
            options, target = self.options, self._target
            file = SpoolFile(options.path, syncs=options.sync == 0)
            try:
                self._claim(file)
            except BaseException:
                file.close()
                raise
            self._file = file
            self._upkeep = _Upkeep(options, file.path)
            source = SpoolFile(file.path, syncs=False, create=False)
            self.sender = Forwarder(source, target, self._unsent, self._upkeep.wake)
            self._upkeep.start()
            self.sender.start()
            self._close_at_exit()
        else:
            self._file.check(written=False)
        return self._file, self._upkeep

    def _claim(self, file: SpoolFile) -> None:
        """A spool belongs to one namespace. Its store may move to another URL."""
        namespace, store = self._target.namespace, redacted(self._target.url)
        if (file.get("namespace"), file.get("store")) == (namespace, store):
            return
        with file.transaction():
            owner = file.get("namespace")
            if owner is not None and owner != namespace:
                raise UsageError(
                    f"spool {self.options.path}: its messages are for namespace {owner!r}, this"
                    f" application's is {namespace!r}; name another file"
                )
            file.set("namespace", namespace)
            file.set("store", store)

    def flush(self, timeout: float | None = None) -> int:
        with self._mutex:
            file, _ = self._open()
            file.refresh()
            goal = file.last
            forwarder = self.sender
        assert forwarder is not None
        forwarder.wake()
        deadline = None if timeout is None else time.monotonic() + timeout
        reader = SpoolFile(file.path, syncs=False, create=False)
        try:
            while not reader.is_forwarded(goal):
                if deadline is not None and time.monotonic() >= deadline:
                    return reader.refresh().messages
                forwarder.answered.wait(FLUSH_SECONDS)
                forwarder.answered.clear()
        finally:
            reader.close()
        return 0

    def status(self) -> SpoolStatus:
        """What the spool holds."""
        with self._mutex:
            file, _ = self._open()
            return file.status(forwarding_process(file.path))

    def close(self) -> None:
        """
        Wait at most `exit_timeout` while the store takes messages or may be restarting, and close
        the file. What is left stays there; an error is logged if the file was removed meanwhile.
        """
        with self._mutex:
            file, upkeep, forwarder = self._file, self._upkeep, self.sender
            self._file = self._upkeep = self.sender = None
        if file is None or upkeep is None or forwarder is None:
            return
        try:
            deadline = time.monotonic() + self.options.exit_timeout
            while (
                file.refresh().messages
                and forwarder.can_forward
                and (left := deadline - time.monotonic()) > 0
            ):
                forwarder.wake()
                forwarder.answered.wait(min(left, FLUSH_SECONDS))
                forwarder.answered.clear()
        finally:
            forwarder.stop()
            upkeep.stop()
            _report_removed(file)
            file.close()

    def begin_in_child(self) -> None:
        """In a forked child: the lock is the parent's."""
        if self.sender is not None:
            self.sender.abandon()


def _report_removed(file: SpoolFile) -> None:
    wrong, left = file.wrong(written=True), file.refresh().messages
    if wrong is not None and left:
        logger.error("spool %s; %d messages in it were not forwarded", wrong, left)


class _Upkeep(threading.Thread):
    """Writes the file to the disk by time, shortens its log, and reads the oldest message's age."""

    def __init__(self, options: Spool, path: str) -> None:
        super().__init__(name="laneway-spool-sync", daemon=True)
        self._options = options
        self._interval = min(options.sync or AGE_SECONDS, AGE_SECONDS)
        self._written = threading.Event()
        self._ended = threading.Event()
        self._file = SpoolFile(path, syncs=False, create=False)
        self.oldest_us: int | None = self._file.oldest_us()

    def wake(self) -> None:
        """Something was written."""
        if not self._written.is_set():
            self._written.set()

    def stop(self) -> None:
        """End the thread; the file is on the disk then."""
        self._ended.set()
        self._written.set()
        self.join()

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self._written.wait(None if self._options.max_age is None else self._interval)
                self._ended.wait(self._interval)
                self._written.clear()
                self._care()
            self._care()  # what was written during the last round
        finally:
            self._file.close()

    def _care(self) -> None:
        try:
            if self._options.sync:
                self._file.sync()
            if self._file.log_size() > LOG_BYTES:
                self._file.checkpoint()
            if self._options.max_age is not None:
                self.oldest_us = self._file.oldest_us()
        except Exception:  # noqa: BLE001  # the next round tries again
            logger.exception("spool %s: it could not be written to the disk", self._options.path)

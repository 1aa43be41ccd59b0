"""
Wait for topics: until all published messages are done, or until nothing waits or runs.

The engine notifies a wait of the changes of one topic at a time, so that nothing polls.
"""

from __future__ import annotations

import asyncio
import threading
import time

from laneway import arguments
from laneway.engines.base import ResultListener
from laneway.errors import UsageError
from laneway.policy import is_pattern
from laneway.runtime.runtime import Runtime
from laneway.subscriptions import is_copy
from laneway.units import Duration

WATCH = 60.0
"""
Seconds for which the engine notifies a wait of the topic's changes; the wait renews this in time.
"""

COALESCE = 0.02
"""Seconds between two reads of the state of a busy topic, however many notifications arrive."""

PAGE = 500
"""Topics per page of a list, and topics with the largest backlogs that are examined first."""


class TopicWait:
    """One wait. The engine notifies it; `stop` ends it from another thread."""

    call = ""
    """The call of the application, for errors."""

    def __init__(self, runtime: Runtime, target: str) -> None:
        self._engine = runtime.engine
        self._threads = runtime.threads
        self._target = target
        self._stopped = threading.Event()
        self._listener: ResultListener | None = None

    def run(self, timeout: Duration | None) -> bool:
        """
        Returns False after the timeout, or if the wait was stopped. Raises UsageError.
        """
        seconds = arguments.seconds_or_none(self.call, "timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        busy = self._busy(None)
        if busy is None:
            return True
        if not getattr(self._engine, "runs_by_itself", True):
            raise UsageError(
                f"{self.call} {self._target}: nothing runs on its own in a virtual world; call"
                " world.run() first"
            )
        self._listener = self._engine.result_listener()
        try:
            return self._poll(self._listener, busy, deadline)
        finally:
            self._listener.close()

    async def arun(self, timeout: Duration | None) -> bool:  # noqa: ASYNC109  # as in run
        """Like `run`, awaited. A cancelled wait holds no thread."""
        waiting = asyncio.get_running_loop().run_in_executor(self._threads, self.run, timeout)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self.stop()
            raise

    def stop(self) -> None:
        """End the wait."""
        self._stopped.set()
        if self._listener is not None:
            self._listener.wake()

    def _poll(self, listener: ResultListener, busy: str | None, deadline: float | None) -> bool:
        watched: str | None = None
        names: list[str] = []
        renew_at = 0.0
        while not self._stopped.is_set():
            now = time.monotonic()
            if busy is not None and (busy != watched or now >= renew_at):
                if busy != watched:
                    listener.unsubscribe(*names)
                names = self._engine.watch_topic(busy, WATCH)
                listener.subscribe(*names)
                watched, renew_at = busy, now + WATCH / 2
            busy = self._busy(watched)
            if busy is None:
                return True
            if deadline is not None and now >= deadline:
                return False
            if busy != watched:
                continue
            left = renew_at - now if deadline is None else min(deadline, renew_at) - now
            if listener.poll(max(left, 0.0)):
                self._stopped.wait(min(COALESCE, max(left, 0.0)))
        return False

    def _busy(self, watched: str | None) -> str | None:
        """
        A topic that must change before the wait can end, or None if the wait is over. `watched`:
        the topic that the engine reports changes of now.
        """
        raise NotImplementedError


class DoneWait(TopicWait):
    """Until the done cursors of a topic have passed everything that was published before."""

    call = "wait_done"

    def __init__(self, runtime: Runtime, target: str) -> None:
        super().__init__(runtime, target)
        self._last = self._engine.overview().last_number

    def _busy(self, watched: str | None) -> str | None:
        del watched
        cursors = self._engine.cursors(self._target)
        is_done = min(done for _, done in cursors.values()) >= self._last
        return None if is_done else self._target


class IdleWait(TopicWait):
    """Until nothing waits in a topic, or in the topics of a pattern, and nothing is leased."""

    call = "wait_idle"

    def _busy(self, watched: str | None) -> str | None:
        known = watched if is_pattern(self._target) else self._target
        if known is not None:
            stats = self._engine.topic_stats(known)
            if stats.waiting or stats.leased:
                return known
        return self._busy_of_pattern() if is_pattern(self._target) else None

    def _busy_of_pattern(self) -> str | None:
        """
        All topics are read twice: a message may move to a topic that was read before. If nothing
        was published in between, all were idle when the second read began.
        """
        largest = self._engine.topic_list(order="backlog", pattern=self._target, limit=PAGE)
        first = next((each.topic for each in largest if not is_copy(each.topic)), None)
        if first is not None:
            return first
        published: int | None = None
        while True:
            busy, now_published = self._read_all()
            if busy is not None or now_published == published:
                return busy
            published = now_published

    def _read_all(self) -> tuple[str | None, int]:
        """A busy topic, and a hash of how many messages were published to each."""
        published, after = 0, None
        while True:
            page = self._engine.topic_list(
                order="name", pattern=self._target, limit=PAGE, after=after
            )
            for stats in page:
                if is_copy(stats.topic):
                    continue
                if stats.waiting or stats.leased:
                    return stats.topic, 0
                published = hash((published, stats.topic, stats.published))
            if len(page) < PAGE:
                return None, published
            after = page[-1].topic

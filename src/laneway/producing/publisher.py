"""
Group commit: callers that publish while a commit runs join the next one, so that many callers cost
one transaction.

The threads are a leader and its followers.
A thread that finds no commit running leads one at once, so a single caller does not wait.
Threads that come while it commits sleep in a queue. When the leader is done, the first thread of
the queue leads the next commit with everything in the queue.
Coroutines are gathered for one iteration of their event loop and join the same queue as one group.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

from laneway import texts
from laneway.errors import BadMessage, EngineUnavailable, LanewayError

if TYPE_CHECKING:
    from concurrent.futures import Executor
    from typing import Protocol

    from laneway.engines.base import Queue
    from laneway.message import Draft, Receipt

    class Holder(Protocol):
        """Holds the engine, which is opened at first use."""

        @property
        def engine(self) -> Queue: ...


GATHER_SECONDS = 0.0003
"""
How long a leader waits for the callers that joined the last commit, about ten thread switches; a
single caller does not wait.
"""

MAX_MESSAGES = 5_000
"""How many messages one commit has at most; beyond that a transaction is longer, not cheaper."""


class _Entry:
    """One caller's messages, and their receipts or error."""

    __slots__ = ("drafts", "error", "future", "receipts")

    def __init__(
        self, drafts: list[Draft], future: asyncio.Future[list[Receipt]] | None = None
    ) -> None:
        self.drafts = drafts
        self.future = future
        self.receipts: list[Receipt] = []
        self.error: BaseException | None = None

    def result(self) -> list[Receipt]:
        if self.error is not None:
            raise self.error
        return self.receipts

    def resolve(self) -> None:
        """Resolve the future of a coroutine; on its event loop."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.receipts)


def _error_of(drafts: list[Draft], error: Exception) -> Exception:
    """
    The error for a caller whose messages the engine did not accept: always a LanewayError.
    """
    if isinstance(error, LanewayError):
        return error
    first = drafts[0].topic if drafts else ""
    which = (
        f"message to {first}"
        if len(drafts) == 1
        else f"one of {len(drafts):,} messages (the first to {first})"
    )
    bad_message = BadMessage(
        f"{which}: the store cannot hold it ({texts.type_name(type(error))}:"
        f" {texts.of(error, 200)}); nothing was stored, change it"
    )
    bad_message.__cause__ = error
    return bad_message


class _Group:
    """The entries of one thread, and the lock on which it sleeps while others commit."""

    __slots__ = ("awake", "done", "entries", "size")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.size = sum(len(entry.drafts) for entry in entries)
        self.done = False
        self.awake = threading.Lock()
        self.awake.acquire()


class Publisher:
    """
    Passes an application's messages to its engine, many callers' with one call.

    `holder`: opens the engine at first use. `threads`: run the commits of coroutines.
    """

    def __init__(self, holder: Holder, threads: Executor) -> None:
        self._holder = holder
        self._threads = threads
        self._mutex = threading.Lock()  # guards the next four; held for a few instructions
        self._leading = False
        self._queue: deque[_Group] = deque()
        self._companions = 0  # groups that joined the last commit
        self._gathering: _Group | None = None  # the leader that waits for them
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Entry]] = {}

    def _put(self, drafts: list[Draft]) -> list[Receipt]:
        return self._holder.engine.put(drafts)

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        """
        Publish messages, together with those of other callers; returns their receipts.

        Raises a LanewayError; that of another caller's messages does not fail these.
        """
        with self._mutex:
            is_alone = not (self._leading or self._companions)
            if is_alone:
                self._leading = True
        if not is_alone:
            entry = _Entry(drafts)
            self._join(_Group([entry]))
            return entry.result()
        try:
            return self._put(drafts)
        except LanewayError:
            raise
        except Exception as error:
            raise _error_of(drafts, error) from error
        finally:
            self._hand_over()

    def put_alone(self, drafts: list[Draft]) -> list[Receipt]:
        """
        As `put`, with a call of the engine of their own, which stores a flow in one step.
        """
        entry = _Entry(drafts)
        self._commit([entry])
        return entry.result()

    def _join(self, group: _Group) -> None:
        """Return when the group is done: lead a commit, or sleep while another thread does."""
        with self._mutex:
            leads = not self._leading
            self._leading = True
            if (
                not leads
                and self._gathering is not None
                and len(self._queue) + 1 >= self._companions
            ):
                # The last group that was waited for leads, because its thread is awake.
                self._queue.appendleft(self._gathering)
                self._gathering = None
                leads = True
            elif not leads:
                self._queue.append(group)
        if not leads:
            group.awake.acquire()
        if not group.done and not self._wait_for_others(group):
            self._lead(group)

    def _wait_for_others(self, group: _Group) -> bool:
        """
        Wait a moment for as many groups as joined the last commit.

        They have just been woken and are likely to publish again at once, and a transaction of one
        message costs as much as one of several.
        True: the last of them has led the commit, and the group is done.
        """
        with self._mutex:
            if len(self._queue) >= self._companions:
                return False
            self._gathering = group
        if group.awake.acquire(timeout=GATHER_SECONDS):
            return True
        with self._mutex:
            if self._gathering is group:
                self._gathering = None
                return False
        group.awake.acquire()
        return True

    def _lead(self, own: _Group) -> None:
        groups = [own]
        count = own.size
        with self._mutex:
            while self._queue and count < MAX_MESSAGES:
                groups.append(self._queue.popleft())
                count += groups[-1].size
            self._companions = len(groups) - 1
        try:
            self._commit([entry for group in groups for entry in group.entries])
        finally:
            self._hand_over()
            own.done = True
            for group in groups[1:]:
                group.done = True
                group.awake.release()

    def _hand_over(self) -> None:
        with self._mutex:
            if not self._queue:
                self._leading = False
                return
            successor = self._queue.popleft()
        successor.awake.release()

    def _commit(self, entries: list[_Entry]) -> None:
        try:
            receipts = self._put([draft for entry in entries for draft in entry.drafts])
        except EngineUnavailable as error:  # every caller gets it: `applied` is about its messages
            for entry in entries:
                entry.error = error
        except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
            if len(entries) == 1:
                entries[0].error = _error_of(entries[0].drafts, error)
            elif getattr(error, "applied", False) is None:
                self._commit_unclear(entries, error)
            else:
                # Nothing was changed; one caller's bad message must not fail the others.
                for entry in entries:
                    self._commit([entry])
        except BaseException as error:  # noqa: BLE001  # the committing thread was interrupted
            self._commit_unclear(entries, error)
            entries[0].error = error
        else:
            position = 0
            for entry in entries:
                entry.receipts = receipts[position : position + len(entry.drafts)]
                position += len(entry.drafts)

    @staticmethod
    def _commit_unclear(entries: list[_Entry], error: BaseException) -> None:
        """A part of the commit may be stored; repeating it would publish that part twice."""
        text = (
            f"publishing was interrupted ({texts.of(error, 200)}), perhaps after the message was"
            " stored; publish the same ids again"
        )
        for entry in entries:
            entry.error = EngineUnavailable(text, applied=None)

    async def aput(self, drafts: list[Draft]) -> list[Receipt]:
        """
        As `put`, awaited. What coroutines publish in one iteration of their event loop becomes one
        group.
        """
        loop = asyncio.get_running_loop()
        entry = _Entry(drafts, loop.create_future())
        gathered = self._gathered.get(loop)
        if gathered is None:
            self._gathered[loop] = [entry]
            loop.call_soon(self._send, loop)
        else:
            gathered.append(entry)
        assert entry.future is not None
        return await entry.future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        At the end of the iteration: give the gathered entries to a thread. New entries are gathered
        for the next time.
        """
        entries = self._gathered[loop]
        if not entries:
            del self._gathered[loop]
            return
        self._gathered[loop] = []
        self._threads.submit(self._commit_for, loop, entries)

    def _commit_for(self, loop: asyncio.AbstractEventLoop, entries: list[_Entry]) -> None:
        self._join(_Group(entries))
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._answer, loop, entries)

    def _answer(self, loop: asyncio.AbstractEventLoop, entries: list[_Entry]) -> None:
        for entry in entries:
            entry.resolve()
        # The answered callers run first and may publish again: their messages join this
        # iteration's.
        loop.call_soon(self._send, loop)

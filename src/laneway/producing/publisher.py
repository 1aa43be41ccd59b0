"""
Group commit: whoever publishes while a commit is running joins the next one, so that many callers
cost one transaction.

Leader and followers: who finds nobody committing commits at once, so a lone call goes straight
through. Who comes meanwhile queues and sleeps; when the leader is done, the first of the queue
leads the next commit with all that has queued up. Coroutines are gathered per turn of their event
loop and join the same queue as one group.
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


GATHER = 0.0003
"""Seconds that a leader waits for those who joined the last commit: some ten changes of thread."""

MOST = 5_000
"""Most messages of one commit: beyond it a transaction only gets longer, not cheaper."""


class _Entry:
    """One caller's messages and what became of them."""

    __slots__ = ("drafts", "error", "future", "receipts")

    def __init__(
        self, drafts: list[Draft], future: asyncio.Future[list[Receipt]] | None = None
    ) -> None:
        self.drafts = drafts
        self.future = future
        self.receipts: list[Receipt] = []
        self.error: BaseException | None = None

    def answer(self) -> list[Receipt]:
        if self.error is not None:
            raise self.error
        return self.receipts

    def tell(self) -> None:
        """Answer a coroutine; on its loop."""
        if self.future is None or self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.receipts)


def _error_of(entry: _Entry, error: Exception) -> Exception:
    """
    What the caller gets whose messages the engine did not take: always one of the library's own
    errors.
    """
    if isinstance(error, LanewayError):
        return error
    first = entry.drafts[0].topic if entry.drafts else ""
    which = (
        f"message to {first}"
        if len(entry.drafts) == 1
        else f"one of {len(entry.drafts):,} messages (the first to {first})"
    )
    made = BadMessage(
        f"{which}: the store cannot hold it ({texts.type_name(type(error))}:"
        f" {texts.of(error, 200)}); nothing was stored, change it"
    )
    made.__cause__ = error
    return made


class _Group:
    """The entries that one thread brings, and the lock on which it sleeps while others commit."""

    __slots__ = ("awake", "done", "entries", "size")

    def __init__(self, entries: list[_Entry]) -> None:
        self.entries = entries
        self.size = sum(len(entry.drafts) for entry in entries)
        self.done = False
        self.awake = threading.Lock()
        self.awake.acquire()


class Publisher:
    """The one way of an application's messages into its engine."""

    def __init__(self, holder: Holder, threads: Executor) -> None:
        self._holder = holder
        self._threads = threads
        self._mutex = threading.Lock()  # guards the next four; held for a few instructions only
        self._leading = False
        self._queue: deque[_Group] = deque()
        self._companions = 0  # groups that joined the last commit
        self._gathering: _Group | None = None  # the leader that waits for them
        self._turns: dict[asyncio.AbstractEventLoop, list[_Entry]] = {}

    def _put(self, drafts: list[Draft]) -> list[Receipt]:
        return self._holder.engine.put(drafts)

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        """
        Accept messages, together with those of whoever else publishes now. Raises what the engine
        raises.
        """
        entry = _Entry(drafts)
        self._join(_Group([entry]))
        return entry.answer()

    def put_alone(self, drafts: list[Draft]) -> list[Receipt]:
        """
        As `put`, in a call of the engine by themselves: a flow is stored in one step only there.
        """
        entry = _Entry(drafts)
        self._commit([entry])
        return entry.answer()

    def _join(self, group: _Group) -> None:
        """Returns when the group is done: by leading a commit, or by sleeping while others do."""
        with self._mutex:
            leads = not self._leading
            self._leading = True
            if (
                not leads
                and self._gathering is not None
                and len(self._queue) + 1 >= self._companions
            ):
                # The last of those that were waited for leads: it is awake.
                self._queue.appendleft(self._gathering)
                self._gathering = None
                leads = True
            elif not leads:
                self._queue.append(group)
        if not leads:
            group.awake.acquire()
        if not group.done and not self._waits_for_others(group):
            self._lead(group)

    def _waits_for_others(self, group: _Group) -> bool:
        """
        A leader waits a moment for as many as joined the last commit: just woken, they are likely
        to come again at once, and a transaction of one costs as much as one of several. True: the
        last of them has led and the group is done. A lone caller finds nobody to wait for.
        """
        with self._mutex:
            if len(self._queue) >= self._companions:
                return False
            self._gathering = group
        if group.awake.acquire(timeout=GATHER):
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
            while self._queue and count < MOST:
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
        except EngineUnavailable as error:  # every caller is told what happened to its messages
            for entry in entries:
                entry.error = error
        except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
            if len(entries) == 1:
                entries[0].error = _error_of(entries[0], error)
            elif getattr(error, "applied", False) is None:
                self._commit_unclear(entries, error)
            else:
                # Nothing was changed. One caller's bad message must not fail the others.
                for entry in entries:
                    self._commit([entry])
        except BaseException as error:  # noqa: BLE001  # the thread that commits is interrupted
            self._commit_unclear(entries, error)
            entries[0].error = error
        else:
            position = 0
            for entry in entries:
                entry.receipts = receipts[position : position + len(entry.drafts)]
                position += len(entry.drafts)

    @staticmethod
    def _commit_unclear(entries: list[_Entry], error: BaseException) -> None:
        """A part of a commit may have been stored: to repeat it would publish that part twice."""
        text = (
            f"publishing was interrupted ({texts.of(error, 200)}), perhaps after the message was"
            " stored; publish the same ids again"
        )
        for entry in entries:
            entry.error = EngineUnavailable(text, applied=None)

    async def aput(self, drafts: list[Draft]) -> list[Receipt]:
        """
        As `put`, awaited; what coroutines publish in one turn of their loop becomes one group.
        """
        loop = asyncio.get_running_loop()
        entry = _Entry(drafts, loop.create_future())
        gathered = self._turns.get(loop)
        if gathered is None:
            self._turns[loop] = [entry]
            loop.call_soon(self._send, loop)
        else:
            gathered.append(entry)
        assert entry.future is not None
        return await entry.future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        End of the turn: what was gathered goes to a thread. What comes meanwhile is gathered for
        the next time.
        """
        entries = self._turns[loop]
        if not entries:
            del self._turns[loop]
            return
        self._turns[loop] = []
        self._threads.submit(self._commit_for, loop, entries)

    def _commit_for(self, loop: asyncio.AbstractEventLoop, entries: list[_Entry]) -> None:
        self._join(_Group(entries))
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._answer, loop, entries)

    def _answer(self, loop: asyncio.AbstractEventLoop, entries: list[_Entry]) -> None:
        for entry in entries:
            entry.tell()
        # The callers that were answered run first and may publish again: theirs goes with this
        # turn's.
        loop.call_soon(self._send, loop)

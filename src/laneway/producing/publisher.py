"""
Group commit: callers that publish while a commit runs join the next one, so that many callers cost
one transaction.

The threads are a leader and its followers.
A thread that finds no commit running leads one immediately, so a single caller does not wait.
Threads that come while it commits sleep in a queue. When the leader is done, the first thread of
the queue leads the next commit with everything in the queue.
Coroutines are gathered while the iterations of their event loop bring further ones, and join the
same queue as one group.

For example, a commit takes 4 ms, and threads A to D publish one message each, 1 ms apart. A leads
commit 1 with its own message. B, C and D join the queue. At 4 ms A returns and wakes B, which leads
commit 2 with three messages; at 8 ms all have returned: two commits for four callers. A publishes
again at 4.1 ms and joins the queue. Two callers joined commit 2, so at 8 ms A waits up to 0.3 ms
for two others, which have just been woken and may publish again. The second one that comes leads
commit 3 with all three messages; if none comes, A leads it alone.

Why this is correct. A leader stays the leader until the queue is empty, or hands over to the first
of the queue under the mutex, so while a thread waits there is exactly one. A thread returns after
the commit with its messages, with its own receipts or its own error. If the store refuses a commit,
nothing is stored, and the groups are committed one by one: a bad message fails only its caller. If
it is unclear what was stored, all callers learn that.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import cast

from laneway import storable
from laneway.errors import BadMessage, EngineUnavailable, LanewayError
from laneway.message import Draft, Receipt
from laneway.producing.bulk import BATCH_BYTES

GATHER_SECONDS = 0.0003
"""
How long a leader waits for the callers that joined the last commit, about ten thread switches; a
single caller does not wait.
"""

MOST_GATHERING = 0.002
"""
How many seconds coroutines are gathered at most, while each iteration of their loop brings further
ones.
"""

MAX_MESSAGES = 5_000
"""How many messages one commit has at most; beyond that a transaction is longer, not cheaper."""


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
        f"{which}: the store cannot hold it ({storable.type_name(type(error))}:"
        f" {storable.of(error, 200)}); nothing was stored, change it"
    )
    bad_message.__cause__ = error
    return bad_message


class _Group:
    """
    The messages of one thread, or of coroutines with one message each (`is_shared`); what the
    engine answered to each (`has_errors`: some answers are errors); and the lock on which their
    thread sleeps while others commit.
    """

    __slots__ = ("answers", "awake", "done", "drafts", "has_errors", "is_shared")

    def __init__(self, drafts: list[Draft], *, is_shared: bool = False) -> None:
        self.drafts = drafts
        self.is_shared = is_shared
        self.answers: Sequence[Receipt | BaseException] = ()
        self.done = self.has_errors = False
        self.awake = threading.Lock()
        self.awake.acquire()

    @property
    def has_one_caller(self) -> bool:
        return len(self.drafts) == 1 or not self.is_shared

    def size(self) -> int:
        return sum(len(draft.body) for draft in self.drafts)

    def fail(self, error: BaseException) -> None:
        """None of its messages was accepted."""
        self.answers = [error] * len(self.drafts)
        self.has_errors = True

    def receipts(self) -> list[Receipt]:
        """The receipts of a thread's messages. Raises their error."""
        if self.answers and isinstance(self.answers[0], BaseException):
            raise self.answers[0]
        return cast("list[Receipt]", self.answers)


class _Gathered:
    """
    What coroutines of one event loop have published since a group of them was last sent.

    `seen`: how many messages there were an iteration ago. `until`: the loop's time at which the
    group is sent even if further ones come; 0: it does not gather yet.
    """

    __slots__ = ("drafts", "seen", "size", "until", "waiters")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.waiters: list[asyncio.Future[Receipt]] = []
        self.seen = self.size = 0
        self.until = 0.0


class Publisher:
    """
    Passes an application's messages to its engine, many callers' with one call.

    `put`: of the engine, or of a spool. `threads`: run the commits of coroutines. `on_bad`: is
    called with a single message that the store does not take, and the reason.
    """

    def __init__(
        self,
        put: Callable[[list[Draft]], list[Receipt]],
        threads: Executor,
        on_bad: Callable[[Draft, str], object] = lambda *_: None,
    ) -> None:
        self._put = put
        self._on_bad = on_bad
        self._threads = threads
        self._mutex = threading.Lock()  # guards the next four; held for a few instructions
        self._leading = False
        self._queue: deque[_Group] = deque()
        self._companions = 0  # groups that joined the last commit
        self._gathering: _Group | None = None  # the leader that waits for them
        self._gathered: dict[asyncio.AbstractEventLoop, _Gathered] = {}

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
            group = _Group(drafts)
            self._join(group)
            return group.receipts()
        try:
            return self._put(drafts)
        except Exception as error:
            fault = self._error_of(drafts, error)
            if fault is error:
                raise
            raise fault from error
        finally:
            self._hand_over()

    def _error_of(self, drafts: list[Draft], error: Exception) -> Exception:
        fault = _error_of(drafts, error)
        if isinstance(fault, BadMessage) and len(drafts) == 1:
            self._on_bad(drafts[0], str(fault))
        return fault

    def put_alone(self, drafts: list[Draft]) -> list[Receipt]:
        """
        As `put`, with a call of the engine of their own, which stores a flow in one step.
        """
        group = _Group(drafts)
        self._commit([group])
        return group.receipts()

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

        They have just been woken and are likely to publish again immediately, and a transaction of
        one message costs as much as one of several.
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
        count = len(own.drafts)
        with self._mutex:
            size = own.size() if self._queue else 0
            while self._queue and count < MAX_MESSAGES and size < BATCH_BYTES:
                groups.append(self._queue.popleft())
                count += len(groups[-1].drafts)
                size += groups[-1].size()
            self._companions = len(groups) - 1
        try:
            self._commit(groups)
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

    def _commit(self, groups: list[_Group]) -> None:
        drafts = groups[0].drafts
        if len(groups) > 1:
            drafts = [draft for group in groups for draft in group.drafts]
        try:
            receipts = self._put(drafts)
        except EngineUnavailable as error:  # every caller gets it: `applied` is about its messages
            for group in groups:
                group.fail(error)
        except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
            if len(groups) == 1 and groups[0].has_one_caller:
                groups[0].fail(self._error_of(drafts, error))
            elif getattr(error, "applied", False) is None:
                self._commit_unclear(groups, error)
            else:
                self._commit_apart(groups)
        except BaseException as error:  # noqa: BLE001  # the committing thread was interrupted
            self._commit_unclear(groups, error)
            groups[0].answers = [error, *groups[0].answers[1:]]
        else:
            position = 0
            for group in groups:
                end = position + len(group.drafts)
                group.answers = receipts[position:end]
                position = end

    def _commit_apart(self, groups: list[_Group]) -> None:
        """Nothing was changed; one caller's bad message must not fail the others."""
        for group in groups:
            if group.has_one_caller:
                self._commit([group])
            else:
                alone = [_Group([draft]) for draft in group.drafts]
                for each in alone:
                    self._commit([each])
                group.answers = [each.answers[0] for each in alone]
                group.has_errors = any(each.has_errors for each in alone)

    @staticmethod
    def _commit_unclear(groups: list[_Group], error: BaseException) -> None:
        """A part of the commit may be stored; repeating it would publish that part twice."""
        text = (
            f"publishing was interrupted ({storable.of(error, 200)}), perhaps after the message was"
            " stored; publish the same ids again"
        )
        for group in groups:
            group.fail(EngineUnavailable(text, applied=None))

    def send(self, draft: Draft) -> asyncio.Future[Receipt]:
        """
        As `put`, for a coroutine: the answer to one message.

        What coroutines publish in iterations of their event loop that follow each other becomes
        one group; a single one does not wait.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = asyncio.Future(loop=loop)
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = _Gathered()
            loop.call_soon(self._send, loop)
        gathered.drafts.append(draft)
        gathered.waiters.append(future)
        gathered.size += len(draft.body)
        if gathered.size > BATCH_BYTES:
            self._send_now(loop)
        return future

    def _send(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        At the end of an iteration: give the gathered messages to a thread, unless it has brought
        further ones. New ones are gathered for the next time.
        """
        gathered = self._gathered.get(loop)
        count = len(gathered.drafts) if gathered is not None else 0
        if gathered is None or not count:
            self._gathered.pop(loop, None)
            return
        if count > 1 and count != gathered.seen and count < MAX_MESSAGES:
            now = loop.time()
            gathered.until = gathered.until or now + MOST_GATHERING
            if now < gathered.until:
                gathered.seen = count
                loop.call_soon(self._send, loop)
                return
        self._send_now(loop)

    def _send_now(self, loop: asyncio.AbstractEventLoop) -> None:
        gathered, self._gathered[loop] = self._gathered[loop], _Gathered()
        group = _Group(gathered.drafts, is_shared=True)
        self._threads.submit(self._commit_for, loop, gathered, group)

    def _commit_for(
        self, loop: asyncio.AbstractEventLoop, gathered: _Gathered, group: _Group
    ) -> None:
        self._join(group)
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._answer, loop, gathered.waiters, group)

    def _answer(
        self,
        loop: asyncio.AbstractEventLoop,
        waiters: list[asyncio.Future[Receipt]],
        group: _Group,
    ) -> None:
        for waiter, answer in zip(waiters, group.answers, strict=True):
            try:
                if group.has_errors and isinstance(answer, BaseException):
                    waiter.set_exception(answer)
                else:
                    waiter.set_result(cast("Receipt", answer))
            except asyncio.InvalidStateError:
                pass  # its caller was cancelled
        # The answered callers run first and may publish again: their messages join this
        # iteration's.
        loop.call_soon(self._send, loop)

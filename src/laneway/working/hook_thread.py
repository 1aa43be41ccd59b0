"""
The thread that calls hooks.

A hook is called after the engine has accepted the settlement, so what it is called with is true.
A process that is killed between the settlement and the hook calls no hook.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

import msgspec

from laneway import codec, storable
from laneway.errors import DestinationUnavailable, Reject, Retry
from laneway.message import Lease, Message, Settlement
from laneway.working.middleware import HandlingMiddlewares

log = logging.getLogger("laneway.worker")

MAX_PENDING = 10_000
"""
How many ended messages may wait for their hooks; beyond it the worker begins no further message
until half of them are done.
"""


class _Ended(msgspec.Struct):
    """How a handler ended, and the engine's answer to the settlement."""

    lease: Lease
    error: BaseException | None
    answer: str = ""


class HookThread(threading.Thread):
    """
    Calls the hooks of ended messages, one after the other.

    `resume` is called, from this thread, once it has caught up after `is_behind` returned True.
    """

    def __init__(self, middlewares: HandlingMiddlewares, resume: Callable[[], None]) -> None:
        super().__init__(name="laneway-hooks", daemon=True)
        self._middlewares = middlewares
        self._resume = resume
        self._expected: dict[int, _Ended] = {}
        self._ended: queue.SimpleQueue[_Ended | None] = queue.SimpleQueue()
        self._has_to_resume = False

    def is_behind(self) -> bool:
        """Whether too many hooks are pending: no message should begin before `resume`."""
        if self._ended.qsize() <= MAX_PENDING:
            return False
        self._has_to_resume = True
        # The thread may have done the last of them before it could see that.
        return self._ended.qsize() >= MAX_PENDING // 2

    def expect(self, lease: Lease, error: BaseException | None) -> None:
        """A message has ended, with the error of its handler; its settlement will follow."""
        self._expected[lease.fence] = _Ended(lease, error)

    def settled(self, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
        """The engine's answers to settlements: the hooks of these messages are due."""
        for settlement, answer in zip(settlements, answers, strict=True):
            ended = self._expected.pop(settlement.fence, None)
            if ended is not None:
                ended.answer = answer
                self._ended.put(ended)

    def run(self) -> None:
        while (ended := self._ended.get()) is not None:
            try:
                self._call_hooks(ended)
            except BaseException as error:  # noqa: BLE001  # without this thread the worker would wait forever
                log.warning(
                    "message %s in topic %s: cannot call hooks: %s",
                    ended.lease.id,
                    ended.lease.topic,
                    storable.of(error, 200),
                )
            if self._has_to_resume and self._ended.qsize() < MAX_PENDING // 2:
                self._has_to_resume = False
                self._resume()

    def _call_hooks(self, ended: _Ended) -> None:
        message, error = _message_of(ended.lease), ended.error
        call = self._middlewares.call_hooks
        if error is None:
            if ended.answer == "acked":
                call("success", message)
            return
        kind = type(error)  # not isinstance, which asks the error's own `__class__`
        if issubclass(kind, DestinationUnavailable) and ended.answer == "released":
            call("back_off", message, error)
        if ended.answer in ("acked", "retried", "died") and not issubclass(kind, (Retry, Reject)):
            call("failure", message, error)
        if ended.answer == "retried":
            call("retry", message, error)
        elif ended.answer == "died":
            call("dead", message, error)

    def end(self, seconds: float) -> None:
        """Call the pending hooks, then end; waits up to `seconds` for that."""
        self._ended.put(None)
        self.join(seconds)
        if self.is_alive():
            log.warning(
                "hooks are slow; the worker stopped with %d hooks not called", self._ended.qsize()
            )


def _message_of(lease: Lease) -> Message:
    """The message of a lease; a body that cannot be decoded stays encoded."""
    try:
        return codec.message_of(lease)
    except ValueError:
        return Message(
            lease.topic,
            lease.body,
            lease.key,
            lease.priority,
            id=lease.id,
            headers=lease.headers,
            attempt=lease.attempt,
        )

"""
What the buffer in memory and the spool share: both accept messages that a thread sends to the store
later, and refuse or drop those for which they have no room.
"""

from __future__ import annotations

import atexit
import itertools
import os
import secrets
import threading
import weakref
from abc import ABC, abstractmethod
from typing import ClassVar, Literal, get_args

from laneway import arguments, units
from laneway.engines.shared.refusals import delay_outlasts_ttl
from laneway.errors import BadMessage, ProducerFull, UsageError
from laneway.message import Draft, Outcome, Receipt
from laneway.producing.reports import UnsentReports


class SendQueue(ABC):
    """
    The messages of one application that are published and not sent yet.

    `put` has the form of `Queue.put`, so that callers share transactions as they do with a store.
    """

    accepted: ClassVar[Outcome]
    """The outcome of a message that was accepted."""

    def __init__(self, on_full: OnProducerFull, unsent: UnsentReports) -> None:
        self.on_full = on_full
        self._unsent = unsent
        self._prefix, self._numbers = f"p{secrets.token_hex(8)}-", itertools.count(1)
        self._mutex = threading.Lock()
        self._is_registered = False

    def put(self, drafts: list[Draft]) -> list[Receipt]:
        """
        Accept messages in order. Those for which there is no room are refused, or dropped, as the
        options say. Raises BadMessage.
        """
        for draft in drafts:
            self._assign_id(draft)
        count, reason = self._accept(drafts)
        receipts = [Receipt(each.id or "", each.topic, self.accepted) for each in drafts[:count]]
        if without_room := drafts[count:]:
            outcome: Outcome = "refused"
            if self.on_full == "drop":
                outcome = "dropped"
                self._unsent.report(without_room, ProducerFull(reason))
            receipts += [
                Receipt(each.id or "", each.topic, outcome, None, reason) for each in without_room
            ]
        return receipts

    def put_now(self, draft: Draft) -> Receipt | None:
        """As `put`, for one message, in half the time. Returns None if `put` has to decide."""
        message_id = self._assign_id(draft)
        if self._accept_now(draft):
            return Receipt(message_id, draft.topic, self.accepted)
        return None

    def _assign_id(self, draft: Draft) -> str:
        if draft.delay_us and draft.ttl_us is not None and draft.delay_us >= draft.ttl_us:
            raise BadMessage(delay_outlasts_ttl(draft, draft.delay_us, draft.ttl_us))
        message_id = draft.id
        if message_id is None:
            message_id = draft.id = f"{self._prefix}{next(self._numbers):x}"
        return message_id

    @abstractmethod
    def _accept(self, drafts: list[Draft]) -> tuple[int, str]:
        """Accept messages while there is room. Returns how many, and why not the others."""

    @abstractmethod
    def _accept_now(self, draft: Draft) -> bool:
        """Accept one message if this can be decided fast."""

    @abstractmethod
    def flush(self, timeout: float | None = None) -> int:
        """
        Wait until the store has answered everything that was published before. Returns how many
        messages are not answered after `timeout` seconds.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait at most `exit_timeout` until everything is sent, and end the threads."""

    def begin_in_child(self) -> None:  # noqa: B027  # a buffer has nothing to release
        """Release what a forked child has inherited from its parent."""

    @property
    @abstractmethod
    def sender(self) -> threading.Thread | None:
        """The thread that sends; it must not wait for room."""

    def _close_at_exit(self) -> None:
        """
        Close it when the program ends, while other threads still run, if it still exists then. Not
        in a forked child: it is its parent's.

        Functions of `atexit` are called when no thread can be started any more, and an engine
        starts some when it is opened.
        """
        if self._is_registered:
            return
        self._is_registered = True
        process, reference = os.getpid(), weakref.ref(self)

        def close() -> None:
            queue = reference()
            if queue is not None and os.getpid() == process:
                queue.close()

        register = getattr(threading, "_register_atexit", atexit.register)
        try:
            register(close)
        except RuntimeError:  # the program ends right now
            atexit.register(close)


OnProducerFull = Literal["block", "raise", "drop"]
"""
What `publish` does when the producer's buffer or spool is full.

`"block"`: it waits for room. `"raise"`: it raises ProducerFull. `"drop"`: the message is dropped
and reported, and its receipt has the outcome `"dropped"`.
"""


def on_full(call: str, value: object) -> OnProducerFull:
    """Check what to do when the buffer or spool is full. Raises UsageError."""
    found: OnProducerFull = arguments.choice(call, "on_full", value, get_args(OnProducerFull))
    return found


def size(call: str, option: str, value: int | str) -> int:
    """Read a size in bytes, or text like "64MB". Raises UsageError."""
    try:
        return units.size(value)
    except ValueError as error:
        raise UsageError(f"{call}: {option}: {error}") from error

"""`publish_many`: any iterable, streamed in batches, with progress on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING

from laneway import codec
from laneway.errors import BadMessage
from laneway.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from laneway.message import Draft, Receipt

BATCH = 1_000
"""Messages of one transaction; larger ones are hardly cheaper and hold others up."""

BATCH_BYTES = 8_000_000
ROOM_FIRST, ROOM_MOST = 0.01, 0.5
"""Seconds between looks for room in a full backlog: the first, and the longest."""

SHOW_AFTER, SHOW_EVERY = 0.5, 0.1


def put_all(
    messages: Iterable[Message],
    put: Callable[[list[Draft]], list[Receipt]],
    has_to_wait: Callable[[str], bool],
    *,
    timeout: float | None,
    progress: bool,
    is_one: bool = False,
) -> list[Receipt]:
    """
    Publish everything; answers per message. An error's notes say how many messages were accepted
    before it.

    `is_one`: in one batch, however many bytes they are.
    """
    receipts: list[Receipt] = []
    bar = _Progress() if progress else None
    try:
        for drafts in _batches(messages, most_bytes=sys.maxsize if is_one else BATCH_BYTES):
            answers = put(drafts)
            if any(answer.outcome == "refused" for answer in answers):
                wait_for_room(drafts, answers, put, has_to_wait, timeout)
            receipts += answers
            if bar is not None:
                bar.show(len(receipts))
    except Exception as error:
        error.add_note(
            f"publish_many: the first {len(receipts):,} messages had been answered before"
        )
        raise
    finally:
        if bar is not None:
            bar.end()
    return receipts


def _batches(messages: Iterable[Message], *, most_bytes: int) -> Iterator[list[Draft]]:
    stream = iter(messages)
    position = 0
    while True:
        drafts: list[Draft] = []
        size = 0
        for message in islice(stream, BATCH):
            if not isinstance(message, Message):
                raise BadMessage(
                    f"publish_many: expected item {position} to be a Message, got {message!r:.80}"
                )
            drafts.append(codec.draft(message))
            position += 1
            size += len(drafts[-1].body)
            if size > most_bytes:
                break
        if not drafts:
            return
        yield drafts


def wait_for_room(
    drafts: list[Draft],
    answers: list[Receipt],
    put: Callable[[list[Draft]], list[Receipt]],
    has_to_wait: Callable[[str], bool],
    timeout: float | None,
    given_up: threading.Event | None = None,
) -> None:
    """
    Offer what was refused again, where the policy says that producers wait, until it is taken, the
    time is over, or it is given up.
    """
    given_up = given_up or threading.Event()
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = ROOM_FIRST
    while waiting := [
        n
        for n, answer in enumerate(answers)
        if answer.outcome == "refused" and has_to_wait(drafts[n].topic)
    ]:
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        if given_up.wait(min(pause, left)):
            return
        again = put([drafts[n] for n in waiting])
        taken = any(answer.outcome != "refused" for answer in again)
        pause = ROOM_FIRST if taken else min(pause * 2, ROOM_MOST)
        for n, answer in zip(waiting, again, strict=True):
            answers[n] = answer


class _Progress:
    """One line on standard error, for what takes longer than a moment."""

    def __init__(self) -> None:
        self._started = self._shown = time.monotonic()
        self._visible = False

    def show(self, count: int) -> None:
        now = time.monotonic()
        if now - self._started < SHOW_AFTER or now - self._shown < SHOW_EVERY:
            return
        self._shown = now
        self._visible = True
        sys.stderr.write(f"\rpublished {count:,} ({count / (now - self._started):,.0f}/s)")
        sys.stderr.flush()

    def end(self) -> None:
        if self._visible:
            sys.stderr.write("\n")

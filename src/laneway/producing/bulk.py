"""`publish_many`: streams any iterable in batches, with progress on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from laneway import codec
from laneway.errors import BadMessage
from laneway.message import Draft, Message, Receipt

BATCH = 1_000
"""
How many messages one call of the engine has; larger calls are hardly cheaper and delay others.
"""

BATCH_BYTES = 8_000_000
"""How many bytes of bodies one call of the engine has at most, unless one message is larger."""

MIN_ROOM_SECONDS, MAX_ROOM_SECONDS = 0.01, 0.5
"""
How long to wait between two attempts to publish into a full backlog; the wait doubles from the
first to the second while nothing is accepted.
"""

SHOW_AFTER, SHOW_EVERY = 0.5, 0.1
"""How many seconds pass before progress is shown first, and between two updates."""


def put_all(
    messages: Iterable[Message] | Iterable[Draft],
    put: Callable[[list[Draft]], list[Receipt]],
    has_to_wait: Callable[[str], bool],
    on_refused: Callable[[Draft, str], object],
    *,
    timeout: float | None,
    progress: bool,
    is_one: bool = False,
    overlaps: bool = False,
) -> list[Receipt]:
    """
    Publish all messages, encoded or not, in batches; returns their receipts in order.

    `put`: calls the engine. `has_to_wait`: whether producers of a topic wait for room in a full
    backlog. `on_refused`: is called with each message that is refused at last, and the reason.
    `timeout`: how long to wait for room, in seconds, or None for no limit.
    `progress`: show progress on a terminal. `is_one`: ignore BATCH_BYTES, because the messages are
    to be stored together. `overlaps`: call `put` in another thread and encode the next batch
    meanwhile.

    A note on a raised error gives the number of messages answered before it.
    """
    receipts: list[Receipt] = []
    display = _Progress() if progress else None
    try:
        batches = _batches(messages, max_bytes=sys.maxsize if is_one else BATCH_BYTES)
        for drafts, answers in (_overlapping if overlaps else _in_turn)(batches, put):
            if any(answer.outcome == "refused" for answer in answers):
                wait_for_room(drafts, answers, put, has_to_wait, timeout)
                for draft, answer in zip(drafts, answers, strict=True):
                    if answer.outcome == "refused":
                        on_refused(draft, answer.reason or "")
            receipts += answers
            if display is not None:
                display.show(len(receipts))
    except Exception as error:
        error.add_note(f"publish_many: the first {len(receipts):,} messages were already answered")
        raise
    finally:
        if display is not None:
            display.end()
    return receipts


def _in_turn(
    batches: Iterator[list[Draft]], put: Callable[[list[Draft]], list[Receipt]]
) -> Iterator[tuple[list[Draft], list[Receipt]]]:
    for drafts in batches:
        yield drafts, put(drafts)


def _overlapping(
    batches: Iterator[list[Draft]], put: Callable[[list[Draft]], list[Receipt]]
) -> Iterator[tuple[list[Draft], list[Receipt]]]:
    """
    Like `_in_turn`: a batch is put when the one before has been answered and used. But a full one
    is put in a thread, while the caller's encodes the next.
    """
    thread: ThreadPoolExecutor | None = None
    running: tuple[list[Draft], Future[list[Receipt]]] | None = None
    has_begun = threading.Event()

    def begin(drafts: list[Draft]) -> list[Receipt]:
        has_begun.set()
        return put(drafts)

    def answered() -> Iterator[tuple[list[Draft], list[Receipt]]]:
        nonlocal running
        if running is not None:
            (drafts, answers), running = running, None
            yield drafts, answers.result()

    try:
        for drafts in batches:
            yield from answered()
            if len(drafts) < BATCH:
                yield drafts, put(drafts)
            else:
                thread = thread or ThreadPoolExecutor(1, "laneway-bulk")
                has_begun.clear()
                running = drafts, thread.submit(begin, drafts)
                has_begun.wait()  # otherwise it begins when this thread has encoded the next batch
        yield from answered()
    except Exception:  # of the next messages
        yield from answered()
        raise
    finally:
        if thread is not None:
            thread.shutdown()


def _batches(
    messages: Iterable[Message] | Iterable[Draft], *, max_bytes: int
) -> Iterator[list[Draft]]:
    stream = iter(messages)
    position = 0
    while True:
        drafts: list[Draft] = []
        size = 0
        for message in islice(stream, BATCH):
            if isinstance(message, Message):
                draft = codec.draft(message)
            elif isinstance(message, Draft):
                draft = message
            else:
                raise BadMessage(
                    f"publish_many: expected item {position} to be a Message, got {message!r:.80}"
                )
            drafts.append(draft)
            position += 1
            size += len(draft.body)
            if size > max_bytes:
                break
        if not drafts:
            return
        yield drafts


async def batches_of(messages: AsyncIterable[Message]) -> AsyncIterator[list[Message]]:
    """An async stream in batches of at most BATCH messages."""
    batch: list[Message] = []
    async for message in messages:
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def wait_for_room(
    drafts: list[Draft],
    answers: list[Receipt],
    put: Callable[[list[Draft]], list[Receipt]],
    has_to_wait: Callable[[str], bool],
    timeout: float | None,
    given_up: threading.Event | None = None,
) -> None:
    """
    Publish refused messages again until they are accepted, where the policy has producers wait.

    `answers`: the receipts of `drafts`; those of accepted messages are replaced in place.
    Ends early after `timeout` seconds, or when `given_up` is set.
    """
    given_up = given_up or threading.Event()
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = MIN_ROOM_SECONDS
    while waiting := [
        n
        for n, answer in enumerate(answers)
        if answer.outcome == "refused" and has_to_wait(answer.topic)
    ]:
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return
        if given_up.wait(min(pause, left)):
            return
        again = put([drafts[n] for n in waiting])
        is_any_accepted = any(answer.outcome != "refused" for answer in again)
        pause = MIN_ROOM_SECONDS if is_any_accepted else min(pause * 2, MAX_ROOM_SECONDS)
        for n, answer in zip(waiting, again, strict=True):
            answers[n] = answer


class _Progress:
    """One line on standard error, for calls that take longer than SHOW_AFTER."""

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

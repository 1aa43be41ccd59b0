"""
The delivery log: what was sent to endpoints, and what they answered.

A sender appends to it from a thread of its own, in batches. If the log fails or is slow, it drops
entries, which are counted, and never a delivery.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, get_args

import msgspec

from laneway import units
from laneway.arguments import choice, whole
from laneway.engines.base import DeliveryLog, FullEngine, LogEntry
from laneway.errors import LanewayError, UsageError
from laneway.policy import check_pattern, is_pattern, matches
from laneway.printable import process_name
from laneway.push import signature
from laneway.push.stored_counts import COUNTS

log = logging.getLogger("laneway.push")

Result = Literal["acked", "retried", "dead", "backed_off", "released"]
"""What became of the message: `"backed_off"`, `"released"`: it goes back, without an attempt."""

RESULTS: tuple[str, ...] = get_args(Result)

LogSetting = Literal["failures", "sample", "all"]
"""
Which attempts of an endpoint are logged, besides failures. `"sample"`: successes too, up to
`SAMPLED` a second in each sender. `"all"`: every one, and the message of a success, for a replay.
"""

SAMPLED = 100
KEEP_US = 14 * 86_400 * units.SECOND
MAX_BYTES = 2 << 30
MAX_BYTES_IN_MEMORY = 256 << 20
"""The bound where the store keeps the log in memory, as Valkey does."""

BATCH, BATCH_SECONDS = 500, 1.0
MAX_WAITING = 10_000
"""Entries that wait to be written; more are dropped and counted."""

MAX_WAITING_BYTES = 64 << 20
"""The same for the bodies of their messages, which are in memory meanwhile."""

MAX_MESSAGE = 65_536
"""Bytes of a message's body that are kept for a replay."""

MOST_SEARCHED = 10_000
PAGE = 500
LATE_US = 60 * units.SECOND
"""The maximum time, about, between an attempt and the append of its entry."""


class KeptMessage(msgspec.Struct, omit_defaults=True, array_like=True):
    """A message as it was published. `body`: base64 in JSON."""

    body: bytes
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0


class Entry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An attempt as it is stored. `sent`, `got`: headers of the request and of the answer."""

    id: str
    attempt: int = 1
    result: Result = "acked"
    status: int = 0
    error: str | None = None
    text: str = ""
    ms: tuple[float, ...] = ()
    sent: list[str] = []
    got: dict[str, str] = {}
    body: str = ""
    sender: str = ""
    probe: bool = False
    replay_of: str | None = None
    key: str | None = None
    message: KeptMessage | None = None


_STATUS = re.compile("[1-5]([0-9][0-9]|xx)")

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder(Entry).decode


def read(entry: LogEntry) -> Entry:
    """What an entry of the log has stored."""
    return _read(entry.data)


class AttemptInfo(msgspec.Struct, kw_only=True):
    """
    One request to an endpoint, and its answer.

    - `at`: when it began, Unix seconds. `topic`, `id`, `key`: of the message.
    - `webhook_id`: what the receiver got. `attempt`: 1 for the first.
    - `result`: what became of the message: `"acked"`, `"retried"`, `"dead"`, `"backed_off"` or
      `"released"` (without an attempt). `text`: why.
    - `status`: the HTTP status, or 0 without an answer; `error` is the cause, as `"timeout"`.
    - `milliseconds`: until the name was resolved, connected, encrypted, answered, ended.
    - `request_headers`: what was sent; values of secret headers are `"…"`.
    - `headers`, `body`: of the answer: up to 16 headers, and the first 4 KiB.
    - `sender`: host and process. `is_probe`: whether it tried an endpoint that failed before.
    - `replay_of`: the id of the message that this one replays. `can_replay`: whether the log has
      its message.
    """

    at: float
    topic: str
    id: str
    webhook_id: str
    key: str | None
    attempt: int
    result: Result
    text: str
    status: int
    error: str | None
    milliseconds: dict[str, float]
    request_headers: dict[str, str]
    headers: dict[str, str]
    body: str
    sender: str
    is_probe: bool
    replay_of: str | None
    can_replay: bool


class AttemptPage(msgspec.Struct, kw_only=True):
    """
    Attempts, the newest first. `next`: the argument `after` for the next page, or None at the end.
    `is_truncated`: the search reached its limit before older ones; the next page continues it.
    """

    attempts: list[AttemptInfo]
    next: str | None
    is_truncated: bool


# Write


class _Waiting(NamedTuple):
    topic: str
    at_us: int
    make: Callable[[], Entry]
    size: int


class LogWriter:
    """
    Appends the entries of one sender. `dropped`: how many were not written. Its thread lives while
    there is something to write.
    """

    def __init__(self, engine: FullEngine) -> None:
        self._engine = engine
        self.is_on = isinstance(engine, DeliveryLog)
        self.dropped = 0
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._wakeup = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._second, self._sampled = 0, 0
        self.name = process_name()
        self._max_bytes = max_bytes_of(engine)

    def wants(self, setting: LogSetting, now_us: int) -> bool:
        """Whether a success is logged."""
        if setting != "sample":
            return setting == "all"
        if (second := now_us // units.SECOND) != self._second:
            self._second, self._sampled = second, 0
        self._sampled += 1
        return self._sampled <= SAMPLED

    def add(self, topic: str, at_us: int, make: Callable[[], Entry], size: int = 0) -> None:
        """
        Append an entry soon; `make`, which has `size` bytes in memory, is called in the writer's
        thread.
        """
        is_full = len(self._waiting) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES
        if is_full or not self.is_on:
            self._drop(1)
            return
        with self._wakeup:
            self._bytes += size
            self._waiting.append(_Waiting(topic, at_us, make, size))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="laneway-push-log", daemon=True)
            self._thread.start()
        elif len(self._waiting) == BATCH:
            with self._wakeup:
                self._wakeup.notify()

    def _drop(self, count: int) -> None:
        self.dropped += count
        COUNTS.dropped += count

    def close(self, seconds: float) -> None:
        """Write what waits."""
        with self._wakeup:
            self._is_closed = True
            self._wakeup.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._is_closed and not self._waiting):
            with self._wakeup:
                self._wakeup.wait_for(
                    lambda: self._is_closed or len(self._waiting) >= BATCH, BATCH_SECONDS
                )
            batch = self._waiting[:BATCH]
            if batch:
                with self._wakeup:
                    del self._waiting[: len(batch)]
                self._append(batch)
                with self._wakeup:
                    self._bytes -= sum(each.size for each in batch)

    def _append(self, batch: list[_Waiting]) -> None:
        try:
            entries = [LogEntry(each.topic, each.at_us, _write(each.make())) for each in batch]
            self._engine.delivery_log_append(entries, keep_us=KEEP_US, max_bytes=self._max_bytes)
        except LanewayError as error:
            self._drop(len(batch))
            log.warning("delivery log: %d entries are lost: %s", len(batch), error)
        except Exception:
            self._drop(len(batch))
            log.exception("delivery log: %d entries are lost", len(batch))


def max_bytes_of(engine: FullEngine) -> int:
    """The bound of an engine's log."""
    is_on_disk = engine.capabilities.embedded and engine.capabilities.persistent
    return MAX_BYTES if is_on_disk else MAX_BYTES_IN_MEMORY


# Search


class Scan:
    """
    The entries of a span of the log, the newest first. At most `MOST_SEARCHED` are read.

    Arguments: `topic`: None for all topics. `span`: as `span_us` returns it. `after`: `next` of the
    scan before. Raises UsageError for a wrong `after`, or if the engine keeps no log.
    """

    def __init__(
        self,
        engine: FullEngine,
        topic: str | None,
        span: tuple[int, int | None] = (0, None),
        after: str | None = None,
    ) -> None:
        self._log = _log_of(engine)
        self._topic = topic
        self._since_us, self._until_us = span
        self._position = None if after is None else _position(after)
        self.has_ended = False

    @property
    def next(self) -> str | None:
        """The cursor behind the last entry that was read, or None at the end of the span."""
        return None if self.has_ended else str(self._position)

    def __iter__(self) -> Iterator[LogEntry]:
        until_us = None if self._until_us is None else self._until_us + LATE_US
        left = MOST_SEARCHED
        while left > 0:
            page = self._log.delivery_log_read(
                self._topic, limit=min(PAGE, left), before=self._position, until_us=until_us
            )
            for self._position, entry in page:
                if entry.at_us < self._since_us - LATE_US:
                    self.has_ended = True
                    return
                if entry.at_us >= self._since_us and (
                    self._until_us is None or entry.at_us <= self._until_us
                ):
                    yield entry
            if not page:
                self.has_ended = True
                return
            left -= len(page)


def _log_of(engine: FullEngine) -> DeliveryLog:
    """The engine as a delivery log. Raises UsageError if it has none."""
    if not isinstance(engine, DeliveryLog):
        raise UsageError("delivery log: this engine keeps none (engines.base.DeliveryLog)")
    return engine


def _position(after: str) -> int:
    """The number in a cursor. Raises UsageError."""
    if not (isinstance(after, str) and after.isascii() and after.isdigit() and len(after) < 20):
        raise UsageError(
            f"attempts: expected after to be the cursor of a page before, got {after!r:.80}"
        )
    return min(int(after), (1 << 63) - 1)


def attempts(
    engine: FullEngine,
    patterns: Sequence[str] = ("*",),
    *,
    limit: int = 50,
    after: str | None = None,
    since: float | None = None,
    until: float | None = None,
    result: str | None = None,
    status: int | str | None = None,
    message_id: str | None = None,
    key: str | None = None,
) -> AttemptPage:
    """
    Search the delivery log, the newest attempts first.

    For a topic, its own attempts are read; for patterns, those of all topics. A page reads at most
    10,000.

    Arguments: `patterns`: a topic, or such as `push.*`. `limit`: at most 1,000. `after`: `next` of
    the page before. `since`, `until`: Unix seconds. `result`: one of `RESULTS`. `status`: a status
    of HTTP, a class such as `"5xx"`, or an error such as `"timeout"`. `message_id`, `key`: of the
    message.

    Raises UsageError.
    """
    checked = [check_pattern(each) for each in patterns]
    whole("attempts", "limit", limit, most=1_000)
    if result is not None:
        choice("attempts", "result", result, RESULTS)
    accepts = _filter(status)
    topic = checked[0] if len(checked) == 1 and not is_pattern(checked[0]) else None
    found: list[AttemptInfo] = []
    scan = Scan(engine, topic, span_us(since, until), after)
    for entry in scan:
        if topic is None and not any(matches(each, entry.topic) for each in checked):
            continue
        stored = read(entry)
        if (
            result in (None, stored.result)
            and message_id in (None, stored.id)
            and key in (None, stored.key)
            and accepts(stored)
        ):
            found.append(info_of(entry, stored))
            if len(found) == limit:
                return AttemptPage(attempts=found, next=scan.next, is_truncated=False)
    return AttemptPage(attempts=found, next=scan.next, is_truncated=not scan.has_ended)


def last_attempt(
    engine: FullEngine, topic: str, message_id: str | None = None
) -> AttemptInfo | None:
    """The last attempt of a topic or a message, or None if the log has none or cannot be read."""
    try:
        found = attempts(engine, [topic], limit=1, message_id=message_id).attempts
    except LanewayError as error:
        log.warning("delivery log: %s", error)
        return None
    return found[0] if found else None


def newest(engine: FullEngine, topic: str, limit: int) -> list[Entry]:
    """A topic's last attempts, the newest first."""
    page = _log_of(engine).delivery_log_read(topic, limit=limit)
    return [read(entry) for _, entry in page]


def info_of(entry: LogEntry, stored: Entry) -> AttemptInfo:
    """An attempt as it is shown."""
    names = ("resolved", "connected", "encrypted", "answered", "ended")
    headers = {}
    for line in stored.sent:
        name, _, value = line.partition(": ")
        headers[name] = value
    return AttemptInfo(
        at=entry.at_us / units.SECOND,
        topic=entry.topic,
        id=stored.id,
        webhook_id=signature.webhook_id(stored.replay_of or stored.id),
        key=stored.key,
        attempt=stored.attempt,
        result=stored.result,
        text=stored.text,
        status=stored.status,
        error=stored.error,
        milliseconds=dict(zip(names, stored.ms, strict=False)),
        request_headers=headers,
        headers=stored.got,
        body=stored.body,
        sender=stored.sender,
        is_probe=stored.probe,
        replay_of=stored.replay_of,
        can_replay=stored.message is not None,
    )


def _filter(status: int | str | None) -> Callable[[Entry], bool]:
    if status is None:
        return lambda _: True
    text = str(status).lower()
    if _STATUS.fullmatch(text):
        if text.endswith("xx"):
            return lambda entry: entry.status // 100 == int(text[0])
        return lambda entry: entry.status == int(text)
    from laneway.push.answers import ErrorClass  # noqa: PLC0415  # only for the names

    if text not in get_args(ErrorClass):
        raise UsageError(
            "attempts: expected a status of HTTP, a class such as 5xx, or one of"
            f" {', '.join(get_args(ErrorClass))}, got {status!r:.80}"
        )
    return lambda entry: entry.error == text


def span_us(since: float | None, until: float | None) -> tuple[int, int | None]:
    """Two times in microseconds. Raises UsageError."""
    return (
        0 if since is None else _microseconds("since", since),
        None if until is None else _microseconds("until", until),
    )


def _microseconds(name: str, seconds: object) -> int:
    """Unix seconds as microseconds. Raises UsageError."""
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, (int, float))
        or not math.isfinite(seconds)
        or not 0 <= seconds < 1e11
    ):
        raise UsageError(f"attempts: expected {name} to be Unix seconds, got {seconds!r:.80}")
    return round(seconds * units.SECOND)

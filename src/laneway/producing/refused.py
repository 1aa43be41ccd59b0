"""
What processes of a namespace could not publish, by topic, kept in the store for operators.

Each process writes it at the first refusal, again when the count has doubled, and otherwise every
few seconds; so the stored count is at least half of what was refused.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from laneway import storable
from laneway.engine_holder import EngineHolder
from laneway.engines.base import FullEngine
from laneway.errors import LanewayError
from laneway.message import Draft, Receipt
from laneway.units import SECOND, rate_text

KIND: Final = "gateway"
NAME = "refused publishes"

MAX_TOPICS = 100
"""Topics that are kept, those of the latest refusals."""

WRITE_SECONDS = 5.0
"""How often a process writes what it could not publish."""

QUIET_US = 600 * SECOND
"""A refusal after this time without one begins a new count."""

MAX_REASON = 300
"""Most characters of a reason."""


class RefusedTopic(msgspec.Struct):
    """Refusals of one topic: how many, the time of the first and last one, and the last reason."""

    count: int
    since_us: int
    last_us: int
    reason: str

    def text(self) -> str:
        """The refusals as a sentence without its subject."""
        often, seconds = "", (self.last_us - self.since_us) / SECOND
        if seconds >= WRITE_SECONDS:
            often = f" ({rate_text(float(f'{self.count / seconds:.2g}'))})"
        if self.count == 1:
            return f"1 publish was refused: {self.reason}"
        return f"at least {self.count:,} publishes were refused{often}: {self.reason}"


_read = msgspec.json.Decoder(dict[str, RefusedTopic]).decode
_write = msgspec.json.Encoder(order="deterministic").encode


class Refusals:
    """The refusals of one process."""

    def __init__(self, holder: EngineHolder) -> None:
        self._holder = holder
        self._lock = threading.Lock()
        self._pending: dict[str, tuple[int, str]] = {}
        self._count = self._written = 0
        """Refusals that are pending, and that were written in all."""
        self._write_at = 0.0

    def noted(
        self, put: Callable[[list[Draft]], list[Receipt]]
    ) -> Callable[[list[Draft]], list[Receipt]]:
        """`put`, with the messages counted that it refuses."""

        def put_and_note(drafts: list[Draft]) -> list[Receipt]:
            receipts = put(drafts)
            for draft, receipt in zip(drafts, receipts, strict=True):
                if receipt.outcome == "refused":
                    self.note(draft, receipt.reason or "")
            return receipts

        return put_and_note

    def note(self, draft: Draft, reason: str) -> None:
        """Count a refusal, and write it if it is time."""
        topic = draft.topic
        with self._lock:
            if topic in self._pending or len(self._pending) < MAX_TOPICS:
                count, _ = self._pending.get(topic, (0, ""))
                self._pending[topic] = count + 1, storable.clean(reason, MAX_REASON)
            self._count += 1
            now = time.monotonic()
            if self._count < self._written and now < self._write_at:
                return
            pending, self._pending = self._pending, {}
            self._written = self._count if now >= self._write_at else self._written + self._count
            self._count, self._write_at = 0, now + WRITE_SECONDS
        with contextlib.suppress(LanewayError):  # who could not publish gets the more useful error
            _add(self._holder.engine, pending)


def _add(engine: FullEngine, pending: dict[str, tuple[int, str]]) -> None:
    is_stored = False
    while not is_stored:
        (before,) = engine.record_read(KIND, [NAME])
        found, now_us = {} if before is None else _read(before), engine.time_us()
        for topic, (count, reason) in pending.items():
            each = found.get(topic)
            if each is None or now_us - each.last_us > QUIET_US:
                each = RefusedTopic(0, now_us, now_us, reason)
            found[topic] = RefusedTopic(each.count + count, each.since_us, now_us, reason)
        latest = sorted(found.items(), key=lambda item: -item[1].last_us)[:MAX_TOPICS]
        is_stored = engine.record_swap(KIND, NAME, before, _write(dict(latest)))


def read(engine: FullEngine) -> dict[str, RefusedTopic]:
    """Refused messages of the last 10 minutes by topic, the largest number first."""
    (stored,) = engine.record_read(KIND, [NAME])
    if stored is None:
        return {}
    since_us = engine.time_us() - QUIET_US
    recent = [item for item in _read(stored).items() if item[1].last_us >= since_us]
    return dict(sorted(recent, key=lambda item: -item[1].count))

"""
`app.values`: small values by name, each with a time to live.

A value is stored like the progress of a message, with its name as the topic and an empty id, which
no message has. Stores need no other support for values, and waiters are notified in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from laneway import arguments, units
from laneway.awaitable import async_variant
from laneway.errors import UsageError
from laneway.message import ProgressReport, StoredResult
from laneway.policy import CONTROL
from laneway.runtime.runtime import Noun
from laneway.units import Duration

MAX_NAME = 255
"""Most characters of a name."""

MIN_TTL = 0.001
"""The minimum time to live of a value, in seconds."""

MAX_BYTES = 16 * 1024 * 1024
"""Most bytes of a value."""


class Values(Noun):
    """
    Small values by name, such as results, counters and presence markers: `app.values`.

    A value is bytes; text is stored as UTF-8. Each expires `ttl` after it was last written.
    Values are as durable as messages, and every process of the namespace sees the same ones.
    """

    def get(self, name: str) -> bytes | None:
        """Return a value, or None if it does not exist or has expired."""
        return self.get_many([name])[0]

    def get_many(self, names: Iterable[str]) -> list[bytes | None]:
        """Return many values in the order of `names`, each as in `get`."""
        checked = [_checked("get", name) for name in arguments.texts("get", "names", names)]
        if not checked:
            return []
        results = self._runtime.engine.results([("", name) for name in checked])
        return [result.progress for result in results]

    def put(self, name: str, value: bytes | str, *, ttl: Duration) -> None:
        """Store a value, whatever was stored before. Raises UsageError, EngineUnavailable."""
        self._report(_report("put", name, value, ttl))

    def swap(
        self, name: str, before: bytes | str | None, value: bytes | str, *, ttl: Duration
    ) -> bool:
        """
        Store a value if the stored one equals `before`, or if `before` is None and no value is
        stored. Returns whether it was stored.

        Raises UsageError, and EngineUnavailable, whose `applied` is None if the value may have been
        stored.
        """
        report = _report("swap", name, value, ttl)
        report.before = None if before is None else _bytes("swap", before)
        return self._report(report)

    def add(self, name: str, amount: int = 1, *, ttl: Duration) -> int:
        """
        Add a whole number to a counter, which begins at 0. Returns the sum.

        No concurrent call is lost, even across processes. `get` returns the sum as decimal digits.
        Raises UsageError, including if the value is not a whole number; EngineUnavailable.
        """
        amount = arguments.whole("add", "amount", amount, least=-(1 << 62), most=1 << 62)
        while True:
            before = self.get(name)
            try:
                total = int(before or 0) + amount
            except ValueError as error:
                raise UsageError(
                    f"add: {name!r:.80} is not a counter, its value is {before!r:.80}"
                ) from error
            if self.swap(name, before, str(total), ttl=ttl):
                return total

    def delete(self, name: str) -> None:
        """Delete a value, if it exists."""
        self._runtime.engine.delete_result("", _checked("delete", name))

    def wait_for(
        self, name: str, *, unlike: bytes | None = None, timeout: Duration | None = None
    ) -> bytes | None:
        """
        Wait at most `timeout` until a value other than `unlike` is stored; None waits forever.
        Returns the value, or None after the timeout. Raises UsageError, EngineUnavailable.
        """
        seconds = arguments.seconds_or_none("wait_for", "timeout", timeout)
        value: bytes | None = None
        changed = threading.Condition()

        def note(result: StoredResult) -> None:
            nonlocal value
            with changed:
                value = result.progress
                changed.notify_all()

        def is_over() -> bool:
            return value is not None and value != unlike

        _checked("wait_for", name)
        waiter = self._runtime.result_waiter
        waiter.watch("", name, note)
        try:
            with changed:
                return value if changed.wait_for(is_over, seconds) else None
        finally:
            waiter.unwatch("", name, note)

    def _report(self, report: ProgressReport) -> bool:
        return self._runtime.engine.report_progress([report])[0]

    aget = async_variant(get)
    aget_many = async_variant(get_many)
    aput = async_variant(put)
    aswap = async_variant(swap)
    aadd = async_variant(add)
    adelete = async_variant(delete)
    await_for = async_variant(wait_for)


def _report(call: str, name: str, value: bytes | str, ttl: Duration) -> ProgressReport:
    seconds = arguments.seconds(call, "ttl", ttl, least=MIN_TTL)
    ttl_us = round(min(seconds, units.MAX_SECONDS) * units.SECOND)
    return ProgressReport("", _checked(call, name), _bytes(call, value), ttl_us)


def _checked(call: str, name: str) -> str:
    """Check a name. Raises UsageError."""
    arguments.name(call, "the name", name)
    if len(name) > MAX_NAME or CONTROL.search(name):
        raise UsageError(
            f"{call}: expected a name of at most {MAX_NAME} characters without control characters,"
            f" got {name!r:.80}"
        )
    return name


def _bytes(call: str, value: bytes | str) -> bytes:
    """Encode a value. Raises UsageError."""
    if isinstance(value, str):
        arguments.check_unicode(call, "the value", value)
    encoded = value.encode() if isinstance(value, str) else value
    if not isinstance(encoded, bytes) or len(encoded) > MAX_BYTES:
        raise UsageError(
            f"{call}: expected a value of bytes or text, at most {MAX_BYTES:,} bytes, got"
            f" {value!r:.80}"
        )
    return encoded

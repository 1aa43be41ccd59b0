"""An engine that takes its time, as one at the other end of a network does."""

from __future__ import annotations

import time
from collections import Counter
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.base import FullEngine

HOT = frozenset({"put", "lease", "start", "settle", "extend", "tick"})
"""The operations that producers and workers wait for."""


def sleepy(engine: FullEngine, seconds: float = 0.02, *, calls: frozenset[str] = HOT) -> FullEngine:
    """
    The same engine, each of whose `calls` takes that much longer; half of it passes before the
    call, half after.

    For tests of what has to hold also where the store is far away: that callers batch, that leases
    outlast a round trip, that nobody asks again what was answered. It says `embedded=False`, since
    other threads can run meanwhile. Closing it closes the engine. Its attribute `made` counts the
    calls by name.
    """
    return cast("FullEngine", _Sleepy(engine, seconds, calls))


class _Sleepy:
    def __init__(self, engine: FullEngine, seconds: float, calls: frozenset[str]) -> None:
        self.capabilities = msgspec.structs.replace(
            engine.capabilities, name=f"sleepy {engine.capabilities.name}", embedded=False
        )
        self._engine = engine
        self._half = seconds / 2
        self._calls = calls
        self.made: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        return self._slowed(found) if name in self._calls else found

    def _slowed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def slowly(*args: Any, **options: Any) -> Any:
            self.made[call.__name__] += 1
            time.sleep(self._half)
            answer = call(*args, **options)
            time.sleep(self._half)
            return answer

        return slowly

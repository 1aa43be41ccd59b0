"""Engines that misbehave on purpose: `with_latency` adds the latency of a network."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

import msgspec

from laneway.engines.base import FullEngine

HOT_CALLS = frozenset({"put", "lease", "start", "settle", "extend", "tick"})
"""The operations that producers and workers wait for."""


def with_latency(
    engine: FullEngine, seconds: float = 0.02, *, calls: frozenset[str] = HOT_CALLS
) -> FullEngine:
    """
    Return an engine that delays `calls` by `seconds`: half before the call, half after it.

    Use it to test with a distant store: callers must batch, leases must outlast a round trip, and
    no call may be repeated without need. Its capabilities say `embedded=False`, since other threads
    run during a delay. Closing it closes `engine`. Its attribute `call_counts` counts the calls by
    name.
    """
    return cast("FullEngine", _EngineWithLatency(engine, seconds, calls))


class _EngineWithLatency:
    def __init__(self, engine: FullEngine, seconds: float, calls: frozenset[str]) -> None:
        self.capabilities = msgspec.structs.replace(
            engine.capabilities, name=f"{engine.capabilities.name} with latency", embedded=False
        )
        self._engine = engine
        self._half = seconds / 2
        self._calls = calls
        self.call_counts: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._engine, name)
        return self._delayed(attribute) if name in self._calls else attribute

    def _delayed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def delayed(*args: Any, **options: Any) -> Any:
            self.call_counts[call.__name__] += 1
            time.sleep(self._half)
            answer = call(*args, **options)
            time.sleep(self._half)
            return answer

        return delayed

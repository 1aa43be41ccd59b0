"""Requests that wait for something else than messages: how many of a token, and of each kind."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Literal

from laneway.gateway.login.access import Caller
from laneway.gateway.problems import Problem
from laneway.gateway.waiting.long_poll import MAX_WAITING

WaitKind = Literal["job", "stream", "consumer", "events"]
"""
What waits: for a job, for room in a stream of deliveries or messages for it, as the consumer of a
subscription, for events.
"""

KINDS: tuple[WaitKind, ...] = ("job", "stream", "consumer", "events")


class Waits:
    """Counts the requests that wait. Its methods belong to the event loop."""

    def __init__(self) -> None:
        self.by_kind: Counter[WaitKind] = Counter()
        self._by_caller: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raise Problem if a token has the maximum number of waiting requests."""
        if self._by_caller[caller.token or caller.name] >= MAX_WAITING:
            raise Problem(
                "rate-limited",
                f"{MAX_WAITING} requests of this token wait already for jobs, deliveries and"
                " events; end one of them",
                headers=(("retry-after", "1"),),
            )

    @contextlib.contextmanager
    def of(self, caller: Caller, kind: WaitKind) -> Iterator[None]:
        """Count a request while it waits. It has been checked before its answer began."""
        name = caller.token or caller.name
        self.by_kind[kind] += 1
        self._by_caller[name] += 1
        try:
            yield
        finally:
            self.by_kind[kind] -= 1
            self._by_caller[name] -= 1
            if not self._by_caller[name]:
                del self._by_caller[name]

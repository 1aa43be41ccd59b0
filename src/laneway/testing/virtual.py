"""
An application in memory, under a clock that moves only when it is told to: tests of what happens in
an hour take milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from laneway import units
from laneway.engines import open_engine
from laneway.engines.base import RESULT_TTL_HEADER
from laneway.engines.shared.interrupt import Interrupt
from laneway.errors import UsageError
from laneway.schedules import store as schedule_store
from laneway.working.options import Options, Summary
from laneway.working.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laneway.admin.views import Stats
    from laneway.app import Laneway
    from laneway.engines.base import FullEngine, Settings
    from laneway.message import (
        Draft,
        Message,
        ProgressReport,
        Receipt,
        Settlement,
        SettlementAnswer,
    )
    from laneway.units import Duration
    from laneway.working.delivery import WorkerDelivery

MOST_ROUNDS = 100_000
"""
Times that the clock may be moved by one `run_all`: a task that calls itself again and again would
never end.
"""

MOST_SCHEDULES = 10_000
"""Schedules that `run_all` looks at."""

KEPT_FOR = 10 * 365 * 86_400
"""Seconds for which results are kept."""


@contextmanager
def virtual(app: Laneway, *, start: datetime | None = None) -> Iterator[World]:
    """
    All that the application does in the block, it does in memory, in a world with a clock of its
    own.

    `start`: what the clock says (default: now). Policies, gates, tiers, handlers and tasks are the
    application's; its real store is not touched. Backoffs are as long as they can be, so that a
    test is the same each time. Results are kept, however far the clock goes.
    """
    clock = _Clock(units.moment(start) if start is not None else units.moment(datetime.now(UTC)))

    def make(settings: Settings) -> FullEngine:
        settings = msgspec.structs.replace(
            settings, namespace="default", durability=None, create=True, random=lambda: 1.0
        )
        return cast("FullEngine", _Clocked(open_engine("sqlite://", settings), clock))

    with app.replaced_engine(make) as engine:
        try:
            yield World(app, engine, clock)
        finally:
            app.handlers.store_time(time.time_ns() // 1000)


@contextmanager
def eager(app: Laneway) -> Iterator[None]:
    """
    Tasks run where they are called, before `delay` and the like return, and what they raise is
    raised there.

    Their arguments are encoded and decoded as on their way to a worker. Delays, rates, retries and
    everything else of a queue are passed over, and nothing is stored; `virtual` has them all.
    """
    before, app.eager = app.eager, True
    try:
        yield
    finally:
        app.eager = before


class World:
    """What `virtual` gives: the clock, and a worker that runs when it is told to."""

    def __init__(self, app: Laneway, engine: FullEngine, clock: _Clock) -> None:
        self._app = app
        self._engine = engine
        self._clock = clock

    @property
    def now(self) -> datetime:
        """What the clock says."""
        return datetime.fromtimestamp(self._clock.now_us / units.SECOND, UTC)

    def later(self, duration: Duration) -> None:
        """Let time pass: seconds, a timedelta or "10m". Nothing runs until it is told to."""
        passing = units.microseconds(duration)
        if passing < 0:
            raise UsageError(f"later: time goes forward, got {duration!r}")
        self._clock.now_us += passing

    def run(self, *, raising: bool = False, pool: str = "default") -> Summary:
        """
        Handle all that can be handled now: what is due, and what that brings about, as far as rates
        and limits admit it at this moment.

        `raising`: when all is done, raise the first error of a handler.
        """
        self._app.install_schedules()
        worker = _Worker(self._engine, self._app.handlers, Options(burst=True, pool=pool))
        summary = worker.run(signals=())
        if raising and worker.errors:
            raise worker.errors[0]
        return summary

    def run_all(
        self,
        *,
        within: Duration = "7d",
        raising: bool = False,
        pool: str = "default",
        schedules: bool = False,
    ) -> Summary:
        """
        Handle everything: as `run`, then move the clock to when something is due, until nothing
        waits.

        What is paused stays, and what is due after `within`. With `schedules` they fire as the
        clock passes their times, up to `within`; otherwise only what was due at the call fires.
        Raises UsageError where it does not end.
        """
        until = self._clock.now_us + units.microseconds(within)
        total = self.run(raising=raising, pool=pool)
        with contextlib.nullcontext() if schedules else self._held_schedules():
            for _ in range(MOST_ROUNDS):
                wake = self._engine.tick()
                if (
                    wake is None
                    or wake > until
                    or not self._can_go_on(wake, pool, schedules=schedules)
                ):
                    return total
                self._clock.now_us = max(wake, self._clock.now_us + 1)
                total = _sum(total, self.run(raising=raising, pool=pool))
        raise UsageError(
            f"run_all: the clock was moved {MOST_ROUNDS:,} times and something still waits; does a"
            " task call itself?"
        )

    @contextmanager
    def _held_schedules(self) -> Iterator[None]:
        pattern = schedule_store.PREFIX + "*"
        self._engine.policy_set("operator", pattern, {"paused": True})
        try:
            yield
        finally:
            self._engine.policy_set("operator", pattern, {"paused": None})

    def _can_go_on(self, wake: int, pool: str, *, schedules: bool) -> bool:
        """Whether the clock may go on to `wake`: not for schedules that are held."""
        waiting = self._engine.overview().waiting
        if schedules or not waiting:
            return waiting > 0
        held = {
            units.moment(entry.next_at)
            for entry in schedule_store.planned(self._engine, MOST_SCHEDULES)
        }
        return waiting > len(held) and (wake not in held or self._has_others(pool))

    def _has_others(self, pool: str) -> bool:
        """Whether something waits that the clock may make due, schedules aside."""
        return any(
            topic.waiting
            and topic.pool == pool
            and topic.state != "paused"
            and not topic.topic.startswith(schedule_store.PREFIX)
            for topic in self._topics()
        )

    async def arun(self, *, raising: bool = False, pool: str = "default") -> Summary:
        """As `run`, from a coroutine: handlers run in another thread, on a loop of their own."""
        return await asyncio.get_running_loop().run_in_executor(
            None, partial(self.run, raising=raising, pool=pool)
        )

    async def arun_all(
        self,
        *,
        within: Duration = "7d",
        raising: bool = False,
        pool: str = "default",
        schedules: bool = False,
    ) -> Summary:
        """As `run_all`, from a coroutine."""
        call = partial(self.run_all, within=within, raising=raising, pool=pool, schedules=schedules)
        return await asyncio.get_running_loop().run_in_executor(None, call)

    def waiting(self, pattern: str = "*") -> list[Message]:
        """
        The messages that wait in the topics of a pattern, also the delayed, in the order of their
        topics, then of their turn.
        """
        found: list[Message] = []
        for topic in self._topics(pattern):
            found += self._app.topic(topic.topic).peek(topic.waiting) if topic.waiting else []
        return found

    def _topics(self, pattern: str = "*") -> Iterator[Stats]:
        after: str | None = None
        while topics := self._app.topics(pattern=pattern, limit=100, after=after):
            yield from topics
            after = topics[-1].topic


def _sum(one: Summary, other: Summary) -> Summary:
    return Summary(
        *(getattr(one, name) + getattr(other, name) for name in Summary.__struct_fields__)
    )


class _Clock:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us


class _Clocked:
    """
    The engine, told the time at each call. A wait ends when something has changed; no time passes
    meanwhile.
    """

    runs_by_itself = False
    """Whoever waited here would wait for ever."""

    def __init__(self, engine: FullEngine, clock: _Clock) -> None:
        self._own = engine
        self._clock = clock
        self._changed = threading.Condition()
        self._changes = 0
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._own, name)
        if not callable(found) or "now_us" not in inspect.signature(found).parameters:
            return found
        told = self._told(found, changes=name not in ("lease", "tick"))
        setattr(self, name, told)
        return told

    def _told(self, call: Callable[..., Any], *, changes: bool) -> Callable[..., Any]:
        def told(*args: Any, **options: Any) -> Any:
            options.setdefault("now_us", self._clock.now_us)
            try:
                return call(*args, **options)
            finally:
                if changes:
                    self.interrupt()

        return told

    # Results outlive the clock: `run_all` goes on for days, and a test reads them after it.

    def put(self, drafts: Sequence[Draft], **options: Any) -> list[Receipt]:
        return self._told(self._own.put, changes=True)(  # type: ignore[no-any-return]
            [_kept_for_long(draft) for draft in drafts], **options
        )

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        **options: Any,
    ) -> list[SettlementAnswer]:
        following = {
            n: [_kept_for_long(draft) for draft in drafts] for n, drafts in (publish or {}).items()
        }
        return self._told(self._own.settle, changes=True)(settlements, publish=following, **options)  # type: ignore[no-any-return]

    def report_progress(self, reports: Sequence[ProgressReport], **options: Any) -> list[bool]:
        kept = [msgspec.structs.replace(each, ttl_us=KEPT_FOR * units.SECOND) for each in reports]
        return self._told(self._own.report_progress, changes=True)(kept, **options)  # type: ignore[no-any-return]

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: object = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        del pool, topics
        interrupt = interrupt or Interrupt()
        with interrupt.waking(self._notify), self._changed:
            self._changed.wait_for(lambda: self._changes != self._seen or interrupt.is_set, timeout)
            self._seen = self._changes
        return not interrupt.is_set

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()


def _kept_for_long(draft: Draft) -> Draft:
    if draft.headers is None or RESULT_TTL_HEADER not in draft.headers:
        return draft
    return msgspec.structs.replace(
        draft, headers={**draft.headers, RESULT_TTL_HEADER: f"{KEPT_FOR},{KEPT_FOR}"}
    )


class _NothingLater:
    """What a worker of `run` is told: what is not to be had now will not be waited for."""

    def __init__(self, engine: FullEngine) -> None:
        self._own = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def topic_list(self, **_: object) -> list[object]:
        return []


class _Worker(Worker):
    """Ends when nothing can be handled now, and keeps the handlers' errors."""

    def __init__(self, engine: FullEngine, handlers: Any, options: Options) -> None:
        super().__init__(engine, handlers, options)
        self.errors: list[BaseException] = []

    def _told_engine(self) -> FullEngine:
        return cast("FullEngine", _NothingLater(super()._told_engine()))

    def _tell(self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int) -> None:
        if error is not None:
            self.errors.append(error)
        super()._tell(delivery, error, cost_us)

"""
`virtual`: an application in memory, with a clock that moves only when the test moves it.

A test of what happens within an hour takes milliseconds.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from laneway import units
from laneway.admin.views import Stats
from laneway.app import Laneway
from laneway.awaitable import async_variant
from laneway.engines import open_engine
from laneway.engines.base import RESULT_TTL_HEADER, FullEngine, Settings, WorkListener
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.waiting_listener import WaitingListener
from laneway.errors import UsageError
from laneway.message import (
    Draft,
    Message,
    ProgressReport,
    Receipt,
    Settlement,
    SettlementAnswer,
)
from laneway.schedules import store as schedule_store
from laneway.units import Duration
from laneway.working.options import Options, Summary
from laneway.working.worker import Worker
from laneway.working.worker_delivery import WorkerDelivery

MAX_ROUNDS = 100_000
"""How often one `run_all` moves the clock at most; a task that calls itself would never end."""

MAX_SCHEDULES = 10_000
"""How many schedules `run_all` reads."""

RESULT_TTL = 10 * 365 * 86_400
"""Seconds for which results are kept."""


@contextmanager
def virtual(app: Laneway, *, start: datetime | None = None) -> Iterator[World]:
    """
    Run the application in memory during the block, with a clock that the test moves.

    `start`: the first time of the clock (default: now). Policies, gates, tiers, handlers and tasks
    are the application's; its real store is not touched. Every retry has its longest delay, so that
    a test is deterministic. Results are kept, however far the clock moves.
    """
    clock = _Clock(units.moment(start) if start is not None else units.moment(datetime.now(UTC)))

    def make(settings: Settings) -> FullEngine:
        settings = msgspec.structs.replace(
            settings, namespace="default", durability=None, create=True, random=lambda: 1.0
        )
        return cast("FullEngine", _Clocked(open_engine("sqlite://", settings), clock))

    with app.runtime.replaced_engine(make) as engine:
        try:
            yield World(app, engine, clock)
        finally:
            app.runtime.handlers.set_store_time(time.time_ns() // 1000)


@contextmanager
def eager(app: Laneway) -> Iterator[None]:
    """
    Run tasks in the caller: `delay` and similar methods return when the task has ended.

    They raise its error.

    Arguments are encoded and decoded as on their way to a worker. Delays, rates, retries and other
    features of queues are ignored, and nothing is stored; `virtual` has them all.
    """
    before, app.runtime.eager = app.runtime.eager, True
    try:
        yield
    finally:
        app.runtime.eager = before


class World:
    """The clock of `virtual`, and a worker that runs when the test calls it."""

    def __init__(self, app: Laneway, engine: FullEngine, clock: _Clock) -> None:
        self._app = app
        self._engine = engine
        self._clock = clock
        self.threads = app.threads

    @property
    def now(self) -> datetime:
        """The time of the clock."""
        return datetime.fromtimestamp(self._clock.now_us / units.SECOND, UTC)

    def later(self, duration: Duration) -> None:
        """Move the clock by seconds, a timedelta or "10m". Nothing runs until `run`."""
        microseconds = units.microseconds(duration)
        if microseconds < 0:
            raise UsageError(f"later: expected a positive duration, got {duration!r}")
        self._clock.now_us += microseconds

    def run(self, *, raising: bool = False, pool: str = "default") -> Summary:
        """
        Handle all messages that rates and limits admit now, and those that their handlers publish.

        `raising`: raise the first error of a handler at the end.
        """
        self._app.schedules.install()
        worker = _Worker(self._engine, self._app.runtime.handlers, Options(burst=True, pool=pool))
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
        Handle everything: alternate `run` and moving the clock to the next due time.

        Messages that are paused, or due after `within`, remain. With `schedules`, schedules fire as
        the clock passes their times, up to `within`; otherwise only those that are due now.
        Raises UsageError if it does not end.
        """
        until = self._clock.now_us + units.microseconds(within)
        total = self.run(raising=raising, pool=pool)
        with contextlib.nullcontext() if schedules else self._held_schedules():
            for _ in range(MAX_ROUNDS):
                wake = self._engine.tick()
                if (
                    wake is None
                    or wake > until
                    or not self._can_go_on(wake, pool, schedules=schedules)
                ):
                    return total
                self._clock.now_us = max(wake, self._clock.now_us + 1)
                total.add(self.run(raising=raising, pool=pool))
        raise UsageError(
            f"run_all: the clock was moved {MAX_ROUNDS:,} times and messages still wait; does a"
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
        """Whether the clock may move to `wake`: not for held schedules."""
        waiting = self._engine.overview().waiting
        if schedules or not waiting:
            return waiting > 0
        held = {
            units.moment(entry.next_at)
            for entry in schedule_store.planned(self._engine, MAX_SCHEDULES)
        }
        return waiting > len(held) and (wake not in held or self._has_others(pool))

    def _has_others(self, pool: str) -> bool:
        """Whether messages other than schedules wait that can become due."""
        return any(
            topic.waiting
            and topic.pool == pool
            and topic.state != "paused"
            and not topic.topic.startswith(schedule_store.PREFIX)
            for topic in self._topics()
        )

    arun = async_variant(run)
    arun_all = async_variant(run_all)

    def waiting(self, pattern: str = "*") -> list[Message]:
        """
        The waiting messages of a pattern's topics, delayed ones too, by topic and order.
        """
        messages: list[Message] = []
        for topic in self._topics(pattern):
            messages += self._app.topic(topic.topic).peek(topic.waiting) if topic.waiting else []
        return messages

    def _topics(self, pattern: str = "*") -> Iterator[Stats]:
        after: str | None = None
        while topics := self._app.topics(pattern=pattern, limit=100, after=after):
            yield from topics
            after = topics[-1].topic


class _Clock:
    def __init__(self, now_us: int) -> None:
        self.now_us = now_us


class _Clocked:
    """
    The engine with the clock's time passed to every call.

    A wait ends when the store has changed; the clock does not move meanwhile.
    """

    runs_by_itself = False
    """False: a caller that waits for another worker would wait forever."""

    def __init__(self, engine: FullEngine, clock: _Clock) -> None:
        self._own = engine
        self._clock = clock
        self._changed = threading.Condition()
        self._changes = 0
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._own, name)
        if not callable(attribute) or "now_us" not in inspect.signature(attribute).parameters:
            return attribute
        clocked = self._clocked(attribute, changes=name not in ("lease", "tick", "beat"))
        setattr(self, name, clocked)
        return clocked

    def _clocked(self, call: Callable[..., Any], *, changes: bool) -> Callable[..., Any]:
        def clocked(*args: Any, **options: Any) -> Any:
            options.setdefault("now_us", self._clock.now_us)
            try:
                return call(*args, **options)
            finally:
                if changes:
                    self.interrupt()

        return clocked

    # Results outlive the clock: a test reads them after `run_all` has moved it by days.

    def put(self, drafts: Sequence[Draft], **options: Any) -> list[Receipt]:
        return self._clocked(self._own.put, changes=True)(  # type: ignore[no-any-return]
            [_keep_result(draft) for draft in drafts], **options
        )

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        **options: Any,
    ) -> list[SettlementAnswer]:
        following = {
            n: [_keep_result(draft) for draft in drafts] for n, drafts in (publish or {}).items()
        }
        settle = self._clocked(self._own.settle, changes=True)
        return settle(settlements, publish=following, **options)  # type: ignore[no-any-return]

    def report_progress(self, reports: Sequence[ProgressReport], **options: Any) -> list[bool]:
        kept = [msgspec.structs.replace(each, ttl_us=RESULT_TTL * units.SECOND) for each in reports]
        return self._clocked(self._own.report_progress, changes=True)(kept, **options)  # type: ignore[no-any-return]

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

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        del max_lease_us  # this listener leases nothing
        return WaitingListener(cast("FullEngine", self), pool, topics)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def interrupt(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()


def _keep_result(draft: Draft) -> Draft:
    if draft.headers is None or RESULT_TTL_HEADER not in draft.headers:
        return draft
    return msgspec.structs.replace(
        draft, headers={**draft.headers, RESULT_TTL_HEADER: f"{RESULT_TTL},{RESULT_TTL}"}
    )


class _NothingLater:
    """The engine for a worker of `run`, which must not wait for messages that are due later."""

    def __init__(self, engine: FullEngine) -> None:
        self._own = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def topic_list(self, **_: object) -> list[object]:
        return []


class _Worker(Worker):
    """A worker that exits when nothing can be handled now, and records errors of handlers."""

    _takes_samples = False  # time does not advance while it runs
    _has_side_workers = False  # terms need a clock that runs; `run(pool=…)` serves them

    def __init__(self, engine: FullEngine, handlers: Any, options: Options) -> None:
        super().__init__(engine, handlers, options)
        self._leasing_engine = cast("FullEngine", _NothingLater(engine))
        self.errors: list[BaseException] = []

    def _report_end(
        self, delivery: WorkerDelivery, error: BaseException | None, cost_us: int
    ) -> None:
        if error is not None:
            self.errors.append(error)
        super()._report_end(delivery, error, cost_us)

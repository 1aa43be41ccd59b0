"""
`Collector`: keeps the pages live that somebody looks at.

Once a second it renders each page that is watched, once for all who watch it, and sends the parts
that changed, as lines that changed. Nothing runs while nobody watches. Pages that need more than
the budget are rendered less often, and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from laneway.errors import LanewayError
from laneway.gateway.dashboard.patches import patch_of
from laneway.gateway.dashboard.reader import Reader
from laneway.safetext import without_passwords

if TYPE_CHECKING:
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Coroutine,
        Hashable,
        Iterator,
        Mapping,
    )

    from laneway.engines.base import FullEngine, TopicStats
    from laneway.gateway.services import Services

    Render = Callable[[Reader], Mapping[str, str]]

log = logging.getLogger("laneway.gateway")

PERIODS = (1.0, 5.0, 30.0)
"""Seconds between two samples: usually, and after one or more that exceeded the budget."""

BUDGET_SECONDS = 0.25
"""How long a sample of all pages may take before the next ones come less often."""

MAX_WATCHED = 200
"""Different pages that are kept live; the others say that they are not."""

TREND_SECONDS = 10.0
TREND_POINTS = 30
MAX_TRENDS = 1000
"""Topics of which the last 5 minutes are kept, by points of 10 s, while a page shows them."""


class Fragment:
    """A part of a page: its lines, and how it is sent."""

    __slots__ = ("_full", "lines", "name", "patch", "version")

    def __init__(self, name: str) -> None:
        self.name = name
        self.version = 0
        self.lines: list[str] = []
        self.patch = b""
        self._full: bytes | None = None

    def update(self, text: str) -> None:
        """Set the text, which has been rendered again."""
        lines = text.split("\n")
        if lines == self.lines:
            return
        if self.version:
            self.patch = _event(self.name, patch_of(self.lines, lines))
        self.lines, self._full = lines, None
        self.version += 1

    def since(self, version: int) -> bytes:
        """The event for a viewer who has that version; 0: none."""
        if version == self.version:
            return b""
        if version and version == self.version - 1:
            return self.patch
        if self._full is None:
            self._full = _event(self.name, "\n".join(self.lines))
        return self._full


class Point(NamedTuple):
    """A topic at one moment (monotonic seconds)."""

    at: float
    waiting: int
    rate: float


class Watched:
    """A page that somebody watches."""

    __slots__ = ("fragments", "problem", "render", "rendered_at", "viewers")

    def __init__(self, render: Render) -> None:
        self.render = render
        self.viewers = 0
        self.fragments: dict[str, Fragment] = {}
        self.rendered_at = 0.0
        """Unix time of what is shown."""
        self.problem: str | None = None
        """Why it could not be rendered last."""


class Collector:
    """The pages that are watched, and what the present second has read of the engine."""

    def __init__(self, engine: Callable[[], FullEngine]) -> None:
        """`engine`: opens it at first use."""
        self._engine = engine
        self._reader: Reader | None = None
        self._watched: dict[Hashable, Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._tick, self._wake = asyncio.Event(), asyncio.Event()
        self._slowness = 0
        self._trends: dict[str, deque[Point]] = {}
        self.samples = 0
        """How many were taken."""

    # Reading

    def reader(self) -> Reader:
        """The answers of the present second."""
        reader = self._reader
        if reader is None or not reader.is_fresh:
            reader = self._reader = Reader(self._engine(), reader)
        return reader

    def forget(self) -> None:
        """Read again from now on, because something was changed."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.kept.clear()

    def trend(self, stats: TopicStats) -> list[int]:
        """How many messages of a topic waited in the last 5 minutes; the last one is now."""
        return [point.waiting for point in self._points(stats)]

    def rates(self, stats: TopicStats) -> list[float]:
        """Its deliveries per second in the last 5 minutes, as far as a page had it."""
        return [point.rate for point in self._points(stats)]

    def _points(self, stats: TopicStats) -> list[Point]:
        points = self._trends.get(stats.topic)
        now = time.monotonic()
        if points is None:
            if len(self._trends) >= MAX_TRENDS:
                self._forget_trends(now)
            points = self._trends.setdefault(stats.topic, deque(maxlen=TREND_POINTS))
        if not points or now - points[-1].at >= TREND_SECONDS:
            points.append(Point(now, stats.waiting, stats.rate_now))
        return [point for point in points if now - point.at < TREND_SECONDS * TREND_POINTS]

    def _forget_trends(self, now: float) -> None:
        for topic, points in list(self._trends.items()):
            if now - points[-1].at > 2 * TREND_SECONDS:
                self._trends.pop(topic, None)
        if len(self._trends) >= MAX_TRENDS:
            self._trends.clear()

    # Watching

    async def watch(
        self,
        services: Services,
        key: Hashable,
        render: Render,
        wait: Callable[[Coroutine[Any, Any, Any]], Awaitable[object]],
        seconds: float,
    ) -> AsyncIterator[bytes]:
        """
        The events that keep a page live: its fragments as they change, and `tick`.

        Arguments: `key`: pages with the same one are rendered once. `wait`: awaits, and raises if
        the client goes meanwhile. `seconds`: after which it ends.
        """
        watched = self._watched.get(key)
        if watched is None:
            if len(self._watched) >= MAX_WATCHED:
                yield _event("full", f"{MAX_WATCHED} other pages are live; reload to see changes")
                return
            watched = self._watched[key] = Watched(render)
        watched.viewers += 1
        sent: dict[str, int] = {}
        try:
            self._start(services)
            with services.ended_by(functools.partial(self._end)):  # its own for each viewer
                until = time.monotonic() + seconds
                while not services.is_stopping and time.monotonic() < until:
                    if watched.rendered_at:
                        yield b"".join(_events(watched, sent)) + self._tick_event(watched)
                    else:
                        self._wake.set()
                    await wait(self._tick.wait())
        finally:
            watched.viewers -= 1
            if not watched.viewers and self._watched.get(key) is watched:
                del self._watched[key]

    def _tick_event(self, watched: Watched) -> bytes:
        period = PERIODS[self._slowness]
        state = {"at": round(watched.rendered_at, 1), "every": period}
        return _event("tick", state | ({"problem": watched.problem} if watched.problem else {}))

    def _start(self, services: Services) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or task.done() or task.get_loop() is not loop:
            self._tick, self._wake = asyncio.Event(), asyncio.Event()
            self._task = loop.create_task(self._run(services))

    async def _run(self, services: Services) -> None:
        due = 0.0
        while self._watched and not services.is_stopping:
            began = time.monotonic()
            is_due = began >= due
            for watched in list(self._watched.values()):
                if is_due or not watched.rendered_at:
                    await services.run(self._render, watched)
            if is_due:
                self.samples += 1
                is_slow = time.monotonic() - began > BUDGET_SECONDS
                self._slowness = min(self._slowness + 1, len(PERIODS) - 1) if is_slow else 0
                due = began + PERIODS[self._slowness]
            tick, self._tick = self._tick, asyncio.Event()
            tick.set()
            await self._pause(due - time.monotonic())

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until a page is watched that has not been rendered."""
        self._wake.clear()
        if any(not watched.rendered_at for watched in self._watched.values()):
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _end(self) -> None:
        self._tick.set()
        self._wake.set()

    def _render(self, watched: Watched) -> None:
        try:
            texts = watched.render(self.reader())
        except LanewayError as error:
            watched.problem = without_passwords(str(error))
        except Exception:
            log.exception("dashboard: a page could not be rendered")
            watched.problem = "the page could not be rendered; the gateway's log says why"
        else:
            for name, text in texts.items():
                watched.fragments.setdefault(name, Fragment(name)).update(text)
            watched.problem = None
            watched.rendered_at = time.time()
            return
        watched.rendered_at = watched.rendered_at or 1.0


def _events(watched: Watched, sent: dict[str, int]) -> Iterator[bytes]:
    for name, fragment in watched.fragments.items():
        version = fragment.version
        yield fragment.since(sent.get(name, 0))
        sent[name] = version


def _event(name: str, content: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))

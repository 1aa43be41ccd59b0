"""
`Collector`: keeps the pages live that somebody looks at.

Once a second it renders each page that is watched, once for all who watch it, and sends the parts
that changed, as lines that changed. Nothing runs while nobody watches. Tokens divide the budget of
time, max-min fair: pages of one that needs more than its part come less often, and say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections import Counter, defaultdict, deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
)
from typing import Any, NamedTuple

import msgspec

from laneway.engines.base import FullEngine, TopicStats
from laneway.errors import LanewayError
from laneway.gateway.dashboard.reader import Reader
from laneway.gateway.problems import Problem
from laneway.gateway.services import Services
from laneway.printable import without_passwords

Render = Callable[[Reader], Mapping[str, str]]

log = logging.getLogger("laneway.gateway")

PERIODS = (1.0, 5.0, 30.0)
"""Seconds between two samples of a page: the first with which its token keeps to its part."""

BUDGET_SECONDS = 0.25
"""How long the pages may take in each second; the tokens that watch some divide it."""

ROUNDING_SECONDS = 0.1
"""By how much a page may be rendered too early."""

MAX_PAGES = 50
"""Different pages of a token that are kept live; the others say that they are not."""

MAX_VIEWERS = 500
"""Open pages of a token that are kept live."""

TREND_SECONDS = 10.0
TREND_POINTS = 30
MAX_TRENDS = 1000
"""The maximum number of topics whose last 5 minutes are kept, in points of 10 s, while shown."""


class Fragment(msgspec.Struct, eq=False):
    """A part of a page: its lines, and its form for sending."""

    name: str
    version: int = 0
    lines: list[str] = []
    patch: bytes = b""
    _full: bytes | None = None

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
    """A topic at one moment (Unix seconds)."""

    at: float
    waiting: int
    rate: float


class Watched:
    """A page that somebody watches."""

    __slots__ = (
        "cost_s",
        "due",
        "every",
        "fragments",
        "problem",
        "render",
        "rendered_at",
        "tick",
        "viewers",
    )

    def __init__(self, render: Render) -> None:
        self.render = render
        self.viewers: Counter[str] = Counter()
        """How many there are of each token."""
        self.cost_s = 0.0
        """How long it took to render it last."""
        self.every, self.due = PERIODS[0], 0.0
        """How often it is rendered, and when again (monotonic seconds)."""
        self.tick = asyncio.Event()
        self.fragments: dict[str, Fragment] = {}
        self.rendered_at = 0.0
        """Unix time of what is shown."""
        self.problem: str | None = None
        """Why it could not be rendered last."""

    def update(self, texts: Mapping[str, str]) -> None:
        """Set the fragments, which have been rendered again."""
        for name, text in texts.items():
            self.fragments.setdefault(name, Fragment(name)).update(text)
        self.problem, self.rendered_at = None, time.time()


class Collector:
    """The pages that are watched, and what the present second has read of the engine."""

    def __init__(self, engine: Callable[[], FullEngine]) -> None:
        """`engine`: opens it at first use."""
        self._engine = engine
        self._reader: Reader | None = None
        self._watched: dict[Hashable, Watched] = {}
        self._opening: dict[Hashable, Watched] = {}
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
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

    def points(self, stats: TopicStats) -> list[Point]:
        """A topic in the last 5 minutes, as far as a page had it; the last point is now."""
        points = self._trends.get(stats.topic)
        now = time.time()
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

    async def open(self, services: Services, key: Hashable, render: Render) -> Watched:
        """
        A page to watch, rendered. Pages with the same `key` are rendered once.

        Raises Problem if there is nothing to see for the caller, and what reading raises.
        """
        watched = self._watched.get(key)
        if watched is None:
            watched = self._opening.setdefault(key, Watched(render))
            try:
                await services.run_shared(self._open, watched)
            finally:
                self._opening.pop(key, None)
        return watched

    def _open(self, watched: Watched) -> None:
        if not watched.rendered_at:
            watched.update(watched.render(self.reader()))

    async def watch(
        self,
        services: Services,
        key: Hashable,
        watched: Watched,
        token: str,
        wait: Callable[[Coroutine[Any, Any, Any]], Awaitable[object]],
        seconds: float,
    ) -> AsyncIterator[bytes]:
        """
        The events that keep a page live: its fragments as they change, and `tick`.

        Arguments: `key`, `watched`: of `open`. `token`: whose budget it uses. `wait`: awaits, and
        raises if the client goes meanwhile. `seconds`: after which it ends.
        """
        if (refusal := self._refusal(key, token)) is not None:
            yield _event("full", f"{refusal}; reload to see changes")
            return
        watched = self._watched.setdefault(key, watched)
        watched.viewers[token] += 1
        sent: dict[str, int] = {}
        try:
            self._start(services)
            with services.ended_by(functools.partial(self._end, watched)):  # one for each viewer
                until = time.monotonic() + seconds
                while not services.is_stopping and time.monotonic() < until:
                    yield b"".join(_events(watched, sent)) + _tick_event(watched)
                    await wait(watched.tick.wait())
        finally:
            watched.viewers[token] -= 1
            watched.viewers += Counter()  # without zeros
            if not watched.viewers and self._watched.get(key) is watched:
                del self._watched[key]

    def _refusal(self, key: Hashable, token: str) -> str | None:
        """Why a token may watch no further page, or None if it may."""
        own = [each for each, watched in self._watched.items() if token in watched.viewers]
        if key not in own and len(own) >= MAX_PAGES:
            return f"{MAX_PAGES} other pages of this token are live"
        if sum(self._watched[each].viewers[token] for each in own) >= MAX_VIEWERS:
            return f"{MAX_VIEWERS} viewers have pages of this token open"
        return None

    def _start(self, services: Services) -> None:
        loop = asyncio.get_running_loop()
        task = self._task
        if task is None or task.done() or task.get_loop() is not loop:
            self._wake = asyncio.Event()
            self._task = loop.create_task(self._run(services))

    async def _run(self, services: Services) -> None:
        while self._watched and not services.is_stopping:
            began = time.monotonic()
            rendered = []
            due = [each for each in self._watched.values() if each.due <= began]
            for watched in sorted(due, key=lambda each: (each.every, each.rendered_at)):
                if watched.every > PERIODS[0] and time.monotonic() - began > BUDGET_SECONDS:
                    break  # those that are rendered each second come first again
                await services.run(self._render, watched)
                rendered.append(watched)
            self.samples += bool(rendered)
            periods = self._periods()
            for watched in rendered:
                watched.every = periods.get(watched, PERIODS[0])
                watched.due = began + watched.every - ROUNDING_SECONDS
                tick, watched.tick = watched.tick, asyncio.Event()
                tick.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(began + PERIODS[0] - time.monotonic()):
                    await self._wake.wait()

    def _periods(self) -> dict[Watched, float]:
        """How often each page is rendered: as its token that has most of its budget left allows."""
        costs: defaultdict[str, float] = defaultdict(float)
        for watched in self._watched.values():
            for token in watched.viewers:
                costs[token] += watched.cost_s / len(watched.viewers)
        left = part = BUDGET_SECONDS
        for nth, cost in enumerate(sorted(costs.values())):  # who needs less leaves the rest
            part = left / (len(costs) - nth)
            left -= min(cost, part)
        periods = {
            token: next((each for each in PERIODS if cost / each <= part), PERIODS[-1])
            for token, cost in costs.items()
        }
        return {
            watched: min((periods[token] for token in watched.viewers), default=PERIODS[0])
            for watched in self._watched.values()
        }

    def _end(self, watched: Watched) -> None:
        watched.tick.set()
        self._wake.set()

    def _render(self, watched: Watched) -> None:
        began = time.monotonic()
        try:
            watched.update(watched.render(self.reader()))
        except (LanewayError, Problem) as error:
            watched.problem = without_passwords(str(error))
        except Exception:
            log.exception("dashboard: a page could not be rendered")
            watched.problem = "the page could not be rendered; see the gateway's log"
        watched.cost_s = time.monotonic() - began


def _tick_event(watched: Watched) -> bytes:
    state = {"at": round(watched.rendered_at, 1), "every": watched.every}
    return _event("tick", state | ({"problem": watched.problem} if watched.problem else {}))


def _events(watched: Watched, sent: dict[str, int]) -> Iterator[bytes]:
    for name, fragment in watched.fragments.items():
        version = fragment.version
        yield fragment.since(sent.get(name, 0))
        sent[name] = version


def _event(name: str, content: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(content))


# What changed between two texts, by lines


Patch = list[int | list[int] | str]
"""
A number is the place of a line in the text before, a pair of numbers the first one and how many,
and a text is a new line.
"""


def patch_of(before: list[str], after: list[str]) -> Patch:
    """The patch that makes `after` of `before`."""
    places: dict[str, list[int]] = {}
    for place, line in enumerate(before):
        places.setdefault(line, []).append(place)
    patch: Patch = []
    expected = 0
    for line in after:
        found = places.get(line)
        if found is None:
            patch.append(line)
            continue
        if expected < len(before) and before[expected] == line:
            place = expected
        else:
            place = found[0]
        expected = place + 1
        _append_place(patch, place)
    return patch


def _append_place(patch: Patch, place: int) -> None:
    """Append a line of the text before, as part of the range at the patch's end if it can be."""
    last = patch[-1] if patch else None
    if isinstance(last, list) and sum(last) == place:
        last[1] += 1
    elif isinstance(last, int) and last + 1 == place:
        patch[-1] = [last, 2]
    else:
        patch.append(place)

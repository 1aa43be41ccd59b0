"""
Virtual time: a heap of events, and tasks in processes that crash, stop and continue.

A task is a coroutine. It waits with `await clock.sleep(1)`, `await signal.wait()` or a call of
`laneway.testing.simulation.store`, and nothing else happens at that moment. Events of the same time
happen in the order in which they were planned, so one seed gives one history.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any

from laneway.testing.engine_driver import START
from laneway.units import SECOND


class Wait:
    """
    Waits until `wake(value)` or `wake(error=…)` is called, which `begin` receives; once is enough.
    """

    def __init__(self, begin: Callable[[Callable[..., None]], None]) -> None:
        self._begin = begin

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._begin)


class Clock:
    """
    The time of a simulation, in microseconds (`now`), and what happens when.

    `random` is the only source of random numbers.
    """

    def __init__(self, seed: int, start: int = START) -> None:
        self.now = self.start = start
        self.random = random.Random(seed)
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return (self.now - self.start) / SECOND

    @property
    def next(self) -> int | None:
        """The time of the next event, or None if none is planned."""
        return self._events[0][0] if self._events else None

    def at(self, time: int, event: Callable[[], object]) -> None:
        """Call a function at a time in microseconds, or now if that has passed."""
        heapq.heappush(self._events, (max(time, self.now), next(self._numbers), event))

    def after(self, seconds: float, event: Callable[[], object]) -> None:
        """Call a function after some seconds."""
        self.at(self.now + round(seconds * SECOND), event)

    def sleep(self, seconds: float) -> Wait:
        """Wait some seconds."""
        return Wait(partial(self.after, seconds))

    def run(self, until: int) -> None:
        """Let everything happen up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = until

    def chance(self, part: float) -> bool:
        """Draw True in that part of the cases."""
        return part > 0 and self.random.random() < part

    def exponential(self, mean: float) -> float:
        """Draw the seconds until the next of events that are independent of each other."""
        return self.random.expovariate(1 / mean)


class Process:
    """What crashes and stops as one, with its tasks; it begins with `main`."""

    def __init__(self) -> None:
        self.tasks: dict[_Task, None] = {}
        self._held: list[Callable[[], None]] = []
        self.is_alive = self.is_stopped = False

    async def main(self) -> None:
        """Its first task."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin, or begin again after a crash."""
        if not self.is_alive:
            self.is_alive, self.is_stopped = True, False
            self.spawn(self.main())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run another task."""
        task = _Task(self, coroutine)
        self.tasks[task] = None
        task.wake(0)

    def crash(self) -> None:
        """End all tasks where they are; calls that are on their way still arrive."""
        tasks, self.tasks, self._held = list(self.tasks), {}, []
        self.is_alive = False
        for task in tasks:
            task.close()

    def stop(self) -> None:
        """Run nothing until `resume`, as SIGSTOP does."""
        self.is_stopped = True

    def resume(self) -> None:
        """Continue after `stop`; it notices now what happened meanwhile."""
        self.is_stopped = False
        held, self._held = self._held, []
        for wake in held:
            wake()

    def holds(self, wake: Callable[[], None]) -> bool:
        """Keep a wake-up until `resume`; False: the process is not stopped."""
        if self.is_stopped:
            self._held.append(wake)
        return self.is_stopped


class _Task:
    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, None]) -> None:
        self.process, self._coroutine = process, coroutine
        self._turn = 0

    def close(self) -> None:
        """End it where it is; nothing wakes it any more."""
        self._turn = -1
        self._coroutine.close()

    def wake(self, turn: int, value: object = None, error: BaseException | None = None) -> None:
        """Continue with what it waited for, unless it no longer waits for that."""
        if turn != self._turn or not self.process.is_alive:
            return
        if self.process.holds(partial(self.wake, turn, value, error)):
            return
        self._turn += 1
        try:
            if error is not None:
                begin = self._coroutine.throw(error)
            else:
                begin = self._coroutine.send(value)
        except StopIteration:
            self.process.tasks.pop(self)
        else:
            begin(partial(self.wake, self._turn))


class Signal:
    """Lets one task wait until it is set; waiting resets it."""

    def __init__(self) -> None:
        self._is_set = False
        self._wake: Callable[..., None] | None = None

    def set(self) -> None:
        self._is_set = True
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake()

    async def wait(self) -> None:
        if not self._is_set:
            await Wait(self._begin)
        self._is_set = False

    def _begin(self, wake: Callable[..., None]) -> None:
        self._wake = wake

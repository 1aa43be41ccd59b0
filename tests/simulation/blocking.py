"""Laneway's own code, which blocks, as part of a simulation."""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from laneway.engines.base import FullEngine
from laneway.testing.simulation import Store

T = TypeVar("T")


class _Crashed(BaseException):
    """Ends code of `blocking` in a process that crashed."""


class _Thread(threading.Thread):
    """Runs a function, which waits with `wait_for`; it runs only while its coroutine waits."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.asks: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self.is_crashed = False

    def run(self) -> None:
        try:
            self.asks.put(("returned", self._function()))
        except BaseException as error:
            self.asks.put(("raised", error))

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        if self.is_crashed:
            raise _Crashed
        self.asks.put(("waits", awaitable))
        answer, error = self.answers.get()
        if error is not None:
            raise error
        return answer


async def blocking(function: Callable[[], T]) -> T:
    """
    Run code that blocks, such as Laneway's own, as part of a task.

    It has a thread, but runs only while the simulation waits for it: others act only while it is
    in `wait_for`.
    """
    thread = _Thread(function)
    thread.start()
    while True:
        what, about = thread.asks.get()
        if what == "returned":
            return about
        if what == "raised":
            raise about
        try:
            answer = await about
        except GeneratorExit:
            thread.is_crashed = True
            thread.answers.put((None, _Crashed()))
            thread.join()
            raise
        except Exception as error:
            thread.answers.put((None, error))
        else:
            thread.answers.put((answer, None))


def wait_for(awaitable: Awaitable[T]) -> T:
    """Wait inside `blocking`."""
    thread = threading.current_thread()
    assert isinstance(thread, _Thread), "only inside `blocking`"
    return thread.wait_for(awaitable)


class _Engine:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store.engine, name)
        return partial(self._call, name) if callable(attribute) else attribute

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return wait_for(self._store.call(name, *arguments, **options))


def engine_of(store: Store) -> FullEngine:
    """The engine behind the network, for code inside `blocking`."""
    return cast("FullEngine", _Engine(store))

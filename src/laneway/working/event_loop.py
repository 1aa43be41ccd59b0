"""Helpers for the event loop of a standalone worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger("laneway.worker")

CANCEL_SECONDS = 2.0
"""How long cancelled tasks may take to end; those that take longer are left behind."""


def run_to_end(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T]) -> T:
    """Run a task to its end, even if a handler stops the event loop."""
    while True:
        try:
            return loop.run_until_complete(task)
        except RuntimeError:
            if task.done():
                raise
            log.warning(
                "a handler stopped the event loop; the worker continues"
                " (use worker.stop() to end it)"
            )


async def cancel_tasks() -> None:
    """
    Cancel the tasks that handlers left behind.

    Unlike `asyncio.run`, waits at most CANCEL_SECONDS for tasks that ignore their cancellation.
    """
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        _, stubborn = await asyncio.wait(tasks, timeout=CANCEL_SECONDS)
        for task in stubborn:
            log.warning("task ignores its cancellation and is left behind: %r", task)
    await asyncio.get_running_loop().shutdown_asyncgens()


@contextlib.contextmanager
def caught(signals: Sequence[int], callback: Callable[[], None]) -> Iterator[None]:
    """
    During the block these signals call `callback` on the running event loop, if this is the main
    thread; in other threads the program stops its work on its own.
    """
    loop = asyncio.get_running_loop()
    numbers = []
    for number in signals:
        # Loops without signal handlers, or outside of the main thread.
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, callback)
            numbers.append(number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def handled(signals: Sequence[int], handler: Callable[..., None]) -> Iterator[None]:
    """As `caught`, for a program that waits without an event loop: `handler` as in `signal`."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)

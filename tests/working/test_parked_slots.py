"""The slot that an idle worker keeps for its next coroutine."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import gc
import weakref
from typing import TYPE_CHECKING, Any

from tests.working.support import Running, until

if TYPE_CHECKING:
    from laneway import Laneway, Message

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("parked", default="unset")


def until_handled(running: Running, seen: list[Any], count: int) -> None:
    """Wait until so many messages are handled and settled."""
    until(
        lambda: (
            len(seen) == count
            and not running.worker._running
            and not running.worker._engine_thread.held
        )
    )


def is_parked(task: asyncio.Task[Any]) -> bool:
    """Whether the task is a slot that has nothing to run."""
    awaited = getattr(task.get_coro(), "cr_await", None)
    return getattr(awaited, "__qualname__", "") == "_Parking.__await__"


def test_messages_of_an_idle_worker_run_in_one_slot(app: Laneway) -> None:
    tasks: list[asyncio.Task[object] | None] = []

    @app.handler("t")
    async def handle(message: Message) -> None:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)

    with Running(app) as running:
        for count in range(1, 4):
            app.publish("t")
            until_handled(running, tasks, count)
    assert len(set(tasks)) == 1


def test_a_parked_slot_does_not_show_the_last_context(app: Laneway) -> None:
    seen: list[str] = []

    @app.handler("t")
    async def handle(message: Message) -> None:
        seen.append(VARIABLE.get())
        VARIABLE.set(message.body)

    with Running(app) as running:
        for count, body in enumerate(("a", "b", "c"), 1):
            app.publish("t", body)
            until_handled(running, seen, count)
    assert seen == ["unset"] * 3


@dataclasses.dataclass
class Argument:
    text: str


def test_a_parked_slot_keeps_nothing_of_the_last_message(app: Laneway) -> None:
    seen: list[weakref.ref[Argument]] = []

    @app.task(topic="t", ignore_result=True)
    async def task(argument: Argument) -> None:
        seen.append(weakref.ref(argument))

    def is_forgotten() -> bool:
        gc.collect()
        return seen[-1]() is None

    with Running(app) as running:
        task.delay(Argument("a"))
        until_handled(running, seen, 1)
        until(is_forgotten)


def test_a_handler_that_cancels_all_tasks_does_not_end_the_worker(app: Laneway) -> None:
    """Among them is the parked slot, if one is left while this one runs beside it."""
    seen: list[object] = []
    both = asyncio.Event()

    @app.handler("t")
    async def handle(message: Message) -> None:
        seen.append(message.body)
        if message.body == "beside":
            await both.wait()
        elif message.body == "cancel":
            both.set()
            while not any(map(is_parked, asyncio.all_tasks())):  # noqa: ASYNC110  # no event tells
                await asyncio.sleep(0)
            for task in asyncio.all_tasks():
                name = getattr(task.get_coro(), "__qualname__", "")
                if name.endswith("_slot") and task is not asyncio.current_task():
                    task.cancel()
            app.publish("t", "last")

    with Running(app):
        app.publish("t", "beside")
        until(lambda: seen == ["beside"])
        app.publish("t", "cancel")
        until(lambda: seen == ["beside", "cancel", "last"])

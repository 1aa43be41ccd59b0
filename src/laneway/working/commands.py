"""
Commands to workers: drain, and a dump of the stacks.

A command is a record of the namespace under the worker's id. Its sender pings the worker,
which then looks for it and replaces it by its answer. A worker that gets none does no work for it.
A worker has one command at a time, and a record that nobody removes ends after `COMMAND_SECONDS`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Literal

import msgspec

from laneway import storable
from laneway.engines.base import FullEngine, Records
from laneway.working.worker_delivery import WorkerDelivery

WorkerCommand = Literal["drain", "stack_dump"]
"""
`"drain"`: take no more messages, finish those that run, and end. `"stack_dump"`: tell what each
thread and coroutine is doing.
"""

COMMAND_SECONDS = 60
"""How long a command and its answer are valid."""

MAX_ANSWER = 200_000
"""Most characters of an answer."""

MAX_TASKS, MAX_FRAMES = 200, 50
"""Most coroutines of a dump, and most frames of each."""


class Command(msgspec.Struct, omit_defaults=True):
    """
    A command, or its answer. `number`: which one, so that two are not mixed up. `until_us`: when
    it is forgotten, by the store's clock.
    """

    command: WorkerCommand
    number: str
    until_us: int
    answer: str | None = None


encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Command).decode


def read(engine: Records, worker_id: str) -> tuple[Command | None, bytes | None]:
    """The command of a worker, or its answer, and the record."""
    (stored,) = engine.record_read("command", [worker_id])
    return (None if stored is None else decode(stored)), stored


def obey(
    engine: FullEngine,
    worker_id: str,
    running: Iterable[WorkerDelivery],
    loop: asyncio.AbstractEventLoop | None,
) -> bool:
    """Answer the worker's command, if it has one. Returns whether it is to drain."""
    command, stored = read(engine, worker_id)
    if command is None or command.answer is not None or command.until_us < engine.time_us():
        return False
    if command.command == "drain":
        answer = "it leases no more messages, and exits when its handlers have finished"
    else:
        answer = stack_dump(running, loop)
    done = msgspec.structs.replace(command, answer=answer)
    is_taken = engine.record_swap("command", worker_id, stored, encode(done))
    return is_taken and command.command == "drain"


def stack_dump(running: Iterable[WorkerDelivery], loop: asyncio.AbstractEventLoop | None) -> str:
    """What runs: the messages, the stack of each thread, and of each coroutine of the worker."""
    leases = [unit.lease for unit in running]
    parts = [
        "messages:",
        *(f"  {lease.topic} {lease.id} (attempt {lease.attempt})" for lease in leases),
    ]
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, stack in _thread_stacks().items():
        parts.append(f"thread {names.get(ident, ident)}:")
        parts.append("".join(stack.format()).rstrip())
    tasks = [] if loop is None else _tasks(loop)
    for task in tasks[:MAX_TASKS]:
        name = getattr(task.get_coro(), "__qualname__", "?")
        parts.append(f"coroutine {task.get_name()}: {name}")
        parts += [
            f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
            for frame in _frames_of(task)
        ]
    if len(tasks) > MAX_TASKS:
        parts.append(f"… and {len(tasks) - MAX_TASKS} more coroutines")
    return storable.clean("\n".join(parts), MAX_ANSWER)


def _thread_stacks() -> dict[int, traceback.StackSummary]:
    """
    The stack of each thread, by its ident. Garbage collection pauses meanwhile: Python 3.11 may
    start one while it looks up the caller of a frame, other threads may run during it, and if that
    frame has returned by then, the process crashes.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return {
            ident: traceback.extract_stack(frame, MAX_FRAMES)
            for ident, frame in sys._current_frames().items()  # noqa: SLF001  # the only way to them
        }
    finally:
        if is_enabled:
            gc.enable()


def _tasks(loop: asyncio.AbstractEventLoop) -> list[asyncio.Task[object]]:
    try:
        return sorted(asyncio.all_tasks(loop), key=lambda task: task.get_name())
    except RuntimeError:  # they changed while they were read
        return []


def _frames_of(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """The frames of a coroutine and of those that it awaits; a task itself knows only the first."""
    awaited: Any = task.get_coro()
    for _ in range(MAX_FRAMES):
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            return
        yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)

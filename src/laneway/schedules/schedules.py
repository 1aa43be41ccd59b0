"""`app.schedules`: the schedules of a program, and those in the store."""

from __future__ import annotations

import builtins
from typing import Any, Unpack

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.message import Message
from laneway.runtime.noun import Noun
from laneway.runtime.runtime import Runtime
from laneway.schedules import store
from laneway.schedules.store import Planned, Schedule
from laneway.tasks.task import Task


class Schedules(Noun):
    """
    The schedules in the store: `app.schedules`. `Laneway.schedule` declares a program's schedules.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._declared: dict[str, Schedule] = {}

    def declare(self, name: str, call: object, options: store.Options) -> None:
        """See `Laneway.schedule`."""
        schedule = store.declared("schedule", name, call, options)
        holder = self._runtime.holder
        with holder.lock:
            self._declared[name] = schedule
            if holder.opened is not None:
                store.put(holder.opened, schedule)

    def install(self) -> None:
        """
        Store the code's schedules and handle those that are due; a worker calls this when it
        starts.
        """
        handlers = self._runtime.handlers
        if len(handlers) or self._declared:
            store.install(handlers, lambda: self._runtime.engine, self._declared.values())

    def add(
        self, name: str, call: Message | Task[..., Any], **options: Unpack[store.Options]
    ) -> bool:
        """
        Store a schedule now. The arguments are those of `Laneway.schedule`. Returns False if the
        store already has exactly this schedule, or if it never fires again.
        """
        return store.put(self._runtime.engine, store.declared("schedules.add", name, call, options))

    def list(self, *, limit: int = 1000, after: str | None = None) -> builtins.list[Planned]:
        """
        List the schedules of the store by name, at most `limit`, after the name `after`: rule, next
        firing, and whether paused.
        """
        after = None if after is None else arguments.name("schedules.list", "after", after)
        return store.planned(
            self._runtime.engine, arguments.whole("schedules.list", "limit", limit), after
        )

    def remove(self, name: str) -> bool:
        """
        Remove a schedule from the store. Returns False if it did not exist. If the code declares
        the schedule, the next worker stores it again: remove it from the code too.
        """
        return store.remove(
            self._runtime.engine, arguments.name("schedules.remove", "the name", name)
        )

    def pause(self, name: str) -> None:
        """
        Pause a schedule. When it is resumed, `missed` decides what happens to the firings in
        between.
        """
        store.set_paused(
            self._runtime.engine, arguments.name("schedules.pause", "the name", name), paused=True
        )

    def resume(self, name: str) -> None:
        """Resume a paused schedule."""
        store.set_paused(
            self._runtime.engine, arguments.name("schedules.resume", "the name", name), paused=None
        )

    aadd = async_variant(add)
    alist = async_variant(list)
    aremove = async_variant(remove)
    apause = async_variant(pause)
    aresume = async_variant(resume)

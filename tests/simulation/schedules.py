"""Workers that serve schedules, with the handler of real workers, and their check."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from itertools import pairwise

from laneway import codec, headers as control
from laneway.errors import BadMessage, EngineUnavailable
from laneway.message import Lease
from laneway.schedules import store as schedule_store
from laneway.testing.simulation import Check, End, Store, Worker
from laneway.testing.simulation.store import Call
from laneway.working.handler import Handlers
from tests.simulation.blocking import blocking, engine_of


class Schedules(Check):
    """
    Each firing is published once, and none is left out between two others.

    `every`: by schedule, its period in seconds, if it makes up for all missed firings.
    """

    def __init__(self, store: Store, every: dict[str, float]) -> None:
        super().__init__(store)
        self.every = every
        self.fired: dict[str, list[datetime]] = defaultdict(list)

    def saw_put(self, call: Call) -> None:
        for draft, receipt in zip(call.arguments[0], call.answer, strict=True):
            name = (draft.headers or {}).get(control.SCHEDULE)
            if name is None or receipt.outcome != "accepted" or draft.id is None:
                continue
            nominal = datetime.fromisoformat(draft.id.rpartition("@")[2])
            if nominal in self.fired[name]:
                raise self.broken(f"the schedule {name} fired twice for {nominal}")
            self.fired[name].append(nominal)

    def end(self) -> None:
        for name, every in self.every.items():
            times = sorted(self.fired[name])
            for one, other in pairwise(times):
                if (other - one).total_seconds() != every:
                    raise self.broken(f"the schedule {name} did not fire between {one} and {other}")


class SchedulingWorker(Worker):
    """Fires schedules, and handles other messages as any worker."""

    handlers: Handlers

    async def answer(self, lease: Lease) -> End:
        if not lease.topic.startswith(schedule_store.PREFIX):
            return await super().answer(lease)
        handler = self.handlers.find(lease)
        assert handler is not None
        try:
            following = await blocking(lambda: handler.function(codec.message_of(lease)))
        except (EngineUnavailable, BadMessage):
            return End(0.0, "retry")
        return End(0.0, publish=following)


def install(store: Store, schedules: list[schedule_store.Schedule]) -> None:
    """Store schedules, and let workers serve them."""
    engines = [engine_of(store), store.direct]
    SchedulingWorker.handlers = Handlers()
    schedule_store.install(SchedulingWorker.handlers, lambda: engines[-1], schedules)
    engines.pop()  # the handlers run in tasks

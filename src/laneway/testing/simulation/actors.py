"""
Who takes part in a simulation: publishers, spools, workers, destinations, operators, chaos.

Each is a small state machine, written as a coroutine. It does what Laneway's own part does where
the store can tell the difference: a worker renews its leases, records the start of suspects and
settles again if the answer was lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import msgspec

from laneway.engines.base import HEARTBEAT_TIMEOUT
from laneway.errors import BadMessage, EngineUnavailable, LanewayError
from laneway.message import Action, Draft, Lease, Settlement
from laneway.testing.simulation.clock import Process, Signal
from laneway.testing.simulation.store import Store
from laneway.units import SECOND

LEASE_US = round(HEARTBEAT_TIMEOUT * SECOND)
RENEW_EVERY = HEARTBEAT_TIMEOUT / 3
RETRY = 0.2
"""Seconds until a call to a store that does not answer is repeated, in the mean."""


class End(msgspec.Struct):
    """
    How a handler ends: after how many seconds, with which fields of its `Settlement`, and what it
    publishes with it.
    """

    seconds: float
    action: Action = "ack"
    delay_us: int | None = None
    begun: bool = True
    publish: list[Draft] = []


class Actor(Process):
    """A process that calls a store."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store, self.clock = store, store.clock

    async def until_answered(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call the store until it answers."""
        while True:
            try:
                return await self.store.call(operation, *arguments, **options)
            except EngineUnavailable:
                await self.clock.sleep(self.clock.random.uniform(0, 2 * RETRY))

    def finish(self) -> None:
        """The simulation comes to its end: add no more work, and let nothing go wrong."""


class Publisher(Actor):
    """
    Publishes the messages that `draft(number)` makes, `rate` a second, at independent times, and
    again with the same id until the store has answered.
    """

    def __init__(self, store: Store, name: str, draft: Callable[[int], Draft], rate: float) -> None:
        super().__init__(store)
        self.name, self.draft, self.rate = name, draft, rate
        self.is_done = False
        self._number = 0

    async def main(self) -> None:
        while True:
            await self.clock.sleep(self.clock.exponential(1 / self.rate))
            if self.is_done:
                return
            self.spawn(self._publish(self._next()))

    def finish(self) -> None:
        self.is_done = True

    def _next(self) -> Draft:
        self._number += 1
        return self._draft(self._number)

    def _draft(self, number: int) -> Draft:
        draft = self.draft(number)
        return msgspec.structs.replace(draft, id=draft.id or f"{self.name}-{number}")

    async def _publish(self, draft: Draft) -> None:
        with contextlib.suppress(BadMessage):  # the policy has changed
            await self.until_answered("put", [draft])


class Spool(Publisher):
    """Publishes as a spool does: in batches, each repeated until the store has answered."""

    BATCH = 20

    async def main(self) -> None:
        batch = 0
        while not self.is_done:
            await self.clock.sleep(self.clock.exponential(self.BATCH / self.rate))
            batch += 1
            drafts = [self._next() for _ in range(self.clock.random.randint(1, self.BATCH * 2))]
            with contextlib.suppress(BadMessage):
                await self.until_answered("forward", drafts, spool=self.name, batch=str(batch))


class Worker(Actor):
    """
    Leases as many messages as it has free slots, and ends each by `behavior`.

    `is_careless`: it settles leases that it has lost, too, which the store has to refuse.
    """

    def __init__(
        self,
        store: Store,
        slots: int,
        behavior: Callable[[Lease], End],
        *,
        pool: str = "default",
        is_careless: bool = False,
    ) -> None:
        super().__init__(store)
        self.slots, self.behavior, self.pool = slots, behavior, pool
        self.is_careless = is_careless
        self._begin()

    def _begin(self) -> None:
        self.running: dict[int, Lease] = {}
        """By fence."""
        self._ended: list[tuple[Settlement, list[Draft]]] = []
        self._signal = Signal()
        self._is_waiting, self._may_lease, self._is_renewing = False, True, False

    def crash(self) -> None:
        super().crash()
        self.store.forget(self._notified)
        self._begin()

    def stop(self) -> None:
        super().stop()
        self.store.forget(self._notified)

    def resume(self) -> None:
        super().resume()
        self._notified()

    async def main(self) -> None:
        while True:
            if self._ended:
                await self._settle()
            if self._may_lease or self.store.has_more:
                self._may_lease = False
                await self._lease(self.slots - len(self.running))
            if len(self.running) < self.slots and not self._is_waiting:
                self._is_waiting = True
                self.store.notify_later(self._notified)
            await self._signal.wait()

    def _notified(self) -> None:
        self._is_waiting, self._may_lease = False, True
        self._signal.set()

    async def _lease(self, free: int) -> None:
        if not free:
            self.store.notify()
            return
        batch = await self.until_answered(
            "lease", free, pool=self.pool, startable=free, max_lease_us=LEASE_US
        )
        for lease in batch.leases:
            self.running[lease.fence] = lease
        for lease in batch.leases:
            self.spawn(self._handle(lease))
        if self.running and not self._is_renewing:
            self._is_renewing = True
            self.spawn(self._renew())

    async def _handle(self, lease: Lease) -> None:
        if lease.suspect:
            (is_held,) = await self.until_answered("start", [(lease.handle, lease.fence)])
            if not is_held and not self.is_careless:
                self._lose(lease)
                return
        end = await self.answer(lease)
        await self.clock.sleep(end.seconds)
        if lease.fence in self.running or self.is_careless:
            settlement = Settlement(
                lease.handle,
                lease.fence,
                end.action,
                end.delay_us,
                begun=end.begun,
                cost_us=round(end.seconds * SECOND),
            )
            self._ended.append((settlement, end.publish))
            # Its end may let another message of the topic or key begin.
            self._may_lease |= lease.limited or lease.key is not None or end.action != "ack"
            self._lose(lease)

    async def answer(self, lease: Lease) -> End:
        """How a message's handler will end."""
        return self.behavior(lease)

    def _lose(self, lease: Lease) -> None:
        self.running.pop(lease.fence, None)
        self._signal.set()

    async def _settle(self) -> None:
        ended, self._ended = self._ended, []
        publish = {n: drafts for n, (_, drafts) in enumerate(ended) if drafts}
        await self.until_answered("settle", [each for each, _ in ended], publish=publish)

    async def _renew(self) -> None:
        await self.clock.sleep(RENEW_EVERY)
        while held := [(lease.handle, lease.fence) for lease in self.running.values()]:
            with contextlib.suppress(EngineUnavailable):
                answers = await self.store.call("extend", held, LEASE_US)
                for (_, fence), is_held in zip(held, answers, strict=True):
                    if not is_held and fence in self.running:
                        self._lose(self.running[fence])
            await self.clock.sleep(RENEW_EVERY)
        self._is_renewing = False


class Destination(Actor):
    """
    What handlers call: it is healthy, fails, is slow or is away, and changes between them.

    `seconds`: the mean time of a call. `states`: for how many seconds it is in each state, in the
    mean; without it, it is always healthy. Its method `handle` is a worker's behavior.
    """

    SHORTEST, LONGEST = 0.6, 1.4
    """The shortest and the longest call, by the mean."""

    def __init__(
        self, store: Store, seconds: float, states: dict[str, float] | None = None
    ) -> None:
        super().__init__(store)
        self.seconds, self.states = seconds, states or {}
        self.state = "healthy"

    async def main(self) -> None:
        while self.states:
            self.state = self.clock.random.choice(list(self.states))
            await self.clock.sleep(self.clock.exponential(self.states[self.state]))
        self.state = "healthy"

    def finish(self) -> None:
        self.states = {}

    def handle(self, lease: Lease) -> End:
        """Answer a call."""
        del lease
        seconds = self.seconds * self.clock.random.uniform(self.SHORTEST, self.LONGEST)
        if self.state == "slow":
            return End(seconds * 20)
        if self.state == "unstarted":
            return End(seconds, "release", begun=False)
        if self.state == "failing" and self.clock.chance(0.5):
            return End(seconds, "retry", delay_us=round(seconds * SECOND))
        return End(seconds, "back_off" if self.state == "away" else "ack")


class Operator(Actor):
    """
    About every `every` seconds calls one of `actions` with the store, such as
    `lambda store: store.call("topic_purge", "mail.acme")`. Laneway's errors are ignored.
    """

    def __init__(
        self, store: Store, every: float, actions: Sequence[Callable[[Store], Awaitable[Any]]]
    ) -> None:
        super().__init__(store)
        self.every, self.actions = every, actions

    async def main(self) -> None:
        while True:
            await self.clock.sleep(self.clock.exponential(self.every))
            with contextlib.suppress(LanewayError):
                await self.clock.random.choice(self.actions)(self.store)

    def finish(self) -> None:
        self.crash()


Fault = Literal["crash", "stop", "restart", "jump", "drift"]


class Chaos(Actor):
    """
    About every `every` seconds something goes wrong for a while: a process crashes or stops, the
    store restarts, its clock jumps, or that of one of the processes that have it open.
    """

    drifts: Sequence[float] = (-5.0, -0.2, 0.0, 0.2, 5.0)
    """Seconds."""

    jumps: Sequence[float] = (-30.0, -1.0, 0.5, 20.0, 600.0)
    """Seconds."""

    def __init__(
        self, store: Store, every: float, faults: Sequence[Fault], processes: Sequence[Process]
    ) -> None:
        super().__init__(store)
        self.every, self.faults, self.processes = every, faults, processes

    async def main(self) -> None:
        while True:
            await self.clock.sleep(self.clock.exponential(self.every))
            fault = self.clock.random.choice(self.faults)
            victim = self.clock.random.choice(self.processes)
            self.spawn(self._go_wrong(fault, victim))

    async def _go_wrong(self, fault: Fault, victim: Process) -> None:
        duration = self.clock.exponential(8.0)
        if fault == "crash" and victim.is_alive:
            victim.crash()
            await self.clock.sleep(duration)
            victim.start()
        elif fault == "stop" and victim.is_alive and not victim.is_stopped:
            victim.stop()
            await self.clock.sleep(duration)
            victim.resume()
        elif fault == "restart":
            self.store.is_down = True
            await self.clock.sleep(duration / 4)
            self.store.is_down = False
            self.store.notify()
        elif fault == "jump":
            self.store.jump(self.clock.random.choice(self.jumps))
        elif fault == "drift":
            self.store.drift(self.clock.random.choice(self.drifts))

    def finish(self) -> None:
        self.crash()
        self.store.is_down = False
        self.store.drifts_us = [0] * len(self.store.engines)
        for process in self.processes:
            process.start()
            if process.is_stopped:
                process.resume()

"""
The store of a simulation: an engine behind a network that is slow and loses calls and answers.

Each call that reaches the engine is shown to the checks, with its answer, even if the caller never
gets it. Workers that wait are notified as by a real engine: one, when there may be work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec

from laneway.engines.base import FullEngine
from laneway.errors import EngineUnavailable, LanewayError
from laneway.policy import Resolved
from laneway.testing.simulation.clock import Clock, Wait
from laneway.units import SECOND

QUIET = frozenset({"lease", "start", "settle", "extend", "tick", "beat", "lookup"})
"""Calls after which no more can be leased than before, or whose caller leases itself."""

AGAIN_US = 1_000
"""How soon somebody leases again if the engine has more to do right now."""


class Network(msgspec.Struct):
    """
    What may go wrong between a process and the store.

    - `delay`: seconds of a call, and of its answer, at least and at most.
    - `lost_calls`, `lost_answers`: parts of all calls. The caller learns it after `timeout`.
    - `late_calls`: the part of all calls that reach the store after the caller has given up, up to
      `latest` seconds later: when the network is whole again, or when a server continues that was
      stopped. By then the caller may have repeated the call.
    - `slow`: the part of all calls that takes up to `timeout`.
    """

    delay: tuple[float, float] = (0.0005, 0.003)
    lost_calls: float = 0.0
    lost_answers: float = 0.0
    late_calls: float = 0.0
    slow: float = 0.0
    timeout: float = 2.0
    latest: float = 30.0


class Call(NamedTuple):
    """
    A call that the engine has answered.

    The engine's time, in microseconds, was between `least` and `now`. They are equal for a lease
    from the only shard; after its clock jumped back, the engine does not tell others its time. Each
    of several shards has a time of its own.
    """

    least: int
    now: int
    operation: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    answer: Any


class Store:
    """
    An engine with the simulation's clock.

    `skew_us`: by how much the store's clock is ahead. `is_down`: no call is answered.
    `engines`: those of several processes that have the same store open; each call is made by one of
    them. `drifts_us`: by how much more the clock of each is ahead.
    """

    def __init__(
        self,
        engine: FullEngine,
        clock: Clock,
        network: Network | None = None,
        others: Sequence[FullEngine] = (),
    ) -> None:
        self.engine, self.clock = engine, clock
        self.engines = [engine, *others]
        self.drifts_us = [0] * len(self.engines)
        self.network = network or Network()
        self.shards = engine.capabilities.shards
        self.skew_us = 0
        self.is_down = False
        self.watchers: list[Callable[[Call], object]] = []
        """What is called after each call that the engine has answered."""
        self.calls = 0
        self.direct = cast("FullEngine", _Direct(self))
        """The engine without the network."""
        self._now = self._leased_at = 0
        self._policies: dict[str, Resolved] = {}
        self._has_time: dict[str, bool] = {}
        self.has_more = False
        """Whether there may be work, and no worker waited for it."""
        self._idle: list[Callable[[], None]] = []
        self._looks_at: int | None = None

    @property
    def now(self) -> int:
        """The engine's time, or what it may be at most after its clock jumped back."""
        self._now = max(self._now, self.clock.now + self.skew_us)
        return self._now

    @property
    def is_stopped(self) -> bool:
        """Whether the clocks of several shards may have stopped, each at a time of its own."""
        return self.shards > 1 and (self.now > self.clock.now + self.skew_us or any(self.drifts_us))

    def jump(self, seconds: float) -> None:
        """Let the store's clock jump; after a jump back the engine's time waits for it."""
        self.skew_us += round(seconds * SECOND)
        self.notify()

    def drift(self, seconds: float) -> None:
        """Set by how much the clock of one of the processes is ahead of the others."""
        self.drifts_us[self._process()] = round(seconds * SECOND)
        self.notify()

    def _process(self) -> int:
        return self.clock.random.randrange(len(self.engines)) if len(self.engines) > 1 else 0

    def policy_of(self, topic: str) -> Resolved:
        """The policy that holds for a topic now."""
        if topic not in self._policies:
            self._policies[topic] = self.engine.policy_of(topic)
        return self._policies[topic]

    def state_of(self, topic: str, message_id: str) -> str:
        """What `lookup` answers for a message."""
        return self.states_of(topic, [message_id])[message_id]

    def states_of(self, topic: str, ids: Sequence[str]) -> Mapping[str, str]:
        """What `lookup` answers for messages."""
        return self.engine.lookup(topic, ids, now_us=self.clock.now + self.skew_us)

    def call(self, operation: str, *arguments: Any, **options: Any) -> Wait:
        """
        Call the engine through the network. Raises EngineUnavailable, and what the engine raises.

        If the engine itself fails and may have done the call, RuntimeError ends the simulation.
        """
        network, clock = self.network, self.clock

        def begin(wake: Callable[..., None]) -> None:
            if clock.chance(network.lost_calls):
                error = EngineUnavailable("the call was lost", applied=None)
                clock.after(network.timeout, partial(wake, error=error))
            elif clock.chance(network.late_calls):
                error = EngineUnavailable("the answer was lost", applied=None)
                clock.after(network.timeout, partial(wake, error=error))
                late = network.timeout + clock.random.uniform(0, network.latest)
                clock.after(late, partial(arrive, _nobody))
            else:
                clock.after(self._delay(), partial(arrive, wake))

        def arrive(wake: Callable[..., None]) -> None:
            answer: Any = None
            error: LanewayError | None = None
            if self.is_down:
                error = EngineUnavailable("the store is down")
            try:
                answer = None if error else self.apply(operation, *arguments, **options)
            except LanewayError as raised:
                if isinstance(raised, EngineUnavailable) and raised.applied is not False:
                    # The checks did not see the call, and the same seed would not repeat this.
                    raise RuntimeError(
                        f"{operation}: the store really failed: {raised}"
                    ) from raised
                error = raised
            if clock.chance(network.lost_answers):
                error = EngineUnavailable("the answer was lost", applied=None)
                clock.after(network.timeout, partial(wake, error=error))
            else:
                clock.after(self._delay(), partial(wake, answer, error))

        return Wait(begin)

    def apply(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call the engine now."""
        process = self._process()
        call = getattr(self.engines[process], operation)
        given = self.clock.now + self.skew_us + self.drifts_us[process]
        if operation not in self._has_time:
            self._has_time[operation] = "now_us" in inspect.signature(call).parameters
        if self._has_time[operation]:
            options["now_us"] = given
        if operation.startswith("policy_"):
            self._policies.clear()
        answer = call(*arguments, **options)
        self.calls += 1
        self._now = max(self._now, given)
        least, now = max(self._leased_at, given), self.now
        if operation == "lease":
            now = answer.now_us
            if self.shards == 1:
                least = self._leased_at = now
        for watcher in self.watchers:
            watcher(Call(least, now, operation, arguments, options, answer))
        if operation == "lease":
            self._look_at(answer.next_wake_us)
            self.has_more = False
            if len(answer.leases) == arguments[0]:
                self.notify()
        elif operation not in QUIET:
            self.notify()
        return answer

    def _delay(self) -> float:
        low, high = self.network.delay
        if self.clock.chance(self.network.slow):
            high = self.network.timeout
        return self.clock.random.uniform(low, high)

    # Wakeups

    def notify_later(self, notified: Callable[[], None]) -> None:
        """Call a worker with free slots when there may be work."""
        self._idle.append(notified)

    def notify(self) -> None:
        """Notify one worker that waits."""
        if not self._idle:
            self.has_more = True
        else:
            number = self.clock.random.randrange(len(self._idle))
            self._idle[number], self._idle[-1] = self._idle[-1], self._idle[number]
            self._idle.pop()()

    def forget(self, notified: Callable[[], None]) -> None:
        """A worker that crashed or stopped no longer waits; another one is notified for it."""
        self._idle = [each for each in self._idle if each != notified]
        self.notify()

    def _look_at(self, wake: int | None) -> None:
        """Notify a worker at the time of the engine's next event."""
        if wake is None:
            return
        at = max(wake - self.skew_us, self.clock.now + AGAIN_US)
        if self._looks_at is None or at < self._looks_at:
            self._looks_at = at
            self.clock.at(at, partial(self._look, at))

    def _look(self, at: int) -> None:
        if at == self._looks_at:
            self._looks_at = None
            self.notify()


def _nobody(value: object = None, error: BaseException | None = None) -> None:
    """Who gets the answer of a call that arrives late."""


class _Direct:
    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store.engine, name)
        return partial(self._store.apply, name) if callable(attribute) else attribute

"""
Ends leases, each call as many as have ended since the last one, so batches grow with the load.

The engine thread settles and leases in turn while the worker is idle, and always where the engine
is embedded: such an engine works in this process, one call at a time.
A server works in parallel. While the worker is busy, `SettleThread` calls it, so that one
call is on the server while the answer of another one is decoded here.
A lease that depends on a settlement begins after the settlement's answer.
"""

from __future__ import annotations

import bisect
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from laneway import codec, storable, units
from laneway.engines.base import MAX_HANDLERS, OTHER_HANDLERS, WAIT_BOUNDS_US, FullEngine
from laneway.errors import BacklogFull, EngineCorrupt, EngineUnavailable
from laneway.message import Draft, Settlement, SettlementAnswer
from laneway.working.options import Summary
from laneway.working.outcome import CANNOT_SETTLE
from laneway.working.worker_delivery import WorkerDelivery

log = logging.getLogger("laneway.worker")

PACE_WINDOW_SECONDS = 0.02
"""How long settlements are counted for one measurement of the pace; shorter ones are too uneven."""

MIN_RECONNECT_SECONDS, MAX_RECONNECT_SECONDS = 0.05, 5.0
"""
How long to wait before calling an engine that is away again; the wait doubles from the first to the
second, and is randomized so that workers do not reconnect together.
"""

RECONNECT_LOOK_SECONDS = 0.05
"""How soon a worker that waits for its engine notices that it is to end."""

MAX_FOLLOWERS_PER_CALL = 250
"""
How many messages are published together with the settlements of one call; a step that opens a part
of a flow publishes a hundred.
"""

MAX_BYTES_PER_CALL = 8_000_000
"""The bytes of outcomes and published bodies that one call has at most, unless one is larger."""

FOLLOWER_RETRY_US = 5_000_000
"""
How long a message waits whose followers could not be published because a backlog was full; then its
handler runs again.
"""


class Settler:
    """
    Ends leases with as few calls as possible.

    `settled` is called after each call of the engine, with the settlements, their answers, and
    whether a lease is due because of it.
    `report` is called with each settlement that was not simply acked, and the engine's answer.
    """

    def __init__(
        self,
        engine: FullEngine,
        held: dict[int, WorkerDelivery | None],
        *,
        is_burst: bool,
        report: Callable[[Settlement, str], None],
        settled: Callable[[Sequence[Settlement], Sequence[str], bool], None],
    ) -> None:
        self.summary = Summary()
        self.durations = Durations()
        self.settlements: deque[Settlement] = deque()
        """Leases to end."""
        self.followers: dict[int, Sequence[Draft]] = {}
        """By fence: messages to publish together with that settlement."""
        self.pace = 0.0
        """Settlements a second, averaged."""
        self._engine = engine
        self._held = held
        self._is_burst = is_burst
        self._report = report
        self._call_settled = settled
        self._count, self._count_since = 0, time.monotonic()
        self._in_call = 0
        self._lock = threading.Lock()
        """Held while a thread settles."""

    @property
    def ending(self) -> int:
        """How many of the held leases are about to end."""
        return len(self.settlements) + self._in_call

    def settle(self) -> None:
        """Settle all that have ended, with one call where that is possible."""
        with self._lock:
            if self.settlements:
                self._settle_first(len(self.settlements))

    def _settle_first(self, count: int) -> None:
        """
        If a call fails for another reason than an engine that is away, halve it until the one
        settlement that the engine cannot take is alone.
        """
        left = [self.settlements.popleft() for _ in range(count)]
        size = self._in_call = count
        try:
            while left:
                batch = self._first_of(left[:size])
                try:
                    answers = self._call_settle(batch)
                except EngineUnavailable:
                    raise
                except Exception as error:  # noqa: BLE001  # a driver may raise anything for what it cannot store
                    if len(batch) > 1:
                        size = len(batch) // 2
                        continue
                    answers = [self._settle_impossible(batch[0], error)]
                left = left[len(batch) :]
                self._in_call = len(left)
                size *= 2
                self._settled(batch, answers)
        finally:
            self.settlements.extendleft(reversed(left))
            self._in_call = 0

    def _first_of(self, settlements: list[Settlement]) -> list[Settlement]:
        """
        The first of these, as many as publish no more than MAX_FOLLOWERS_PER_CALL, and whose
        outcomes and messages have no more than MAX_BYTES_PER_CALL.
        """
        count = size = 0
        get_followers = self.followers.get
        for position, settlement in enumerate(settlements):
            if settlement.outcome is not None:
                size += len(settlement.outcome)
            if followers := get_followers(settlement.fence):
                count += len(followers)
                size += sum(len(draft.body) for draft in followers)
            if position and (count > MAX_FOLLOWERS_PER_CALL or size > MAX_BYTES_PER_CALL):
                return settlements[:position]
        return settlements

    def _settled(self, settlements: Sequence[Settlement], answers: Sequence[str]) -> None:
        held, summary, followers = self._held, self.summary, self.followers
        is_lease_due = False
        self.durations.add(settlements, held)
        for settlement, answer in zip(settlements, answers, strict=True):
            delivery = held.pop(settlement.fence, None)
            if followers:
                followers.pop(settlement.fence, None)
            if answer == "acked":
                summary.acked += 1
            else:
                self._count_answer(answer, settlement)
                if delivery is not None and answer in ("retried", "died"):
                    self.durations.add_failure(delivery)
            if delivery is not None and (delivery.lease.limited or delivery.lease.key is not None):
                is_lease_due = True  # its topic or its key may deliver again
        if self._is_burst and not held:
            is_lease_due = True  # only a lease tells whether that was the last message
        self._measure_pace(len(settlements))
        self._call_settled(settlements, answers, is_lease_due)

    def _call_settle(self, settlements: list[Settlement]) -> list[SettlementAnswer]:
        followers = self.followers
        if not followers:
            return self._engine.settle(settlements)
        publish = {
            position: followers[settlement.fence]
            for position, settlement in enumerate(settlements)
            if settlement.fence in followers
        }
        return self._engine.settle(settlements, publish=publish)

    def _settle_impossible(self, settlement: Settlement, error: Exception) -> SettlementAnswer:
        """
        Make a dead letter of a message whose settlement the engine cannot take, with that reason.

        Its lease ends in any case.
        """
        handle, fence = settlement.handle, settlement.fence
        if isinstance(error, BacklogFull):
            log.warning(
                "message %d: cannot publish its follow-up; its handler runs again in %g s: %s",
                handle,
                FOLLOWER_RETRY_US / units.SECOND,
                error,
            )
            return self._engine.settle(
                [Settlement(handle, fence, "release", delay_us=FOLLOWER_RETRY_US)]
            )[0]
        log.warning(
            "message %d: the store cannot store its %s; making it a dead letter",
            handle,
            settlement.action,
            exc_info=error,
        )
        reason = (
            f"{CANNOT_SETTLE}{storable.type_name(type(error))}:"
            f" {storable.of(error, storable.MAX_REASON // 2)}"
        )
        dead = Settlement(
            handle, fence, "dead", reason=reason, error=settlement.error, cost_us=settlement.cost_us
        )
        for simpler in (
            codec.checked(dead),
            Settlement(handle, fence, "dead", reason=CANNOT_SETTLE.strip(": ")),
            Settlement(handle, fence, "release"),
        ):
            try:
                return self._engine.settle([simpler])[0]
            except EngineUnavailable:
                raise
            except Exception as fault:  # noqa: BLE001  # the next settlement is simpler
                log.warning(
                    "message %d: the store cannot store its %s either: %s",
                    handle,
                    simpler.action,
                    storable.of(fault, 200),
                )
        return "lost"  # the lease expires on its own

    def _count_answer(self, answer: str, settlement: Settlement) -> None:
        self._report(settlement, answer)
        match answer:
            case "retried":
                self.summary.retried += 1
            case "died":
                self.summary.died += 1
            case "released":
                self.summary.released += 1
            case _:
                self.summary.lost += 1
                log.debug(
                    "lease (fence %d) had ended before it was settled: %s",
                    settlement.fence,
                    answer,
                )

    def _measure_pace(self, count: int) -> None:
        self._count += count
        elapsed = (now := time.monotonic()) - self._count_since
        if elapsed >= PACE_WINDOW_SECONDS:
            pace = self._count / elapsed
            self.pace = (self.pace + pace) / 2 if self.pace else pace
            self._count, self._count_since = 0, now


class Reconnection:
    """Waits before an engine that is away is called again; shared by the threads of one worker."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since = 0.0

    def succeeded(self) -> None:
        """The engine has answered."""
        if self._seconds:
            away = time.monotonic() - self._since
            log.info("store answers again, %.1f s after it was found unavailable", away)
            self._seconds = 0.0

    def wait(self, error: EngineUnavailable, is_ending: Callable[[], bool]) -> None:
        """Wait longer after each failure; only the worker's end cuts the wait short."""
        if not self._seconds:
            self._since = time.monotonic()
            log.warning("store unavailable; retrying until it answers: %s", error)
        self._seconds = min(MAX_RECONNECT_SECONDS, self._seconds * 2 or MIN_RECONNECT_SECONDS)
        deadline = time.monotonic() + self._seconds * random.uniform(0.5, 1.0)
        while not is_ending() and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(left, RECONNECT_LOOK_SECONDS))


class SettleThread(threading.Thread):
    """Settles while the engine thread of a busy worker leases. For engines that are servers."""

    def __init__(
        self,
        settler: Settler,
        reconnection: Reconnection,
        failed: Callable[[BaseException], None],
    ) -> None:
        super().__init__(name="laneway-settle", daemon=True)
        self._settler = settler
        self._reconnection = reconnection
        self._failed = failed
        self._has_work = threading.Event()
        self._is_ending = False

    def wake(self) -> None:
        """Settle what has ended."""
        self._has_work.set()

    def end(self, seconds: float) -> None:
        """Settle what has ended, then stop; waits for that."""
        self._is_ending = True
        self._has_work.set()
        if self.ident is not None:
            self.join(seconds)

    def run(self) -> None:
        try:
            while not self._is_ending or self._settler.settlements:
                self._has_work.wait()
                self._has_work.clear()
                if not self._settle():
                    return
        except BaseException as error:  # noqa: BLE001  # the worker ends with it
            self._failed(error)

    def _settle(self) -> bool:
        """Settle all that has ended. Returns False if the store is away and the worker ends."""
        while settlements := self._settler.settlements:
            try:
                self._settler.settle()
                self._reconnection.succeeded()
            except EngineCorrupt:
                raise
            except EngineUnavailable as error:
                if self._is_ending:
                    log.warning(
                        "store unavailable while stopping; %d leases will expire: %s",
                        len(settlements),
                        error,
                    )
                    return False
                self._reconnection.wait(error, lambda: self._is_ending)
        return True


ATTEMPTS = frozenset(("ack", "retry", "dead"))
"""The ends of messages whose handlers have run to an end."""


class Durations:
    """
    How long handlers took, and how many of their attempts failed: counters by handler since the
    worker began, for the heartbeat. One thread at a time adds to them.

    One message of each settle call is examined and counts for all of the call, so a message of a
    busy worker costs nothing. Each message has the same chance, so the counts are right on average;
    while a worker settles one message at a time, as it does with slow handlers, they are exact.
    Failures are all counted.
    """

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        """By handler: the failed attempts, then the attempts by class of `WAIT_BOUNDS_US`."""

    def add(
        self,
        settlements: Sequence[Settlement],
        held: Mapping[int, WorkerDelivery | None],
    ) -> None:
        """Count the messages of a settle call by one of them."""
        count = len(settlements)
        settlement = settlements[random.randrange(count) if count > 1 else 0]
        delivery = held.get(settlement.fence)
        if delivery is not None and settlement.action in ATTEMPTS:
            place = bisect.bisect_right(WAIT_BOUNDS_US, settlement.cost_us)
            self._of(delivery)[1 + place] += count

    def add_failure(self, delivery: WorkerDelivery) -> None:
        """Count an attempt that failed."""
        self._of(delivery)[0] += 1

    def _of(self, delivery: WorkerDelivery) -> list[int]:
        name = delivery.handler.name
        found = self._counts.get(name)
        if found is None:
            if len(self._counts) >= MAX_HANDLERS:
                name = OTHER_HANDLERS
            found = self._counts.setdefault(name, [0] * (len(WAIT_BOUNDS_US) + 2))
        return found

    def counts(self) -> dict[str, list[int]]:
        """The counters, each without the zeros at its end. From any thread."""
        return {name: _short(list(counts)) for name, counts in list(self._counts.items())}


def _short(counts: list[int]) -> list[int]:
    while counts and not counts[-1]:
        counts.pop()
    return counts

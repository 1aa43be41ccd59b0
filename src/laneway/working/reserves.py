"""
Slots that a worker reserves, so that short work starts while long work fills the others.

Most messages are leased in the engine's order, and take the worker's *common* slots. Once these are
all taken, the worker leases separately for its reserved slots:

- One slot in `DIVISOR` is reserved for short messages of the handler patterns that have few slots.
  A pattern that holds at least an equal part of the slots gets none of these. A pattern that was
  not short there gets only a part of what is free; one that was long several times in a row gets
  one at most for a while, and never the last one.
- A tier with a `reserve` has that part of the slots for its messages.

A worker whose handlers have only one pattern, and one with fewer than `MIN_SLOTS` slots, reserves
none automatically.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from laneway.message import Batch
from laneway.policy import level_of, matches
from laneway.tiers import MAX_RESERVE, Tier
from laneway.units import SECOND
from laneway.working.handler import Handler
from laneway.working.worker_delivery import WorkerDelivery

DIVISOR = 25
"""How many slots there are for one that is reserved for other patterns."""

MIN_SLOTS = 10
"""With fewer slots, a reserved one would cost too much of the throughput."""

OTHERS = ""
"""Instead of a tier's name: the slots for patterns that have few slots."""

SLOW_SECONDS = 0.05
"""
If the common slots are all taken again within this time, their handlers are quick: the usual leases
soon bring every topic's messages, and nothing is leased for reserved slots.
"""

WINDOW_SECONDS = 0.05
"""How long ends are counted for one measurement of that time."""

SEARCH_SECONDS = 1.0
"""How often the worker looks for messages for free reserved slots if none is notified."""

PAUSE_FACTOR = 3
"""How many times longer than a search that found nothing the pause after it is."""


LONG_SECONDS = 0.5
"""A message whose handler runs for longer in a reserved slot is long."""

MOST_LONG = 3
"""After this number of consecutive long messages a pattern gets one slot for `AVOID_SECONDS`."""

AVOID_SECONDS = 10.0
"""How long that is; then more of its messages are tried again."""


class Search:
    """When to lease for the reserved slots of an owner."""

    def __init__(self) -> None:
        self._is_wanted = True
        """Whether something may have come since the last search began."""
        self._look_at = 0.0
        """When to search in any case (monotonic seconds)."""
        self._not_before = 0.0
        self._spent = 0.0
        """How many seconds the calls of a search took that is not at its end."""

    def arrived(self) -> None:
        """A message may have come, or may be delivered now."""
        self._is_wanted = True

    def at(self) -> float:
        """When the next search is due (monotonic seconds)."""
        return max(self._not_before, 0.0 if self._is_wanted else self._look_at)

    def begin(self) -> None:
        """Begin a search; what arrives from now on needs another one."""
        self._is_wanted = False

    def ended(self, began: float, batch: Batch, *, is_full: bool) -> None:
        """
        A call of a search has ended. `is_full`: it found as many messages as were free slots. A
        search that comes to the end of all lanes without a message pauses.
        """
        now = time.monotonic()
        self._spent += now - began
        self._is_wanted |= is_full or batch.goes_on
        wait = SEARCH_SECONDS
        if batch.next_wake_us is not None:
            wait = min(wait, (batch.next_wake_us - batch.now_us) / SECOND)
        self._look_at = began + wait
        if batch.leases:
            self._spent = self._not_before = 0.0
        elif not batch.goes_on:
            self._not_before, self._spent = now + self._spent * PAUSE_FACTOR, 0.0


class Reserves:
    """
    The reserved slots of a worker with `slots` slots, and which messages have them.

    `patterns`: of the handlers. The engine thread adds messages and forgets them; the event loop
    reads.
    """

    def __init__(self, slots: int, patterns: Collection[str]) -> None:
        self._slots = slots
        self._patterns = patterns
        others = -(-slots // DIVISOR) if slots >= MIN_SLOTS and len(patterns) > 1 else 0
        self.sizes = {OTHERS: others} if others else {}
        """Reserved slots by tier; `OTHERS`: those for patterns that have few slots."""
        self._searches = {owner: Search() for owner in self.sizes}
        self.count = others
        """How many slots are reserved."""
        self._tiers: Mapping[str, Tier] | None = None
        self._by_fence: dict[int, tuple[WorkerDelivery, str]] = {}
        """The messages that have reserved slots: and whose slots these are."""
        self._ran: dict[int, float] = {}
        """By fence: how many seconds the handlers ran of those that have just ended."""
        self._long: dict[str, tuple[int, float]] = {}
        """By pattern: how many of its last messages here were long, in a row; when one ended."""
        self._is_limited = False
        """Whether the last search left out a pattern because of the messages that it has here."""
        self.is_slow = True
        """Whether the common slots are taken by handlers that are not quick."""
        self._measured_at = time.monotonic()
        self._ended = self._forgotten = 0

    @property
    def common(self) -> int:
        """How many slots any message may take."""
        return self._slots - self.count

    def follow(self, tiers: Mapping[str, Tier]) -> None:
        """Reserve what the tiers in force say; no more of the slots than `MAX_RESERVE`."""
        if tiers is self._tiers:
            return
        self._tiers = tiers
        total = sum(tier.reserve for tier in tiers.values())
        part = min(1.0, MAX_RESERVE / total) if total else 0.0
        sizes = {
            name: math.ceil(round(tier.reserve * part * self._slots, 6))
            for name, tier in tiers.items()
            if tier.reserve
        }
        if others := self.sizes.get(OTHERS):
            sizes[OTHERS] = others
        while sum(sizes.values()) >= self._slots:  # a small worker: one slot stays common
            largest = max(sizes, key=lambda name: sizes[name])
            sizes[largest] -= 1
        self.sizes = sizes
        self._searches = {owner: self._searches.get(owner) or Search() for owner in sizes}
        self.count = sum(sizes.values())

    def add(self, deliveries: Iterable[WorkerDelivery], owner: str) -> None:
        """These were leased for reserved slots of an owner."""
        self._by_fence.update((each.lease.fence, (each, owner)) for each in deliveries)

    def held(self, leases: Mapping[int, object]) -> int:
        """How many of the held leases are for reserved slots. Forgets those that have ended."""
        if self._by_fence:
            for fence in self._by_fence.keys() - leases.keys():
                self._forget(fence)
        elif self._ran:
            self._ran.clear()
        return len(self._by_fence)

    def _forget(self, fence: int) -> None:
        found = self._by_fence.pop(fence, None)
        seconds = self._ran.pop(fence, 0.0)
        self._forgotten += 1
        if found is None:
            return
        pattern = found[0].handler.covering
        count = self._long.get(pattern, (0, 0.0))[0] + 1 if seconds >= LONG_SECONDS else 0
        self._long[pattern] = count, time.monotonic()
        if self._is_limited:
            self.arrived()

    def ending(self) -> int:
        """How many of them have ended, and are still to be settled."""
        return sum(delivery.over for delivery, _ in list(self._by_fence.values()))

    def free(self, owner: str) -> int:
        """How many reserved slots of an owner no message has."""
        taken = sum(
            whose == owner and not delivery.over
            for delivery, whose in list(self._by_fence.values())
        )
        return max(0, self.sizes[owner] - taken)

    def arrived(self) -> None:
        """A message may have come, or may be delivered now. From any thread."""
        for search in list(self._searches.values()):
            search.arrived()

    def search_at(self) -> float:
        """When to lease for free reserved slots (monotonic seconds); infinity: none is free."""
        at = [search.at() for owner, search in self._searches.items() if self.free(owner)]
        measured_next = 0.0 if self.is_slow else self._measured_at + WINDOW_SECONDS
        return max(min(at, default=math.inf), measured_next)

    def due(self) -> list[tuple[str, int, Search]]:
        """For which owners to lease now, how many messages, and the search to end."""
        now = time.monotonic()
        return [
            (owner, -(-free // 2) if owner == OTHERS else free, search)
            for owner, search in self._searches.items()
            if self.is_slow and search.at() <= now and (free := self.free(owner))
        ]

    def unused(self, running: Collection[WorkerDelivery]) -> int:
        """How many reserved slots are to be kept free by messages that have none."""
        if not self.count:
            return 0
        used = 0
        for fence, (delivery, _) in list(self._by_fence.items()):
            unit = delivery.whole or delivery
            used += unit in running
            if unit.over and unit.began and fence not in self._ran:
                self._ran[fence] = time.perf_counter() - unit.began
        return max(0, self.count - used)

    def give(self, delivery: WorkerDelivery) -> None:
        """A message begins in place of a later one of its topic, and has its reserved slot."""
        if delivery.lease.fence in self._by_fence:
            return
        topic = delivery.lease.topic
        for fence, (other, owner) in list(self._by_fence.items()):
            if other.lease.topic == topic and not other.over:
                self._by_fence.pop(fence, None)
                self._by_fence[delivery.lease.fence] = delivery, owner
                return

    def measure(self, ended: int) -> None:
        """Measure how quickly common slots become free. `ended`: messages so far, of all slots."""
        ended -= self._forgotten
        elapsed = (now := time.monotonic()) - self._measured_at
        if elapsed >= WINDOW_SECONDS:
            self.is_slow = (ended - self._ended) * SLOW_SECONDS < self.common * elapsed
            self._measured_at, self._ended = now, ended

    def filters(
        self, owner: str, held: Iterable[WorkerDelivery]
    ) -> tuple[list[str] | None, list[str]]:
        """
        What to lease for the slots of an owner: the patterns to lease by (None: all), and those
        that get none: their handlers are at limits of their own. For `OTHERS`, those too that have
        at least an equal part of the slots, or were long.
        """
        slots: Counter[str] = Counter()
        of_handler: Counter[Handler] = Counter()
        elsewhere: dict[str, set[str]] = {}
        for delivery in held:
            if not delivery.over:
                pattern, topic = delivery.handler.covering, delivery.lease.topic
                slots[pattern] += 1
                of_handler[delivery.handler] += 1
                if not matches(pattern, topic):  # a task that was called in another topic
                    elsewhere.setdefault(pattern, set()).add(level_of(topic))
        full = {
            handler.covering
            for handler, count in of_handler.items()
            if handler.concurrency is not None
            and count >= handler.concurrency * (handler.batch or 1)
        }
        if owner == OTHERS:
            part = max(1, self._slots // (len(slots) + 1))
            full.update(pattern for pattern, count in slots.items() if count >= part)
            full |= self._long_patterns()
        others = [pattern for pattern in self._patterns if pattern not in full]
        levels = {level for pattern in full for level in elsewhere.get(pattern, ())}
        without = sorted(full | levels.difference(others))
        is_inside = any(
            matches(outer, other.rstrip("*").rstrip(".")) for outer in full for other in others
        )
        # The engine finds the topics of few patterns by name, however many those of `without` are.
        are_named = owner == OTHERS and others and "*" not in others and without and not elsewhere
        return (sorted(others) if is_inside or are_named else None), without

    def _long_patterns(self) -> set[str]:
        """
        Patterns that get no more reserved slots now. One that was long gets one at most, and leaves
        the last one. One that was not short the last time gets as many as it leaves.
        """
        now, free = time.monotonic(), self.free(OTHERS)
        have = Counter(
            delivery.handler.covering
            for delivery, owner in list(self._by_fence.values())
            if owner == OTHERS and not delivery.over
        )
        found = set()
        for pattern in have.keys() | self._long.keys():
            count, at = self._long.get(pattern, (1, 0.0))
            was_long = count >= MOST_LONG and now - at < AVOID_SECONDS
            leaves_none = have[pattern] > 0 or free < 2
            if (was_long and leaves_none) or (count and have[pattern] >= max(free, 1)):
                found.add(pattern)
        self._is_limited = bool(found)
        return found

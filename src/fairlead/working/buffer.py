"""What was leased and is not yet begun: by handler, in the order of priority, then of hand-out."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.working.handler import Handler
    from fairlead.working.work import Work

SPARE = 16
"""Messages that wait for a handler which is at its own limit, beyond twice that limit; the others go back."""


class Shelf:
    """One handler's messages, and how many of it run."""

    __slots__ = ("_by_priority", "_priorities", "count", "handler", "most", "running")

    def __init__(self, handler: Handler, concurrency: int) -> None:
        self.handler = handler
        self.most = min(handler.concurrency or concurrency, concurrency)
        self.running = 0
        self.count = 0
        self._by_priority: dict[int, deque[Work]] = {}
        self._priorities: list[int] = []

    def add(self, work: Work) -> None:
        priority = work.lease.priority
        queue = self._by_priority.get(priority)
        if queue is None:
            queue = self._by_priority[priority] = deque()
            insort(self._priorities, priority)
        queue.append(work)
        self.count += 1

    def pop(self) -> Work:
        priority = self._priorities[-1]
        queue = self._by_priority[priority]
        work = queue.popleft()
        if not queue:
            del self._by_priority[priority]
            self._priorities.pop()
        self.count -= 1
        return work

    def rank(self) -> tuple[int, int]:
        """Smaller goes first."""
        priority = self._priorities[-1]
        return -priority, self._by_priority[priority][0].lease.fence

    @property
    def is_open(self) -> bool:
        return self.count > 0 and self.running < self.most

    @property
    def is_over_full(self) -> bool:
        """Whether a handler that has a limit of its own is so far behind that others should be served instead."""
        return self.handler.concurrency is not None and self.count > 2 * self.most * (self.handler.batch or 1) + SPARE


class Buffer:
    """All shelves. The caller counts `running` of a shelf up and down."""

    def __init__(self, concurrency: int, *, keeps_all: bool) -> None:
        self._concurrency = concurrency
        self._keeps_all = keeps_all  # a burst does not wait for what it would put off
        self._shelves: dict[Handler, Shelf] = {}
        self._filled: dict[Handler, Shelf] = {}

    def __len__(self) -> int:
        return sum(shelf.count for shelf in self._filled.values())

    def shelf(self, handler: Handler) -> Shelf:
        found = self._shelves.get(handler)
        if found is None:
            found = self._shelves[handler] = Shelf(handler, self._concurrency)
        return found

    def add(self, work: Work) -> bool:
        """Take it in; False: its handler is too far behind, it should go back."""
        shelf = self._shelves.get(work.handler) or self.shelf(work.handler)
        if shelf.is_over_full and not self._keeps_all:
            return False
        shelf.add(work)
        self._filled[work.handler] = shelf
        return True

    def next_shelf(self) -> Shelf | None:
        """The shelf whose first message is to be begun next; None: nothing can be begun."""
        filled = self._filled
        if len(filled) == 1:
            (shelf,) = filled.values()
            if shelf.count == 0:
                filled.clear()
            return shelf if shelf.is_open else None
        for handler in [handler for handler, shelf in filled.items() if shelf.count == 0]:
            del filled[handler]
        return min((shelf for shelf in filled.values() if shelf.is_open), key=Shelf.rank, default=None)

    def drain(self) -> list[Work]:
        """Take everything out."""
        out = [shelf.pop() for shelf in self._filled.values() for _ in range(shelf.count)]
        self._filled.clear()
        return out

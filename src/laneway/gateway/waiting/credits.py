"""The credit of lease streams: which leases of a stream are not settled yet."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from laneway import units
from laneway.message import Batch

Numbers = tuple[int, int]
"""Handle and fence of a lease."""


class Credit:
    """The leases that one stream has given out, with the time at which each ends."""

    def __init__(self, size: int) -> None:
        self._size = size
        self.ends: dict[Numbers, float] = {}
        self._changed = asyncio.Event()

    def room(self) -> int:
        """How many more messages may be sent. Leases that ran out count no more."""
        if len(self.ends) >= self._size:
            now = time.monotonic()
            self.ends = {numbers: end for numbers, end in self.ends.items() if end > now}
        return self._size - len(self.ends)

    def add(self, batch: Batch) -> None:
        """These leases are sent."""
        now = time.monotonic()
        for lease in batch.leases:
            left = (lease.deadline_us - batch.now_us) / units.SECOND
            self.ends[lease.handle, lease.fence] = now + left

    async def wait(self, seconds: float) -> None:
        """Wait until a lease was settled, or one may have run out."""
        now = time.monotonic()
        seconds = min([seconds, *(max(0.0, end - now) + 0.01 for end in self.ends.values())])
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()  # not before, when a lease may have been settled since `room`

    def note(self) -> None:
        """A lease was settled, or the stream is to end."""
        self._changed.set()


class Credits:
    """The credits of all streams. Its methods belong to the event loop."""

    def __init__(self) -> None:
        self._open: list[Credit] = []

    def open(self, size: int) -> Credit:
        """The credit of a new stream."""
        credit = Credit(size)
        self._open.append(credit)
        return credit

    def close(self, credit: Credit) -> list[Numbers]:
        """The stream has ended. Returns its leases that are not settled."""
        self._open.remove(credit)
        now = time.monotonic()
        return [numbers for numbers, end in credit.ends.items() if end > now]

    def settled(self, leases: Iterable[Numbers]) -> None:
        """These leases have ended."""
        if not self._open:
            return
        for numbers in leases:
            for credit in self._open:
                if credit.ends.pop(numbers, None) is not None:
                    credit.note()
                    break

    def extended(self, leases: Iterable[Numbers], seconds: float) -> None:
        """These leases last at least `seconds` from now."""
        end = time.monotonic() + seconds
        for numbers in leases:
            for credit in self._open:
                if numbers in credit.ends:
                    credit.ends[numbers] = max(end, credit.ends[numbers])
                    break

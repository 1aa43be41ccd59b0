"""
A second process that extends a worker's leases while the worker cannot; see `standby_renewal`.

Until it has to, it imports nothing of Laneway and has no connection: it needs 9 MB.

The shared memory is 64-bit integers: the head, then FIELDS for each lease, in the order in which
they were leased: handle, fence, and the length in microseconds. Some of them have ended.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import sys
import time

TYPE_CHECKING = False  # importing `typing` takes as long as all else here
if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.base import FullEngine

FIELD_BYTES = 8

PASS_NS, COUNT, SHORTEST_US, RENEWED_NS, HEAD_FIELDS = 0, 1, 2, 3, 4
"""
In the head: when the engine thread had its last pass (monotonic nanoseconds), the number of leases
that follow, the shortest of their lengths, and until when this process has extended all of them.
"""

FIELDS = 3

PARTS = 3
"""A lease is extended when 1/PARTS of it is over."""

AT_ONCE = 500
"""How many leases are extended with one call."""

MIN_LOOK_SECONDS = 0.02
RETRY_SECONDS = 0.5
"""How long until the next try while the store is unavailable."""


class Standby:
    """Watches a worker's passes, and extends its leases while none happen."""

    def __init__(
        self,
        memory: memoryview[int],
        parent: int,
        timeout_us: int,
        max_stall: int,
        store: Store,
    ) -> None:
        self._fields = memory
        self._parent = parent
        self._timeout_us = timeout_us
        self._max_stall = max_stall
        self._store = store
        self._extended_at = 0
        """When the leases were extended last (monotonic nanoseconds)."""
        self._ended: set[int] = set()
        """Fences of leases that have ended."""

    def look(self) -> float:
        """Extend the leases if they are due. Returns in how many seconds to look again."""
        fields = self._fields
        part_us = fields[SHORTEST_US] // PARTS
        now, last = time.monotonic_ns(), fields[PASS_NS]
        silent_us = (now - last) // 1000
        is_stalled = (
            fields[COUNT]
            and part_us // 2 < silent_us < self._max_stall * self._timeout_us
            and not is_stopped(self._parent)
        )
        if not is_stalled:
            self._ended.clear()
        elif silent_us < part_us:
            self._store.prepare()
        elif (now - self._extended_at) // 1000 >= part_us:
            self._extend_all()
            # A lease that may have ended meanwhile must not be reported as renewed.
            late_us = (time.monotonic_ns() - max(last, self._extended_at)) // 1000
            if late_us < (PARTS - 1) * part_us and fields[PASS_NS] == last:
                fields[RENEWED_NS] = now + fields[SHORTEST_US] * 1000
            self._extended_at = now
        return max(MIN_LOOK_SECONDS, part_us / 4e6)

    def _extend_all(self) -> None:
        fields = self._fields
        by_length: dict[int, list[tuple[int, int]]] = {}
        for n in range(fields[COUNT]):
            first = HEAD_FIELDS + n * FIELDS
            handle, fence, length_us = fields[first : first + FIELDS]
            if fence not in self._ended:
                by_length.setdefault(length_us, []).append((handle, fence))
        for length_us, leases in by_length.items():
            for start in range(0, len(leases), AT_ONCE):
                some = leases[start : start + AT_ONCE]
                answers = self._store.extend(some, length_us)
                self._ended.update(
                    fence for (_, fence), is_held in zip(some, answers, strict=True) if not is_held
                )


def is_stopped(process: int) -> bool:
    """Whether a signal or a debugger has stopped a process; where that is unknown, it has not."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"T", b"t")


class Store:
    """The worker's store, opened at the first use."""

    def __init__(self, opening: bytes) -> None:
        self._opening = opening
        self._engine: FullEngine | None = None

    def prepare(self) -> None:
        """Import what the store needs, which takes a while on a busy machine."""
        import laneway.engines  # noqa: F401, PLC0415  # see the head

    def extend(self, leases: Sequence[tuple[int, int]], length_us: int) -> list[bool]:
        """As `Queue.extend`."""
        if self._engine is None:
            from laneway.engines import open_engine  # noqa: PLC0415  # see the head

            self._engine = open_engine(*pickle.loads(self._opening))  # noqa: S301  # the worker's
        return self._engine.extend(leases, length_us)


def main() -> None:
    """Stand by until the worker ends."""
    parent, file = os.getppid(), int(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the worker, which ends this process
    work = sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(8), "big"))
    if not work:
        return
    sys.path[:], timeout_us, max_stall, opening = pickle.loads(work)  # noqa: S301
    memory = memoryview(mmap.mmap(file, 0)).cast("q")
    standby = Standby(memory, parent, timeout_us, max_stall, Store(opening))
    seconds = 0.0
    while not select.select([sys.stdin.fileno()], [], [], seconds)[0] and os.getppid() == parent:
        try:
            seconds = standby.look()
        except Exception as error:
            if "laneway.errors" not in sys.modules or not isinstance(
                error, sys.modules["laneway.errors"].EngineUnavailable
            ):
                raise
            seconds = RETRY_SECONDS
    os._exit(0)


if __name__ == "__main__":
    main()

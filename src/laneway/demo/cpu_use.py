"""The share of the machine's processors that other programs use (Linux only)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


class Used(msgspec.Struct, frozen=True):
    """
    Ticks of all processors since the machine started: total, busy, and busy with our processes.
    """

    total: int
    busy: int
    own: int

    def others_since(self, before: Used) -> float:
        """The share of all processors that other programs used between two samples."""
        total = self.total - before.total
        return (
            max(0.0, min(1.0, (self.busy - before.busy - (self.own - before.own)) / total))
            if total > 0
            else 0.0
        )


def used(processes: Iterable[int]) -> Used | None:
    """A sample of the machine and these processes; None where /proc is missing."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
        return Used(sum(ticks), sum(ticks) - ticks[3] - ticks[4], sum(map(_ticks_of, processes)))
    except (OSError, ValueError, IndexError):
        return None


def _ticks_of(process: int) -> int:
    """The ticks of a process and of its children that run, like those of a PostgreSQL server."""
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        processes = [process, *map(int, file.read().split())]
    return sum(map(_own_ticks_of, processes))


def _own_ticks_of(process: int) -> int:
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])

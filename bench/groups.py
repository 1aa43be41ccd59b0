"""
Topic groups: what a lease of 500 costs at 1,000,000 topics in 100,000 groups, beside the same
topics without groups.

The cost is processor time: of this process with SQLite, of the server with Valkey. Leases of both
stores alternate, so that both meet the same machine. `commands`: SQL statements, or commands that
the server's function ran. After each lease its messages are settled, which is not measured.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack

from bench.common import BODY, ServerStore, Store, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Settlement

AT_ONCE = 500
IN_GROUP = 10


class Side:
    """A store whose topics are in groups, or are not."""

    def __init__(self, place: Store, *, has_groups: bool) -> None:
        self._place = place
        self.engine: FullEngine = open_engine(place.url, Settings(durability="memory"))
        if has_groups:
            self.engine.policy_set("code", "push.*", {"group": "customer.{1}"})
        self.ms: list[float] = []
        self.commands: list[int] = []

    def fill(self, topics: int, each: int) -> None:
        for start in range(0, topics, AT_ONCE):
            names = [f"push.{n // IN_GROUP}.{n}" for n in range(start, start + AT_ONCE)]
            self.engine.put([Draft(name, BODY) for name in names for _ in range(each)])

    def lease(self) -> None:
        before, counted = self._cpu(), self._count()
        leases = self.engine.lease(AT_ONCE).leases
        self.ms.append((self._cpu() - before) * 1e3)
        self.commands.append(self._count() - counted)
        assert len(leases) == AT_ONCE
        self.engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])

    def _cpu(self) -> float:
        if isinstance(self._place, ServerStore):
            return self._place.cpu()
        return time.process_time()

    def _count(self) -> int:
        if isinstance(self._place, ServerStore):
            return sum(
                int(server.info("total_commands_processed")) for server in self._place.servers
            )
        return self._statements

    _statements = 0

    def trace(self) -> None:
        """Count the statements of SQLite."""
        if not isinstance(self._place, ServerStore):
            self.engine._store.connection.set_trace_callback(self._traced)  # type: ignore[attr-defined]

    def _traced(self, _: str) -> None:
        self._statements += 1


def main() -> None:
    chosen = options(__doc__ or "")
    topics = pick(chosen, 1_000_000, 100_000, 5_000)
    calls = pick(chosen, 100, 40, 5)
    rows: list[tuple[object, ...]] = []
    for each, count in ((1, topics), (5, topics // 5)):
        with ExitStack() as stack:
            sides = [
                Side(stack.enter_context(store(chosen)), has_groups=has_groups)
                for has_groups in (False, True)
            ]
            for side in sides:
                side.fill(count, each)
                side.lease()
                side.ms.clear()
                side.commands.clear()
            for n in range(calls):
                for side in sides if n % 2 else reversed(sides):
                    side.lease()
            for side in sides:
                side.trace()
                side.commands.clear()
                side.lease()
            ms = [statistics.median(side.ms) for side in sides]
            commands = [side.commands[-1] for side in sides]
            rows.append((count, count // IN_GROUP, each, *ms, ms[1] / ms[0], *commands))
            for side in sides:
                side.engine.close()
    publish_table(
        "groups",
        chosen,
        (
            "topics",
            "groups",
            "messages each",
            "without, ms",
            "with groups, ms",
            "ratio",
            "commands",
            "with groups, commands",
        ),
        rows,
        f"processor time of a lease of {AT_ONCE}; medians of {calls} alternating calls",
    )


if __name__ == "__main__":
    main()

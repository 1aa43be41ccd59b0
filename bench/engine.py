"""
The engine alone, with all policies in force, beside the raw ceiling in the same run, batch by batch
in turn.
"""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from bench import ceiling, ceiling_postgres, ceiling_valkey
from bench.common import (
    BATCH,
    BODY,
    ServerStore,
    folder,
    options,
    pick,
    publish_table,
    spread,
    store,
)
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Lease, Settlement

POLICIES = {
    "rate": 1_000_000,
    "burst": 1_000_000,
    "concurrency": 1_000_000,
    "weight": 2,
    "tier": "high",
    "retries": 5,
    "lease": 60,
}
"""
Every limit is looked at at every visit, and holds nothing back: what is measured is the cost of
looking.
"""

OPERATIONS = ("put", "lease + settle")


class Contender(Protocol):
    """A store of messages in topics."""

    def put(self, topics: list[int]) -> None: ...
    def lease(self) -> Sequence[Any]: ...
    def ack(self, taken: Any) -> None: ...
    def close(self) -> None: ...


class Ours:
    """Laneway's engine, called as an application calls it."""

    def __init__(self, url: str, durability: str) -> None:
        self._engine = open_engine(url, Settings(durability=durability))  # type: ignore[arg-type]
        self._engine.policy_set("code", "t.*", POLICIES)

    def put(self, topics: list[int]) -> None:
        self._engine.put([Draft(f"t.{topic}", BODY) for topic in topics])

    def lease(self) -> list[Lease]:
        return self._engine.lease(BATCH).leases

    def ack(self, taken: list[Lease]) -> None:
        self._engine.settle([Settlement(lease.handle, lease.fence) for lease in taken])

    def close(self) -> None:
        self._engine.close()


@contextmanager
def contenders(
    chosen: Namespace, durability: str, topics: int
) -> Iterator[tuple[Contender, Contender, Contender]]:
    """
    The engine, the ceiling and a plain queue, each with its own file or server, idle while another
    is measured.
    """
    with ExitStack() as stack:
        if chosen.engine == "sqlite":
            place = stack.enter_context(folder())
            found: tuple[Contender, Contender, Contender] = (
                Ours(f"sqlite:///{place}/ours.db", durability),
                ceiling.Raw(place / "raw.db", durability, topics),
                ceiling.Plain(place / "plain.db", durability),
            )
        elif chosen.engine == "postgres":
            urls = [stack.enter_context(store(chosen, durability)).url for _ in range(3)]
            found = (
                Ours(urls[0], durability),
                ceiling_postgres.Raw(urls[1], durability),
                ceiling_postgres.Plain(urls[2], durability),
            )
        else:
            own, *others = (stack.enter_context(store(chosen, durability)) for _ in range(3))
            raw, plain = (
                other.servers[0].port for other in others if isinstance(other, ServerStore)
            )
            found = (
                Ours(own.url, durability),
                ceiling_valkey.Raw(raw, durability),
                ceiling_valkey.Plain(plain, durability),
            )
        for each in found:
            stack.callback(each.close)
        yield found


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 300_000, 100_000, 2_000)
    rows = []
    for durability in ("memory", "fsync"):
        for topics in pick(chosen, (1, 1_000, 100_000), (1, 1_000, 100_000), (1, 100)):
            runs = [
                measure(chosen, durability, topics, messages, chosen.seed + n)
                for n in range(pick(chosen, 3, 1, 1))
            ]
            for number, operation in enumerate(OPERATIONS):
                ours, raw, plain = (
                    [run[contender][number] for run in runs] for contender in range(3)
                )
                ratio = spread([our / ceil for our, ceil in zip(ours, raw, strict=True)])
                medians = [spread(each)["median"] for each in (ours, raw, plain)]
                rows.append(
                    (durability, topics, operation, *medians[:2], *ratio.values(), medians[2])
                )
    publish_table(
        "engine",
        chosen,
        (
            "durability",
            "topics",
            "operation",
            "laneway/s",
            "raw/s",
            "ratio min",
            "ratio",
            "ratio max",
            "plain queue/s",
        ),
        rows,
        f"{messages:,} messages of 100 bytes, batches of {BATCH}, all policies in force; medians of"
        " runs side by side; fsync: put and settle are synced, leases follow, in all three",
    )


def measure(
    chosen: Namespace, durability: str, topics: int, messages: int, seed: int
) -> list[tuple[float, float]]:
    """For each contender: messages put per second, and messages leased and settled per second."""
    draw = random.Random(seed)
    batches = [[draw.randrange(topics) for _ in range(BATCH)] for _ in range(messages // BATCH)]
    wanted = len(batches) * BATCH
    with contenders(chosen, durability, topics) as each:
        putting, ending, done = ([0.0] * 3 for _ in range(3))
        for batch in batches:
            for n, contender in enumerate(each):
                began = time.perf_counter()
                contender.put(batch)
                putting[n] += time.perf_counter() - began
        while min(done) < wanted:
            for n, contender in enumerate(each):
                if done[n] < wanted:
                    began = time.perf_counter()
                    taken = contender.lease()
                    contender.ack(taken)
                    ending[n] += time.perf_counter() - began
                    done[n] += len(taken)
    return [(wanted / put, wanted / end) for put, end in zip(putting, ending, strict=True)]


if __name__ == "__main__":
    main()

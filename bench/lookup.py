"""
Looking up 100,000 ids, and reading at 1,000,000 topics: a page of topics in each order, `explain`
and `stats`.

The ids are of one topic: half are the publisher's own, half are generated; of each, some are
waiting, leased, finished, dead or unknown. The first call of each read is not counted.
"""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from collections.abc import Callable, Iterator

from bench.common import (
    BODY,
    ServerStore,
    Store,
    options,
    pick,
    publish_table,
    seconds,
    spread,
    store,
)
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared.listing import MEASURES
from laneway.message import Draft, Settlement

REPEATS = 50
BATCH, LEASE = 1_000, 100
TOPIC = "crawl"


def main() -> None:
    chosen = options(__doc__ or "")
    lookups(chosen)
    reads(chosen)


def reset_longest(place: Store) -> None:
    """Begin to measure the longest call of the servers."""
    if isinstance(place, ServerStore):
        for server in place.servers:
            server.run("SLOWLOG", "RESET")


def longest(place: Store) -> float:
    """The longest call since then, in milliseconds; 0: none over 2 ms, or no server."""
    if not isinstance(place, ServerStore):
        return 0.0
    entries = [entry for server in place.servers for entry in server.run("SLOWLOG", "GET", 1000)]
    return max((int(entry[2]) / 1e3 for entry in entries), default=0.0)


# Lookup


def lookups(chosen: argparse.Namespace) -> None:
    count, repeats = pick(chosen, 100_000, 20_000, 1_000), pick(chosen, 5, 3, 1)
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        engine.policy_set("code", TOPIC, {"dedupe": "forever"})
        own = [f"https://example.com/{n}" for n in range(count // 2)]
        generated = fill(engine, own)
        ids = [*own, *generated]
        reset_longest(place)
        took = [seconds(lambda: engine.lookup(TOPIC, ids)) for _ in range(repeats)]
        states = Counter(engine.lookup(TOPIC, ids).values())
        rows = [
            (which, len(some), spread([seconds(lambda: engine.lookup(TOPIC, some))])["median"])  # noqa: B023  # called at once
            for which, some in (("own ids", own), ("generated ids", generated))
        ]
        found = spread(took)
        rows.insert(0, ("all", len(ids), found["median"]))
        assert len(states) == 5, states
        engine.close()
        publish_table(
            "lookup",
            chosen,
            ("ids", "count", "seconds", "longest call, ms"),
            [(*row, longest(place)) for row in rows],
            f"median of {repeats}; "
            + ", ".join(f"{number:,} {state}" for state, number in sorted(states.items())),
            repeats=found,
        )


def fill(engine: FullEngine, own: list[str]) -> list[str]:
    """
    Publish messages with these ids, but for the last tenth, and as many without; and end some of
    them. Returns the generated ids.
    """
    generated: list[str] = []
    for first in range(0, len(own), BATCH):
        some = own[first : first + BATCH]
        engine.put(
            [Draft(TOPIC, BODY, id=message_id) for message_id in some[: len(some) * 9 // 10]]
        )
        generated += [receipt.id for receipt in engine.put([Draft(TOPIC, BODY) for _ in some])]
    for _ in range(len(own) // LEASE):
        leases = engine.lease(LEASE).leases
        settlements = [
            Settlement(lease.handle, lease.fence, action)  # type: ignore[arg-type]
            for lease, action in zip(leases, itertools.cycle(("ack", "ack", "dead")))
        ]
        engine.settle(settlements)
    engine.lease(LEASE)
    return generated


# Reads


def reads(chosen: argparse.Namespace) -> None:
    topics = pick(chosen, 1_000_000, 100_000, 2_000)
    repeats = pick(chosen, REPEATS, REPEATS, 3)
    with store(chosen) as place:
        engine = open_engine(place.url, Settings(durability="memory"))
        ids = [
            receipt.id
            for first in range(0, topics, BATCH)
            for receipt in engine.put([Draft(f"t.{n}", BODY) for n in range(first, first + BATCH)])
        ]
        reset_longest(place)
        rows = []
        repeated = []
        for name, read in calls(engine, ids):
            found = spread([seconds(read) * 1e3 for _ in range(repeats + 1)][1:])
            rows.append((name, found["median"], found["max"]))
            repeated.append({"read": name, "ms": found})
        engine.close()
        publish_table(
            "reads",
            chosen,
            ("read", "median ms", "worst ms"),
            rows,
            f"{topics:,} topics with a message each; {repeats} calls of each;"
            f" longest call of the server: {longest(place):.1f} ms",
            repeats=repeated,
        )


def calls(engine: FullEngine, ids: list[str]) -> Iterator[tuple[str, Callable[[], object]]]:
    """The reads of the CLI and the dashboard."""
    some = itertools.cycle(ids[:: max(1, len(ids) // 100)])
    middle = f"t.{len(ids) // 2}"
    for order in ("name", *MEASURES):
        yield (
            f"topics, a page of 50 by {order}",
            lambda order=order: engine.topic_list(order=order, limit=50),  # type: ignore[misc]
        )
    yield (
        "topics, a page of 50 by name, from the middle",
        lambda: engine.topic_list(order="name", limit=50, after=middle),
    )
    yield "explain", lambda: engine.explain(next(some))
    yield "stats of a topic", lambda: engine.topic_stats(middle)
    yield "overview", engine.overview


if __name__ == "__main__":
    main()

"""
The top lists at 1,000,000 topics beside those at 1,000: `topics(order=…, limit=20)`, each order,
with and without a pattern.

The large number is measured twice: with one message in each topic, and with all topics in the same
size class of every order, the worst case of the indexes. Each list is read 50 times; the first time
is not counted.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

from bench.common import BODY, ServerStore, Store, options, pick, publish_table, spread, store
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.shared.listing import MEASURES
from laneway.message import Draft

FEW = 1_000
REPEATS = 50
PATTERNS = ("*", "t.*", "other.*")
CLASS = 50
"""Any size class: all topics are in it."""


def main() -> None:
    chosen = options(__doc__ or "")
    many = pick(chosen, 1_000_000, 100_000, 2_000)
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for topics in (FEW, many):
        with store(chosen) as place:
            engine = open_engine(place.url, Settings(durability="memory"))
            for first in range(0, topics, 1000):
                engine.put([Draft(f"t.{n}", BODY) for n in range(first, min(topics, first + 1000))])
            note(found, "few" if topics == FEW else "many", engine)
            if topics == many:
                put_into_one_class(place)
                note(found, "many, one size class", engine)
            engine.close()
    rows = list(rows_of(found))
    publish_table(
        "top",
        chosen,
        ("order", "pattern", "topics", "median ms", "worst ms", "ratio"),
        rows,
        f"few: {FEW:,} topics, many: {many:,}; the top 20; {REPEATS} calls each; ratio: to the same"
        " list of few",
        repeats=[
            {"order": order, "pattern": pattern, **each} for (order, pattern), each in found.items()
        ],
    )


def note(
    found: dict[tuple[str, str], dict[str, dict[str, float]]], which: str, engine: FullEngine
) -> None:
    for order in MEASURES:
        for pattern in PATTERNS:
            found.setdefault((order, pattern), {})[which] = measure(engine, order, pattern)


def measure(engine: FullEngine, order: str, pattern: str) -> dict[str, float]:
    """Milliseconds of one list."""
    took = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        engine.topic_list(order=order, pattern=pattern, limit=20)
        took.append((time.perf_counter() - began) * 1e3)
    return spread(took[1:])


def put_into_one_class(place: Store) -> None:
    """Put all topics into one size class of every order."""
    if not isinstance(place, ServerStore):
        with sqlite3.connect(place.url.removeprefix("sqlite:///")) as raw:
            raw.execute("UPDATE lane SET big = ?1, old = ?1, busy = ?1, slow = ?1", (CLASS,))
        raw.close()
        return
    for server in place.servers:
        for key in server.run("KEYS", "laneway:*:names"):
            names = server.run("ZRANGE", key, 0, -1)
            for index in ("big", "old", "busy", "slow"):
                for first in range(0, len(names), 1000):
                    members = [
                        word for name in names[first : first + 1000] for word in (CLASS, name)
                    ]
                    server.run("ZADD", f"{key[:-5]}top:{index}", *members)


def rows_of(found: dict[tuple[str, str], dict[str, dict[str, float]]]) -> Iterator[tuple[Any, ...]]:
    for (order, pattern), each in found.items():
        for which, took in each.items():
            yield (
                order,
                pattern,
                which,
                took["median"],
                took["max"],
                took["median"] / each["few"]["median"],
            )


if __name__ == "__main__":
    main()

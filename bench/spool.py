"""Publishing without waiting: into a buffer and into a spool, beside `publish_many`."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from bench.common import folder, options, pick, publish_table, spread, store
from laneway import Buffer, Laneway, Message, Spool

BODY = "x" * 98
AWAY = "valkey://127.0.0.1:1"

Work = Callable[[Laneway, int], None]


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 100_000, 50_000, 500)
    kinds: tuple[tuple[str, Work], ...] = (
        ("publish_many", many),
        ("buffered publish, 1 thread", one_by_one),
        ("spooled publish, 1 thread", one_by_one),
        ("spooled publish, 1 thread, the store is away", one_by_one),
        ("spooled publish_many, the store is away", many),
    )
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in kinds}
    for _ in range(pick(chosen, 3, 2, 1)):  # in turns, so that all meet the same machine
        for name, work in kinds:
            figures[name].append(measure(chosen, name, work, number))
    base = spread([first for first, _ in figures["publish_many"]])["median"]
    rows = []
    for name, _ in kinds:
        found = spread([first for first, _ in figures[name]])
        stored = spread([second for _, second in figures[name]])["median"]
        rows.append(
            (
                name,
                found["min"],
                found["median"],
                found["max"],
                round(found["median"] / base, 2),
                stored,
            )
        )
    publish_table(
        "spool",
        chosen,
        ("from", "min/s", "median/s", "max/s", "times publish_many", "until stored/s"),
        rows,
        f"{number:,} messages of 100 bytes to 100 topics; SQLite and spool synced every second",
    )


def measure(chosen: Namespace, name: str, work: Work, number: int) -> tuple[float, float]:
    """Messages per second until the last call returned, and until the store had all (0: away)."""
    with store(chosen, "fsync") as place, folder() as path:
        is_away = "away" in name
        app = opened(name, AWAY if is_away else place.url, path, number)
        app.publish("warm.up", 1)
        began = time.perf_counter()
        work(app, number)
        returned = time.perf_counter() - began
        if is_away:
            assert app.spool_status().waiting == number + 1
            app.close()
            return number / returned, 0.0
        assert app.flush(600) == 0
        stored = time.perf_counter() - began
        assert app.engine.overview().waiting == number + 1
        app.close()
    return number / returned, number / stored


def opened(name: str, url: str, path: Path, number: int) -> Laneway:
    if name.startswith("buffered"):
        return Laneway(url, buffer=Buffer(max_messages=number + 1, max_bytes="1GB"))
    if name.startswith("spooled"):
        return Laneway(url, spool=Spool(path / "spool.db", exit_timeout=0))
    return Laneway(url)


def one_by_one(app: Laneway, number: int) -> None:
    for n in range(number):
        app.publish(f"t.{n % 100}", BODY)


def many(app: Laneway, number: int) -> None:
    app.publish_many((Message(f"t.{n % 100}", BODY) for n in range(number)), progress=False)


if __name__ == "__main__":
    main()

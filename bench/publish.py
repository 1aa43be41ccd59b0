"""Publishing: one at a time, from many threads or coroutines (group commit), and in bulk."""

from __future__ import annotations

import asyncio
import threading
import time
from argparse import Namespace

from bench.common import options, pick, publish_table, spread, store
from laneway import Laneway, Message

BODY = "x" * 98


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 50_000, 20_000, 500)
    rows = []
    for durability in ("memory", "fsync"):
        for name, work in (
            ("1 thread, one at a time", one),
            ("8 threads", threads),
            ("100 coroutines", coroutines),
            ("publish_many", bulk),
        ):
            figures = [
                measure(chosen, work, durability, number) for _ in range(pick(chosen, 3, 1, 1))
            ]
            found = spread(figures)
            rows.append((durability, name, found["min"], found["median"], found["max"]))
    publish_table(
        "publish",
        chosen,
        ("durability", "from", "min/s", "median/s", "max/s"),
        rows,
        f"{number:,} messages of 100 bytes to 100 topics",
    )


def measure(chosen: Namespace, work: object, durability: str, number: int) -> float:
    with store(chosen, durability) as place:
        app = Laneway(place.url, durability=durability)  # type: ignore[arg-type]
        app.publish("warm.up", 1)
        began = time.perf_counter()
        work(app, number)  # type: ignore[operator]
        took = time.perf_counter() - began
        assert app.engine.overview().waiting == number + 1
        app.close()
    return number / took


def one(app: Laneway, number: int) -> None:
    for n in range(number):
        app.publish(f"t.{n % 100}", BODY)


def threads(app: Laneway, number: int) -> None:
    def work() -> None:
        one(app, number // 8)

    started = [threading.Thread(target=work) for _ in range(8)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    one(app, number - number // 8 * 8)


def coroutines(app: Laneway, number: int) -> None:
    async def work(count: int) -> None:
        for n in range(count):
            await app.apublish(f"t.{n % 100}", BODY)

    async def all_of_them() -> None:
        await asyncio.gather(*(work(number // 100) for _ in range(100)))

    asyncio.run(all_of_them())


def bulk(app: Laneway, number: int) -> None:
    app.publish_many((Message(f"t.{n % 100}", BODY) for n in range(number)), progress=False)


if __name__ == "__main__":
    main()

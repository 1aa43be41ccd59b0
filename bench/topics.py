"""The same backlog spread over 1 to 1,000,000 topics, drained by one worker, end to end."""

from __future__ import annotations

import time

from bench.common import options, pick, publish_table, store
from bench.endtoend import drain
from laneway import Laneway, Message


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 1_000_000, 100_000, 2_000)
    rows = []
    first = 0.0
    topics = 1
    while topics <= messages:
        with store(chosen) as place:
            url = place.url
            app = Laneway(url, durability="memory")
            began = time.perf_counter()
            app.publish_many(
                (Message(f"t.{n % topics}", "x" * 98) for n in range(messages)), progress=False
            )
            published = messages / (time.perf_counter() - began)
            size = app.engine.overview()
            assert size.waiting == messages
            app.close()
            held = place.size()
            drained = drain(url, "memory", "async", 1, messages)
        first = first or drained
        rows.append((f"{topics:,}", published, drained, first / drained, held / messages))
        topics *= pick(chosen, 10, 10, 20)
    publish_table(
        "topics",
        chosen,
        ("topics", "publish_many/s", "drain/s", "times slower than 1", "bytes/message"),
        rows,
        f"{messages:,} messages of 100 bytes, one worker, async handlers that do nothing,"
        " durability memory",
    )


if __name__ == "__main__":
    main()

"""
What many messages of one customer that are due, or expire, at one time cost another customer.

The customer's topics are one group. Another topic has a message due every 50 ms; its lateness is
the time from then to the start of its handler. The last column is how long after that time the
worker has handled the customer's last message.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from typing import Any

from bench.common import go, line, options, pick, process, publish_table, store
from laneway import Laneway, Message

PAUSE = 0.05
"""Seconds between two messages of the other topic."""

PUBLISHED = 4_000
"""Messages a second that are published at least, before they are due."""

WORKER = """
import sys, time
from laneway import Laneway, Message
app = Laneway(sys.argv[1])
left = int(sys.argv[2])

@app.handler("other")
async def other(message: Message) -> None:
    print(time.time() - message.body, flush=True)

@app.handler("many.*")
async def many(message: Message) -> None:
    global left
    left -= 1
    if left == 0:
        print("last", time.time(), flush=True)

print("ready", flush=True)
sys.stdin.readline()
app.run_worker(concurrency=100)
"""

FLOODS = ("none", "due, one topic", "due, a topic each", "expire, a topic each")


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 1_000_000, 200_000, 1_000)
    seconds = pick(chosen, 20.0, 10.0, 0.5)
    publish_table(
        "floods",
        chosen,
        ("flood", "p50 ms", "p95 ms", "longest ms", "handled after s"),
        [(flood, *measured(chosen, flood, number, seconds)) for flood in FLOODS],
        f"{number:,} messages; another topic's during {seconds:g} s",
    )


def measured(
    chosen: Namespace, flood: str, number: int, seconds: float
) -> tuple[float, float, float, float | None]:
    """Lateness of the other topic's messages, in milliseconds; seconds until all are handled."""
    due = time.time() + 3 + (number / PUBLISHED if flood != "none" else 0)
    with store(chosen) as place, Laneway(place.url) as app:
        app.policy("many.*", group="customer", paused=flood.startswith("expire"))
        if flood != "none":
            publish(app, flood, number, due)
        times = [due + n * PAUSE for n in range(round(seconds / PAUSE))]
        app.publish_many((Message("other", at, at=at) for at in times), progress=False)
        if time.time() > due - 1:
            raise RuntimeError(f"publishing took too long: fewer than {PUBLISHED} messages/s")
        with process(WORKER, place.url, str(number)) as worker:
            line(worker)
            time.sleep(due - 1 - time.time())
            go(worker)
            late, handled = list[float](), list[float]()

            def read() -> None:
                assert worker.stdout is not None
                for text in worker.stdout:
                    is_last, _, at = text.rpartition(" ")
                    (handled if is_last else late).append(float(at))

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            while len(late) < len(times) or (flood.startswith("due") and not handled):
                time.sleep(0.05)
            worker.terminate()
            reader.join()
    late.sort()
    return (
        late[len(late) // 2] * 1e3,
        late[len(late) * 95 // 100] * 1e3,
        late[-1] * 1e3,
        handled[0] - due if handled else None,
    )


def publish(app: Laneway, flood: str, number: int, due: float) -> None:
    """What is due, or expires, at this time."""

    def message(n: int) -> Message:
        options: dict[str, Any] = (
            {"at": due} if flood.startswith("due") else {"ttl": due - time.time()}
        )
        return Message("many.0" if flood.endswith("one topic") else f"many.{n}", 0, **options)

    app.publish_many(map(message, range(number)), progress=False)


if __name__ == "__main__":
    main()

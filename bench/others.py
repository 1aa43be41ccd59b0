"""
What topics that only other workers serve cost a worker whose handlers cover few topics.

Many topics wait with one message each. A worker that has handlers for three other topics drains
5,000 messages of these. Then a worker serves both: handlers of one second hold all its common
slots, and a webhook comes 20 times a second, for a reserved slot; its wait is the time from
`publish` to the start of its handler. The last column is the processor time of that worker, as a
part of one core.
"""

from __future__ import annotations

import subprocess
import threading
import time
from argparse import Namespace

from bench.common import go, line, options, pick, process, publish_table, store
from laneway import Laneway, Message

OWN = 5_000
TOPICS = 3
SLOTS = 50
PAUSE = 0.05
"""Seconds between two webhooks."""

DRAIN = """
import sys, time
from laneway import Laneway, Message
app = Laneway(sys.argv[1])
count, done, took = int(sys.argv[2]), 0, []

@app.handler("hook.*")
async def send(message: Message) -> None:
    global done
    done += 1
    if done == count:
        took[:] = time.perf_counter() - began, time.process_time() - cpu

app.engine
print("ready", flush=True)
sys.stdin.readline()
began, cpu = time.perf_counter(), time.process_time()
app.run_worker(concurrency=100, max_messages=count)
print(*took, flush=True)
"""

BOTH = """
import asyncio, sys, time
from laneway import Laneway, Message
app = Laneway(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()

@app.handler("hook.*")
async def send(message: Message) -> None:
    print(time.time() - message.body, time.process_time(), flush=True)

@app.handler("import.*")
async def load(message: Message) -> None:
    await asyncio.sleep(1.0)

app.run_worker(concurrency=int(sys.argv[2]))
"""


def main() -> None:
    chosen = options(__doc__ or "")
    numbers = pick(chosen, (0, 20_000, 200_000, 1_000_000), (0, 20_000, 200_000), (0, 2_000))
    seconds = pick(chosen, 20.0, 10.0, 0.5)
    rows = [(number, *measured(chosen, number, seconds)) for number in numbers]
    publish_table(
        "others",
        chosen,
        (
            "other topics",
            "drained/s",
            "worker CPU us",
            "p50 ms",
            "p95 ms",
            "longest ms",
            "of a core",
        ),
        rows,
        f"{OWN:,} messages in {TOPICS} topics; then webhooks for {seconds:g} s, {SLOTS} slots",
    )


def measured(chosen: Namespace, number: int, seconds: float) -> tuple[object, ...]:
    """Messages a second, processor time of each in microseconds; waits; parts of a core."""
    with store(chosen) as place, Laneway(place.url) as app:
        app.publish_many((Message(f"import.{n}", 0) for n in range(number)), progress=False)
        app.publish_many((Message(f"hook.{n % TOPICS}", 0) for n in range(OWN)), progress=False)
        with process(DRAIN, place.url, str(OWN)) as worker:
            line(worker)
            go(worker)
            took, cpu = map(float, line(worker).split())
        with process(BOTH, place.url, str(SLOTS)) as worker:
            line(worker)
            go(worker)
            waits, core = waits_of(app, worker, seconds)
    waits.sort()
    return (
        OWN / took,
        cpu / OWN * 1e6,
        waits[len(waits) // 2] * 1e3,
        waits[len(waits) * 95 // 100] * 1e3,
        waits[-1] * 1e3,
        core,
    )


def waits_of(
    app: Laneway, worker: subprocess.Popen[str], seconds: float
) -> tuple[list[float], float]:
    """The waits of webhooks in seconds, and the worker's processor time a second."""
    answers: list[tuple[float, float]] = []

    def read() -> None:
        assert worker.stdout is not None
        for text in worker.stdout:
            wait, cpu = map(float, text.split())
            answers.append((wait, cpu))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    time.sleep(1.0)  # all common slots are taken
    sent, began = 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        app.publish(f"hook.{sent % TOPICS}", time.time())
        sent += 1
        time.sleep(PAUSE)
    while len(answers) < sent:
        time.sleep(0.05)
    worker.terminate()
    reader.join()
    took = time.perf_counter() - began
    return [wait for wait, _ in answers], (answers[-1][1] - answers[0][1]) / took


if __name__ == "__main__":
    main()

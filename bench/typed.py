"""
What a typed task costs a worker beside a plain message: decoding and checking its arguments, the
request, signals, its outcome.

One worker process drains messages or tasks that do nothing: with two typed arguments, with a
dataclass, and with results; on one topic and over 1,000, on SQLite (fsync) and on Valkey (memory).
Beside them bee-queue (Node, 100 concurrently) drains jobs on one queue of a Valkey, where node and
bee-queue are installed. All kinds run alternately, in several rounds; the figures are the least CPU
time and the highest rate of the rounds.
"""

from __future__ import annotations

import subprocess
from argparse import Namespace
from collections import defaultdict

from bench.common import go, line, options, pick, process, publish_table, store
from bench.peers import PEERS, Place, version_of

BEE_SECONDS = 30.0

PROGRAM = """
import dataclasses, sys, time
from laneway import Laneway, Message
url, durability, kind, topics, count = *sys.argv[1:4], *map(int, sys.argv[4:6])
app = Laneway(url, durability=durability)

@dataclasses.dataclass
class Order:
    bucket: int
    customer: str
    prices: list[float]

if kind == "messages":
    @app.handler("*")
    async def work(message): pass
elif kind == "tasks":
    @app.task(topic="t.{bucket}", ignore_result=True)
    async def work(bucket: int, name: str) -> None: pass
elif kind == "tasks, plain functions":
    @app.task(topic="t.{bucket}", ignore_result=True)
    def work(bucket: int, name: str) -> None: pass
elif kind == "tasks, dataclass":
    @app.task(topic="t.{bucket}", ignore_result=True)
    async def work(bucket: int, order: Order) -> None: pass
else:
    @app.task(topic="t.{bucket}")
    async def work(bucket: int, name: str) -> int: return bucket
"""

PUBLISH = """
if kind == "messages":
    app.publish_many(
        (Message(f"t.{n % topics}", {"args": [n % topics, "acme"]}) for n in range(count)),
        progress=False)
elif kind == "tasks, dataclass":
    order = Order(7, "acme", [1.5, 2.25])
    work.starmap((n % topics, order) for n in range(count))
else:
    work.starmap((n % topics, "acme") for n in range(count))
app.close()
print("published", flush=True)
"""

DRAIN = """
app.engine
print("ready", flush=True)
sys.stdin.readline()
began, cpu = time.time(), time.process_time()
summary = app.run_worker(concurrency=100, burst=True)
print(time.time() - began, time.process_time() - cpu, summary.acked, flush=True)
"""

KINDS = ("messages", "tasks", "tasks, dataclass", "tasks, plain functions", "tasks with results")


def main() -> None:
    chosen = options(__doc__ or "")
    count = pick(chosen, 60_000, 20_000, 200)
    rounds = pick(chosen, 3, 2, 1)
    cases = [
        (engine, durability, topics)
        for engine, durability in (("sqlite", "fsync"), ("valkey", "memory"))
        for topics in pick(chosen, (1, 1_000), (1, 1_000), (1,))
    ]
    measured: dict[tuple[str, int, str], list[tuple[float, float]]] = defaultdict(list)
    bee: list[float] = []
    problem = ""
    for _ in range(rounds):
        try:
            bee.append(bee_queue(count))
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            problem = str(error)[:80]
        for engine, durability, topics in cases:
            for kind in KINDS:
                measured[engine, topics, kind].append(
                    drained(engine, durability, kind, topics, count)
                )
    rows: list[tuple[object, ...]] = []
    for (engine, topics, kind), runs in measured.items():
        cpu, rate = min(cpu for cpu, _ in runs), max(rate for _, rate in runs)
        plain_runs = measured[engine, topics, "messages"]
        rows.append(
            (
                {"sqlite": "SQLite, fsync", "valkey": "Valkey, memory"}[engine],
                topics,
                kind,
                cpu,
                cpu / min(cpu for cpu, _ in plain_runs),
                rate,
                rate / max(rate for _, rate in plain_runs),
                rate / max(bee) if bee else "-",
            )
        )
    beside = ("bee-queue", 1, problem or "jobs", "-", "-", max(bee, default="-"), "-", 1.0)
    publish_table(
        "typed",
        chosen,
        (
            "",
            "topics",
            "kind",
            "worker CPU us",
            "CPU : messages",
            "drained/s",
            "rate : messages",
            "rate : bee-queue",
        ),
        [*rows, beside],
        f"{count:,} of each that do nothing; the best of {rounds} alternating rounds",
    )


def drained(
    engine: str, durability: str, kind: str, topics: int, count: int
) -> tuple[float, float]:
    """A worker's CPU time per message in microseconds, and how many it drained a second."""
    with store(Namespace(engine=engine), durability) as place:
        arguments = (place.url, durability, kind, str(topics), str(count))
        with process(PROGRAM + PUBLISH, *arguments) as client:
            line(client)
        with process(PROGRAM + DRAIN, *arguments) as worker:
            line(worker)
            go(worker)
            seconds, cpu, acked = map(float, line(worker).split())
    if acked != count:
        raise RuntimeError(f"{kind}: {acked:,.0f} of {count:,} were done")
    return cpu / count * 1e6, count / seconds


def bee_queue(count: int) -> float:
    """Jobs a second. Raises RuntimeError where it is not installed, OSError without node."""
    peer = PEERS["bee-queue"]
    version_of(peer)
    with Place(peer, count, 1, BEE_SECONDS) as place:
        place.publish("bulk")
        return float(str(place.drain()).lstrip("~").replace(",", ""))


if __name__ == "__main__":
    main()

"""
Topics that keep meeting the same worker: two worker processes on a namespace of several shards,
with and without shards of their own.

- `backlog`: all messages wait when the workers start. `paced`: they are published while the workers
  run, a third of what they can do.
- `cpu us`: processor time of the workers and the server for a message, in microseconds.
- `changes`: how often a topic's message ran in another worker than the one before it.
- `reuse`: how often a handler found its topic's connection among the 600 that its worker used last.

The topics of messages are drawn at random (a fixed seed). The runs alternate, and the figures are
medians.
"""

from __future__ import annotations

import json
import random
import time
from argparse import Namespace
from contextlib import ExitStack
from itertools import groupby, pairwise
from statistics import median

from bench.common import (
    Store,
    folder,
    go,
    line,
    options,
    pick,
    process,
    publish_table,
    store,
)
from laneway import Laneway, Message

TOPICS, SHARDS, WORKERS = 1_000, 16, 2
SEED = 1
PACE = 3_000
"""Messages a second where they are paced."""

WORKER = """
import json, sys, threading, time
from collections import OrderedDict
from laneway import Laneway, Message
from laneway.working.heartbeat import Locality

url, durability, is_local, count = *sys.argv[1:3], sys.argv[3] == "local", int(sys.argv[4])
if not is_local:
    Locality.refresh = lambda self: None
app = Laneway(url, durability=durability)
seen, connections, reused = [], OrderedDict(), 0

@app.handler("*")
async def work(message: Message) -> None:
    global reused
    reused += connections.pop(message.topic, 0)
    connections[message.topic] = 1
    if len(connections) > 600:
        connections.popitem(last=False)
    seen.append((time.perf_counter(), message.topic))

worker = app.worker(concurrency=20, heartbeat_timeout=0.6)
thread = threading.Thread(target=worker.run)
thread.start()
while len(app.workers()) < count:
    time.sleep(0.01)
time.sleep(0.8)
before = time.process_time()
print("ready", flush=True)
sys.stdin.readline()
spent = time.process_time() - before
worker.stop()
thread.join()
print(json.dumps([reused, seen, spent]), flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 60_000, 20_000, 300)
    rounds = pick(chosen, 3, 2, 1)
    measured: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for _ in range(rounds):
        for load in ("backlog", "paced"):
            for kind in ("local", "any"):
                count = messages if load == "backlog" else min(messages, 4 * PACE)
                with ShardedStore(chosen) as place:
                    figures = run(place, kind, load, count)
                measured.setdefault((load, kind), []).append(figures)
    rows = []
    for (load, kind), runs in measured.items():
        rate, spent, changes, reuse = (median(column) for column in zip(*runs, strict=True))
        visited = "own first" if kind == "local" else "any"
        rows.append((load, visited, rate, spent * 1e6, changes, reuse))
    publish_table(
        "locality",
        chosen,
        ("load", "shards visited", "messages/s", "cpu us", "changes", "reuse"),
        rows,
        f"{WORKERS} workers, {TOPICS:,} topics; medians of {rounds} rounds",
    )


class ShardedStore(ExitStack):
    """An empty namespace of several shards."""

    def __init__(self, chosen: Namespace) -> None:
        super().__init__()
        self._chosen = chosen

    def __enter__(self) -> Store:  # type: ignore[override]
        super().__enter__()
        if self._chosen.engine == "sqlite":
            return Store(f"sqlite:///{self.enter_context(folder())}?shards=4")
        place = self.enter_context(store(self._chosen))
        place.url += f"{'&' if '?' in place.url else '?'}shards={SHARDS}"
        return place


def run(place: Store, kind: str, load: str, count: int) -> tuple[float, float, float, float]:
    """
    Messages a second, seconds of processor time for each, the share of changes, and the share of
    connections that were reused.
    """
    draw = random.Random(SEED)
    with Laneway(place.url, durability="memory") as app, ExitStack() as stack:
        messages = [Message(f"t.{draw.randrange(TOPICS)}", n) for n in range(count)]
        app.policy("*", paused=load == "backlog")
        if load == "backlog":
            app.publish_many(messages, progress=False)
        arguments = (place.url, "memory", kind, str(WORKERS))
        workers = [stack.enter_context(process(WORKER, *arguments)) for _ in range(WORKERS)]
        for worker in workers:
            line(worker)
        began, server = time.perf_counter(), place.cpu()
        if load == "backlog":
            app.policy("*", paused=False)
        for start in range(0, count if load == "paced" else 0, PACE // 100):
            app.publish_many(messages[start : start + PACE // 100], progress=False)
            time.sleep(max(0.0, began + (start / PACE) - time.perf_counter()))
        while app.engine.overview().done < count:
            time.sleep(0.01)
        seconds, spent = time.perf_counter() - began, place.cpu() - server
        for worker in workers:
            go(worker)
        answers = [json.loads(line(worker)) for worker in workers]
    ran = sorted(
        (topic, at, number) for number, (_, seen, _) in enumerate(answers) for at, topic in seen
    )
    changes = pairs = 0
    for _, those in groupby(ran, key=lambda each: each[0]):
        numbers = [number for _, _, number in those]
        pairs += len(numbers) - 1
        changes += sum(one != other for one, other in pairwise(numbers))
    reused = sum(reused for reused, _, _ in answers)
    spent += sum(worker for _, _, worker in answers)
    return count / seconds, spent / count, changes / max(pairs, 1), reused / count


if __name__ == "__main__":
    main()

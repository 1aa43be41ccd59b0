"""End to end through the public API: bulk publishing, then one worker (and two) with handlers that do nothing."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from bench.common import folder, options, pick, publish_table, spread
from fairlead import Fairlead, Message

WORKER = """
import sys, time
from fairlead import Fairlead
app = Fairlead(sys.argv[1], durability=sys.argv[3])
if sys.argv[2] == "async":
    @app.handler("*")
    async def nothing(message): pass
else:
    @app.handler("*")
    def nothing(message): pass
app.engine
print("ready", flush=True)
sys.stdin.readline()
began = time.time()
summary = app.run_worker(concurrency=100, burst=True)
print(began, time.time(), summary.acked, flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 300_000, 100_000, 2_000)
    repeats = pick(chosen, 3, 1, 1)
    rows = []
    for durability in ("fsync", "memory"):
        for topics in pick(chosen, (1, 1_000), (1_000,), (10,)):
            published, drained = [], {}
            for kind, workers in (("async", 1), ("thread", 1), ("async", 2)):
                runs = [run(durability, topics, messages, kind, workers) for _ in range(repeats)]
                published += [rate for rate, _ in runs]
                drained[kind, workers] = spread([rate for _, rate in runs])["median"]
            rows.append((durability, topics, spread(published)["median"], drained["async", 1], drained["thread", 1], drained["async", 2],
                         drained["async", 2] / drained["async", 1]))  # fmt: skip
    publish_table(
        "endtoend", chosen, ("durability", "topics", "publish_many/s", "async/s", "threads/s", "2 processes/s", "2 : 1"), rows,
        f"{messages:,} messages of 100 bytes, handlers that do nothing; medians",
    )  # fmt: skip


def run(durability: str, topics: int, messages: int, kind: str, workers: int) -> tuple[float, float]:
    """(published a second, drained a second)."""
    with folder() as place:
        url = f"sqlite:///{place}/q.db"
        app = Fairlead(url, durability=durability)  # type: ignore[arg-type]
        began = time.perf_counter()
        app.publish_many((Message(f"t.{n % topics}", "x" * 98) for n in range(messages)), progress=False)
        published = messages / (time.perf_counter() - began)
        app.close()
        return published, drain(url, durability, kind, workers, messages)


def drain(url: str, durability: str, kind: str, workers: int, messages: int) -> float:
    """Messages a second from the first worker's start to the last one's end."""
    import subprocess

    source = str(Path(__file__).parents[1] / "src")
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, url, kind, durability], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": source},
        )
        for _ in range(workers)
    ]  # fmt: skip
    for worker in started:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in started:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [worker.communicate()[0].split() for worker in started]
    assert sum(int(acked) for _, _, acked in told) == messages, told
    return messages / (max(float(end) for _, end, _ in told) - min(float(began) for began, _, _ in told))


if __name__ == "__main__":
    main()

"""
An idle system: the time from publish to the start of the handler in another process, and the cost
of a waiting worker.

A machine that has been idle for a while answers more slowly, whatever it is asked. So each pause is
a row of its own; for a server, the row also has the time of the cheapest operation there: one
LPUSH, and one BLPOP that waits for it in another process.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import redis

from bench.common import (
    ServerStore,
    line,
    options,
    pick,
    process,
    publish_table,
    spread,
    store,
    usual,
)
from laneway import Laneway

WORKER = """
import sys, time
from laneway import Laneway
app = Laneway(sys.argv[1])
@app.handler("*")
async def note(message):
    print(time.time() - message.body, flush=True)
app.run_worker()
"""

LEAST = """
import sys, time, redis
client = redis.Redis(port=int(sys.argv[1]), protocol=2)
while True:
    published = float(client.blpop("least")[1])
    print(time.time() - published, flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 300, 100, 5)
    idle = pick(chosen, 10.0, 5.0, 0.5)
    rows: list[tuple[object, ...]] = []
    repeats: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        place = stack.enter_context(store(chosen, usual(chosen)))
        app = stack.enter_context(Laneway(place.url))
        worker = stack.enter_context(process(WORKER, place.url))
        least = None
        if isinstance(place, ServerStore) and chosen.engine != "cluster":
            client = stack.enter_context(redis.Redis(port=place.servers[0].port, protocol=2))
            least = stack.enter_context(process(LEAST, str(place.servers[0].port)))
        for pause in (0.003, 0.03):
            waits, leasts = [], []
            for _ in range(number + 3):
                waits.append(waited(lambda: app.publish("a", time.time()), worker, pause))
                if least is not None:
                    leasts.append(waited(lambda: client.lpush("least", time.time()), least, pause))
            rows.append(
                (
                    f"{pause * 1e3:g} ms",
                    p50(waits),
                    sorted(waits[3:])[int(number * 0.99)],
                    p50(leasts) if leasts else "-",
                )
            )
            repeats[f"{pause * 1e3:g} ms"] = spread(waits[3:])
        before = cpu(worker.pid)
        time.sleep(idle)
        percent = (cpu(worker.pid) - before) / idle * 100
    publish_table(
        "latency",
        chosen,
        ("after a pause of", "p50 ms", "p99 ms", "LPUSH to BLPOP, p50 ms"),
        rows,
        f"durability {usual(chosen)}, publishing included",
        repeats=repeats,
    )
    publish_table(
        "idle",
        chosen,
        ("idle worker, % of a core",),
        [(percent,)],
        "no messages, no notifications",
    )


def waited(publish: Callable[[], object], worker: subprocess.Popen[str], pause: float) -> float:
    """Milliseconds from the call to the handler, after a pause."""
    time.sleep(pause)
    publish()
    return float(line(worker)) * 1e3


def p50(waits: list[float]) -> float:
    """The median without the first three, which warm up."""
    return sorted(waits[3:])[len(waits[3:]) // 2]


def cpu(pid: int) -> float:
    """The processor time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

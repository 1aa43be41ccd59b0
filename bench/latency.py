"""An idle system: publish to the start of the handler in another process, and what a waiting worker costs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.common import line, options, pick, process, publish_table, spread, store
from fairlead import Fairlead

WORKER = """
import sys, time
from fairlead import Fairlead
app = Fairlead(sys.argv[1])
@app.handler("*")
async def note(message):
    print(time.time() - message.body, flush=True)
app.run_worker()
"""


def main() -> None:
    chosen = options(__doc__ or "")
    number = pick(chosen, 300, 100, 5)
    idle = pick(chosen, 10.0, 5.0, 0.5)
    durability = "fsync" if chosen.engine == "sqlite" else "memory"  # each engine's default
    with store(chosen, durability) as place:
        url = place.url
        app = Fairlead(url)
        with process(WORKER, url) as worker:
            waits = []
            for _ in range(number + 3):
                app.publish("a", time.time())
                waits.append(float(line(worker)) * 1e3)
                time.sleep(0.03)  # idle again
            before = cpu(worker.pid)
            time.sleep(idle)
            percent = (cpu(worker.pid) - before) / idle * 100
        app.close()
    waits = sorted(waits[3:])
    rows = [(waits[len(waits) // 2], waits[int(len(waits) * 0.99)], percent)]
    publish_table(
        "latency",
        chosen,
        ("p50 ms", "p99 ms", "idle worker, % of a core"),
        rows,
        f"durability {durability}, what it takes to publish included",
        repeats=spread(waits),
    )


def cpu(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()

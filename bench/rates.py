"""How exactly rates hold, from 1 to 10,000 a second, with several workers on one file."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bench.common import folder, options, pick, publish_table
from fairlead import Fairlead, Message

WORKERS = 2
WORKER = """
import sys, time
from fairlead.engines import open_engine
from fairlead.engines.base import Settings
from fairlead.message import Settlement
engine = open_engine(sys.argv[1], Settings(durability="memory"))
print("ready", flush=True)
sys.stdin.readline()
until = time.time() + float(sys.argv[2])
taken = []
while (left := until - time.time()) > 0:
    batch = engine.lease(500)
    if batch.leases:
        now = time.time()
        taken += [now] * len(batch.leases)
        engine.settle([Settlement(lease.handle, lease.fence) for lease in batch.leases])
    else:
        engine.wait(left)
print(" ".join(f"{moment:.6f}" for moment in taken), flush=True)
"""


def main() -> None:
    chosen = options(__doc__ or "")
    span = pick(chosen, 10.0, 3.0, 0.5)
    rows = [measure(rate, span) for rate in pick(chosen, (1, 10, 100, 1_000, 10_000), (10, 1_000, 10_000), (100,))]
    publish_table(
        "rates", chosen, ("rate/s", "allowed", "delivered", "of allowed", "error, %"), rows,
        f"{span:g} s, {WORKERS} workers; allowed: rate x time + burst",
    )  # fmt: skip


def measure(rate: int, span: float) -> tuple[float, ...]:
    with folder() as place:
        url = f"sqlite:///{place}/q.db"
        app = Fairlead(url, durability="memory")
        burst = max(1, rate // 20)
        app.policy("a", rate=rate, burst=burst)
        app.publish_many((Message("a", n) for n in range(int(rate * span * 1.5) + burst + 10)), progress=False)
        app.close()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
        workers = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, url, str(span)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            for _ in range(WORKERS)
        ]
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        began = time.time()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        moments = sorted(float(moment) for worker in workers for moment in worker.communicate()[0].split())
    measured = time.time() - began if not moments else moments[-1] - moments[0]
    allowed = rate * measured + burst
    return rate, allowed, len(moments), len(moments) / allowed, abs(len(moments) - allowed) / (rate * span) * 100


if __name__ == "__main__":
    main()

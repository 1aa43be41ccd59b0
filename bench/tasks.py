"""
Task throughput and latency, end to end: one client calls tasks one at a time while one worker runs
them, without and with results; in bulk; one call after the other to its result; a chord.

The peers are those of `bench.peers`, with the best sensible settings that were found. Each phase
starts with an empty store (all on one Valkey server; Huey and Laneway's first row in a file) and a
worker that is ready. A phase that takes more than a minute is an error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from typing import Any, NamedTuple

from bench.common import SOURCE, folder, options, pick, publish_table, worker, write_figures
from bench.peers import add_peer_option, chosen_peers, valkey

MINUTE = 60

CLIENT = """
import asyncio, json, os, statistics, sys, time
sys.path.insert(0, os.getcwd())
from peer import *
TASKS, TRIPS, CHORD = (int(os.environ[name]) for name in ("TASKS", "TRIPS", "CHORD"))
def done():
    try: return int(open("progress").read() or 0)
    except (FileNotFoundError, ValueError): return 0
async def main():
    await begin()
    keep = [await send_kept(n) for n in range(10)]  # the worker is ready, and so are we
    await results(keep)
    phase, began = sys.argv[1], time.perf_counter()
    if phase == "plain":
        for n in range(TASKS): await send(n)
        published = time.perf_counter()
        while done() < TASKS: time.sleep(0.005)
        figures = {"publish": TASKS / (published - began),
                "all": TASKS / (time.perf_counter() - began)}
    elif phase == "kept":
        handles = [await send_kept(n) for n in range(TASKS)]
        await results(handles)
        figures = {"all": TASKS / (time.perf_counter() - began)}
    elif phase == "bulk":
        await send_bulk(TASKS)
        figures = {"publish": TASKS / (time.perf_counter() - began)}
    elif phase == "trips":
        starts, trips = [], []
        for n in range(TRIPS):
            sent = time.time(); at = time.perf_counter()
            (begun,) = await results([await send_kept(n)])
            trips.append(time.perf_counter() - at); starts.append(begun - sent)
            time.sleep(0.01)
        figures = {"start": statistics.median(starts) * 1e3, "trip": statistics.median(trips) * 1e3}
    else:
        await chord(CHORD)
        figures = {"chord": time.perf_counter() - began}
    print(json.dumps(figures), flush=True)
asyncio.run(main())
"""

COUNT = """
import os, time
_number = 0
def count():
    global _number
    _number += 1
    if _number % 50 == 0 or _number == int(os.environ["TASKS"]):
        with open("progress", "w") as file: file.write(str(_number))
async def begin(): pass
"""


class Peer(NamedTuple):
    """
    How one library is used. `module`: its tasks and the functions that the client calls; `worker`:
    its command.
    """

    package: str
    settings: str
    module: str
    worker: list[str]
    has_bulk: bool = False
    has_chord: bool = False


LANEWAY = """
from laneway import Laneway, chord as chord_of
app = Laneway(URL)
@app.task(ignore_result=True)
async def plain(n: int) -> None: count()
@app.task
async def kept(n: int) -> float: return time.time()
@app.task
async def last(numbers: list[float]) -> int: return len(numbers)
async def send(n): plain.delay(n)
async def send_kept(n): return kept.delay(n)
async def results(handles): return [handle.get(60) for handle in handles]
async def send_bulk(count): plain.map(range(count))
async def chord(count):
    assert chord_of([kept.s(n) for n in range(count)], last.s()).enqueue().get(60) == count
"""

PEERS = {
    "Laneway": Peer(
        "laneway",
        "SQLite, fsync, async tasks",
        LANEWAY.replace("URL", '"sqlite:///q.db"'),
        ["-m", "laneway", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        True,
        True,
    ),
    "Laneway on Valkey": Peer(
        "laneway",
        "Valkey, memory, async tasks",
        LANEWAY.replace("URL", 'os.environ["VALKEY"]'),
        ["-m", "laneway", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        True,
        True,
    ),
    "Celery": Peer(
        "celery",
        "Valkey, solo pool, Valkey backend",
        """
from celery import Celery, chord as chord_of
app = Celery("peer", broker=os.environ["VALKEY"], backend=os.environ["VALKEY"])
app.conf.update(worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)
@app.task(name="plain", ignore_result=True)
def plain(n): count()
@app.task(name="kept")
def kept(n): return time.time()
@app.task(name="last")
def last(numbers): return len(numbers)
async def send(n): plain.delay(n)
async def send_kept(n): return kept.delay(n)
async def results(handles): return [handle.get(timeout=60) for handle in handles]
async def chord(count):
    assert chord_of([kept.s(n) for n in range(count)])(last.s()).get(timeout=60) == count
""",
        [
            "-m",
            "celery",
            "-A",
            "peer",
            "worker",
            "--pool",
            "solo",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "-l",
            "ERROR",
        ],
        has_chord=True,
    ),
    "RQ": Peer(
        "rq",
        "Valkey, SimpleWorker (no fork)",
        """
from redis import Redis
from rq import Queue
connection = Redis.from_url(os.environ["VALKEY"])
queue = Queue(connection=connection)
def plain(n): count()
def kept(n): return time.time()
async def send(n): queue.enqueue("peer.plain", n, result_ttl=0)
async def send_kept(n): return queue.enqueue("peer.kept", n)
async def results(handles):
    return [handle.latest_result(timeout=60).return_value for handle in handles]
async def send_bulk(count):
    queue.enqueue_many(
        [Queue.prepare_data("peer.plain", (n,), result_ttl=0) for n in range(count)])
""",
        ["-m", "rq.cli", "worker", "-w", "rq.worker.SimpleWorker", "--quiet"],
        True,
    ),
    "Dramatiq": Peer(
        "dramatiq",
        "Valkey, 1 process, 8 threads, Valkey results",
        """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
broker = RedisBroker(url=os.environ["VALKEY"])
broker.add_middleware(Results(backend=RedisBackend(url=os.environ["VALKEY"])))
dramatiq.set_broker(broker)
@dramatiq.actor
def plain(n): count()
@dramatiq.actor(store_results=True)
def kept(n): return time.time()
async def send(n): plain.send(n)
async def send_kept(n): return kept.send(n)
async def results(handles):
    return [handle.get_result(block=True, timeout=60_000) for handle in handles]
""",
        ["-m", "dramatiq", "peer", "-p", "1", "-t", "8"],
    ),
    "Huey": Peer(
        "huey",
        "SQLite, fsync, 4 threads, polls every 1 ms",
        """
from huey import SqliteHuey
huey = SqliteHuey("q", filename="huey.db", fsync=True)
@huey.task()
def plain(n): count()
@huey.task()
def kept(n): return time.time()
async def send(n): plain(n)
async def send_kept(n): return kept(n)
async def results(handles):
    return [handle(blocking=True, timeout=60, backoff=1, max_delay=0.001) for handle in handles]
""",
        [
            "-m",
            "huey.bin.huey_consumer",
            "peer.huey",
            "-w",
            "4",
            "-k",
            "thread",
            "-d",
            "0.001",
            "-m",
            "0.001",
            "-q",
        ],
    ),
    "SAQ": Peer(
        "saq",
        "Valkey, 100 coroutines",
        """
from saq import Queue
queue = Queue.from_url(os.environ["VALKEY"])
async def plain(ctx, *, n): count()
async def kept(ctx, *, n): return time.time()
settings = {"queue": queue, "functions": [plain, kept], "concurrency": 100}
async def begin(): await queue.connect()
async def send(n): await queue.enqueue("plain", n=n, ttl=-1)
async def send_kept(n): return await queue.enqueue("kept", n=n)
async def results(handles):
    for handle in handles: await handle.refresh(until_complete=60)
    return [handle.result for handle in handles]
""",
        ["-m", "saq", "peer.settings", "--quiet"],
    ),
}


def main() -> None:
    chosen = options(__doc__ or "", add_peer_option)
    sizes = {
        "TASKS": pick(chosen, 5_000, 2_000, 50),
        "TRIPS": pick(chosen, 200, 100, 5),
        "CHORD": pick(chosen, 1_000, 1_000, 20),
    }
    chord = f"chord of {sizes['CHORD']:,} s"
    columns = (
        "",
        "delay/s",
        "no results/s",
        "results/s",
        "bulk/s",
        "delay to start ms",
        "delay to get ms",
        chord,
        "settings",
    )
    about = (
        f"{sizes['TASKS']:,} tasks that do nothing, one client and one worker at the same time;"
        " -: not supported"
    )
    rows: list[tuple[object, ...]] = []
    with valkey() as address:
        for name, peer in chosen_peers(chosen, PEERS).items():
            try:
                figures = measure(peer, address, sizes)
            except (ImportError, RuntimeError, subprocess.SubprocessError) as error:
                rows.append((name, *["-"] * 7, f"did not run: {str(error)[:80]}"))
            else:
                rows.append((f"{name} {version(peer.package)}", *figures, peer.settings))
            print(*rows[-1], flush=True)
            write_figures("tasks", chosen, columns, rows, about)
    publish_table("tasks", chosen, columns, rows, about)


def measure(peer: Peer, address: str, sizes: dict[str, int]) -> list[object]:
    plain = phase(peer, address, sizes, "plain")
    kept = phase(peer, address, sizes, "kept")
    bulk = phase(peer, address, sizes, "bulk") if peer.has_bulk else {}
    trips = phase(peer, address, sizes, "trips")
    chord = phase(peer, address, sizes, "chord") if peer.has_chord else {}
    return [
        figures.get(name, "-")
        for figures, name in (
            (plain, "publish"),
            (plain, "all"),
            (kept, "all"),
            (bulk, "publish"),
            (trips, "start"),
            (trips, "trip"),
            (chord, "chord"),
        )
    ]


def phase(peer: Peer, address: str, sizes: dict[str, int], name: str) -> dict[str, Any]:
    """The figures that the client of one phase prints."""
    with folder() as path:
        (path / "peer.py").write_text(COUNT + peer.module)
        environment = {
            **os.environ,
            **{key: str(value) for key, value in sizes.items()},
            "VALKEY": address,
            "RQ_REDIS_URL": address,
            "PYTHONPATH": os.pathsep.join([str(path), str(SOURCE)]),
        }
        empty(address)
        with worker(peer.worker, path, environment):
            client = subprocess.run(
                [sys.executable, "-c", CLIENT, name],
                cwd=path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=3 * MINUTE,
            )
        if client.returncode:
            raise RuntimeError(client.stderr.strip().splitlines()[-1])
        figures: dict[str, Any] = json.loads(client.stdout.splitlines()[-1])
        return figures


def empty(address: str) -> None:
    import redis

    with redis.Redis.from_url(address) as client:
        client.flushall()


if __name__ == "__main__":
    main()

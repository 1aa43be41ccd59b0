"""
Laneway on PostgreSQL, compared with Graphile Worker, PgQueuer and the raw ceiling of the server, in
the same run: tasks that do nothing, published in bulk and then drained by one worker process.

Processor time and bytes are divided by the number of tasks. Bytes of the database are counted while
all tasks wait, without Laneway's reserve for a full disk. Each contender has a new server in each
round; all take part in every round, and the figures are medians. The raw ceiling moves batches of
500 in one thread, without a library and without handlers.

The others have one queue: a named queue of Graphile Worker runs one task at a time, and PgQueuer
has a function for each queue.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from contextlib import closing
from statistics import median

from bench.ceiling_postgres import Raw
from bench.common import BATCH, options, pick, publish_table
from bench.peers import PEERS, Place, version_of
from laneway.testing.postgres_server import PostgresServer

LIMIT = 30.0
"""Seconds after which a drain ends."""

OURS, GRAPHILE, PGQUEUER = "Laneway on PostgreSQL", "Graphile Worker", "PgQueuer"
RAW = "raw: unnest, SKIP LOCKED, DELETE"
SIZE = """
SELECT pg_database_size(current_database()) - coalesce((SELECT sum(pg_total_relation_size(c.oid))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname LIKE 'laneway%' AND c.relname = 'reserve'), 0)"""

Costs = dict[str, float]


class Meter:
    """Counts what a server does for a number of tasks."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._cpu, self._log = server.cpu(), self._written()

    def _written(self) -> int:
        return int(self._server.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])

    def costs(self, phase: str, tasks: int) -> Costs:
        """Since it was made, for each task."""
        return {
            f"{phase}: server us": (self._server.cpu() - self._cpu) / tasks * 1e6,
            f"{phase}: WAL bytes": (self._written() - self._log) / tasks,
        }


def main() -> None:
    chosen = options(__doc__ or "", add_options)
    tasks = pick(chosen, 100_000, 20_000, 500)
    cases: list[tuple[str, int, int]] = [
        *((OURS, topics, tasks) for topics in pick(chosen, (1, 1_000, 100_000), (1, 1_000), (1,))),
        (GRAPHILE, 1, tasks),
        (PGQUEUER, 1, tasks // 5),
        (RAW, 1, tasks),
    ]
    runs: dict[tuple[str, int], list[Costs]] = defaultdict(list)
    for _ in range(chosen.rounds):
        for name, topics, number in cases:
            cost = raw(number) if name == RAW else library(name, topics, number)
            runs[name, topics].append(cost)
            print(name, topics, {key: round(value, 1) for key, value in cost.items()}, flush=True)
    medians = {
        case: {name: median(each[name] for each in found) for name in found[0]}
        for case, found in runs.items()
    }
    peer = medians[GRAPHILE, 1]
    rows = []
    for (name, topics), costs in medians.items():
        title = name if name == RAW else f"{name} {version_of(PEERS[name])}"
        put, drain = costs["put/s"], costs["drain/s"]
        rows.append((title, topics, put, put / peer["put/s"], drain, drain / peer["drain/s"]))
    columns = ("", "topics", "put/s", "put/s : Graphile Worker", "drain/s")
    names = [name for name in next(iter(medians.values())) if not name.endswith("/s")]
    publish_table(
        "beside_postgres",
        chosen,
        (*columns, "drain/s : Graphile Worker", *names),
        [
            (*row, *(costs[name] for name in names))
            for row, costs in zip(rows, medians.values(), strict=True)
        ],
        f"{tasks:,} tasks, PgQueuer {tasks // 5:,}; medians of {chosen.rounds} rounds; fsync and"
        " synchronous_commit on",
        repeats=[
            {"": name, "topics": topics, "runs": found} for (name, topics), found in runs.items()
        ],
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="repeat all N times (default: 3)"
    )


def library(name: str, topics: int, tasks: int) -> Costs:
    """Publish the tasks of a library and drain them."""
    peer = PEERS[name]
    assert peer.bulk is not None
    with PostgresServer() as server, Place(peer, tasks, topics, LIMIT, server=server) as place:
        before, meter = size(server), Meter(server)
        found = {"put/s": place.publish(peer.bulk)}
        found |= {"put: client us": place.client_cpu / tasks * 1e6, **meter.costs("put", tasks)}
        found["database bytes"] = (size(server) - before) / tasks
        meter = Meter(server)
        found["drain/s"] = float(str(place.drain()).lstrip("~").replace(",", ""))
        return found | {"drain: client us": place.worker_us} | meter.costs("drain", place.done)


def raw(tasks: int) -> Costs:
    """The same with statements only."""
    with PostgresServer() as server, closing(Raw(server.url, "fsync")) as queue:
        before, meter = size(server), Meter(server)
        client, began = time.process_time(), time.perf_counter()
        for _ in range(tasks // BATCH):
            queue.put([0] * BATCH)
        found = {"put/s": tasks / (time.perf_counter() - began)}
        client = time.process_time() - client
        found |= {"put: client us": client / tasks * 1e6, **meter.costs("put", tasks)}
        found["database bytes"] = (size(server) - before) / tasks
        meter = Meter(server)
        client, began = time.process_time(), time.perf_counter()
        while taken := queue.lease():
            queue.ack(taken)
        found["drain/s"] = tasks / (time.perf_counter() - began)
        client = time.process_time() - client
        found |= {"drain: client us": client / tasks * 1e6, **meter.costs("drain", tasks)}
        return found


def size(server: PostgresServer) -> int:
    """The bytes of the database."""
    return int(server.execute(SIZE)[0][0])


if __name__ == "__main__":
    main()

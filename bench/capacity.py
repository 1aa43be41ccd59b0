"""
Does `laneway capacity` predict what is measured? Processor time, round trips and bytes of clusters
of 1, 2, 4 and 8 Valkey nodes (8 shards) and of 1, 2 and 4 PostgreSQL schemas, compared with what is
computed from the costs of one server with one shard.

The costs are measured by the same run (--costs names a file instead). All nodes are on this
machine, so only counters are compared: processor time, above what idle nodes use; bytes; function
calls or waits for the server. The smallest of a few rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.common import options, pick, publish_table
from laneway.cli.fleet import costs, measuring
from laneway.cli.fleet.costs import EngineCosts, works
from laneway.cli.fleet.measuring import BATCH, BODY, Measurement, Place, Run, ValkeyPlace
from laneway.testing.servers import Server
from tests.server_groups import Cluster

SHARDS = 8
DELIVERED = 10_000
STEPS = ("put", "lease", "settle")
IDLE_SECONDS = 2.0
"""How long idle nodes are watched before a measurement."""


class ClusterPlace(Place):
    """Several Valkey nodes as one store."""

    def __init__(self, url: str, servers: Sequence[Server]) -> None:
        super().__init__(url)
        self.nodes = [ValkeyPlace(server) for server in servers]
        self._idle = [0.0] * len(servers)
        self._since = time.monotonic()

    def watch(self) -> None:
        """Learn what idle nodes use."""
        before = [node.cpu() for node in self.nodes]
        time.sleep(IDLE_SECONDS)
        self._idle = [
            (node.cpu() - was) / IDLE_SECONDS for node, was in zip(self.nodes, before, strict=True)
        ]
        self._since = time.monotonic()

    def each_cpu(self) -> list[float]:
        """Processor time of each node, above that of an idle one."""
        passed = time.monotonic() - self._since
        return [
            node.cpu() - idle * passed for node, idle in zip(self.nodes, self._idle, strict=True)
        ]

    def cpu(self) -> float:
        return sum(self.each_cpu())

    def size(self) -> int:
        return sum(node.size() for node in self.nodes)

    def trips(self) -> int:
        return sum(node.trips() for node in self.nodes)


@contextlib.contextmanager
def cluster_of(nodes: int) -> Iterator[ClusterPlace]:
    with Cluster(nodes, 0, save="") as cluster:
        cluster.never_replace()
        place = ClusterPlace(cluster.url, cluster.servers)
        # The first calls load the functions, and their buffers are released within seconds.
        Measurement(place, Run("plain", 100, BATCH, shards=SHARDS), 999).engine.close()
        place.watch()
        yield place


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--costs", type=Path, help="costs that were measured before")
        parser.add_argument("--topics", type=float, nargs="+", help="default: 1e3 1e4 1e5 1e6")
        parser.add_argument("--nodes", type=int, nargs="+", help="nodes, or schemas")
        parser.add_argument("--rules", nargs="+", help="sets of rules, like limits+dedupe")
        parser.add_argument("--rounds", type=int, help="the smallest times count")

    chosen = options(__doc__ or "", more)
    if chosen.engine not in ("valkey", "postgres"):
        chosen.engine = "valkey"
    topics = chosen.topics or pick(chosen, (1e3, 1e4, 1e5, 1e6), (1e3, 1e4, 1e5), (100,))
    usual = (1, 2, 4, 8) if chosen.engine == "valkey" else (1, 2, 4)
    nodes = chosen.nodes or pick(chosen, usual, usual, (2,))
    rules = chosen.rules or pick(
        chosen, *(("plain", "limits", "limits+dedupe+ttl"),) * 2, ("limits",)
    )
    rounds = chosen.rounds or pick(chosen, 3, 2, 1)
    delivered = pick(chosen, DELIVERED, DELIVERED, 200)
    known = (
        costs.load(chosen.costs)[chosen.engine]
        if chosen.costs is not None
        else measuring.measure(chosen.engine, "", scale=pick(chosen, 1, 1, 0.01), rounds=rounds)
    )
    rows: list[tuple[object, ...]] = []
    for count in nodes:
        with place_of(chosen.engine, count) as place:
            for number, (topic_count, rule) in enumerate(
                (int(topic_count), rule) for topic_count in topics for rule in rules
            ):
                shards = SHARDS if chosen.engine == "valkey" else count
                run = Run(rule, topic_count, max(topic_count, delivered), shards=shards)
                rows.append(
                    (
                        count,
                        topic_count,
                        rule,
                        *compared(place, run, number, known, min(delivered, run.messages), rounds),
                    )
                )
                print(*rows[-1], flush=True)
                publish(chosen, rows, rounds, known)


def publish(
    chosen: argparse.Namespace, rows: list[tuple[object, ...]], rounds: int, known: EngineCosts
) -> None:
    publish_table(
        "capacity",
        chosen,
        (
            "nodes" if chosen.engine == "valkey" else "schemas",
            "topics",
            "rules",
            "server us",
            "predicted",
            "off %",
            "client us",
            "predicted ",
            "off % ",
            "round trips",
            "predicted  ",
            "off %  ",
            "bytes",
            "predicted   ",
            "off %   ",
            "busiest node : mean",
        ),
        rows,
        f"for one message of {len(BODY)} bytes: put, leased and settled in batches of {BATCH};"
        f" the smallest times of {rounds} rounds; costs of {known.date}",
    )


@contextlib.contextmanager
def place_of(engine: str, count: int) -> Iterator[Place]:
    if engine == "valkey":
        with cluster_of(count) as cluster:
            yield cluster
    else:
        with measuring.place_of(engine) as place:
            yield place


def compared(
    place: Place,
    run: Run,
    number: int,
    known: EngineCosts,
    delivered: int,
    rounds: int,
) -> tuple[object, ...]:
    """Measured and predicted, and how far the prediction is off, in percent."""
    measurement = Measurement(place, run, number)
    nodes = [0.0]
    for n in range(rounds if run.messages == delivered else 1):
        if n:
            time.sleep(1.1)
            measurement.forget()
        before = place.each_cpu() if isinstance(place, ClusterPlace) else []
        measurement.work(delivered)
        if isinstance(place, ClusterPlace):
            nodes = [now - was for now, was in zip(place.each_cpu(), before, strict=True)]
    measurement.engine.close()
    best = measurement.best
    shares = {} if run.rule == "plain" else dict.fromkeys(run.rule.split("+"), 1.0)
    work = works(
        batch=run.batch, shards=run.shards, topics=run.topics, depth=run.messages / run.topics
    )
    found: list[object] = []
    for side in ("server", "client"):
        is_ = sum(best[step].seconds[side] * 1e6 / best[step].work.messages for step in STEPS)
        predicted = sum(known.microseconds(side, step, work[step], shares) for step in STEPS)
        found += [is_, predicted, off(is_, predicted)]
    trips = sum(best[step].trips / best[step].work.messages for step in STEPS)
    predicted = sum(work[step].calls * known.trips[step] for step in STEPS)
    found += [trips, predicted, off(trips, predicted)]
    predicted = known.stored_bytes(run.messages, run.topics, len(BODY), shares) / run.messages
    found += [
        measurement.bytes / run.messages,
        predicted,
        off(measurement.bytes / run.messages, predicted),
    ]
    mean = sum(nodes) / len(nodes)
    return (*found, max(nodes) / mean if mean else "-")


def off(measured: float, predicted: float) -> float:
    return (predicted / measured - 1) * 100 if measured else 0.0


if __name__ == "__main__":
    main()

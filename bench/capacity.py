"""
Does `laneway capacity` predict what is measured? Processor time, round trips and bytes of clusters
of 1, 2, 4 and 8 Valkey nodes (8 shards) and of 1, 2 and 4 PostgreSQL schemas, compared with what is
computed from the costs of one server.

The costs are measured by the same run, on stores of their own and with other numbers of topics and
messages, in turns with what they are to predict (--costs names a file instead). All nodes are on
this machine, so only counters are compared: processor time, above what idle nodes use; bytes;
function calls or waits for the server. The smallest of a few rounds counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

from bench.common import options, pick, publish_table
from laneway.cli.fleet import costs, measuring
from laneway.cli.fleet.costs import SIDES, STEPS, EngineCosts, works
from laneway.cli.fleet.measuring import (
    BATCH,
    BODY_BYTES,
    Measurement,
    Place,
    Run,
    ValkeyPlace,
    costs_of,
    measure_once,
    survey_of,
)
from laneway.testing.servers import Server
from tests.server_groups import Cluster

SHARDS = 8
LEAST_MESSAGES = 10_000
IDLE_SECONDS = 1.0
"""How long idle nodes are watched before the measurements."""


class ClusterPlace(Place):
    """Several Valkey nodes as one store."""

    def __init__(self, url: str, servers: Sequence[Server]) -> None:
        super().__init__(url)
        self.nodes = [ValkeyPlace(server) for server in servers]
        self._idle, self._since = 0.0, time.monotonic()

    def watch(self) -> None:
        """Learn what idle nodes use."""
        before = sum(node.cpu() for node in self.nodes)
        time.sleep(IDLE_SECONDS)
        self._idle = (sum(node.cpu() for node in self.nodes) - before) / IDLE_SECONDS
        self._since = time.monotonic()

    def cpu(self) -> float:
        """Processor time of all nodes, above that of idle ones."""
        passed = time.monotonic() - self._since
        return sum(node.cpu() for node in self.nodes) - self._idle * passed

    def size(self) -> int:
        return sum(node.size() for node in self.nodes)

    def trips(self) -> int:
        return sum(node.trips() for node in self.nodes)


@contextmanager
def place_of(engine: str, nodes: int) -> Iterator[Place]:
    if engine == "postgres":
        with measuring.place_of(engine) as postgres:
            yield postgres
        return
    with Cluster(nodes, 0, save="") as cluster:
        cluster.never_replace()
        place = ClusterPlace(cluster.url, cluster.servers)
        # The first calls load the functions, and their buffers are released within seconds.
        Measurement(place, Run("plain", 100, BATCH, shards=SHARDS), "first").engine.close()
        place.watch()
        yield place


class Check:
    """A measurement on several nodes, and its prediction."""

    def __init__(self, nodes: int, place: Place, run: Run, name: str) -> None:
        self.nodes, self.run = nodes, run
        self.measurement = Measurement(place, run, name)

    def compared(self, known: EngineCosts) -> tuple[object, ...]:
        """Measured and predicted, and how far the prediction is off, in percent."""
        run, best, size = self.run, self.measurement.best, self.measurement.bytes
        shares = {} if run.rule == "plain" else dict.fromkeys(run.rule.split("+"), 1.0)
        pairs: list[tuple[float, float]] = []
        for side in reversed(SIDES):
            # The one client has all topics, and so has the one PostgreSQL server.
            work = works(
                batch=run.batch,
                shards=run.shards,
                topics=run.topics,
                depth=run.messages / run.topics,
                machines=self.nodes if side == "server" and run.shards == SHARDS else 1,
            )
            measured = sum(best[step].seconds[side] for step in STEPS) * 1e6 / run.messages
            pairs.append(
                (
                    measured,
                    sum(known.microseconds(side, step, work[step], shares) for step in STEPS),
                )
            )
        trips = sum(best[step].trips for step in STEPS) / run.messages
        pairs.append((trips, sum(known.round_trips(step, work[step], shares) for step in STEPS)))
        stored = known.stored_bytes(run.messages, run.topics, BODY_BYTES, shares)
        pairs.append((size / run.messages, stored / run.messages))
        found = [each for pair in pairs for each in (*pair, off(*pair))]
        return (self.nodes, run.topics, run.rule, *found)


def off(measured: float, predicted: float) -> float:
    return (predicted / measured - 1) * 100 if measured else 0.0


def main() -> None:
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--costs", type=Path, help="costs that were measured before")
        parser.add_argument("--topics", type=float, nargs="+", help="default: 1e3 1e4")
        parser.add_argument("--nodes", type=int, nargs="+", help="nodes, or schemas")
        parser.add_argument("--rules", nargs="+", help="sets of rules, like limits+dedupe")
        parser.add_argument("--rounds", type=int, help="the smallest times count")

    chosen = options(__doc__ or "", more)
    if chosen.engine not in ("valkey", "postgres"):
        chosen.engine = "valkey"
    topics = chosen.topics or pick(chosen, (1e3, 1e4), (1e3, 1e4), (100,))
    usual = (1, 2, 4, 8) if chosen.engine == "valkey" else (1, 2, 4)
    nodes = chosen.nodes or pick(chosen, usual, usual, (2,))
    usual_rules = ("plain", "limits", "limits+dedupe+ttl", "serial+priority+group")
    rules = chosen.rules or pick(chosen, usual_rules, usual_rules, ("limits",))
    rounds = chosen.rounds or pick(chosen, 3, 2, 1)
    with ExitStack() as stack:
        single = {each for rule in rules for each in rule.split("+")} - {"plain"}
        scale = pick(chosen, 1, 1, 0.01)
        survey = {}
        if chosen.costs is None:
            survey = survey_of(chosen.engine, scale, stack, sorted(single))
        checks = checks_of(chosen.engine, nodes, topics, rules, chosen.smoke, stack)
        for _ in range(rounds):
            measure_once([*chain(*survey.values()), *(check.measurement for check in checks)])
        known = (
            costs_of(survey, "python -m bench.capacity", scale)
            if survey
            else costs.load(chosen.costs)[chosen.engine]
        )
    publish(chosen, [check.compared(known) for check in checks], rounds, known)


def checks_of(
    engine: str,
    nodes: Sequence[int],
    topics: Sequence[float],
    rules: Sequence[str],
    is_small: bool,
    stack: ExitStack,
) -> list[Check]:
    """What is compared. Each number of nodes and of topics has servers of its own."""
    checks = []
    for topic_count in map(int, topics):
        for count in nodes:
            place = stack.enter_context(place_of(engine, count))
            for n, rule in enumerate(rules):
                messages = max(topic_count, 200 if is_small else LEAST_MESSAGES)
                shards = SHARDS if engine == "valkey" else count
                checks.append(
                    Check(count, place, Run(rule, topic_count, messages, shards=shards), f"c{n}")
                )
                stack.callback(checks[-1].measurement.engine.close)
    return checks


def publish(
    chosen: argparse.Namespace,
    rows: list[tuple[object, ...]],
    rounds: int,
    known: EngineCosts,
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
        ),
        rows,
        f"for one message of {BODY_BYTES} bytes: put, leased and settled in batches of {BATCH};"
        f" the smallest times of {rounds} rounds; costs of {known.date}",
    )


if __name__ == "__main__":
    main()

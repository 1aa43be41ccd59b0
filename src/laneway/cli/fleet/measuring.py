"""
Measure the costs of an engine on this machine, on stores that are started for that. On Linux only.

All times are processor time of this process and of the server, which other programs change less
than rates: they only empty the caches. Each run is repeated, in turns with the others, and the
smallest times count. Bytes and round trips are counted.

Shards are worked on one after the other, because nodes that take turns on a core empty its caches.
Nodes of a fleet have cores of their own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import re
import socket
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from laneway.cli.fleet.costs import OPERATIONS, SIDES, STEPS, EngineCosts, Rule, Step, Work, fitted
from laneway.engines import open_engine
from laneway.engines.base import HOUSEKEEPING_LIMIT, FullEngine, Settings, WorkerFacts
from laneway.history import sampling
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.testing.postgres_server import PostgresServer
from laneway.testing.servers import Server, processor_time, until
from laneway.units import SECOND

BODY_BYTES = 100
BATCH = 100
MANY = 1_000_000
"""A limit that is checked and holds nothing back."""

POLICIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "limits": {"rate": MANY, "burst": MANY, "concurrency": MANY},
    "gate": {"gate": "g"},
    "serial": {"serial": "hold"},
    "key_concurrency": {"key_concurrency": MANY},
    "key_rate": {"key_rate": MANY},
    "max_backlog": {"max_backlog": MANY},
    "dedupe": {"dedupe": 1},
    "ttl": {"ttl": 3600},
    "priority": {},
    "group": {"group": "g"},
    "merge": {"merge": "last"},
    "delay": {},
}
"""
What is measured: the policy of all topics. Messages have a key of their own with KEYED, so none
joins another; an id with `dedupe`, a priority with `priority`, and DELAY_US with `delay`.
"""

DELAY_US = 1_000_000
ALIKE = {"key_concurrency": "key limits", "key_rate": "key limits"}
"""
By rule: the group of rules that share what they cost, so that of those that hold for a message only
the dearest one counts.
"""

ALIKE_ON_VALKEY = ALIKE | dict.fromkeys(("serial", "max_backlog", "ttl", "priority"), "records")
"""There some rules keep messages in records of their own."""

SERVERS = 3
"""
Valkey servers for each rule. The same calls cost a server up to 8 % more than another one; what a
rule costs more differs less, and the median counts.
"""

SCHEMAS = 4
"""In one of the runs on PostgreSQL; some of its leases look at a second schema, and wait twice."""

RULES = tuple(rule for rule in POLICIES if rule != "plain")
KEYED = {"serial", "key_concurrency", "key_rate", "merge"}


class Run(NamedTuple):
    """A run: messages over topics in turn. `rule`: several are joined by "+"."""

    rule: str
    topics: int
    messages: int
    batch: int = BATCH
    shards: int = 1


def runs(engine: str, rule: str, scale: float) -> list[Run]:
    """
    What is measured for a rule, on Valkey with plain messages on the same server. `scale` 1: the
    usual size.
    """
    few, many = max(int(8_000 * scale), 200), max(int(40_000 * scale), 400)
    shards = 8 if engine == "valkey" else 1
    usual = [Run("plain", topics, few, shards=shards) for topics in (few // 10, few)]
    if engine == "postgres":  # a put is a transaction in each schema
        usual.append(Run("plain", few // 10, few, shards=SCHEMAS))
    if rule != "plain":
        ruled = [run._replace(rule=rule) for run in usual]
        return [*usual, *ruled] if engine == "valkey" else ruled
    # PostgreSQL is sent what 8 rows and more share once, so these calls have many messages, too.
    small_calls = [Run("plain", topics, few // 2, BATCH // 4) for topics in (few // 20, few // 2)]
    return [*usual, Run("plain", 10, few), *small_calls, Run("plain", many, many, shards=shards)]


class Place:
    """A store that was started for a measurement. This one is a SQLite file."""

    def __init__(self, url: str, port: int = 0) -> None:
        """`port`: of the server; 0: none."""
        self.url, self.port = url, port

    def cpu(self) -> float:
        """Processor time of the server, in seconds."""
        return 0.0

    def size(self) -> int:
        """Bytes that are used, of memory or of the disk."""
        folder = Path(self.url.removeprefix("sqlite:///")).parent
        return sum(map(_used_bytes, folder.glob("*.db")))

    def trips(self) -> int:
        """Calls of a Valkey server, waits for a PostgreSQL server."""
        return 0

    def clean(self) -> None:
        """What a server does now and then without being asked."""


def _used_bytes(path: Path) -> int:
    """Bytes of a SQLite file's pages that are not free."""
    with contextlib.closing(sqlite3.connect(path)) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, free, size = (
            raw.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


class ValkeyPlace(Place):
    """A Valkey server that is a whole cluster: a client does more than with a single server."""

    def __init__(self, server: Server) -> None:
        super().__init__(f"valkey+cluster://127.0.0.1:{server.port}", server.port)
        self._server = server

    def cpu(self) -> float:
        return processor_time(self._server.pid)

    def size(self) -> int:
        used, *buffers = (
            int(self._server.info(name, "memory"))
            for name in ("used_memory", "mem_clients_normal", "mem_cluster_links")
        )
        return used - sum(buffers)

    def trips(self) -> int:
        found = re.search("calls=([0-9]+)", self._server.info("cmdstat_fcall", "commandstats"))
        return int(found[1]) if found is not None else 0


class PostgresPlace(Place):
    """A PostgreSQL server without its own vacuum, which `clean` runs."""

    def __init__(self, server: PostgresServer, connection: Any) -> None:
        super().__init__(server.url, server.port)
        self._server, self._connection = server, connection

    def cpu(self) -> float:
        return self._server.cpu()

    def size(self) -> int:
        row = self._connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = relnamespace WHERE nspname LIKE 'laneway%' AND relkind = 'r'"
        ).fetchone()
        return int(row[0] or 0) if row is not None else 0

    def trips(self) -> int:
        from laneway.engines.postgres.pipeline import Pipeline  # an extra

        return sum(each.trips for each in gc.get_objects() if isinstance(each, Pipeline))

    def clean(self) -> None:
        self._connection.execute("VACUUM")


@contextlib.contextmanager
def place_of(engine: str) -> Iterator[Place]:
    """An empty store, removed with the block. Raises NoServer."""
    if engine == "valkey":
        with Server(cluster_enabled="yes") as server:
            server.run("CLUSTER", "ADDSLOTSRANGE", 0, 16_383)
            until(lambda: "cluster_state:ok" in str(server.run("CLUSTER", "INFO")), "the cluster")
            yield ValkeyPlace(server)
    elif engine == "postgres":
        from psycopg import connect  # an extra

        with (
            PostgresServer(autovacuum="off") as postgres,
            connect(postgres.url, autocommit=True) as connection,
        ):
            yield PostgresPlace(postgres, connection)
    else:
        with tempfile.TemporaryDirectory(prefix="laneway-costs-") as folder:
            yield Place(f"sqlite:///{folder}/costs.db")


class Cost(NamedTuple):
    """What an operation of a run cost: seconds by side, its work, bytes, and round trips."""

    seconds: dict[str, float]
    work: Work
    network: int
    trips: int


class Measurement:
    """One run, repeated on the same store in a namespace of its own."""

    def __init__(self, place: Place, run: Run, name: str) -> None:
        self.run, self.place = run, place
        shards = f"?shards={run.shards}" if place.port or run.shards > 1 else ""
        self.engine = open_engine(place.url + shards, Settings(namespace=name, durability="memory"))
        self._rules = run.rule.split("+")
        self._delay_us = DELAY_US if "delay" in self._rules else 0
        if "gate" in self._rules:
            self.engine.gate_set("g", Gate(MANY, MANY, MANY))
        if policy := {k: v for rule in self._rules for k, v in POLICIES[rule].items()}:
            self.engine.policy_set("code", "*", policy)
        self._count = self.bytes = 0
        self.best: dict[str, Cost] = {}
        self._warm()

    def _warm(self) -> None:
        """Fill the caches of all nodes: the first calls cost more, on more nodes even more."""
        self.engine.put([self._draft(n) for n in range(self.run.batch)])
        while leases := self.engine.lease(self.run.batch).leases:
            self.engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])

    def _draft(self, n: int, delay_us: int = 0) -> Draft:
        self._count += 1
        return Draft(
            f"bench.{n % self.run.topics}",
            b"%0*d" % (BODY_BYTES, n),  # equal values would be sent to PostgreSQL once
            id=f"order-{self._count}" if "dedupe" in self._rules else None,
            key=f"k{self._count}" if KEYED.intersection(self._rules) else None,
            priority=self._count % 5 if "priority" in self._rules else 0,
            delay_us=delay_us,
        )

    def work(self) -> None:
        """Put the messages, then lease and settle them, one shard after the other."""
        self._warm()
        gc.collect()
        run, engine, size = self.run, self.engine, self.place.size()
        batches = self._batches()
        new = min(run.topics, run.messages)
        with self._counted("put", batches, new):
            for batch in batches:
                engine.put(batch)
        self.bytes = self.bytes or self.place.size() - size  # later rounds fill what is free
        time.sleep(self._delay_us / SECOND)
        taken = 0
        leased: list[Sequence[Any]] = []
        with self._counted("lease", leased, new):
            while taken < run.messages:
                engine.prefer("default", {taken * run.shards // run.messages})
                leased.append(engine.lease(run.batch).leases)
                taken += len(leased[-1])
        with self._counted("settle", leased, new):
            for leases in leased:
                engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])

    def _batches(self) -> list[list[Draft]]:
        """The drafts in batches, divided by shard: what a put of the whole batch calls."""
        run = self.run
        drafts = [self._draft(n, self._delay_us) for n in range(run.messages)]
        shards = [crc32(draft.topic.encode()) % run.shards for draft in drafts]
        parts = (
            [
                drafts[n]
                for n in range(start, min(start + run.batch, len(drafts)))
                if shards[n] == shard
            ]
            for shard in range(run.shards)
            for start in range(0, len(drafts), run.batch)
        )
        return list(filter(None, parts))

    def forget(self) -> None:
        """Let the topics end that have nothing; a second after `work`."""
        new = min(self.run.topics, self.run.messages)
        with self._counted("forget", [], new):
            for _ in range(new // HOUSEKEEPING_LIMIT + 1):
                self.engine.tick()
            while self.engine.overview().topics:  # it may read all lanes
                self.engine.tick()

    @contextlib.contextmanager
    def _counted(
        self, operation: str, batches: Sequence[Sequence[Any]], new: int
    ) -> Iterator[None]:
        """Count what the block costs; the smallest times count."""
        network, trips, server = self._network(), self.place.trips(), self.place.cpu()
        client = time.process_time()
        yield
        seconds = {"client": time.process_time() - client, "server": self.place.cpu() - server}
        trips = self.place.trips() - trips
        count = sum(map(len, batches))
        work = Work(
            calls=trips if isinstance(self.place, ValkeyPlace) else len(batches),
            messages=count,
            lanes=sum(len({each.topic for each in batch}) for batch in batches),
            new=new,
            topics=self.run.topics,
            creating=len(batches) * new / count if operation == "put" else 0.0,
        )
        cost = Cost(seconds, work, self._network() - network, trips)
        best = self.best.get(operation, cost).seconds
        self.best[operation] = cost._replace(
            seconds={side: min(seconds[side], best[side]) for side in SIDES}
        )

    def _network(self) -> int:
        """Bytes that the sockets of this process have exchanged with the server."""
        total = 0
        for path in Path("/proc/self/fd").iterdir() if self.place.port else ():
            with contextlib.suppress(OSError):
                if path.is_socket():
                    with socket.socket(fileno=os.dup(int(path.name))) as each:
                        # The address of a local socket is a path, maybe an empty one.
                        if each.getpeername()[1:2] == (self.place.port,):
                            info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                            total += sum(struct.unpack_from("QQ", info, 120))
        return total


def survey_of(
    engine: str, scale: float, stack: contextlib.ExitStack, rules: Sequence[str] = RULES
) -> dict[str, list[Measurement]]:
    """
    The measurements that the costs are made of, by rule. `stack`: what closes the stores. On Valkey
    each rule has servers of its own: many namespaces on one make it slower. Raises NoServer.
    """
    gc.freeze()  # so that collecting garbage does not cost more in a larger program
    stack.callback(gc.unfreeze)
    survey: dict[str, list[Measurement]] = {}
    servers = SERVERS if engine == "valkey" else 1
    places = [stack.enter_context(place_of(engine)) for _ in range(servers)]
    for rule in ("plain", *rules):
        survey[rule] = []
        if engine == "valkey" and rule != "plain":
            places = [stack.enter_context(place_of(engine)) for _ in range(servers)]
        for place in places:
            for n, run in enumerate(runs(engine, rule, scale)):
                survey[rule].append(Measurement(place, run, f"{rule}{n}"))
                stack.callback(survey[rule][-1].engine.close)
    return survey


def costs_of(survey: dict[str, list[Measurement]], command: str, scale: float) -> EngineCosts:
    """What was measured, as costs."""
    plain = survey["plain"]
    few, many = plain[:2]
    alone = next(each for each in plain if each.run.shards == 1)
    count = many.run.messages
    message_bytes, topic_bytes = _parts(few, [each.bytes / count for each in (few, many)])
    steps = {
        side: {
            operation: fitted(
                [each.best[operation].work for each in plain],
                [each.best[operation].seconds[side] * 1e6 for each in plain],
            )
            for operation in OPERATIONS
        }
        for side in SIDES
    }
    return EngineCosts(
        date=time.strftime("%Y-%m-%d"),
        machine=f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()},"
        f" Python {platform.python_version()}",
        command=command,
        body_bytes=BODY_BYTES,
        steps=steps,
        rules={
            rule: _rule(each if each[0].run.rule == "plain" else plain[: len(each)] + each, steps)
            for rule, each in survey.items()
            if rule != "plain"
        },
        message_bytes=message_bytes,
        topic_bytes=topic_bytes,
        network_bytes={name: few.best[name].network / count for name in OPERATIONS},
        trips={
            operation: fitted(
                [each.best[operation].work for each in plain if each.run.shards != SCHEMAS],
                [each.best[operation].trips for each in plain if each.run.shards != SCHEMAS],
            )
            for operation in OPERATIONS
        },
        **_others(alone.engine, alone.place, max(int(1_000 * scale), 20)),
    )


def measure_once(measured: Sequence[Measurement]) -> None:
    """One round of these, one after the other."""
    for each in measured:
        each.work()
    time.sleep(1.1)  # until an idle topic may be forgotten
    for each in measured:
        each.forget()
    for place in {each.place for each in measured}:
        place.clean()


def measure(engine: str, command: str, *, scale: float = 1.0, rounds: int = 3) -> EngineCosts:
    """
    The costs of an engine on this machine. `scale`: 1 for the usual size. Raises NoServer if no
    server program is installed.
    """
    with contextlib.ExitStack() as stack:
        survey = survey_of(engine, scale, stack)
        for _ in range(rounds):
            measure_once([*chain(*survey.values())])
        return costs_of(survey, command, scale)


def _parts(few: Measurement, values: Sequence[float]) -> tuple[float, float]:
    """
    The parts of a message and of a new topic in two values for one message: of a run over few
    topics, and of one in which each message has a topic of its own.
    """
    return _line((few.run.topics / few.run.messages, 1.0), values)


def _line(quantities: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The value for none of a quantity, and for each, from two values."""
    each = (values[1] - values[0]) / (quantities[1] - quantities[0])
    return values[0] - each * quantities[0], each


def _rule(measured: Sequence[Measurement], plain: dict[str, dict[str, Step]]) -> Rule:
    """
    What a rule costs more, the median of some servers. `measured`: for each of them plain messages
    in few topics, in many, and perhaps in more schemas, then those with the rule. `plain`: the
    costs of plain messages.
    """
    few = measured[0]
    kinds = len({(each.run.topics, each.run.shards) for each in measured})
    pairs = [
        list(zip(measured[n + kinds :: 2 * kinds], measured[n :: 2 * kinds], strict=True))
        for n in range(kinds)
    ]
    steps = {
        side: {
            name: _more(
                few,
                name,
                [each[0][0].best[name].work for each in pairs],
                [
                    median(_difference(one, other, side, name, plain) for one, other in each)
                    for each in pairs
                ],
            )
            for name in OPERATIONS
        }
        for side in SIDES
    }
    count = few.run.messages
    stored = [median(one.bytes - other.bytes for one, other in each) / count for each in pairs]
    trips = {
        name: sum(one.best[name].trips - other.best[name].trips for (one, other), *_ in pairs)
        / sum(other.best[name].work.calls for (_, other), *_ in pairs)
        for name in STEPS
    }
    alike = ALIKE_ON_VALKEY if isinstance(few.place, ValkeyPlace) else ALIKE
    group = alike.get(measured[kinds].run.rule, "")
    return Rule(steps, *_parts(few, stored), trips, group)


def _difference(
    one: Measurement,
    other: Measurement,
    side: str,
    operation: str,
    plain: dict[str, dict[str, Step]],
) -> float:
    """
    Microseconds by which a message cost more than in another run, if it had visited as many lanes.
    """
    ours, others = one.best[operation], other.best[operation]
    alike = msgspec.structs.replace(others.work, lanes=ours.work.lanes)
    step = plain[side][operation]
    lanes = step.cost(alike) - step.cost(others.work)
    more = (ours.seconds[side] - others.seconds[side]) * SECOND - lanes
    return more / one.run.messages


def _more(few: Measurement, operation: str, works: Sequence[Work], values: Sequence[float]) -> Step:
    """
    What a message costs more, from the values of two runs. A lease or a settlement costs more for
    each lane that it visits, anything else for each new topic. A third run has more calls of a put.
    """
    if operation in ("lease", "settle"):
        message, lane = _line([work.lanes / work.messages for work in works[:2]], values)
        return Step(message=message, lane=lane)
    message, new = _parts(few, values)
    call = 0.0
    if operation == "put" and len(values) > 2:
        calls = [work.calls / work.messages for work in works]
        call = max((values[2] - values[0]) / (calls[2] - calls[0]), 0.0)
        message -= call * calls[0]
    return Step(call=call, message=message, new=new)


def _others(engine: FullEngine, place: Place, count: int) -> dict[str, Any]:
    """
    Costs that are not of messages: policies, heartbeats, and, with one shard, idle workers and the
    history.
    """
    sizes = [place.size()]
    engine.policy_set_many("code", [(f"own.{n}", {"concurrency": 1 + n % 7}) for n in range(count)])
    sizes.append(place.size())

    def beat(n: int) -> None:
        facts = WorkerFacts(
            id=f"web{n % 100}.example.org-{n}-a1b2c3",
            host=f"web{n % 100}.example.org",
            pid=n,
            program="shop",
            version="2026.11.1",
            laneway="0.1.0",
            pools=["default"],
            patterns=["laneway.ended", "laneway.open", "mail.*", "orders.*", "push.*"],
            concurrency=100,
        )
        engine.beat(facts, dead_after_us=9_000_000, listed_us=20_000_000)

    beats = _times(place, count, beat)
    sizes.append(place.size())
    listeners = [engine.work_listener() for _ in range(min(count, 50))]
    for listener in listeners:
        listener.poll(0.0)
    sizes.append(place.size())

    def leave_and_wait(n: int) -> None:
        listeners[n].pause()
        listeners[n].poll(0.0)

    both = _times(place, len(listeners), leave_and_wait)
    for listener in listeners:
        listener.close()
    return {
        "policy_bytes": (sizes[1] - sizes[0]) / count,
        "beat": beats,
        "beat_bytes": (sizes[2] - sizes[1]) / count,
        "wait": {side: both[side] / 2 for side in SIDES},
        "wait_bytes": (sizes[3] - sizes[2]) / len(listeners),
        "sample": _times(place, 20, lambda _: sampling.take(engine)),
    }


def _times(place: Place, times: int, call: Callable[[int], object]) -> dict[str, float]:
    """Microseconds of a call that is repeated, by side: the best of three rounds."""
    best = dict.fromkeys(SIDES, float("inf"))
    for _ in range(3):
        before = time.process_time(), place.cpu()
        for n in range(times):
            call(n)
        after = time.process_time(), place.cpu()
        for side, now, was in zip(SIDES, after, before, strict=True):
            best[side] = min(best[side], (now - was) / times * 1e6)
    return best

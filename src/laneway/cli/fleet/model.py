"""
What a fleet needs for a load: nodes, memory, disk, network and money, from measured costs.

Everything is in proportion to the costs of one machine. It is a computation, not a measurement: no
fleet of this size has run.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from laneway.cli.fleet.costs import OPERATIONS, STEPS, EngineCosts, works
from laneway.engines.base import HEARTBEAT_TIMEOUT
from laneway.history.records import SAMPLE_US
from laneway.units import SECOND

GIB = 2**30
MESSAGES = 1e9
"""The number of messages whose price is computed."""

MOST_SHARDS = 1_024
BEATS_A_SECOND = 3 / HEARTBEAT_TIMEOUT
LOOKS = {"sqlite": (1.0, 0.0), "valkey": (5.0, 0.5), "postgres": (5.0, 0.02)}
"""
After how many seconds an idle worker looks at every shard again, and the same for each shard, if
that is longer.
"""

CONNECTIONS = {"sqlite": (0.0, 0.0), "valkey": (5.0, 0.0), "postgres": (1.0, 2.0)}
"""A worker's connections to each node, and to each shard of it."""

TICK_SECONDS = 0.1
GATE_LOOKS, GATE_CALLS = 4.0, 3.0
"""Looks a second at shared gates on many shards, and the calls to each shard in one look."""

PRICES = {"core": 0.04, "memory": 0.005, "disk": 0.1, "network": 0.01}
"""Dollars: a core's hour, an hour of 1 GiB of memory, a month of 1 GiB of disk, 1 GB moved."""

NODES: dict[str, dict[str, float]] = {
    "sqlite": {"cores": 8, "memory": 32, "disk": 1_000, "network": 10, "connections": 0},
    "valkey": {"cores": 1, "memory": 16, "disk": 100, "network": 10, "connections": 10_000},
    "postgres": {"cores": 16, "memory": 64, "disk": 4_000, "network": 10, "connections": 500},
}
"""A node: cores that the store uses, GiB, GiB, Gbit/s, connections. A Valkey node uses one core."""

BUSY = 0.6
"""The share of processor, network and locks that is planned for; 0.75 of memory and disk."""

FULL = 0.75
OF_SHARDS = ("shards", "schema locks", "file locks")
"""What more shards give more of."""

ROUND_TRIP_US = 200.0
"""Microseconds of a round trip between machines, which a PostgreSQL schema's lock is held for."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """
    What the fleet has to do. `rate`: messages a second; `policies`: topics with one of their own.
    """

    topics: float
    rate: float
    workers: float
    body: float = 100
    backlog: float = 0
    batch: float = 100
    rules: dict[str, float] = {}
    policies: float = 0

    def times(self, factor: float) -> Load:
        """The load, multiplied."""
        return msgspec.structs.replace(
            self,
            topics=self.topics * factor,
            rate=self.rate * factor,
            workers=self.workers * factor,
            backlog=self.backlog * factor,
            policies=self.policies * factor,
        )


class Need(msgspec.Struct, frozen=True):
    """
    One resource. `nodes`: what it alone would need; `used`: which share of what may be used, with
    the nodes of the plan; `is_fixed`: more nodes do not help.
    """

    name: str
    nodes: float
    used: float
    is_fixed: bool = False


class Plan(msgspec.Struct, frozen=True):
    """
    What a load needs on one engine. `worker_cores`: for publishing, leasing and settling, without
    the handlers; `idle_share`: heartbeats, waits, grants and samples, as a share of the store's
    processors; `round_trips`, `microseconds`: of one message; `dollars`: for 10^9 messages;
    `breaks`: limits that ten times the load exceeds.
    """

    engine: str
    nodes: int
    shards: int
    store_cores: float
    worker_cores: float
    idle_share: float
    memory_gib: float
    disk_gib: float
    network_gbit: float
    round_trips: float
    microseconds: dict[str, dict[str, float]]
    needs: list[Need]
    dollars: float
    breaks: list[str] = []

    @property
    def bottleneck(self) -> Need:
        """The resource that is used most."""
        return max(self.needs, key=lambda need: need.used)


def plan(
    engine: str,
    costs: EngineCosts,
    load: Load,
    *,
    prices: dict[str, float] = PRICES,
    node: dict[str, float] | None = None,
    shards: int | None = None,
) -> Plan:
    """
    What the load needs. `shards`: of the namespace, or None if the smallest power of two that is
    enough is to be found.
    `prices`, `node`: as PRICES and NODES.
    """
    node = NODES[engine] | (node or {})
    found = _fleet(engine, costs, load, prices, node, shards)
    later = _fleet(engine, costs, load.times(10), prices, node, shards)
    breaks = [
        f"{need.name}: {need.used:.1f} times what there is"
        for need in later.needs
        if need.is_fixed and need.used > 1
    ]
    return msgspec.structs.replace(found, breaks=breaks)


def _fleet(
    engine: str,
    costs: EngineCosts,
    load: Load,
    prices: dict[str, float],
    node: dict[str, float],
    shards: int | None,
) -> Plan:
    """The plan with these shards, or with the number that its own nodes need."""
    count = shards or 1
    while True:
        most = _with_shards(engine, costs, load, prices, node, count, 1).nodes
        found = _with_shards(engine, costs, load, prices, node, count, most)
        if (
            shards is not None
            or count >= MOST_SHARDS
            or all(need.used <= 1 for need in found.needs if need.name in OF_SHARDS)
        ):
            return found
        count *= 2


def _with_shards(
    engine: str,
    costs: EngineCosts,
    load: Load,
    prices: dict[str, float],
    node: dict[str, float],
    shards: int,
    machines: int,
) -> Plan:
    """The plan with these shards, if the topics are on that many machines."""
    waiting = max(load.backlog, load.rate * TICK_SECONDS)
    active = min(load.topics, waiting)
    work = works(
        batch=load.batch,
        shards=shards,
        topics=max(active, 1.0),
        depth=waiting / max(active, 1.0),
        machines=machines,
    )
    # A topic that is busy all the time is not created and forgotten for each message.
    churn = min(1.0, load.topics / load.rate)
    work = {name: msgspec.structs.replace(each, new=churn) for name, each in work.items()}
    calls = work["put"].calls  # new topics come among others: most calls create some
    work["put"] = msgspec.structs.replace(
        work["put"], creating=calls * (1 - (1 - churn) ** (1 / calls))
    )
    each = {
        side: {name: costs.microseconds(side, name, work[name], load.rules) for name in OPERATIONS}
        for side in ("client", "server")
    }
    idle, idle_client = (_idle(engine, costs, load, shards, side) for side in ("server", "client"))
    store, workers = (load.rate * sum(each[side].values()) / 1e6 for side in ("server", "client"))
    if engine == "sqlite":  # the engine runs in the workers' processes, on the host of the file
        store, idle, workers = workers, idle_client, 0.0
    cores = store + idle
    stored = costs.stored_bytes(waiting, active, load.body, load.rules)
    stored += load.policies * costs.policy_bytes + load.workers * costs.beat_bytes
    # Each worker is connected to each node, so more nodes do not divide this.
    of_workers = load.workers * costs.wait_bytes / GIB if engine == "valkey" else 0.0
    network = load.rate * (sum(costs.network_bytes.values()) + 2 * (load.body - costs.body_bytes))
    in_memory = stored if engine == "valkey" else 0.0
    room = max(node["memory"] * FULL - of_workers, node["memory"] * 0.01)
    on_disk = 0.0 if engine == "valkey" else stored
    needed = {
        "processors": cores / (node["cores"] * BUSY),
        "memory": in_memory / GIB / room,
        "disk": on_disk / GIB / (node["disk"] * FULL),
        "network": 0.0 if engine == "sqlite" else network * 8e-9 / (node["network"] * BUSY),
    }
    nodes = max(1, math.ceil(max(needed.values())))
    needs = [Need(name, count, count / nodes) for name, count in needed.items() if count]
    needs += _fixed(engine, load, node, nodes, shards, work, each)
    if of_workers:
        used = of_workers / (node["memory"] * FULL)
        needs.append(Need("memory of connections", nodes, used, is_fixed=True))
    core_price = (nodes * node["cores"] + workers / BUSY) * prices["core"]
    memory_price = nodes * node["memory"] * prices["memory"]
    disk_price = on_disk / GIB * prices["disk"] / 730
    seconds = MESSAGES / load.rate
    dollars = (core_price + memory_price + disk_price) * seconds / 3600
    if engine != "sqlite":
        dollars += network / load.rate * MESSAGES / 1e9 * prices["network"]
    return Plan(
        engine=engine,
        nodes=nodes,
        shards=shards,
        store_cores=cores,
        worker_cores=workers,
        idle_share=idle / (nodes * node["cores"]),
        memory_gib=in_memory / GIB + nodes * of_workers,
        disk_gib=on_disk / GIB,
        network_gbit=0.0 if engine == "sqlite" else network * 8e-9,
        round_trips=sum(costs.round_trips(name, work[name], load.rules) for name in OPERATIONS),
        microseconds=each,
        needs=needs,
        dollars=dollars,
    )


def _idle(engine: str, costs: EngineCosts, load: Load, shards: int, side: str) -> float:
    """Cores that work without messages keeps busy."""
    beats = load.workers * BEATS_A_SECOND * costs.beat[side]
    least, each = LOOKS[engine]
    waits = load.workers * shards / max(least, each * shards) * costs.wait[side]
    samples = shards * costs.sample[side] / (SAMPLE_US / SECOND)
    looks = GATE_LOOKS if shards > 1 and "gate" in load.rules else 0.0
    gates = looks * GATE_CALLS * shards * costs.steps[side]["lease"].call
    return (beats + waits + samples + gates) / 1e6


def _fixed(
    engine: str,
    load: Load,
    node: dict[str, float],
    nodes: int,
    shards: int,
    work: dict[str, Any],
    each: dict[str, dict[str, float]],
) -> list[Need]:
    """Limits that more nodes do not remove."""
    if engine == "sqlite":  # each host has a namespace of its own, with these files
        held = sum(each["client"][name] for name in STEPS) / 1e6
        return [Need("file locks", nodes, load.rate * held / BUSY / shards / nodes, is_fixed=True)]
    fixed = [Need("shards", nodes, nodes / shards, is_fixed=True)]
    to_node, to_shard = CONNECTIONS[engine]
    connections = load.workers * (to_node + to_shard * shards / min(nodes, shards))
    fixed.append(Need("connections", nodes, connections / node["connections"], is_fixed=True))
    if engine == "postgres":
        # A transaction holds the schema's lock while server and client work, and for a round trip.
        held = sum(each[side][name] for side in ("client", "server") for name in STEPS)
        held += sum(work[name].calls for name in STEPS) * ROUND_TRIP_US
        locks = load.rate * held / 1e6 / BUSY / shards
        fixed.append(Need("schema locks", nodes, locks, is_fixed=True))
    return fixed

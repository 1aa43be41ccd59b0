"""
A cluster beside one server: the same messages through one server, and through clusters of two and
three.

Clients and servers share this machine's cores, so elapsed time says little. The capacity of a node
is computed from the processor time of the busiest one.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.common import (
    BATCH,
    BODY,
    SLOWLOG,
    note_longest,
    options,
    pick,
    publish_table,
    spread,
)
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement
from laneway.testing.servers import Server
from tests.server_groups import Cluster


def main() -> None:
    chosen = options(__doc__ or "")
    messages = pick(chosen, 200_000, 50_000, 2_000)
    rows: list[tuple[object, ...]] = []
    first = 0.0
    for nodes in (1, 2, 3):
        runs = [measure(nodes, messages) for _ in range(pick(chosen, 3, 1, 1))]
        per_cpu = spread([busiest for _, busiest in runs])["median"]
        first = first or per_cpu
        rows.append(
            (
                "1 server" if nodes == 1 else f"cluster of {nodes}",
                spread([wall for wall, _ in runs])["median"],
                per_cpu,
                per_cpu / first,
            )
        )
    publish_table(
        "scale",
        chosen,
        (
            "",
            "messages/s, one client",
            "messages / CPU second of the busiest node",
            "times one server",
        ),
        rows,
        f"{messages:,} messages over 1,000 topics, put, leased and settled in batches of {BATCH};"
        " memory; 1 shard, 64 shards",
    )


def measure(nodes: int, messages: int) -> tuple[float, float]:
    """(messages per second, messages per second of processor time of the busiest node)."""
    with ExitStack() as stack:
        if nodes == 1:
            server = stack.enter_context(Server(**SLOWLOG))
            servers, url = [server], server.url
        else:
            cluster = stack.enter_context(Cluster(nodes, 0, **SLOWLOG))
            servers, url = cluster.servers, cluster.url
        stack.callback(note_longest, servers)
        engine = open_engine(url, Settings(durability="memory"))
        before = [cpu(server) for server in servers]
        began = time.perf_counter()
        for start in range(0, messages, BATCH * 20):
            engine.put(
                [
                    Draft(f"t.{n % 1000}", BODY)
                    for n in range(start, min(messages, start + BATCH * 20))
                ]
            )
        done = 0
        while done < messages:
            leases = engine.lease(BATCH).leases
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            done += len(leases)
        wall = messages / (time.perf_counter() - began)
        spent = max(cpu(server) - was for server, was in zip(servers, before, strict=True))
        engine.close()
    return wall, messages / spent


def cpu(server: Server) -> float:
    """The processor time of a server, in seconds."""
    return float(server.info("used_cpu_user")) + float(server.info("used_cpu_sys"))


if __name__ == "__main__":
    main()

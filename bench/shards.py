"""
A namespace on many shards of one server, beside one shard.

- `limited`: one topic with `concurrency=2` and one worker. Its messages are on one shard, and the
  worker should ask no other.
- `policies on shards`: round trips and milliseconds of one change, which every shard has to learn.
- `replicated`: one put at a time with durability `replicated`, beside a raw SET that is followed by
  WAIT and WAITAOF, on the same master and replica. `fsync`: the same with WAITAOF 1 0.

For servers only. The runs alternate, and the figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from bench.common import (
    BODY,
    SLOWLOG,
    ServerStore,
    note_longest,
    options,
    pick,
    publish_table,
    seconds,
    spread,
    store,
)
from laneway import Laneway, Message
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft
from laneway.policy import Gate
from laneway.testing.servers import Server
from laneway.tiers import Tier
from tests.server_groups import Replicated

SHARDS = (1, 8, 64)


def main() -> None:
    chosen = options(__doc__ or "")
    if chosen.engine == "sqlite":
        chosen.engine = "valkey"
    limited(chosen)
    policies(chosen)
    confirmed(chosen)


# A limited topic


def limited(chosen: argparse.Namespace) -> None:
    messages, repeats = pick(chosen, 3_000, 1_500, 100), pick(chosen, 5, 3, 1)
    rates: dict[int, list[float]] = {shards: [] for shards in SHARDS}
    calls: dict[int, float] = {}
    longest = dict.fromkeys(SHARDS, 0.0)
    for _ in range(repeats):
        for shards in SHARDS:
            with store(chosen) as place:
                rate, calls[shards] = drain(place, shards, messages)
                rates[shards].append(rate)
                if isinstance(place, ServerStore):
                    longest[shards] = max(longest[shards], place.longest())
    medians = {shards: statistics.median(found) for shards, found in rates.items()}
    publish_table(
        "shards",
        chosen,
        ("shards", "messages/s", "ratio", "calls for a message", "longest call, ms"),
        [
            (shards, medians[shards], medians[shards] / medians[1], calls[shards], longest[shards])
            for shards in SHARDS
        ],
        f"a topic with concurrency 2, one worker, {messages:,} messages, handlers that do nothing;"
        f" medians of {repeats}; ratio: to one shard; longest call: 0, if none took over 2 ms",
        repeats=[
            {"shards": shards, "messages/s": spread(found)} for shards, found in rates.items()
        ],
    )


def drain(place: Any, shards: int, messages: int) -> tuple[float, float]:
    """(messages a second, function calls for a message)."""
    app = Laneway(f"{place.url}?shards={shards}", durability="memory")
    app.policy("t", concurrency=2)

    @app.handler("*")
    async def nothing(message: object) -> None:
        del message

    app.publish_many((Message("t", "x" * 98) for _ in range(messages)), progress=False)
    before = function_calls(place)
    began = time.perf_counter()
    summary = app.run_worker(concurrency=100, burst=True)
    took = time.perf_counter() - began
    assert summary.acked == messages, summary
    app.close()
    return messages / took, (function_calls(place) - before) / messages


def function_calls(place: Any) -> int:
    """How many functions the servers have been called."""
    if not isinstance(place, ServerStore):
        return 0
    lines = [
        line
        for server in place.servers
        for line in server.run("INFO", "commandstats").splitlines()
        if line.startswith("cmdstat_fcall:")
    ]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


# Policies


def policies(chosen: argparse.Namespace) -> None:
    repeats = pick(chosen, 20, 10, 2)
    rows = []
    for shards in (1, 64):
        with store(chosen) as place:
            engine = open_engine(f"{place.url}?shards={shards}", Settings(durability="memory"))
            for name, change in changes(engine):
                took = [
                    seconds(lambda: change(number)) * 1e3  # noqa: B023  # called at once
                    for number in range(repeats)
                ]
                with counted(engine) as rounds:
                    change(repeats)
                rows.append((name, shards, rounds[0], statistics.median(took)))
            engine.close()
    publish_table(
        "policies-on-shards",
        chosen,
        ("change", "shards", "round trips", "median ms"),
        rows,
        f"one change, which every shard learns; medians of {repeats}",
    )


def changes(engine: FullEngine) -> Iterator[tuple[str, Callable[[int], object]]]:
    """The changes that every shard has to learn, each with a number that makes it a new one."""
    yield "policy of a pattern", lambda n: engine.policy_set("code", "a.*", {"retries": n})
    yield (
        "policies of 100 patterns",
        lambda n: engine.policy_set_many("code", [(f"b{i}.*", {"retries": n}) for i in range(100)]),
    )
    yield (
        "policies of 1,000 topics",
        lambda n: engine.policy_set_many(
            "code", [(f"t.{i}", {"retries": n}) for i in range(1_000)]
        ),
    )
    yield "tiers", lambda n: engine.tier_set("code", {"mid": Tier(n + 1)})
    yield "gate", lambda n: engine.gate_set("g", Gate(concurrency=n + 1))


@contextmanager
def counted(engine: FullEngine) -> Iterator[list[int]]:
    """Count the round trips to the servers of a Valkey engine."""
    server = engine._space.server  # type: ignore[attr-defined]
    exchange = server._with_retries
    rounds = [0]

    def counting(*arguments: Any, **named: Any) -> Any:
        rounds[0] += 1
        return exchange(*arguments, **named)

    server._with_retries = counting
    try:
        yield rounds
    finally:
        del server._with_retries


# Durability


def confirmed(chosen: argparse.Namespace) -> None:
    calls = pick(chosen, 1_000, 300, 10)
    rows = []
    config = {**SLOWLOG, "appendonly": "yes", "appendfsync": "always"}
    with Replicated(1, **config) as group, Server(**config) as single:
        for durability, server, confirming in (
            ("fsync", single, (("WAITAOF", 1, 0, 4_000),)),
            ("replicated", group.master, (("WAIT", 1, 4_000), ("WAITAOF", 1, 1, 4_000))),
        ):
            engine = open_engine(server.url, Settings(durability=durability))
            client = redis.Redis(port=server.port, password=server.password)
            took: dict[str, list[float]] = {"SET": [], "put": []}
            for number in range(calls):
                for name, work in (
                    ("SET", lambda: confirmed_set(client, number, confirming)),  # noqa: B023
                    ("put", lambda: engine.put([Draft("t", BODY)])),  # noqa: B023
                ):
                    took[name].append(seconds(work) * 1e3)
            engine.close()
            client.close()
            note_longest([server])
            ours, raw = (sorted(took[name]) for name in ("put", "SET"))
            rows.append(
                (
                    durability,
                    statistics.median(ours),
                    ours[len(ours) * 99 // 100],
                    statistics.median(raw),
                    raw[len(raw) * 99 // 100],
                    statistics.median(ours) / statistics.median(raw),
                )
            )
    publish_table(
        "confirmed",
        chosen,
        ("durability", "put p50 ms", "put p99 ms", "SET p50 ms", "SET p99 ms", "ratio"),
        rows,
        f"{calls:,} puts of one message, one after the other, in turns with a raw SET that is"
        " followed by WAIT and WAITAOF (fsync: WAITAOF 1 0); appendfsync always",
    )


def confirmed_set(
    client: redis.Redis, number: int, confirming: tuple[tuple[object, ...], ...]
) -> None:
    """A SET, and in the same packet what confirms it."""
    pipeline = client.pipeline(transaction=False)
    pipeline.set(f"k{number}", BODY)
    for command in confirming:
        pipeline.execute_command(*command)
    pipeline.execute()


if __name__ == "__main__":
    main()

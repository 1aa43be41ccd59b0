"""What is not in use leaves nothing on the server."""

from __future__ import annotations

from collections.abc import Callable

from laneway.engines.base import FullEngine
from laneway.message import Action, Draft, Settlement
from laneway.policy import Gate
from laneway.testing.servers import Server

STAYS = {
    "settings",
    "shard",
    "resolved",
    "policies",
    "gates",
    "tiers",
    "own",
    "own_sets",
    "own_uses",
    "own_tiers",
    "programs",
    "tallies",
}
START = 2_200_000_000_000_000


def test_no_key_is_left_of_topics_that_are_done(opened: Callable[..., FullEngine]) -> None:
    """
    With limits, keys, merges, delays, own ids, retries, buckets, partitions, a gate: of none of
    them anything stays.
    """
    with Server() as own:
        engine, now = opened(own.url), START
        engine.gate_set("g", Gate(concurrency=5, rate=100.0), now_us=now)
        policies: dict[str, dict[str, object]] = {
            "limited.*": {"rate": 100, "concurrency": 2, "gate": "g"},
            "serial": {"serial": True},
            "merging": {"merge": "all", "window": 1},
            "bucket.*": {"buckets": 4},
            "parts": {"partitions": 4},
            "timed": {"ttl": 3600},
            "edge": {"merge": "first", "window": 1, "edge": "leading"},
        }
        for pattern, fields in policies.items():
            engine.policy_set("code", pattern, fields, now_us=now)
        names = [
            "plain",
            "serial",
            "merging",
            "parts",
            "timed",
            "edge",
            *(f"limited.{n}" for n in range(40)),
            *(f"bucket.{n}" for n in range(40)),
        ]
        for name in names:
            engine.put(
                [
                    Draft(
                        name,
                        b"%d" % n,
                        key=f"k{n % 3}",
                        id=f"i{n}",
                        priority=n % 2,
                        delay_us=n * 100_000,
                    )
                    for n in range(20)
                ],
                now_us=now,
            )
        for turn in range(400):
            now += 500_000
            leases = engine.lease(500, now_us=now).leases
            action: Action = "retry" if turn == 1 else "ack"
            engine.settle(
                [Settlement(lease.handle, lease.fence, action, delay_us=0) for lease in leases],
                now_us=now,
            )
            if not leases and not engine.overview(now_us=now).waiting:
                break
        now += 7_200_000_000  # what failed lately is known for an hour
        while engine.tick(now_us=now) is not None:
            pass
        left = {key.rpartition(":")[2] for key in own.run("KEYS", "laneway:*")}
        assert engine.overview(now_us=now).topics == 0
        assert left <= STAYS


def test_settled_leases_wake_nobody(opened: Callable[..., FullEngine]) -> None:
    """When the first of many settled leases would end, the others' ends are forgotten too."""
    with Server() as own:
        engine, ends_us = opened(own.url), 0
        engine.put([Draft("t", b"x", id=str(n)) for n in range(50)], now_us=START)
        for n in range(50):
            (lease,) = engine.lease(1, now_us=START + n).leases
            if n == 30:
                ends_us = lease.deadline_us
            else:
                engine.settle([Settlement(lease.handle, lease.fence, "ack")], now_us=START + n)
        assert engine.lease(1, now_us=ends_us - 30).next_wake_us == ends_us
        (late,) = engine.lease(1, now_us=ends_us).leases
        assert late.id == "30"

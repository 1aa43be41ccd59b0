"""A plain message that is put by itself takes a shorter way, with the same effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from laneway.engines.base import FullEngine
from laneway.message import Draft, Settlement
from laneway.testing.servers import Server
from tests.valkey.stored_keys import stored

Opened = Callable[..., FullEngine]
START = 2_200_000_000_000_000


def test_it_stores_what_a_put_of_many_stores(opened: Opened) -> None:
    """Also while messages are leased, with headers and keys, and in more than the first lane."""
    with Server() as server:
        single, usual = (opened(server.url, namespace=name) for name in ("one", "two"))
        put_usually = usual._put_page  # type: ignore[attr-defined]
        for n in range(400):
            draft = Draft(
                f"t.{n % 3}",
                b"x" * (n % 7),
                key="k" if n % 5 == 0 else None,
                headers={"a": "b"} if n % 4 == 0 else None,
            )
            now = START + 1_000 * n
            (receipt,) = single.put([draft], now_us=now)
            (expected,) = put_usually(0, [draft], now)
            assert receipt.id.split("-")[1] == expected.id.split("-")[1]
            if n % 50 == 49:
                for engine in (single, usual):
                    leases = engine.lease(10, now_us=now).leases
                    engine.settle(
                        [Settlement(lease.handle, lease.fence) for lease in leases], now_us=now
                    )
        client: Any = redis.Redis.from_url(server.url.replace("valkey://", "redis://"))
        assert stored(client, "one") == stored(client, "two")


def test_it_reads_and_writes_each_record_once(opened: Opened) -> None:
    with Server() as server:
        engine = opened(server.url)
        engine.put([Draft("t", b"x") for _ in range(100)])
        client: Any = redis.Redis.from_url(server.url.replace("valkey://", "redis://"))
        client.config_resetstat()
        engine.put([Draft("t", b"x")])
        calls = {
            name.removeprefix("cmdstat_"): each["calls"]
            for name, each in client.info("commandstats").items()
            if not name.startswith("cmdstat_config")
        }
        usual = {"fcall": 1, "get": 1, "hget": 1, "time": 1, "hset": 2, "set": 1}
        assert calls == usual | {"hincrby": 1}  # the tally


def test_a_limit_of_the_namespace_holds(opened: Opened) -> None:
    with Server() as server:
        engine = opened(server.url, namespace="limited")
        assert [engine.put([Draft("t", b"x")])[0].outcome for _ in range(2)] == ["accepted"] * 2
        limiting = opened(server.url, namespace="limited", max_backlog=3)
        outcomes = [engine.put([Draft("t", b"x")])[0].outcome for _ in range(2)]
        assert outcomes == ["accepted", "refused"]
        del limiting


@pytest.mark.parametrize("pattern", ["*", "t"])
def test_a_change_of_policies_is_seen(opened: Opened, pattern: str) -> None:
    """By a client that did not make it: of a pattern, and of the topic itself."""
    with Server() as server:
        ours, theirs = (opened(server.url, namespace="changed") for _ in range(2))
        for _ in range(2):
            theirs.put([Draft("t", b"x")])
        ours.policy_set("code", pattern, {"merge": "last"})
        outcomes = [theirs.put([Draft("t", b"y")])[0].outcome for _ in range(2)]
        assert outcomes[1] == "merged"


def test_new_lanes_of_one_call(opened: Opened) -> None:
    """Many at once are stored as lane by lane: with several messages, a limit, another pool."""
    lanes = [
        [
            Draft(f"{stem}.{n}", b"x" * (n % 5), headers={"a": "b"} if n % 4 == 0 else None)
            for _ in range(40 if n == 3 else 20 if n == 5 else 1)
        ]
        for stem in ("t", "limited", "pooled")
        for n in range(12)
    ]
    with Server() as server:
        together, one_by_one = (opened(server.url, namespace=name) for name in ("many", "few"))
        for engine in (together, one_by_one):
            engine.policy_set("code", "limited.*", {"concurrency": 2})
            engine.policy_set("code", "pooled.*", {"pool": "other", "weight": 2})
            engine.put([Draft("pooled.first", b"")], now_us=START)
        receipts = together.put([draft for lane in lanes for draft in lane], now_us=START)
        expected = [receipt for lane in lanes for receipt in one_by_one.put(lane, now_us=START)]
        assert [receipt.id.split("-")[1] for receipt in receipts] == [
            receipt.id.split("-")[1] for receipt in expected
        ]
        client: Any = redis.Redis.from_url(server.url.replace("valkey://", "redis://"))
        assert stored(client, "many") == stored(client, "few")
        for engine in (together, one_by_one):
            assert [check for check in engine.doctor() if not check.ok] == []

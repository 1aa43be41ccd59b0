"""A server remembers the counters of its last call, while nobody else changes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from laneway.engines.base import FullEngine
from laneway.engines.valkey import record_formats
from laneway.engines.valkey.scripts import NAMES
from laneway.errors import EngineUnavailable
from laneway.message import Draft
from laneway.testing.servers import Server
from tests.valkey.commands import client_of, commands
from tests.valkey.stored_keys import stored

Opened = Callable[..., FullEngine]
START = 2_200_000_000_000_000


def test_a_put_runs_few_commands(opened: Opened) -> None:
    with Server() as server:
        engine = opened(server.url)
        engine.put([Draft("t", b"x") for _ in range(100)])
        calls = commands(server, lambda: engine.put([Draft("t", b"x")]))
        usual = {"fcall": 1, "mget": 1, "hget": 1, "time": 1, "hset": 2, "set": 1}
        assert calls == usual | {"hincrby": 1}  # the tally


def test_shards_in_turn(opened: Opened) -> None:
    """What the server remembers is of the shard that was called last."""
    with Server() as server:
        engines = [opened(server.url, namespace=name) for name in ("one", "two")]
        for n in range(1, 6):
            for engine in engines:
                engine.put([Draft(f"t.{n}", b"x")] * n)
        for engine in engines:
            assert engine.overview().published == 15
            assert [check for check in engine.doctor() if not check.ok] == []


def test_a_call_that_fails_on_its_way(opened: Opened) -> None:
    """It has changed what the server remembers, but not what is stored."""
    with Server() as server:
        engine = opened(server.url, namespace="fails")
        engine.put([Draft("t", b"x")])
        client, call = client_of(server), NAMES["put"]
        keys = ["laneway:{fails/0}:shard", "laneway:{fails/0}:never"]
        version = record_formats.read_counters(client.get(keys[0])).version
        tiers = client.get("laneway:{fails/0}:tiers")
        message = record_formats.plain_record(Draft("t", b"x"))
        meta = record_formats.pack(["t", None, [], None, False, None])  # its id is no text
        broken = b"p" + len(meta).to_bytes(2) + meta
        with pytest.raises(redis.ResponseError):
            client.execute_command(
                "FCALL",
                call,
                2,
                *keys,
                *("", tiers, version, record_formats.pack({}), "", ""),
                *(message, broken),
            )
        engine.put([Draft("t", b"x")])
        assert engine.overview().published == 2
        assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("broken", ["m", "tallies"])
@pytest.mark.parametrize("topics", [["f"], ["f", "b.1"]], ids=len)
def test_a_call_that_fails_while_it_writes(opened: Opened, broken: str, topics: list[str]) -> None:
    """What it has not written is not written by the next call, into another namespace."""
    with Server() as server:
        names = ("alike", "other", "fails")
        alike, other, fails = (opened(server.url, namespace=name) for name in names)
        client, name = client_of(server), f"laneway:{{fails/0}}:{broken}"
        for engine in (alike, other, fails):
            engine.policy_set("code", "b.*", {"weight": 2})  # its tally is new in the call
            engine.put([Draft("t", b"x")], now_us=START)
        alike.put([Draft("t", b"x")], now_us=START)
        client.rename(name, "kept")
        client.set(name, "broken")
        with pytest.raises(EngineUnavailable):
            fails.put([Draft(topic, b"x") for topic in topics], now_us=START)
        client.rename("kept", name)
        other.put([Draft("t", b"x")], now_us=START)
        assert stored(client, "other") == stored(client, "alike")


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
        client = client_of(server)
        assert stored(client, "many") == stored(client, "few")
        for engine in (together, one_by_one):
            assert [check for check in engine.doctor() if not check.ok] == []

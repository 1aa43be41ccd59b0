"""
A store that lost something (a key deleted by hand, a server without durability): the rest is
served, and the doctor repairs the counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from laneway.engines.base import FullEngine
from laneway.message import Draft, Settlement
from tests.conformance.valkey_setups import server

Opened = Callable[..., FullEngine]
FORTY = 40


def lose_the_list(engine: FullEngine) -> None:
    server().run("DEL", prefix(engine) + "q:1")


def lose_one_of_the_list(engine: FullEngine) -> None:
    server().run("RPOP", prefix(engine) + "q:1")


def lose_the_lane(engine: FullEngine) -> None:
    server().run("HDEL", prefix(engine) + "lanes", "a")


def lose_a_message(engine: FullEngine) -> None:
    server().run("HDEL", prefix(engine) + "m", "3")


def prefix(engine: FullEngine) -> str:
    return f"laneway:{{{engine.namespace}/0}}:"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "lose", [lose_the_list, lose_one_of_the_list, lose_the_lane, lose_a_message]
)
def test_what_is_lost_holds_up_nobody(opened: Opened, lose: Callable[[FullEngine], None]) -> None:
    engine = opened(server().url)
    engine.put([Draft("a", b"%d" % n) for n in range(FORTY)])
    engine.put([Draft("b", b"1")])
    lose(engine)
    served: list[str] = []
    for _ in range(3):
        leases = engine.lease(100).leases
        engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        served += [lease.topic for lease in leases]
    assert served.count("b") == 1
    assert served.count("a") <= FORTY
    engine.doctor(repair=True)
    engine.put([Draft("a", b"again"), Draft("c", b"1")])
    assert {lease.topic for lease in engine.lease(100).leases} >= {"a", "c"}
    engine.doctor(repair=True)
    assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("lost", ["the timers", "a message", "the lane"])
def test_lost_timers(opened: Opened, lost: str) -> None:
    """Other lanes' delayed messages arrive, and after a repair the lane's own, at their time."""
    engine = opened(server().url)
    due = engine.time_us() + 3_600_000_000
    engine.put([Draft("a", b"1", at_us=due), Draft("a", b"2", at_us=due)])
    lose_of_topic = {
        "the timers": ("DEL", prefix(engine) + "timers"),
        "a message": ("HDEL", prefix(engine) + "m", "1"),
        "the lane": ("HDEL", prefix(engine) + "lanes", "a"),
    }
    server().run(*lose_of_topic[lost])
    engine.put([Draft("b", b"1", at_us=due)])
    assert "b" in [lease.topic for lease in engine.lease(9, now_us=due).leases]
    assert engine.tick(now_us=due) != due, "nothing is left to do"
    if lost != "a message":
        assert "messages" in [check.name for check in engine.doctor() if not check.ok]
    engine.doctor(repair=True)
    engine.doctor(repair=True)
    assert [check for check in engine.doctor() if not check.ok] == []
    if lost != "a message":
        assert len(engine.lease(9, now_us=due).leases) == 2


@pytest.mark.parametrize("lose", ["DEL", "HSET"])
def test_the_doctor_counts_keys_again(opened: Opened, lose: str) -> None:
    """Keys whose states were lost, or count a lease that is not there, go on after a repair."""
    engine = opened(server().url)
    engine.policy_set("code", "a", {"key_concurrency": 1})
    engine.put([Draft("a", b"%d" % n, key="k") for n in range(3)])
    held = engine.lease(10).leases
    states = prefix(engine) + "key_states"
    (slot,) = server().run("HKEYS", states)
    if lose == "DEL":
        server().run("DEL", states)
    else:  # leased 7, parked 0, no clock, no wake
        server().run("HSET", states, slot, b"\x07\x00\x00\x00\xa1a")
    assert [check.name for check in engine.doctor() if not check.ok] == ["counts"]
    engine.doctor(repair=True)
    assert [check for check in engine.doctor() if not check.ok] == []
    assert engine.lease(10).leases == [], "the lease that is held counts"
    for n in range(3):
        assert [lease.body for lease in held] == [b"%d" % n]
        engine.settle([Settlement(lease.handle, lease.fence) for lease in held])
        held = engine.lease(10).leases

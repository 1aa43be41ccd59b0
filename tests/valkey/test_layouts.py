"""Namespaces that older programs made."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey import layouts, records
from laneway.engines.valkey.namespace import Namespace
from laneway.errors import SchemaMismatch
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate
from laneway.testing.servers import Server

Opened = Callable[..., FullEngine]


def load_layout(server: Server, layout: int) -> None:
    """The namespace `before` as a program of that layout left it (two shards)."""
    commands = json.loads((Path(__file__).parent / "data" / f"layout-{layout}.json").read_text())
    with client(server) as raw:
        for command in commands:
            raw.execute_command(*(base64.b64decode(part) for part in command))


def client(server: Server) -> redis.Redis:
    return redis.Redis.from_url(server.url.replace("valkey://", "redis://"))


def set_counters_back(raw: redis.Redis, key: str, layout: int) -> None:
    """Give a shard the counters that an older layout had."""
    names = records.Counters.__struct_fields__
    values = records.unpack_values(raw.get(key), len(names))  # type: ignore[arg-type]
    values[0] = layout
    for name, since in (("copying", 14), ("groups", 7)):  # the last one first
        if layout < since:
            del values[names.index(name)]
    raw.set(key, records.pack_values(*values))


def check_layout_3(engine: FullEngine) -> None:
    assert engine.policies().rows() == [
        ("code", "*", {"retries": 3}),
        ("code", "b.*", {"buckets": 2}),
        ("operator", "a.*", {"retries": 1}),
    ]
    found, after = dict(engine.policy_own_list()[0]), engine.policy_own_list()[1]
    while after is not None:
        page, after = engine.policy_own_list(after)
        found |= dict(page)
    assert {
        topic: {layer: layers[layer] for layer in ("code", "operator") if layer in layers}
        for topic, layers in found.items()
    } == {
        "a.1": {"code": {"rate": 5.0, "retries": 7}, "operator": {"paused": True}},
        "b.1": {"code": {"weight": 2.0}},
        "merging": {"code": {"max_body": 100, "merge": "last"}},
        "split": {"code": {"partitions": 4}},
    }
    policy = engine.policy_of("a.1")
    assert (policy.rate, policy.retries, policy.paused) == (5.0, 1, True)


def test_a_namespace_of_layout_3_is_brought_up_with_all_that_it_holds(opened: Opened) -> None:
    with Server() as server:
        load_layout(server, 3)
        engine = opened(server.url, namespace="before")
        check_layout_3(engine)
        assert [check for check in engine.doctor() if not check.ok] == []
        engine.policy_set("operator", "a.1", {"paused": None, "rate": 1_000_000})
        got: list[str] = []
        while leases := engine.lease(100).leases:
            got += [f"{lease.topic} {lease.body.decode()}" for lease in leases]
            assert set(
                engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            ) == {"acked"}
        waited = [f"{topic} {n}" for topic in ("a.1", "merging", "split", "b.1") for n in range(6)]
        assert set(waited) <= set(got)
        again = opened(server.url, namespace="before")
        assert again.policy_of("a.1").rate == 1_000_000


LAYOUT_4 = {
    "plain": ["returned 0", "plain 0", "plain 1", "plain 2"],
    "first": ["front", "prio 2", "prio 1", "prio 0"],
    "serial": ["serial 0", "serial 1", "serial 2"],
    "merging": ["part 0"],
    "b.1": ["bucket 0"],
    "b.2": ["bucket 1"],
    "split": ["split"],
    "ttl": ["ttl"],
}
"""What waits in the namespace of layout 4; a second time where it comes back first."""


def test_a_namespace_of_layout_4_is_brought_up_with_all_that_it_holds(opened: Opened) -> None:
    with Server() as server:
        load_layout(server, 4)
        engine = opened(server.url, namespace="before")
        assert [check for check in engine.doctor() if not check.ok] == []
        assert [letter.reason for _, letter in engine.dead_list()] == ["refused"]
        got: dict[str, list[Lease]] = {}
        while leases := engine.lease(100).leases:
            for lease in leases:
                got.setdefault(lease.topic, []).append(lease)
            assert set(
                engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
            ) == {"acked"}
        assert {
            topic: sorted(lease.body.decode() for lease in of) for topic, of in got.items()
        } == {topic: sorted(bodies) for topic, bodies in LAYOUT_4.items()}
        assert [lease.body for lease in got["serial"]] == [b"serial 0", b"serial 1", b"serial 2"]
        assert got["merging"][0].bodies == [b"part 0", b"part 1", b"part 2"]
        assert {lease.body: (lease.attempt, lease.deliveries) for lease in got["plain"]} == {
            b"plain 0": (1, 2),
            b"plain 1": (1, 2),
            b"plain 2": (1, 2),
            b"returned 0": (2, 2),
        }
        assert {lease.body: lease.headers for lease in got["first"]}[b"prio 1"] == {"trace": "1"}
        assert engine.lease(100, now_us=10**17).leases[0].body == b"later"


LAYOUT_12 = {
    "first": ["prio 2", "prio 1", "front", "prio 0"],
    "keyed": ["keyed 0", "keyed 1"],
    "late": ["late 2", "late 1", "late 0"],
    "many": [f"many {n:02}" for n in range(20)],
    "merging": ["merged 1"],
    "mixed": ["mixed 1", "mixed 0"],
    "serial": ["serial 0", "serial 1", "serial 2"],
}
"""What waits in the namespace of layout 12, in order."""

LAYOUT_12_US = 1_700_000_000_000_000


def check_waiting(engine: FullEngine, expected: dict[str, list[str]]) -> None:
    """Fail unless these bodies wait in their topics, in this order."""
    for topic, bodies in expected.items():
        found = engine.topic_peek(topic, limit=100)
        assert [message.body.decode() for message in found] == bodies


def test_a_namespace_of_layout_12_is_brought_up_with_all_that_it_holds(opened: Opened) -> None:
    """Also with parked, delayed and merged messages, and some out of sequence."""
    with Server() as server:
        load_layout(server, 12)
        engine = opened(server.url, namespace="before")
        check_waiting(engine, LAYOUT_12)
        scanned, done = engine.cursors("mixed")[0]
        assert scanned > done  # "mixed 0" was delivered, and waits out of sequence
        later = LAYOUT_12_US + 3600_000_000
        engine.put([Draft("late", b"new", priority=1)], now_us=LAYOUT_12_US + 6)
        got: dict[str, list[str]] = {}
        while leases := engine.lease(100, now_us=later).leases:
            for lease in leases:
                got.setdefault(lease.topic, []).append(lease.body.decode())
            engine.settle([Settlement(each.handle, each.fence) for each in leases], now_us=later)
        assert got == {**LAYOUT_12, "late": ["new", *LAYOUT_12["late"]]}
        assert [check for check in engine.doctor() if not check.ok] == []


LAYOUT_13 = {
    "orders": ["order 0", "order 2"],
    "orders#audit": ["order 1", "order 0", "order 2"],
    "orders#log": ["order 1", "order 0", "order 2"],
    "line.a": ["line 0", "line 1", "line 2"],
    "slow.a": ["slow 0", "slow 1", "slow 2"],
}
"""What waits in the namespace of layout 13, in order."""


def test_a_namespace_of_layout_13_gets_a_count_of_left_copies(opened: Opened) -> None:
    """Nothing else changes, and messages with many copies can be published."""
    with Server() as server:
        load_layout(server, 13)
        engine = opened(server.url, namespace="before")
        check_waiting(engine, LAYOUT_13)
        assert [check for check in engine.doctor() if not check.ok] == []
        names: dict[str, object] = {f"subscription:s{n}": {} for n in range(300)}
        engine.policy_set("code", "orders", names)
        engine.put([Draft("orders", b"new", priority=2)])
        for topic in ("orders", "orders#log", "orders#s0", "orders#s299"):
            assert engine.topic_peek(topic)[0].body == b"new"
        assert [check for check in engine.doctor() if not check.ok] == []


LAYOUT_14 = {
    "one.a": ["one.a 0", "one.a 1"],
    "one.b": ["one.b 0", "one.b 1"],
    "two.a": ["two.a 0", "two.a 1"],
    "grouped.a": ["grouped.a 0", "grouped.a 1"],
    "grouped.b": ["grouped.b 0", "grouped.b 1"],
    "limited.a": ["limited.a 0", "limited.a 1"],
    "parts": ["parts 0", "parts 1"],
}
"""
What waits in the namespace of layout 14: at the gate "g"; at "g" and "h"; in groups at "g"; in a
group with a concurrency; at what partitions share.
"""


@pytest.mark.parametrize("layout", [10, 14])
def test_lanes_at_gates_of_layout_14_are_placed_again(opened: Opened, layout: int) -> None:
    """Even if an older step has placed them before: each waits at one of its gates."""
    with Server() as server:
        load_layout(server, 14)
        if layout < 14:
            with client(server) as raw:
                for shard in range(2):
                    set_counters_back(raw, f"laneway:{{before/{shard}}}:shard", layout)
                raw.hset("laneway:{before/0}:settings", "layout", layout)
        engine = opened(server.url, namespace="before")
        assert [check for check in engine.doctor() if not check.ok] == []
        assert {gate["name"]: gate["waiting"] for gate in engine.gate_list()} == {"g": 5, "h": 1}
        with client(server) as raw:
            for shard in range(2):
                names = raw.keys(f"laneway:{{before/{shard}}}:*gate*:*".replace("{", "?"))
                assert not [name for name in names if b"\x1f" in name or b"gate_sets" in name]
        for name in ("g", "h"):
            engine.gate_set(name, Gate(concurrency=100))
        got: dict[str, list[str]] = {}
        while leases := engine.lease(100).leases:
            for lease in leases:
                got.setdefault(lease.topic, []).append(lease.body.decode())
            engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        assert {topic: sorted(bodies) for topic, bodies in got.items()} == LAYOUT_14
        assert {gate["name"]: gate["waiting"] for gate in engine.gate_list()} == {"g": 0, "h": 0}


def test_a_namespace_of_layout_6_gets_groups(opened: Opened) -> None:
    """What waits in it moves to a group when its policy names one."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        engine.put([Draft("c.acme.1", b"kept")])
        engine.close()
        with client(server) as raw:
            raw.hset("laneway:{before/0}:settings", "layout", 6)
            set_counters_back(raw, "laneway:{before/0}:shard", 6)
        engine = opened(server.url, namespace="before")
        engine.policy_set("code", "c.*", {"group": "customer.{1}"})
        assert engine.topic_stats("c.acme.1").group == "customer.acme"
        assert [lease.body for lease in engine.lease(1).leases] == [b"kept"]
        assert [check for check in engine.doctor() if not check.ok] == []


def test_a_namespace_of_layout_7_lists_gates_with_lanes(opened: Opened) -> None:
    """A gate of several shards that is shut before the upgrade gets its grants after it."""
    with Server() as server:
        engine = opened(f"{server.url}?shards=2", namespace="before")
        engine.gate_set("g", Gate(concurrency=1))
        engine.gate_set("h", Gate(concurrency=1))
        engine.policy_set("code", "*", {"gate": ["g", "h"]})
        engine.policy_set("code", "t.0", {"gate": "g"})
        engine.put([Draft(f"t.{n}", b"x") for n in range(9)])
        engine.close()
        listed = []
        with client(server) as raw:
            raw.hset("laneway:{before/0}:settings", "layout", 7)
            for key in ("laneway:{before/0}:", "laneway:{before/1}:"):
                listed.append(raw.zrange(key + "waited_gates", 0, -1))
                raw.delete(key + "waited_gates")
                set_counters_back(raw, key + "shard", 7)
            opened(server.url, namespace="before")
            for key, names in zip(
                ("laneway:{before/0}:", "laneway:{before/1}:"), listed, strict=True
            ):
                assert raw.zrange(key + "waited_gates", 0, -1) == names != []


def test_rules_of_layout_8_get_the_limits_of_all_partitions(opened: Opened) -> None:
    """They had the part of one partition."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        engine.policy_set("code", "hot", {"partitions": 4, "rate": 8.0})
        engine.close()
        with client(server) as raw:
            key = "laneway:{before/0}:"
            rule = raw.hget(key + "rules", "hot")
            raw.hset(key + "rules", "hot", rule.replace(b"\x08", b"\x02", 1))
            raw.hset(key + "settings", "layout", 8)
            set_counters_back(raw, key + "shard", 8)
            engine = opened(server.url, namespace="before")
            assert raw.hget(key + "rules", "hot") == rule
        assert [check for check in engine.doctor() if not check.ok] == []


def test_rules_of_layout_11_get_the_bounds_of_all_partitions(opened: Opened) -> None:
    """Of a concurrency that adapts; they had the part of one partition."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        fields = {"partitions": 4, "concurrency": "auto", "max_concurrency": 41}
        engine.policy_set("code", "hot", fields)
        engine.put([Draft("hot", b"x", key=f"k{n}") for n in range(50)])
        engine.close()
        with client(server) as raw:
            key = "laneway:{before/0}:"
            rule = raw.hget(key + "rules", "hot")
            raw.hset(key + "rules", "hot", rule.replace(b"\x29", b"\x0a", 1))
            raw.delete(key + "gates")
            raw.hset(key + "settings", "layout", 11)
            set_counters_back(raw, key + "shard", 11)
            engine = opened(server.url, namespace="before")
            assert raw.hget(key + "rules", "hot") == rule
        assert len(engine.lease(50).leases) == 2
        assert engine.topic_stats("hot").limit == 2
        assert [check for check in engine.doctor() if not check.ok] == []


def test_rules_of_layout_9_say_who_consumes(opened: Opened) -> None:
    """Subscriptions of a pattern have policies and one consumer from then on."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        engine.policy_set("code", "orders.*", {"subscription:audit": {}, "retries": 3})
        engine.put([Draft("orders.eu", b"1")])
        engine.close()
        with client(server) as raw:
            key = "laneway:{before/0}:"
            rule = raw.hget(key + "rules", "orders.*")
            raw.hset(key + "rules", "orders.*", rule[:-1])
            raw.hset(key + "settings", "layout", 9)
            set_counters_back(raw, key + "shard", 9)
            engine = opened(server.url, namespace="before")
            assert raw.hget(key + "rules", "orders.*") == rule
        assert [check for check in engine.doctor() if not check.ok] == []
        engine.policy_set("code", "orders.*", {"subscription:audit": {"kind": "failover"}})
        engine.policy_set("operator", "*#audit", {"retries": 0})
        assert [check for check in engine.doctor() if not check.ok] == []
        (lease,) = engine.lease(5, pool="orders.*#audit").leases
        engine.settle([Settlement(lease.handle, lease.fence, "retry")])
        assert engine.topic_stats("orders.eu#audit").dead == 1
        engine.policy_set("code", "orders.*", {"subscription:audit": None})
        assert engine.policy_reset("operator", "*#audit")
        assert [check for check in engine.doctor() if not check.ok] == []


@pytest.mark.parametrize("layout", [6, 8, 9])
def test_an_upgrade_keeps_who_set_each_policy(opened: Opened, layout: int) -> None:
    """What programs declare stays theirs, and what was set at run time comes before it."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        for name, field in (("a.*", "retries"), ("split", "partitions"), ("a.1", "retries")):
            engine.policy_set("program:shop", name, {field: 2})  # type: ignore[arg-type]
        engine.policy_set("code", "b.*", {"retries": 4})
        engine.policy_set("code", "a.*", {"max_body": 100})
        rows, own = engine.policies().rows(), engine.policy_own_list()
        engine.close()
        with client(server) as raw:
            key = "laneway:{before/0}:"
            raw.hset(key + "settings", "layout", layout)
            set_counters_back(raw, key + "shard", layout)
        engine = opened(server.url, namespace="before")
        assert engine.policies().rows() == rows
        assert engine.policy_own_list() == own


def test_rules_of_layout_5_get_the_fields_of_today(opened: Opened) -> None:
    """Without a change of policies, the doctor finds nothing after an upgrade."""
    with Server() as server:
        engine = opened(server.url, namespace="before")
        engine.policy_set("code", "a.*", {"retries": 5})
        engine.put([Draft("a.1", b"kept")])
        engine.close()
        with client(server) as raw:
            key = "laneway:{before/0}:"
            raw.hset(key + "settings", "layout", 5)
            set_counters_back(raw, key + "shard", 5)
            for pattern, rule in raw.hgetall(key + "rules").items():
                raw.hset(key + "rules", pattern, without_last(rule, 3))
        engine = opened(server.url, namespace="before")
        assert [check for check in engine.doctor() if not check.ok] == []
        assert engine.policy_of("a.1").retries == 5
        assert [lease.body for lease in engine.lease(1).leases] == [b"kept"]


def without_last(rule: bytes, count: int) -> bytes:
    """A rule without the last values, which an older layout did not have; all are false."""
    assert rule.endswith(b"\xc2" * count)
    return rule[:-count]


@pytest.mark.parametrize("steps", range(1, 12))
def test_bringing_up_may_break_off_anywhere(
    opened: Opened, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next program that opens it goes on."""
    from laneway.engines.valkey.connection import Connections

    with Server() as server:
        load_layout(server, 3)
        left = steps
        call = Connections.call

        def breaking(self: Connections, *arguments: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return call(self, *arguments, **options)  # type: ignore[arg-type]

        with monkeypatch.context() as patched:
            patched.setattr(Connections, "call", breaking)
            try:
                opened(server.url, namespace="before").close()
            except KeyboardInterrupt:
                pass
        check_layout_3(opened(server.url, namespace="before"))


def test_several_steps_follow_one_another(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the first of them may call today's functions."""
    filled: list[int] = []

    def fill(space: Namespace) -> None:
        filled.append(len(space.run("policies", 0, None)))

    monkeypatch.setitem(layouts.STEPS, 2, layouts.Step([], fill))
    with Server() as server:
        load_layout(server, 3)
        with client(server) as raw:
            raw.hset("laneway:{before/0}:settings", "layout", 2)
            for shard in range(2):
                key = f"laneway:{{before/{shard}}}:shard"
                stored = raw.get(key)
                assert stored[0] == 3
                raw.set(key, b"\x02" + stored[1:])
        engine = opened(server.url, namespace="before")
        check_layout_3(engine)
        assert len(filled) == 1
        assert [check for check in engine.doctor() if not check.ok] == []


def test_programs_that_open_an_older_namespace_at_once(opened: Opened) -> None:
    """One brings it up, the others wait for it."""
    with Server() as server:
        load_layout(server, 3)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                with_ = open_engine(server.url, Settings(namespace="before"))
                check_layout_3(with_)
                with_.close()
            except BaseException as error:  # checked below
                failed.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert failed == []


def test_a_program_of_an_older_layout_is_refused_while_it_runs(opened: Opened) -> None:
    """Its next call says so: here one that meets a newer layout."""
    with Server() as server:
        engine = opened(server.url, namespace="mine")
        with client(server) as raw:
            raw.set("laneway:{mine/0}:shard", b"\x63" + raw.get("laneway:{mine/0}:shard")[1:])
        with pytest.raises(SchemaMismatch, match=r"layout 99.*upgrade"):
            engine.lease(1)


def test_a_namespace_of_layout_10_lists_topics_by_dead_letters(opened: Opened) -> None:
    """Letters that died before the upgrade count."""
    with Server() as server:
        engine = opened(f"{server.url}?shards=2", namespace="before")
        engine.put([Draft(f"t.{n % 3}", b"x") for n in range(6)])
        leases = engine.lease(5).leases
        engine.settle([Settlement(each.handle, each.fence, "dead") for each in leases])
        listed = engine.topic_list(order="dead")
        assert sum(stats.dead for stats in listed) == 5
        engine.close()
        with client(server) as raw:
            for shard in range(2):
                key = f"laneway:{{before/{shard}}}:"
                raw.delete(key + "top:dead")
                set_counters_back(raw, key + "shard", 10)
            raw.hset("laneway:{before/0}:settings", "layout", 10)
        engine = opened(f"{server.url}?shards=2", namespace="before")
        assert engine.topic_list(order="dead") == listed

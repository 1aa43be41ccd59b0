"""A namespace on several shards: its invariants."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.sharded import visits
from laneway.engines.sharded.queue import SHARDS_AT_ONCE
from laneway.engines.valkey import namespace, record_formats
from laneway.engines.valkey.connection import Connections
from laneway.errors import BadMessage
from laneway.message import Action, Draft, Lease, Settlement, SettlementAnswer
from laneway.policy import Gate
from laneway.tiers import Tier
from tests.conformance.valkey_setups import cluster, server
from tests.valkey.conftest import drain, some
from tests.valkey.stored_keys import UNDIVIDED

Opened = Callable[..., FullEngine]


@pytest.fixture(autouse=True)
def _empty_shards_are_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, and calls are not divided because they take long."""
    monkeypatch.setattr(visits, "VISIT_AGAIN", 600.0)
    monkeypatch.setattr("laneway.engines.valkey.connection.SOURCE", UNDIVIDED)


def sharded(opened: Opened, shards: int = 8, **settings: object) -> FullEngine:
    return opened(f"{server().url}?shards={shards}", **settings)


def end(engine: FullEngine, leases: list[Lease], action: Action = "ack") -> list[SettlementAnswer]:
    return engine.settle([Settlement(lease.handle, lease.fence, action) for lease in leases])


def test_everything_comes_once_and_in_order_inside_a_topic(opened: Opened) -> None:
    engine = sharded(opened)
    engine.put([Draft(f"t.{n % 40}", b"%d" % n) for n in range(2_000)])
    order: dict[str, list[int]] = {}
    while leases := engine.lease(100).leases:
        for lease in leases:
            order.setdefault(lease.topic, []).append(int(lease.body))
        assert set(end(engine, leases)) == {"acked"}
    assert sum(map(len, order.values())) == 2_000
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert [check for check in engine.doctor() if not check.ok] == []


def test_ids_and_handles_tell_their_shard(opened: Opened) -> None:
    engine = sharded(opened)
    receipts = engine.put([Draft(f"t.{n}", b"x") for n in range(50)])
    assert len({receipt.id for receipt in receipts}) == 50
    for receipt in receipts:
        view = engine.find(receipt.id)
        assert view is not None
        assert view.topic == receipt.topic
        assert engine.explain(receipt.id).state == "ready"
    assert engine.put(some(10)) != engine.put(some(10))
    assert {receipt.outcome for receipt in engine.put(some(10))} == {"duplicate"}


def test_partitions_live_on_several_shards(opened: Opened) -> None:
    """
    Each message's key picks the place; the topic counts as one, and its rate holds for all
    together.
    """
    engine = sharded(opened)
    engine.policy_set("code", "hot", {"partitions": 8, "rate": 8, "burst": 8})
    engine.put([Draft("hot", b"x", key=f"k{n}") for n in range(200)])
    stats = engine.topic_stats("hot")
    assert stats.waiting == 200
    used = [shard for shard in range(8) if engine._space.read(shard, "HLEN", "lanes")]  # type: ignore[attr-defined]
    assert len(used) == 8
    leases = engine.lease(100).leases
    assert len(leases) <= 8 + 1, "the burst of all its lanes"
    assert [stats.topic for stats in engine.topic_list()] == ["hot"]
    assert engine.topic_purge("hot") == 200 - len(leases)


@pytest.mark.parametrize("count", [1, 3, 600])
def test_a_key_stays_on_one_shard_after_a_change_of_routes(opened: Opened, count: int) -> None:
    """Another process does not know the change yet when it publishes."""
    name = uuid.uuid4().hex
    first, second = sharded(opened, namespace=name), sharded(opened, namespace=name)
    for n in range(12):
        topic, key = f"hot.{n}", f"k{n}"
        second.policy_set("code", topic, {"partitions": 4, "serial": "hold"})
        receipts = first.put([Draft(topic, b"", key=key), *some(count - 1)])
        assert [receipt.topic for receipt in receipts[:1]] == [topic]
        second.put([Draft(topic, b"", key=key)])
    keys = [lease.key for lease in first.lease(9_000, now_us=time.time_ns() // 1000).leases]
    assert sorted(filter(None, keys)) == sorted(f"k{n}" for n in range(12))


def test_what_an_ack_publishes_stays_on_one_shard_after_a_change_of_routes(opened: Opened) -> None:
    """The topic was on the acked message's shard when the process read the policies."""
    name = uuid.uuid4().hex
    first, second = sharded(opened, namespace=name), sharded(opened, namespace=name)
    route = first._space.routes.route  # type: ignore[attr-defined]
    topic_of_shard = {route(f"p.{n}").shard: f"p.{n}" for n in range(99)}
    for n in range(12):
        topic = f"hot.{n}"
        first.put([Draft(topic_of_shard[route(topic).shard], b"")])
        (parent,) = first.lease(1, now_us=time.time_ns() // 1000).leases
        second.policy_set("code", topic, {"partitions": 4, "serial": "hold"})
        draft = Draft(topic, b"", key=f"k{n}")
        ack = Settlement(parent.handle, parent.fence)
        assert first.settle([ack], publish={0: [draft]}) == ["acked"]
        second.put([draft])
        leases = first.lease(5, now_us=time.time_ns() // 1000).leases
        assert [lease.id for lease in leases] == [f"{parent.id}:0"]
        end(first, leases)
        end(first, first.lease(5, now_us=time.time_ns() // 1000).leases)


def test_a_bucket_is_one_lane(opened: Opened) -> None:
    engine = sharded(opened)
    engine.policy_set("code", "b.*", {"buckets": 1, "concurrency": 2})
    engine.put([Draft(f"b.{n}", b"x") for n in range(20)])
    assert len(engine.lease(100).leases) == 2
    assert engine.overview().topics == 1


@pytest.mark.parametrize("second", [None, 1])
def test_gates_are_never_passed_by_more_than_they_admit(opened: Opened, second: int | None) -> None:
    """
    Fewer slots than shards, and topics on all of them: every shard has its turn.

    A topic with two gates, too, gets grants of both at a time.
    """
    engine = sharded(opened)
    engine.gate_set("g", Gate(concurrency=3))
    engine.gate_set("h", Gate(concurrency=second))
    engine.policy_set("code", "*", {"gate": ["g", "h"]})
    engine.put([Draft(f"t.{n}", b"x") for n in range(12 if second else 40)])
    served: Counter[str] = Counter()
    deadline = time.monotonic() + 60
    while sum(served.values()) < (12 if second else 40):
        assert time.monotonic() < deadline, served
        leases = engine.lease(100).leases
        assert len(leases) <= (second or 3)
        assert all(gate["leased"] <= (gate["concurrency"] or 3) for gate in engine.gate_list())
        served.update(lease.topic for lease in leases)
        end(engine, leases)
        if not leases:
            engine.wait(1.0)
    assert set(served.values()) == {1}


def test_policies_reach_all_shards_also_where_their_writer_died(opened: Opened) -> None:
    """By the next process that opens the namespace."""
    engine = paused_on_all_shards_but_the_first(opened)
    assert [check.name for check in engine.doctor() if not check.ok] == ["policies"]
    other = sharded(opened, namespace=engine.namespace)  # type: ignore[attr-defined]
    assert [check for check in other.doctor() if not check.ok] == []
    assert len(drain(other)) == 40


def test_a_worker_finishes_a_change_whose_writer_died(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "FINISH_AFTER", 0.0)
    engine = paused_on_all_shards_but_the_first(opened)
    deadline = time.monotonic() + 30
    found = 0
    while found < 40:
        assert time.monotonic() < deadline
        found += len(engine.lease(100).leases)
    assert [check for check in engine.doctor() if not check.ok] == []


def paused_on_all_shards_but_the_first(opened: Opened) -> FullEngine:
    """A writer wanted topics to go on, and died after the first shard."""
    engine = sharded(opened)
    engine.put([Draft(f"t.{n}", b"x") for n in range(40)])
    engine.policy_set("code", "t.*", {"paused": True})
    assert engine.lease(100).leases == []
    space = engine._space  # type: ignore[attr-defined]
    version, fields, names = (
        space.routes.version,
        record_formats.pack(["code:t.*", ""]),
        record_formats.pack(["t.*"]),
    )
    space.run("policy", 0, None, version, version + 1, "t.*", fields, names, 0, 0, b"")
    return engine


@pytest.mark.parametrize(
    "change",
    [
        lambda engine: engine.policy_set("code", "a.*", {"retries": 3}),
        lambda engine: engine.policy_set_many(
            "code", [(f"t.{n}", {"retries": 3}) for n in range(200)]
        ),
        lambda engine: engine.tier_set("code", {"mid": Tier(7)}),
        lambda engine: engine.gate_set("g", Gate(concurrency=70)),
    ],
)
def test_a_change_of_all_shards_takes_few_round_trips(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, change: Callable[[FullEngine], object]
) -> None:
    engine = sharded(opened, 64)
    rounds = []
    exchange = Connections._with_retries

    def counting(*arguments: Any, **named: Any) -> Any:
        rounds.append(arguments[1])
        return exchange(*arguments, **named)

    monkeypatch.setattr(Connections, "_with_retries", counting)
    change(engine)
    assert len(rounds) <= 6
    monkeypatch.undo()
    assert [check for check in engine.doctor() if not check.ok] == []


def test_acks_publish_across_shards(opened: Opened) -> None:
    engine = sharded(opened)
    engine.put([Draft("first", b"1")])
    (lease,) = engine.lease(1).leases
    follow = {0: [Draft(f"next.{n}", b"2") for n in range(8)]}
    assert engine.settle([Settlement(lease.handle, lease.fence)], publish=follow) == ["acked"]
    assert [engine.topic_stats(f"next.{n}").waiting for n in range(8)] == [1] * 8, (
        "each where its topic lives"
    )
    assert {
        receipt.outcome for receipt in engine.put([Draft("next.3", b"2", id=f"{lease.id}:3")])
    } == {"duplicate"}
    assert engine.settle([Settlement(lease.handle, lease.fence)], publish=follow) == ["lost"]
    assert len(drain(engine)) == 8


def test_a_cluster_has_64(opened: Opened) -> None:
    engine = opened(cluster())
    assert engine.capabilities.shards == 64
    engine.put(some(300, topics=100))
    assert len(drain(engine)) == 300


def test_the_masters_of_a_cluster_as_parts_of_the_store(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is asked once, and is found where a replica was taken for it."""
    engine = opened(cluster())
    asked: list[str] = []
    info = Connections.info

    def counted(self: Connections, key: str) -> dict[str, str]:
        asked.append(key)
        return info(self, key)

    monkeypatch.setattr(Connections, "info", counted)
    parts = engine.store_parts()
    assert (len(parts), len(asked), sum(part.shards for part in parts)) == (3, 3, 64)
    for part in parts:
        assert re.fullmatch(r"\S+ [\d.]+, 1 replicas", part.what)
        assert part.used > 0
    nodes = engine._space.server._nodes._client.nodes_manager  # type: ignore[attr-defined]
    for each in {id(each): each for each in nodes.slots_cache.values()}.values():
        each.reverse()  # as after a fail-over that this process does not know
    assert {part.name for part in engine.store_parts()} == {part.name for part in parts}


def calls() -> int:
    line = next(
        line
        for line in server().run("INFO", "commandstats").splitlines()
        if line.startswith("cmdstat_fcall:")
    )
    return int(line.partition("calls=")[2].partition(",")[0])


def test_a_notified_worker_leases_first_from_the_shard_that_notified(opened: Opened) -> None:
    """
    Not one shard after the other: with 64 of them that would be 64 round trips before a single
    message begins.
    """
    engine = sharded(opened, 64)
    for n in range(5):
        waiting = ThreadPoolExecutor(1).submit(engine.wait, 60.0)
        engine.put([Draft(f"t.{n}", b"%d" % n)])
        assert waiting.result(60)
        before = calls()
        (lease,) = engine.lease(100).leases
        assert lease.body == b"%d" % n
        assert calls() - before <= SHARDS_AT_ONCE
        end(engine, [lease])


def test_a_lease_that_has_something_leaves_the_other_shards_for_the_next(opened: Opened) -> None:
    engine = sharded(opened, 64)
    engine.put([Draft(f"t.{n}", b"x") for n in range(500)])
    batch = engine.lease(1_000)
    assert 0 < len(batch.leases) < 500
    assert batch.next_wake_us == batch.now_us, "ask again"
    assert engine.wait(10.0)
    found = len(batch.leases)
    while leases := engine.lease(1_000).leases:
        found += len(leases)
    assert found == 500


def test_a_limited_topic_costs_as_many_calls_as_on_one_shard(opened: Opened) -> None:
    """A lease visits the shard of the messages that were settled, and no other."""
    engine = sharded(opened, 64)
    engine.policy_set("code", "t", {"concurrency": 2})
    assert engine.lease(100).leases == []
    engine.put([Draft("t", b"x") for _ in range(40)])
    leases = engine.lease(100).leases
    before = calls()
    for _ in range(19):
        assert len(leases) == 2
        end(engine, leases)
        leases = engine.lease(100).leases
    assert calls() - before <= 2 * 19 + 1


def test_empty_shards_cost_one_call_for_all(opened: Opened) -> None:
    engine = sharded(opened, 64)
    assert engine.lease(100).leases == []
    before = calls()
    assert engine.lease(100).leases == []
    assert calls() - before == 1


def test_what_another_process_publishes_is_found_at_once(opened: Opened) -> None:
    """Also by a process that has found all shards empty, and is not notified."""
    engine = sharded(opened, 64)
    other = opened(engine.url, namespace=engine.namespace)  # type: ignore[attr-defined]
    for n in range(100):
        assert engine.lease(1).leases == []
        other.put([Draft(f"t.{n}", b"x")])
        (lease,) = engine.lease(1).leases
        end(other, [lease])


def test_messages_become_due_on_shards_that_were_empty(opened: Opened) -> None:
    """A lease that finds nothing says when to lease again."""
    engine = sharded(opened, 64)
    engine.put([Draft(f"t.{n}", b"x", delay_us=200_000) for n in range(20)])
    batch = engine.lease(100)
    found = len(batch.leases)  # the call before may have taken longer than the delay
    if not found:
        assert batch.next_wake_us is not None
        assert batch.next_wake_us - batch.now_us <= 200_000
    deadline = time.monotonic() + 30
    while found < 20:
        assert time.monotonic() < deadline
        found += len(engine.lease(100).leases)


def test_many_ids_are_looked_up_in_few_calls(opened: Opened) -> None:
    engine = sharded(opened)
    engine.policy_set("code", "t", {"partitions": 2, "dedupe": 60.0})
    own = engine.put([Draft("t", b"x", id=f"m{n}", key=f"k{n}") for n in range(600)])
    generated = engine.put([Draft("t", b"x", key=f"k{n}") for n in range(600)])
    leases = engine.lease(400, topics=["t"]).leases
    assert len(leases) == 400
    expected = {receipt.id: "waiting" for receipt in [*own, *generated]}
    expected |= {lease.id: "leased" for lease in leases[:200]}
    expected |= {lease.id: "finished" for lease in leases[200:300]}
    expected |= {lease.id: "dead" for lease in leases[300:]}
    assert set(end(engine, leases[200:300])) == {"acked"}
    assert set(end(engine, leases[300:], "dead")) == {"died"}
    expected["other"] = "unknown"
    before = calls()
    assert engine.lookup("t", list(expected)) == expected
    assert calls() - before <= 2 * -(-len(expected) // 250)
    assert set(engine.lookup("other", list(expected)).values()) == {"unknown"}


def test_topics_by_name_are_read_page_by_page(opened: Opened) -> None:
    """Lanes of partitions and buckets, and topics of which only dead letters are left, too."""
    engine = sharded(opened)
    engine.policy_set("code", "p", {"partitions": 64})
    engine.policy_set("code", "b.*", {"buckets": 4})
    topics = [*(f"b.{n}" for n in range(40)), *(f"d.{n}" for n in range(40)), "p"]
    topics += [f"t.{n}" for n in range(300)]
    engine.put([Draft(topic, b"x") for topic in topics])
    engine.put([Draft("p", b"x", key=f"k{n}") for n in range(400)])
    leases = engine.lease(40, topics=topics[40:80]).leases
    end(engine, leases, "dead")
    found: list[str] = []
    while page := engine.topic_list(limit=50, after=found[-1] if found else None):
        found += [stats.topic for stats in page]
    assert found == sorted(topics)
    assert [stats.topic for stats in engine.topic_list(pattern="d.*", limit=99)] == found[40:80]


def test_a_fence_has_a_number_that_no_other_shard_gives(opened: Opened) -> None:
    """Workers know their leases by it; that of another shard does not settle."""
    engine = opened(f"{server().url}?shards=4")
    engine.put([Draft(f"t.{n}", b"x") for n in range(80)])
    leases = engine.lease(80).leases
    assert len({lease.fence for lease in leases}) == len(leases) == 80
    assert len({lease.handle % 4 for lease in leases}) == 4
    assert [engine.settle([Settlement(lease.handle, lease.fence + 1)]) for lease in leases[:4]] == [
        ["lost"]
    ] * 4
    assert engine.extend([(lease.handle, lease.fence) for lease in leases], 1) == [True] * 80
    assert set(engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])) == {
        "acked"
    }


def test_a_limit_that_another_process_set_holds_at_once(opened: Opened) -> None:
    """A client without it learns it from the shard, and checks its messages again."""
    url = f"{server().url}?shards=1"
    first = opened(url)
    other = opened(url, namespace=first.namespace)  # type: ignore[attr-defined]
    other.policy_set("code", "t", {"max_body": 5})
    with pytest.raises(BadMessage, match="its policy allows 5"):
        first.put([Draft("t", b"longer than that")])
    assert first.put([Draft("t", b"short")])[0].outcome == "accepted"

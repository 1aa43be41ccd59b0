"""Leases that an engine object delivered and has cached, while others write to the file."""

import gc
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.shared.states import EXPIRES
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from tests.seeds import FIXED

NOW = 1_700_000_000_000_000


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Two engine objects on one file; their topics have serial keys, dedupe and a gate."""
    url = f"sqlite:///{tmp_path}/x.db"
    with closing(open_engine(url, Settings())) as one, closing(open_engine(url, Settings())) as two:
        one.gate_set("g", Gate(concurrency=10), now_us=NOW)
        one.policy_set("code", "t", {"serial": "hold", "dedupe": 60, "gate": "g"}, now_us=NOW)
        drafts = [Draft("t", b"x", id=f"id{n}", key=f"key{n % 2}") for n in range(4)]
        one.put(drafts, now_us=NOW)
        yield one, two


def settle(engine: Any, leases: list[Any], action: Any = "ack") -> list[str]:
    settlements = [Settlement(lease.handle, lease.fence, action) for lease in leases]
    return list(engine.settle(settlements, now_us=NOW))


def test_what_another_process_ended_is_not_settled_again(engines: tuple[Any, Any]) -> None:
    one, two = engines
    leases = one.lease(10, now_us=NOW).leases
    assert [lease.id for lease in leases] == ["id0", "id1"]
    assert two.cancel("id0", "t", now_us=NOW) == "aborted"
    assert settle(one, leases) == ["lost", "acked"]
    assert two.gate_list()[0]["leased"] == 0
    assert [lease.id for lease in two.lease(10, now_us=NOW).leases] == ["id2", "id3"]


def test_the_lease_of_a_deleted_topic_is_gone(engines: tuple[Any, Any]) -> None:
    one, two = engines
    leases = one.lease(10, now_us=NOW).leases
    two.topic_delete("t", now_us=NOW)
    assert settle(one, leases) == ["gone", "gone"]


def test_another_process_may_settle(engines: tuple[Any, Any]) -> None:
    one, two = engines
    leases = one.lease(10, now_us=NOW).leases
    assert settle(two, leases) == ["acked", "acked"]
    assert settle(one, leases, "retry") == ["lost", "lost"]
    states = one.lookup("t", ["id0", "id1", "id2"], now_us=NOW)
    assert states == {"id0": "finished", "id1": "finished", "id2": "waiting"}


def test_leases_that_are_lost_are_not_kept(tmp_path: Path) -> None:
    """
    Their workers do not settle them: those that ran out, and those that another process ended, of
    which an extension tells.
    """
    url = f"sqlite:///{tmp_path}/x.db"
    with closing(open_engine(url, Settings())) as one, closing(open_engine(url, Settings())) as two:
        cached = one._lane_cache.leases  # type: ignore[attr-defined]
        one.put([Draft("t", b"x", id=str(n)) for n in range(20)], now_us=NOW)
        leases = one.lease(20, now_us=NOW).leases
        assert len(leases) == len(cached) == 20
        ended = leases[:10]
        assert settle(two, ended) == ["acked"] * 10
        pairs = [(lease.handle, lease.fence) for lease in leases]
        held = one.extend(pairs, 60_000_000, now_us=NOW)
        assert held == [False] * 10 + [True] * 10
        assert len(cached) == 10
        one.tick(now_us=leases[0].deadline_us + 60_000_000)
        assert not cached


def test_settled_leases_wake_nobody(tmp_path: Path) -> None:
    """When the first of many settled leases would end, the others' ends are forgotten too."""
    with closing(open_engine(f"sqlite:///{tmp_path}/x.db", Settings())) as engine:
        engine.put([Draft("t", b"x", id=str(n)) for n in range(50)], now_us=NOW)
        ends_us = 0
        for n in range(50):
            (lease,) = engine.lease(1, now_us=NOW + n).leases
            if n != 30:
                settle(engine, [lease])
            else:
                ends_us = lease.deadline_us
        first_us = ends_us - 30
        assert engine.lease(1, now_us=first_us).next_wake_us == ends_us
        (late,) = engine.lease(1, now_us=ends_us).leases
        assert late.id == "30"


def adaptive_engines(stack: ExitStack, folder: Path) -> tuple[Any, Any]:
    """Two engine objects on a new file, whose topics `a.…` adapt and have a ttl."""
    url = f"sqlite:///{folder}/x.db"
    one, two = (stack.enter_context(closing(open_engine(url, Settings()))) for _ in range(2))
    one.policy_set("code", "a.*", {"concurrency": "auto", "ttl": 3600}, now_us=NOW)
    return one, two


def test_a_lane_adapts_alike_to_leases_that_are_cached_and_that_are_read(tmp_path: Path) -> None:
    """Acks of cached leases are settled together, others one by one, with the same results."""
    random = Random(seed := FIXED)
    print("seed", seed)
    views: list[list[Any]] = []
    for name in ("cached", "read"):
        (folder := tmp_path / name).mkdir()
        random.seed(seed)
        with ExitStack() as stack:
            one, two = adaptive_engines(stack, folder)
            now, seen = NOW, []
            drafts = [Draft(f"a.{n % 5}", b"x", headers={"h": str(n)}) for n in range(400)]
            one.put(drafts, now_us=now)
            while leases := one.lease(random.randint(1, 12), now_us=now).leases:
                now += 20_000
                settlements = [settlement_of(lease, random) for lease in leases]
                settler = one if name == "cached" else two
                seen.append(settler.settle(settlements, now_us=now))
            seen.append(one._store.connection.execute(LANES).fetchall())
            views.append(seen)
    assert views[0] == views[1]
    assert any("retried" in answers for answers in views[0][:-1])


LANES = "SELECT name, place, ready, leased, done, more FROM lane ORDER BY name"


def settlement_of(lease: Any, random: Random) -> Settlement:
    settlement = Settlement(lease.handle, lease.fence, cost_us=random.choice((900, 1_000, 5_000)))
    kind = random.random()
    if kind < 0.05:
        settlement.action, settlement.overload, settlement.delay_us = "retry", "timeout", 10_000
    elif kind < 0.1:
        settlement.overload = "answer"
    return settlement


def test_a_message_whose_ttl_ends_is_not_leased_with_those_beside_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, _ = adaptive_engines(stack, tmp_path)
        drafts = [Draft("a.1", body, ttl_us=ttl) for body, ttl in ((b"1", 5), (b"2", 10**9))]
        one.put(drafts, now_us=NOW)
        assert [each.body for each in one.lease(9, now_us=NOW + 5).leases] == [b"2"]
        events = one._store.connection.execute("SELECT mid FROM event WHERE kind = ?", (EXPIRES,))
        assert events.fetchall() == []


def test_a_lease_of_many_topics_leaves_little_to_the_garbage_collector(tmp_path: Path) -> None:
    """What it decided for each lane is freed at its end, not collected among all lanes later."""
    with closing(open_engine(f"sqlite:///{tmp_path}/x.db", Settings())) as engine:
        engine.put([Draft(f"t{n}", b"x") for n in range(500)])
        gc.collect()
        gc.disable()
        try:
            assert len(engine.lease(500).leases) == 500
            assert gc.collect() < 250
        finally:
            gc.enable()

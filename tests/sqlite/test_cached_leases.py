"""Leases that an engine object delivered and has cached, while others write to the file."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement
from laneway.policy import Gate

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

"""`laneway workers`, `laneway ping`, and the other commands that know the workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, RunningMessage, Settings, WorkerFacts
from laneway.units import SECOND
from tests.cli.conftest import Command


@pytest.fixture
def engine(laneway: Command) -> Iterator[FullEngine]:
    with closing(open_engine(laneway.url, Settings())) as engine:
        yield engine


def beat(engine: FullEngine, facts: WorkerFacts, dead_after_us: int = 600 * SECOND) -> None:
    engine.beat(facts, dead_after_us=dead_after_us, listed_us=700 * SECOND)


def test_workers_are_listed(laneway: Command, engine: FullEngine) -> None:
    """With escaped names; by pool and in pages; as JSON with all facts."""
    assert "no worker is running" in laneway("workers").output
    hostile = WorkerFacts(
        id="web\x1b[31m-1",
        program="shop\n",
        version="1.2",
        pools=["gpu"],
        patterns=["laneway.ended", "push.*"],
        concurrency=7,
        busy=2,
        leased=1234,
        oldest=RunningMessage("push.\x00acme", "id-1", engine.time_us() - 200_000 * SECOND),
    )
    beat(engine, hostile)
    beat(engine, WorkerFacts(id="web-2", pools=["default"], topics=["a"]), dead_after_us=0)
    output = laneway("workers").output
    assert "\x1b" not in output
    assert "\x00" not in output
    head, first, second = output.splitlines()
    assert head.split()[:3] == ["worker", "state", "pool"]
    assert "2/7" in first or "2/7" in second
    assert "1,234" in output
    assert "2.3 d" in output  # also an hour later
    assert "dead" in output
    (worker,) = laneway.json("workers", "--pool", "gpu")
    assert (worker["id"], worker["busy"], worker["patterns"]) == (
        "web\x1b[31m-1",
        2,
        ["laneway.ended", "push.*"],
    )
    first_page = laneway.json("workers", "--limit", "1")
    second_page = laneway.json("workers", "--limit", "1", "--after", first_page[0]["id"])
    assert [each["id"] for each in first_page + second_page] == ["web\x1b[31m-1", "web-2"]
    assert 'no worker serves pool "cpu"' in laneway("workers", "--pool", "cpu").output


def test_ping_says_who_does_not_answer(laneway: Command, engine: FullEngine) -> None:
    """With exit code 1; nothing running and an unknown worker are refused too."""
    engine.overview()
    assert "no worker is running" in laneway("ping", code=1).output
    beat(engine, WorkerFacts(id="w1"))
    assert "w1: no answer" in laneway("ping", "--timeout", "0.1s", code=1).output
    assert laneway.json("ping", "w1", "--timeout", "0.1s", code=1) == {"w1": None}
    assert 'there is no worker "w2"' in laneway("ping", "w2", code=1).output
    assert "timeout" in laneway("ping", "--timeout", "soon", code=2).output


def test_missing_workers_are_named(laneway: Command, engine: FullEngine) -> None:
    """`explain`, `top` and `doctor` name the pool that no worker serves."""
    laneway("policy", "set", "gpu.*", "--pool", "gpu")
    message_id = laneway("publish", "gpu.a", "1").output.split()[0]
    sentence = 'no worker serves pool "gpu"'
    assert sentence in laneway("explain", message_id).output.splitlines()[0]
    assert sentence in laneway("top", "--once", "--every", "0.1").output
    seen = laneway.json("top", "--every", "0.1")
    assert seen["unserved_pools"] == ["gpu"]
    assert seen["workers"] == {"count": 0, "busy": 0, "slots": 0}
    assert "no   workers: none is running" in laneway("doctor").output
    engine.tick(now_us=engine.time_us() + 70 * SECOND)  # moves the store's clock
    assert f"FAIL workers: {sentence}" in laneway("doctor", code=1).output
    beat(engine, WorkerFacts(id="w1", pools=["gpu"], concurrency=5))
    assert "ok   workers: 1 worker" in laneway("doctor").output
    assert sentence not in laneway("explain", message_id).output

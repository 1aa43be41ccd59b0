"""
A store on a remote network: a call takes long, so callers must share calls, and leases must outlast
them.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from laneway import Laneway, Message
from laneway.errors import EngineUnavailable
from laneway.testing import with_latency

CALL = 0.05


@pytest.fixture
def far(app: Laneway) -> Laneway:
    """An application whose engine is 50 ms away."""
    app.runtime.holder.opened = with_latency(app.engine, CALL)
    return app


def test_a_burst_looks_for_delayed_messages_only_at_its_end(
    far: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty lease says nothing while leases that use a limit are about to end."""
    far.policy("q.*", concurrency=10)
    far.publish_many(Message(f"q.{n % 100}", n) for n in range(600))

    @far.handler("q.*")
    async def handle(message: Message) -> None: ...

    looks, topic_list = [], far.engine.topic_list

    def look(**options: Any) -> Any:
        looks.append(options["order"])
        return topic_list(**options)

    monkeypatch.setattr(far.engine, "topic_list", look)
    assert far.run_worker(burst=True, concurrency=50).acked == 600
    assert looks.count("backlog") == 1


def test_a_worker_leases_and_settles_many_in_one_call(far: Laneway) -> None:
    """500 messages take far fewer calls than messages."""
    far.publish_many(Message("a", n) for n in range(500))
    seen: list[object] = []

    @far.handler("a")
    async def handle(message: Message) -> None:
        seen.append(message.body)
        await asyncio.sleep(0)

    assert far.run_worker(burst=True, concurrency=50).acked == 500
    calls = far.engine.call_counts  # type: ignore[attr-defined]
    assert calls["lease"] + calls["settle"] < 500 / 4
    assert sorted(map(str, seen)) == sorted(map(str, range(500)))


def test_threads_that_publish_share_a_call(far: Laneway) -> None:
    """Each thread gets the receipt of its own message once that is stored."""
    with ThreadPoolExecutor(40) as threads:
        ids = list(threads.map(lambda n: far.publish("a", n).id, range(200)))
    assert far.engine.call_counts["put"] < 200 / 4  # type: ignore[attr-defined]
    assert far.topic("a").stats().waiting == len(set(ids)) == 200


def test_a_lease_outlasts_the_calls_that_extend_it(far: Laneway) -> None:
    """A handler that takes longer than its lease keeps its message and runs once."""
    far.policy("a", lease=0.6, retries=0)
    starts = []

    @far.handler("a")
    async def handle(message: Message) -> None:
        starts.append(message.id)
        await asyncio.sleep(1.5)

    far.publish("a")
    summary = far.run_worker(burst=True)
    assert (summary.acked, len(starts)) == (1, 1)


def test_a_busy_worker_leases_while_it_settles(
    far: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call is on its way while the answer of another one is awaited."""
    far.publish_many(Message("a", n) for n in range(300))
    settle, lease = far.engine.settle, far.engine.lease
    settling = threading.Event()
    leased_meanwhile = 0

    def settle_seen(*args: Any, **options: Any) -> Any:
        settling.set()
        try:
            return settle(*args, **options)
        finally:
            settling.clear()

    def lease_seen(*args: Any, **options: Any) -> Any:
        nonlocal leased_meanwhile
        batch = lease(*args, **options)
        leased_meanwhile += settling.is_set()
        return batch

    monkeypatch.setattr(far.engine, "settle", settle_seen, raising=False)
    monkeypatch.setattr(far.engine, "lease", lease_seen, raising=False)

    @far.handler("a")
    async def handle(message: Message) -> None: ...

    assert far.run_worker(burst=True, concurrency=50).acked == 300
    assert leased_meanwhile


def test_settlements_survive_a_lost_connection(
    far: Laneway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that fails is repeated with the same settlements, and each message runs once."""
    far.publish_many(Message("a", n) for n in range(200))
    settle = far.engine.settle
    calls = 0
    seen: list[object] = []

    def settle_or_fail(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in (1, 3):
            raise EngineUnavailable("the connection was closed", applied=False)
        return settle(*args, **options)

    monkeypatch.setattr(far.engine, "settle", settle_or_fail, raising=False)

    @far.handler("a")
    async def handle(message: Message) -> None:
        seen.append(message.body)

    assert far.run_worker(burst=True, concurrency=50).acked == 200
    assert sorted(map(str, seen)) == sorted(map(str, range(200)))

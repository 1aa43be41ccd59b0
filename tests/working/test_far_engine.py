"""
A store on a remote network: a call takes long, so callers must share calls, and leases must outlast
them.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from laneway import Laneway, Message
from laneway.testing import with_latency

CALL = 0.05


@pytest.fixture
def far(app: Laneway) -> Laneway:
    """An application whose engine is 50 ms away."""
    app._holder.opened = with_latency(app.engine, CALL)
    return app


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

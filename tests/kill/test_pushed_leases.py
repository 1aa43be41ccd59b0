"""
Messages that a put leases to a waiting worker, which is killed, or loses its connection, before it
reads them: they come back when their leases end, and a worker that is gone takes no other put.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.testing.servers import Server, until
from laneway.units import SECOND

SOURCE = str(Path(__file__).parents[2] / "src")
LEASE_SECONDS = 60.0

WAITING = """
import sys
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.engines.valkey import wakeup
wakeup.LOOK_AGAIN = 600.0
engine = open_engine(sys.argv[1], Settings(namespace=sys.argv[2]))
listener = engine.work_listener()
while listener.poll(60.0, 10) is True:
    engine.tick()
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as own:
        yield own


@pytest.fixture
def engine(own_server: Server) -> Iterator[FullEngine]:
    settings = Settings(namespace=uuid.uuid4().hex)  # a test moves the clock of its own
    with closing(open_engine(own_server.url, settings)) as opened:
        opened.policy_set("code", "*", {"lease": LEASE_SECONDS, "retries": 100})
        yield opened


def registered(engine: FullEngine) -> int:
    space = engine._space  # type: ignore[attr-defined]
    return int(space.read(0, "ZCARD", "waiters:default"))


def leased_within(engine: FullEngine, seconds: float) -> list[Lease]:
    """What can be leased within so many seconds; ends early with the first message."""
    deadline = time.monotonic() + seconds
    while not (leases := engine.lease(10).leases) and time.monotonic() < deadline:
        engine.wait(max(0.0, deadline - time.monotonic()))
    return list(leases)


def end(engine: FullEngine, leases: list[Lease]) -> None:
    assert set(engine.settle([Settlement(each.handle, each.fence) for each in leases])) == {"acked"}


def test_a_worker_killed_before_it_reads_what_was_leased_to_it(
    own_server: Server, engine: FullEngine
) -> None:
    """The message comes back when its lease ends; the next put is not for the dead worker."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WAITING, own_server.url, engine.namespace],  # type: ignore[attr-defined]
        env={**os.environ, "PYTHONPATH": SOURCE},
        start_new_session=True,
    )
    try:
        until(lambda: registered(engine) == 1, "a waiting worker", 20)
        worker.send_signal(signal.SIGSTOP)
        first = engine.put([Draft("a", b"1")])[0]
        second = engine.put([Draft("b", b"2")])[0]
    finally:
        worker.kill()
        worker.wait(20)
    (other,) = leased_within(engine, 0.0)
    assert other.id == second.id, "only one put was leased to it"
    end(engine, [other])
    later = engine.time_us() + round(LEASE_SECONDS * SECOND)
    (again,) = engine.lease(10, now_us=later).leases
    assert (again.id, again.deliveries) == (first.id, 2)
    end(engine, [again])


def test_a_killed_worker_that_is_still_registered_takes_nothing(
    own_server: Server, engine: FullEngine
) -> None:
    """Its registration outlives it for some seconds, its subscription does not."""
    worker = subprocess.Popen(
        [sys.executable, "-c", WAITING, own_server.url, engine.namespace],  # type: ignore[attr-defined]
        env={**os.environ, "PYTHONPATH": SOURCE},
        start_new_session=True,
    )
    try:
        until(lambda: registered(engine) == 1, "a waiting worker", 20)
    finally:
        worker.kill()
        worker.wait(20)
    until(lambda: own_server.info("pubsub_clients") == "0", "the server to see it gone", 20)
    assert registered(engine) == 1
    receipt = engine.put([Draft("a", b"1")])[0]
    (lease,) = leased_within(engine, 0.0)
    assert (lease.id, lease.deliveries) == (receipt.id, 1)
    end(engine, [lease])


@pytest.mark.parametrize("is_killed_first", [True, False])
def test_a_connection_killed_before_it_is_read(
    own_server: Server, engine: FullEngine, *, is_killed_first: bool
) -> None:
    """Killed before the put, or after what it published has been sent."""
    listener = engine.work_listener()
    try:
        while listener.poll(0.0, 10) is not False:
            engine.tick()
        assert registered(engine) == 1
        if is_killed_first:
            own_server.run("CLIENT", "KILL", "TYPE", "pubsub")
        receipt = engine.put([Draft("a", b"1")])[0]
        if not is_killed_first:
            own_server.run("CLIENT", "KILL", "TYPE", "pubsub")
        found = listener.poll(10.0, 10)
        if isinstance(found, Batch):
            leases = list(found.leases)
        else:
            assert found is True, "it looks for what it may have missed"
            leases = leased_within(engine, 10.0)
        assert [lease.id for lease in leases] == [receipt.id]
        assert isinstance(found, Batch) is not is_killed_first
        end(engine, leases)
    finally:
        listener.pause()
        listener.close()

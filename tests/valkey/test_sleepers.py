"""A message is leased to a worker that sleeps, in the call that puts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from laneway.engines.base import FullEngine, WorkListener
from laneway.engines.valkey import wakeup
from laneway.message import Batch, Draft, Lease, Settlement
from laneway.testing.servers import Server, until

Opened = Callable[..., FullEngine]
ROOM = 10


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as its_server:
        yield its_server


@pytest.fixture(autouse=True)
def _sleepers_stay_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test takes, and they learn of work by a notification only."""
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)


LISTENERS: list[WorkListener] = []


@pytest.fixture(autouse=True)
def _no_listener_is_left() -> Iterator[None]:
    yield
    while LISTENERS:
        LISTENERS.pop().close()


class Sleeper:
    """A worker that sleeps until something is leased to it."""

    def __init__(self, engine: FullEngine) -> None:
        self.engine = engine
        self.listener: WorkListener = engine.work_listener()
        LISTENERS.append(self.listener)
        self.sleep()

    def sleep(self) -> None:
        while self.listener.poll(0.003, ROOM):
            self.engine.tick()

    def leases(self) -> list[Lease]:
        batch = self.listener.poll(20.0, ROOM)
        if batch is True:  # on a busy machine it did not listen any longer
            batch = self.engine.lease(ROOM)
        assert isinstance(batch, Batch), batch
        return batch.leases


def ack(engine: FullEngine, leases: list[Lease]) -> None:
    engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])


def sleeper_after_two(engine: FullEngine, topic: str) -> Sleeper:
    """A sleeper after two messages of a topic, so that its server remembers the shard."""
    sleeper = Sleeper(engine)
    for _ in range(2):
        engine.put([Draft(topic, b"x")])
        ack(engine, sleeper.leases())
        sleeper.sleep()
    return sleeper


def test_a_second_sleeper_learns_the_next_event(opened: Opened, server: Server) -> None:
    """The first one may be busy when the lease of its message ends."""
    engine = opened(server.url)
    sleepers = [Sleeper(engine) for _ in range(2)]
    engine.policy_set("code", "t", {"lease": 1})
    for _ in range(3):
        engine.put([Draft("t", b"x")])
        found = None
        while not isinstance(found, Batch):
            found = next(filter(None, (each.listener.poll(0.05, ROOM) for each in sleepers)), None)
        ack(engine, found.leases)
        while (
            engine.overview().waiting + engine.overview().leased
        ):  # on a busy machine it came late
            ack(engine, engine.lease(ROOM).leases)
        for sleeper in sleepers:
            sleeper.sleep()
    engine.put([Draft("t", b"lost")])
    answers: list[list[Batch | bool]] = [[], []]

    def both_were_notified() -> bool:
        for sleeper, its in zip(sleepers, answers, strict=True):
            its.append(sleeper.listener.poll(0.1, ROOM))
        return all(map(any, answers))

    until(both_were_notified, "the end of the lease", 60)
    assert sum(isinstance(each, Batch) for its in answers for each in its) == 1
    until(lambda: engine.lease(1).leases, "the message again")


def test_what_waited_before_goes_first(opened: Opened, server: Server) -> None:
    engine = opened(server.url)
    sleeper = sleeper_after_two(engine, "t")
    notified = Sleeper(engine)
    engine.put([Draft("other", b"%d" % n) for n in range(20)])  # too many to lease them at once
    assert notified.listener.poll(20.0, ROOM) is True
    engine.put([Draft("t", b"new")])
    bodies = [lease.body for lease in sleeper.leases()]
    assert bodies[:3] == [b"0", b"1", b"new"]
    assert len(bodies) == ROOM


@pytest.mark.parametrize("own", [True, False], ids=["own", "pattern"])
@pytest.mark.parametrize("fields", [{"paused": True}, {"pool": "another"}, {"concurrency": 1}])
def test_a_change_of_policies_holds_at_once(
    opened: Opened, server: Server, fields: dict[str, Any], *, own: bool
) -> None:
    engine = opened(server.url)
    sleeper = sleeper_after_two(engine, "a.t")
    engine.policy_set("code", "a.t" if own else "a.*", fields)
    engine.put([Draft("a.t", b"1")])
    if fields == {"concurrency": 1}:
        (lease,) = sleeper.leases()
        sleeper.sleep()
        engine.put([Draft("a.t", b"2")])
        assert sleeper.listener.poll(0.1, ROOM) is False
        ack(engine, [lease])
    assert not isinstance(sleeper.listener.poll(0.1, ROOM), Batch)

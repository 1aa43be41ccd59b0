"""
Waiting without polling: one worker is notified of one message, no event is missed, and workers that
died are passed over.
"""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from laneway.engines.base import FullEngine, WorkListener
from laneway.engines.valkey import wakeup
from laneway.message import Batch, Draft, Settlement
from laneway.testing.servers import Server, until
from tests.conformance.valkey_setups import cluster, server

Opened = Callable[..., FullEngine]


LOOK_AGAIN = wakeup.LOOK_AGAIN


@pytest.fixture(autouse=True)
def _nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits learns of work by a notification only, however slow the machine is."""
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", 600.0)


class Waiter(threading.Thread):
    """
    Waits once; `answer` is the answer of `wait`, `took` how long it waited, and `ended` when the
    answer came.
    """

    def __init__(self, engine: FullEngine, timeout: float = 20.0, **options: object) -> None:
        super().__init__(daemon=True)
        self.engine, self.timeout, self.options = engine, timeout, options
        self.answer: bool | None = None
        self.took = self.ended = 0.0
        self.start()

    def run(self) -> None:
        began = time.monotonic()
        answer = self.engine.wait(self.timeout, **self.options)  # type: ignore[arg-type]
        self.ended = time.monotonic()
        self.took = self.ended - began
        self.answer = answer  # the last one: who sees it reads the others


def listening(engine: FullEngine, count: int, kind: str = "waiters:default") -> None:
    """Until so many workers are registered to be notified, on each shard."""
    space = engine._space  # type: ignore[attr-defined]
    until(
        lambda: all(space.read(shard, "ZCARD", kind) == count for shard in range(space.shards)),
        f"{count} waiters",
    )


@pytest.mark.parametrize("where", ["server", "cluster"])
def test_a_message_rings_one(opened: Opened, where: str) -> None:
    url = server().url if where == "server" else cluster()
    engine = opened(url)
    waiters = [Waiter(engine) for _ in range(3)]
    listening(engine, 3)
    engine.put([Draft("a", b"1")])
    until(lambda: any(waiter.answer for waiter in waiters), "one that was notified")
    time.sleep(0.1)  # the others sleep on
    assert sum(waiter.answer is not None for waiter in waiters) == 1
    engine.lease(10)
    engine.interrupt()
    for waiter in waiters:
        waiter.join(20)
        assert not waiter.is_alive()
    assert [waiter.answer for waiter in waiters].count(True) == 1


def test_what_is_due_wakes_one_of_them_in_time(opened: Opened) -> None:
    engine = opened(server().url)
    began = time.monotonic()
    engine.put([Draft("a", b"1", delay_us=400_000)])
    waiters = [Waiter(engine) for _ in range(5)]
    until(lambda: any(waiter.answer for waiter in waiters), "one that looked")
    assert min(waiter.ended for waiter in waiters if waiter.answer) - began > 0.35
    assert len(engine.lease(10).leases) == 1
    engine.interrupt()


def test_who_waits_again_keeps_its_promise(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that ended early promised to look, and nobody else does."""
    monkeypatch.setattr(wakeup, "LATER", (600.0, 600.0))
    engine = opened(server().url)
    engine.put([Draft("a", b"1", delay_us=1_000_000)])
    waiter = Waiter(engine)
    listening(engine, 1)
    engine.interrupt()
    waiter.join(20)
    assert engine.wait(10.0)


def test_an_earlier_event_is_notified(opened: Opened) -> None:
    engine = opened(server().url)
    engine.put([Draft("a", b"1", delay_us=60_000_000)])
    waiter = Waiter(engine)
    listening(engine, 1)
    engine.put([Draft("b", b"2", delay_us=300_000)])
    waiter.join(20)
    assert waiter.answer
    assert waiter.took < 20


def test_a_full_lease_rings_the_next(opened: Opened) -> None:
    """A worker that leases as much as it can hold notifies the next one: there may be more."""
    engine = opened(server().url)
    waiters = [Waiter(engine) for _ in range(2)]
    listening(engine, 2)
    engine.put([Draft("a", b"%d" % n) for n in range(10)])
    until(lambda: any(waiter.answer for waiter in waiters), "the first")
    engine.lease(5)
    until(lambda: all(waiter.answer for waiter in waiters), "the second")


def test_a_full_worker_passes_on_what_it_cannot_start(opened: Opened) -> None:
    """
    Only one waiter was notified of a limited message; it would wait until another looks by itself.
    """
    engine = opened(server().url)
    engine.policy_set("code", "a", {"concurrency": 5})
    waiters = [Waiter(engine) for _ in range(2)]
    listening(engine, 2)
    engine.put([Draft("a", b"1")])
    until(lambda: any(waiter.answer for waiter in waiters), "the first")
    assert not engine.lease(5, startable=0).leases
    until(lambda: all(waiter.answer for waiter in waiters), "the second")


def test_all_workers_with_patterns_are_notified(opened: Opened) -> None:
    """Each may be the only one that serves the topic."""
    engine = opened(server().url)
    listeners = [engine.work_listener(topics=[]) for _ in range(50)]
    try:
        for listener in listeners:
            assert listener.poll(20.0) is True, "its caller looks once"
        engine.put([Draft("a", b"1")])
        assert all(listener.poll(20.0) is True for listener in listeners)
    finally:
        for listener in listeners:
            listener.close()


def test_pools_and_named_topics(opened: Opened) -> None:
    engine = opened(server().url)
    engine.policy_set("code", "g.*", {"pool": "gpu"})
    other, named = Waiter(engine, pool="gpu"), Waiter(engine, topics=["a"])
    listening(engine, 1, "waiters:gpu")
    listening(engine, 1, "choosy:default")
    engine.put([Draft("a", b"1")])
    named.join(20)
    assert named.answer
    assert other.answer is None
    engine.put([Draft("g.1", b"1")])
    other.join(20)
    assert other.answer


def test_who_was_killed_is_passed_over(opened: Opened) -> None:
    """The message reaches a worker that waits, although one is registered that has ended."""
    with Server() as own:
        engine = opened(own.url, namespace="killed")
        program = (
            "from laneway.engines import open_engine\nfrom laneway.engines.base import Settings\n"
            f"open_engine({own.url!r}, Settings(namespace='killed')).wait(60)"
        )
        waiter = Waiter(engine, 600.0)  # not while processes start and end
        listening(engine, 1)
        with subprocess.Popen([sys.executable, "-c", program]) as other:
            listening(engine, 2)
            other.kill()
        until(lambda: int(own.info("pubsub_clients")) == 1, "the server to see it gone")
        engine.put([Draft("a", b"1")])
        waiter.join(30)
        assert waiter.answer


def test_waiting_ends_by_its_time(opened: Opened) -> None:
    engine = opened(server().url)
    waiter = Waiter(engine, 0.2)
    waiter.join(20)
    assert waiter.answer is False
    listening(engine, 0)


def test_a_wait_that_begins_while_the_engine_closes_ends(opened: Opened) -> None:
    """Its listener is too new for `close` to wake it, and the connections are still open."""
    engine = opened(server().url)
    engine._wakeup.close()  # type: ignore[attr-defined]
    waiter = Waiter(engine, 600.0)
    waiter.join(30)
    assert waiter.answer is False


def test_many_idle_waiters_ask_nothing(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    They look every five seconds by themselves, each at its own moment: no more calls than that.
    """
    monkeypatch.setattr(wakeup, "LOOK_AGAIN", LOOK_AGAIN)
    with Server() as own:
        engine = opened(own.url)
        waiters = [Waiter(engine, 60) for _ in range(50)]
        listening(engine, 50)
        before, began = _scripts(own), time.monotonic()
        time.sleep(2.0)  # that nothing is asked shows in no event
        assert _scripts(own) - before <= 50 * math.ceil((time.monotonic() - began) / LOOK_AGAIN)
        engine.interrupt()
        for waiter in waiters:
            waiter.join(20)


def _scripts(own: Server) -> int:
    line = next(
        line
        for line in own.run("INFO", "commandstats").splitlines()
        if line.startswith("cmdstat_fcall:")
    )
    return int(line.partition("calls=")[2].partition(",")[0])


def test_a_lost_connection_is_opened_again(opened: Opened) -> None:
    with Server() as own:
        engine = opened(own.url)
        waiter = Waiter(engine)
        listening(engine, 1)
        own.run("CLIENT", "KILL", "TYPE", "pubsub")
        engine.put([Draft("a", b"1")])
        waiter.join(20)
        assert waiter.answer
        leases = engine.lease(1).leases
        assert engine.settle([Settlement(lease.handle, lease.fence) for lease in leases]) == [
            "acked"
        ]


def test_a_waiting_worker_is_notified_before_a_busy_one(opened: Opened) -> None:
    engine = opened(server().url)
    listener = engine.arrival_listener()
    assert not listener.poll(0.05)
    waiter = Waiter(engine)
    listening(engine, 1)
    engine.put([Draft("a", b"1")])
    waiter.join(20)
    assert waiter.answer
    assert not listener.poll(0.1), "one is enough"
    engine.put([Draft("b", b"1")])
    assert listener.poll(20), "nobody waits any more"
    listener.close()
    listening(engine, 0, "arrivals:default")


LISTENERS: list[WorkListener] = []


@pytest.fixture(autouse=True)
def _no_listener_is_left() -> Iterator[None]:
    yield
    while LISTENERS:
        LISTENERS.pop().close()


class Listening:
    """A work listener that is registered for `startable` messages."""

    def __init__(self, engine: FullEngine, startable: int = 10) -> None:
        self.listener = engine.work_listener()
        LISTENERS.append(self.listener)
        assert self.listener.poll(0.0, startable) is False

    def received(self, timeout: float = 20.0) -> Batch | bool:
        return self.listener.poll(timeout, 10)


def test_a_put_leases_to_a_listener(opened: Opened) -> None:
    """Without a call of its own, with all that a lease has, and once."""
    engine = opened(server().url)
    listening_one = Listening(engine)
    engine.put([Draft("a", b"1", headers={"h": "x"}), Draft("b", b"2", priority=3, key="k")])
    batch = listening_one.received()
    assert isinstance(batch, Batch)
    by_topic = {lease.topic: lease for lease in batch.leases}
    assert by_topic["a"].body == b"1"
    assert by_topic["a"].headers == {"h": "x"}
    assert (by_topic["b"].priority, by_topic["b"].key) == (3, "k")
    assert not engine.lease(10).leases
    assert engine.settle([Settlement(each.handle, each.fence) for each in batch.leases]) == [
        "acked",
        "acked",
    ]


def test_merged_bodies_are_leased_to_a_listener(opened: Opened) -> None:
    engine = opened(server().url)
    engine.policy_set("code", "a", {"merge": "all"})
    listening_one = Listening(engine)
    engine.put([Draft("a", b"1", key="k"), Draft("a", b"\xff2", key="k"), Draft("a", b"3")])
    batch = listening_one.received()
    assert isinstance(batch, Batch)
    leased = engine_bodies(batch)
    assert sorted(leased) == [b"1", b"3", b"\xff2"]


def engine_bodies(batch: Batch) -> list[bytes]:
    return [body for lease in batch.leases for body in (lease.bodies or [lease.body])]


def test_a_put_leases_what_limits_allow(opened: Opened) -> None:
    """Not more than the topic's concurrency, and not more than the worker can start."""
    engine = opened(server().url)
    engine.policy_set("code", "a", {"concurrency": 1})
    limited = Listening(engine)
    engine.put([Draft("a", b"1"), Draft("a", b"2")])
    batch = limited.received()
    assert isinstance(batch, Batch)
    assert [lease.body for lease in batch.leases] == [b"1"]
    small = Listening(engine, 2)
    engine.put([Draft("b", b"%d" % n) for n in range(3)])
    batch = small.received()
    assert isinstance(batch, Batch)
    assert len(batch.leases) == 2
    assert len(engine.lease(10).leases) == 1


def test_a_large_put_is_only_notified(opened: Opened) -> None:
    engine = opened(server().url)
    one = Listening(engine)
    engine.put([Draft("a", b"%d" % n) for n in range(100)])
    assert one.received() is True
    assert len(engine.lease(200).leases) == 100


def test_what_was_leased_to_a_listener_that_stops_is_not_lost(opened: Opened) -> None:
    engine = opened(server().url)
    one = Listening(engine)
    engine.put([Draft("a", b"1")])
    batch = one.listener.pause()
    assert isinstance(batch, Batch)
    assert len(batch.leases) == 1
    engine.put([Draft("a", b"2")])
    assert one.listener.pause() is False
    assert len(engine.lease(10).leases) == 1


def test_nothing_is_leased_to_a_listener_that_is_gone(opened: Opened) -> None:
    """The next one is notified, and the message is not lost until its lease ends."""
    with Server() as own:
        engine = opened(own.url)
        other = Waiter(engine)
        listening(engine, 1)
        gone = Listening(engine)
        listening(engine, 2)
        gone.listener.close()
        until(lambda: int(own.info("pubsub_clients")) == 1, "the server to see it gone")
        engine.put([Draft("a", b"1")])
        other.join(20)
        assert other.answer
        assert len(engine.lease(10).leases) == 1

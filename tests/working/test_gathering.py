"""Ended messages of a worker that leases far ahead gather for one settlement."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from laneway import Message
from laneway.errors import EngineUnavailable
from laneway.message import Settlement
from laneway.working import engine_thread, settler
from laneway.working.handler import Handler
from tests.working.support import Running, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway import Laneway
    from laneway.working.worker_delivery import WorkerDelivery

COUNT, SLOTS = 200, 4
LONG = 30.0
"""Seconds of a gathering that does not end by itself."""


class Held:
    """An executor whose units end when the test says so."""

    reports_begin = False
    prefetch_seconds = 1_000_000.0
    last: ClassVar[Held | None] = None

    def __init__(self, _engine: object, finished: Any, dispatch: Any, _concurrency: int) -> None:
        self._finished, self._dispatch = finished, dispatch
        self._loop = asyncio.get_running_loop()
        self.units: list[WorkerDelivery] = []
        Held.last = self

    def prepare(self, deliveries: list[WorkerDelivery]) -> None:
        """Nothing is read."""

    def is_full(self, topic: str) -> bool:
        del topic
        return False

    def start(self, unit: WorkerDelivery) -> None:
        unit.began, unit.runner = time.perf_counter(), self
        self.units.append(unit)

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        """It has no time limit."""

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        del error
        self.units.remove(unit)

    async def close(self, seconds: float) -> None:
        """Nothing runs."""

    def end(self, count: int = 1) -> list[WorkerDelivery]:
        """End the first units; from the test's thread. Returns them."""
        until(lambda: len(self.units) >= count)
        ended = self.units[:count]
        done = threading.Event()

        def end() -> None:
            for unit in ended:
                self.units.remove(unit)
                self._finished(unit, None, None)
            self._dispatch()
            self._loop.call_soon(done.set)  # behind the flush

        self._loop.call_soon_threadsafe(end)
        assert done.wait(60)
        return ended


class Gathering:
    """A worker that has leased everything, settles slowly, and lets what ends gather."""

    def __init__(self, app: Laneway, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.calls: list[list[Settlement]] = []
        """Each call of the engine."""
        self.faults: list[Exception] = []
        """What the next calls raise."""
        self.refused = -1
        """The fence of an ack that the engine refuses."""
        for topic in ("t", "t2"):
            handler = Handler(lambda: None, topic, name=topic)
            handler.kind, handler.make_executor = "held", Held
            app.runtime.handlers.add(handler)
        app.publish_many(Message("t", n) for n in range(COUNT))
        self._monkeypatch = monkeypatch
        self.settle_as_another = app.engine.settle
        """As another client of the store."""
        monkeypatch.setattr(app.engine, "settle", self.settle)
        self.running = Running(app, concurrency=SLOTS)
        self.thread: engine_thread.EngineThread

    def settle(self, settlements: Sequence[Settlement], **named: Any) -> Any:
        self.calls.append(list(settlements))
        if self.faults:
            raise self.faults.pop(0)
        if any(each.fence == self.refused and each.action == "ack" for each in settlements):
            raise ValueError("refused")
        return self.settle_as_another(settlements, **named)

    def begin(self) -> None:
        """Until everything is leased and the worker has begun to gather, for `LONG`."""
        until(lambda: hasattr(self.running.worker, "_engine_thread"))
        self.thread = self.running.worker._engine_thread
        until(lambda: Held.last is not None and len(Held.last.units) == SLOTS)
        while len(self.thread.held) < COUNT / 2:
            self.end()  # its pace says how much is leased ahead
            threading.Event().wait(0.03)
        self._monkeypatch.setattr(engine_thread, "GATHER_SECONDS", LONG)
        self._monkeypatch.setattr(settler, "PACE_WINDOW_SECONDS", 1_000.0)
        for _ in range(5):
            self.thread.settler.pace = 1.0  # so what is leased lasts for longer
            self.settle_now(self.end())  # a gathering may have begun, for `LONG`
            with contextlib.suppress(AssertionError):  # the pace was measured just then
                until(lambda: self.thread._is_gathering, 10.0)
                break
        assert self.thread._is_gathering
        self.calls.clear()

    def end(self, count: int = 1) -> list[WorkerDelivery]:
        """End messages, of which each ends by itself."""
        assert Held.last is not None
        return [unit for _ in range(count) for unit in Held.last.end()]

    def settle_now(self, ended: list[WorkerDelivery]) -> None:
        """End the gathering, as its time does, and wait until these are settled."""
        for _ in range(60):
            self.thread.has_work.set()  # overlooked by a gathering that is just beginning
            with contextlib.suppress(AssertionError):
                self.until_settled(ended, 1.0)
                return
        self.until_settled(ended)

    def until_settled(self, ended: list[WorkerDelivery], seconds: float = 60.0) -> None:
        until(lambda: not any(unit.lease.fence in self.thread.held for unit in ended), seconds)


@pytest.fixture
def gathering(app: Laneway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gathering]:
    Held.last = None
    gathering = Gathering(app, monkeypatch)
    with gathering.running:
        yield gathering
        gathering.running.stop()
        gathering.running.stop()  # at once: what runs never ends


def test_what_ends_meanwhile_is_settled_together(gathering: Gathering) -> None:
    """By one call of the engine, at the end of the gathering."""
    gathering.begin()
    gathering.settle_now(gathering.end(5))
    assert [len(call) for call in gathering.calls] == [5]


def test_a_stop_settles_what_has_gathered(gathering: Gathering) -> None:
    """Without waiting for the end of the gathering; what has not begun is released uncounted."""
    gathering.begin()
    gathering.end(5)
    done = gathering.app.topic("t").stats().done
    assert gathering.calls == []
    began = time.monotonic()
    gathering.running.stop()
    assert Held.last is not None
    until(lambda: not gathering.running.worker._engine_thread.is_leasing)
    Held.last.end(len(Held.last.units))
    summary = gathering.running.join()
    assert time.monotonic() - began < LONG / 2
    stats = gathering.app.topic("t").stats()
    assert (stats.leased, stats.done) == (0, done + 5 + SLOTS)
    assert summary.acked == stats.done
    assert summary.lost == 0
    assert {each.attempt for each in gathering.app.topic("t").peek(COUNT)} == {1}


def test_a_lease_that_was_lost_meanwhile(gathering: Gathering) -> None:
    """Its settlement is answered as lost; the others are acked, and the message is delivered."""
    gathering.begin()
    ended = gathering.end(5)
    lost = ended[2].lease
    assert gathering.settle_as_another([Settlement(lost.handle, lost.fence, "release")]) == [
        "released"
    ]
    acked = gathering.thread.settler.summary.acked
    gathering.settle_now(ended)
    summary = gathering.thread.settler.summary
    assert [len(call) for call in gathering.calls] == [5]
    until(lambda: (summary.acked - acked, summary.lost) == (4, 1))
    view = gathering.app.engine.find(lost.id, "t")
    assert view is not None
    assert view.state in ("ready", "leased")


def test_a_settlement_that_the_store_refuses(gathering: Gathering) -> None:
    """It costs no other: they are acked, each once, and it alone is a dead letter."""
    gathering.begin()
    ended = gathering.end(5)
    gathering.refused = ended[2].lease.fence
    gathering.settle_now(ended)
    (letter,) = gathering.app.dead_letters.list()
    assert letter.message.id == ended[2].lease.id
    assert "cannot be settled" in (letter.reason or "")
    for unit in ended:
        found = gathering.app.engine.find(unit.lease.id, "t")
        assert (found is not None and found.state == "dead") == (unit is ended[2])
    assert gathering.thread.settler.summary.lost == 0


def test_a_store_that_is_away_when_the_gathering_ends(gathering: Gathering) -> None:
    """All of them are settled when it is back, and none is lost."""
    gathering.begin()
    ended = gathering.end(5)
    gathering.faults = [EngineUnavailable("away"), EngineUnavailable("away")]
    gathering.settle_now(ended)
    assert [len(call) for call in gathering.calls[:3]] == [5, 5, 5]
    summary = gathering.thread.settler.summary
    assert (summary.lost, summary.died) == (0, 0)


def test_an_arrival_ends_the_gathering(gathering: Gathering) -> None:
    """The message of another topic is leased at once."""
    gathering.begin()
    ended = gathering.end(2)
    began = time.monotonic()
    gathering.app.publish("t2", 1)
    until(lambda: gathering.app.topic("t2").stats().leased == 1, LONG / 2)
    gathering.until_settled(ended)
    assert time.monotonic() - began < LONG / 2

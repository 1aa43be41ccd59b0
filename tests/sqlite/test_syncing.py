"""A durable call returns when its commit is on disk; nobody else waits for that."""

from __future__ import annotations

import errno
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from laneway import Laneway, Message
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.base.queue import SyncsLater
from laneway.errors import EngineUnavailable
from laneway.message import Draft, Settlement
from laneway.testing.servers import until
from tests.app.test_forks import codes, in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="commits are FULL here")

WAIT = 20.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/q.db"


@pytest.fixture
def engine(url: str) -> Iterator[FullEngine]:
    with closing(open_engine(url, Settings())) as opened:
        yield opened


class Disk:
    """The `os.fdatasync` of one engine, which waits until it may go on, and counts."""

    def __init__(self, engine: FullEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = engine._store._wal_sync._file  # type: ignore[attr-defined]
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.count = self.ended = 0
        self._sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._slowly)

    def _slowly(self, file: int) -> None:
        if file == self._file:
            self.count += 1
            self.began.release()
            has_ended = self.may_end.acquire(timeout=WAIT)
            self.ended += 1
            assert has_ended
        self._sync(file)


CALLS: list[Callable[[FullEngine], object]] = [
    lambda engine: engine.put([Draft("a", b"1")]),
    lambda engine: engine.put([Draft("a", b"1"), Draft("b", b"2")]),
    lambda engine: engine.policy_set("operator", "a", {"weight": 2}),
    lambda engine: engine.record_swap("token", "a", None, b"{}"),
]


@pytest.mark.parametrize("call", CALLS, ids=["one", "two", "policy", "record"])
def test_a_durable_call_syncs_once(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch, call: Callable[[FullEngine], object]
) -> None:
    files: list[int] = []
    monkeypatch.setattr(os, "fdatasync", files.append)
    call(engine)
    assert len(files) == 1
    engine.lease(1)
    assert len(files) == 1


def test_others_go_on_while_one_waits_for_the_disk(
    url: str, engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other engines see its change, and two calls that wait share the next sync."""
    disk = Disk(engine, monkeypatch)
    with closing(open_engine(url, Settings())) as other, ThreadPoolExecutor(3) as threads:
        first = threads.submit(engine.put, [Draft("a", b"1"), Draft("a", b"2")])
        assert disk.began.acquire(timeout=WAIT)
        assert [lease.body for lease in other.lease(2).leases] == [b"1", b"2"]
        written = engine._store.written  # type: ignore[attr-defined]
        second = threads.submit(engine.put, [Draft("b", b"3"), Draft("b", b"4")])
        third = threads.submit(engine.put, [Draft("c", b"5"), Draft("c", b"6")])
        delivered = 0
        while delivered < 4:
            delivered += len(other.lease(4).leases)
        # Their threads may not know yet that they have committed.
        until(lambda: engine._store.written == written + 2, "both commits")  # type: ignore[attr-defined]
        assert [each.done() for each in (first, second, third)] == [False] * 3
        for _ in range(2):
            disk.may_end.release()
        for each in (first, second, third):
            each.result(timeout=WAIT)
    assert disk.count == 2


def test_a_settlement_waits_for_the_disk(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.put([Draft("a", b"1")])
    (lease,) = engine.lease(1).leases
    disk = Disk(engine, monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        settled = threads.submit(engine.settle, [Settlement(lease.handle, lease.fence)])
        assert disk.began.acquire(timeout=WAIT)
        assert not settled.done()
        disk.may_end.release()
        assert settled.result(timeout=WAIT) == ["acked"]


def test_a_fork_while_one_waits_for_the_disk(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child may close what it inherited: the thread that syncs is not there."""
    disk = Disk(engine, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        put = pool.submit(engine.put, [Draft("a", b"1")])
        try:
            assert disk.began.acquire(timeout=WAIT)
            child = in_child(engine.close)
            assert codes([child]) == [0]
        finally:
            disk.may_end.release()
        assert put.result(WAIT)


def test_calls_that_sync_later_share_a_sync(
    engine: FullEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block waits at its end; calls of other threads wait by themselves."""
    files: list[int] = []
    monkeypatch.setattr(os, "fdatasync", files.append)
    assert isinstance(engine, SyncsLater)
    with engine.syncing_later():
        engine.put([Draft("a", b"1")])
        with engine.syncing_later():
            engine.put([Draft("a", b"2"), Draft("a", b"3")])
            engine.settle([Settlement(each.handle, each.fence) for each in engine.lease(3).leases])
        assert not files
    assert len(files) == 1
    with engine.syncing_later(), ThreadPoolExecutor(1) as threads:
        threads.submit(engine.put, [Draft("a", b"4")]).result(timeout=WAIT)
        assert len(files) == 2
    assert len(files) == 2  # nothing was left to sync
    engine.put([Draft("a", b"5")])
    assert len(files) == 3


def test_a_disk_that_fails_later(engine: FullEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    assert isinstance(engine, SyncsLater)
    with pytest.raises(EngineUnavailable, match="the disk failed"), engine.syncing_later():
        (receipt,) = engine.put([Draft("a", b"1")])
    assert receipt.outcome == "accepted"


def test_what_an_ack_publishes_is_on_disk_before_the_ack_is_in_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut between the files could lose it."""
    with closing(open_engine(f"sqlite:///{tmp_path}/q?shards=4", Settings())) as engine:
        topics = [f"t.{n}" for n in range(16)]
        engine.put([Draft("first", b"1")])
        (lease,) = engine.lease(1).leases
        syncs = 0
        before_ack: list[int] = []
        settle_on = engine._settle_on  # type: ignore[attr-defined]

        def sync(_: int) -> None:
            nonlocal syncs
            syncs += 1

        def settle(*arguments: object) -> object:
            before_ack.append(syncs)
            return settle_on(*arguments)

        monkeypatch.setattr(os, "fdatasync", sync)
        monkeypatch.setattr(engine, "_settle_on", settle)
        assert isinstance(engine, SyncsLater)
        with engine.syncing_later():
            publish = {0: [Draft(topic, b"2") for topic in topics]}
            answers = engine.settle([Settlement(lease.handle, lease.fence)], publish=publish)
        assert answers == ["acked"]
        assert before_ack == [3]  # the other files
        assert syncs == 4


def test_a_worker_begins_the_next_message_while_the_disk_takes_the_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    with closing(Laneway(url)) as app:
        disk: list[Disk] = []

        @app.handler("a")
        async def handle(message: Message) -> None:
            if not disk:
                disk.append(Disk(app.engine, monkeypatch))
            else:
                assert disk[0].began.acquire(timeout=WAIT)
                ended.append(disk[0].ended)
                disk[0].may_end.release(1 if message.body == "1" else 100)

        app.publish_many([Message("a", str(n)) for n in range(3)], progress=False)
        app.run_worker(concurrency=1, burst=True)
    assert ended == [0, 1]  # the settlements before these two messages, less the last one


def test_a_disk_that_fails(engine: FullEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system lost cannot be synced later, so no later call claims that it is on disk."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(EngineUnavailable, match=r"the disk failed .*Input/output error") as raised:
        engine.put([Draft("a", b"1")])
    assert raised.value.applied is None
    monkeypatch.undo()
    with pytest.raises(EngineUnavailable, match="restart this program"):
        engine.put([Draft("a", b"2"), Draft("a", b"3")])


def test_without_fdatasync_commits_are_synced(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fdatasync")
    with closing(open_engine(url, Settings())) as engine:
        engine.put([Draft("a", b"1")])
        pragma = engine._store.connection.execute("PRAGMA synchronous")  # type: ignore[attr-defined]
        assert pragma.fetchone() == (2,)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_signal_handler_during_a_sync(
    engine: FullEngine, url: str, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """It does not wait for the call around it: its own call is refused, and it may close."""
    caught: list[EngineUnavailable] = []

    def handle(*_: object) -> None:
        if is_closed:
            engine.close()
            return
        try:
            engine.put([Draft("b", b"2")])
        except EngineUnavailable as error:
            caught.append(error)

    def interrupt(file: int) -> None:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        os.fdatasync(file)

    before = signal.signal(signal.SIGUSR1, handle)
    monkeypatch.setattr(os, "fdatasync", interrupt)
    try:
        engine.put([Draft("a", b"1")])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [each.applied for each in caught] == [False] * (not is_closed)
    with closing(open_engine(url, Settings())) as again:
        assert [each.topic for each in again.lease(10).leases] == ["a"]

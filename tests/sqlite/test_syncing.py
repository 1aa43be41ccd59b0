"""A durable call returns when its commit is on disk; nobody else waits for that."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.errors import EngineUnavailable
from laneway.message import Draft, Settlement
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
        self.count = 0
        self._sync = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._slowly)

    def _slowly(self, file: int) -> None:
        if file == self._file:
            self.count += 1
            self.began.release()
            assert self.may_end.acquire(timeout=WAIT)
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
        second = threads.submit(engine.put, [Draft("b", b"3"), Draft("b", b"4")])
        third = threads.submit(engine.put, [Draft("c", b"5"), Draft("c", b"6")])
        delivered = 0
        while delivered < 4:
            delivered += len(other.lease(4).leases)
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

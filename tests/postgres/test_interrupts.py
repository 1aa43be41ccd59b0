"""
Signals in the middle of a call: an interrupt (Ctrl-C) leaves no lock behind, and a handler may
close the engine.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from laneway.engines.base import FullEngine
from laneway.engines.postgres import flusher, pipeline, store_lock
from laneway.engines.postgres.store_lock import StoreLock
from laneway.errors import EngineUnavailable
from laneway.testing.postgres_server import PostgresServer
from tests.postgres.conftest import drain, some, store_of

Opened = Callable[..., FullEngine]


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """The interrupt comes when a lock was just taken."""
    acquire = store_lock._acquire

    def taken(*args: Any, **options: Any) -> None:
        acquire(*args, **options)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_lock, "_acquire", taken)
        yield


def _is_free(lock: StoreLock) -> bool:
    """Whether another thread gets it."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(lock.acquire, blocking=False).result()


def test_an_interrupted_thread_does_not_keep_the_lock() -> None:
    """It may have it already when the interrupt comes."""
    lock = StoreLock()
    with pytest.raises(KeyboardInterrupt), interrupted():
        lock.acquire()
    assert _is_free(lock)


def test_an_interrupt_where_a_block_ends() -> None:
    """No Python comes between the end of a block and the release of its lock."""
    assert StoreLock.__exit__ is _thread.RLock.__exit__


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_thread_keeps_what_it_had(times: int) -> None:
    """An interrupt while it takes the lock again ends that block only."""
    lock = StoreLock()
    with lock:
        for _ in range(times):
            with pytest.raises(KeyboardInterrupt), interrupted(), lock:
                pass
        assert not _is_free(lock)
    assert _is_free(lock)


def test_an_interrupt_before_a_commit(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of the connection that waits for the disk is taken by `with` alone."""

    class Lock:
        def __init__(self) -> None:
            self.real = threading.Lock()
            self.locked = self.real.locked

        def acquire(self, *args: Any, **options: Any) -> None:
            self.real.acquire(*args, **options)
            raise KeyboardInterrupt

        def __enter__(self) -> None:
            self.real.acquire()

        def __exit__(self, *_: object) -> None:
            self.real.release()

    engine = opened(server.url)
    flushes = store_of(engine)._flusher
    lock = Lock()
    monkeypatch.setattr(flushes, "_lock", lock)
    with contextlib.suppress(KeyboardInterrupt):
        flushes.prepare()
    assert not lock.real.locked()


CALLS: list[Callable[[FullEngine], object]] = [
    lambda engine: engine.put(some(1, start=10)),
    lambda engine: engine.put(some(2, start=10)),
    lambda engine: engine.lease(1),
    lambda engine: engine.overview(),
]


@pytest.mark.parametrize("call", CALLS, ids=["one", "two", "lease", "read"])
@pytest.mark.parametrize("around", CALLS[:2], ids=["one", "two"])
def test_a_call_in_a_signal_handler_is_refused(
    server: PostgresServer,
    opened: Opened,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[FullEngine], object],
    around: Callable[[FullEngine], object],
) -> None:
    """Whatever the call around it waits for, which is as if nothing had happened."""
    engine = opened(server.url)
    engine.put(some(2))
    wait, refusals, is_inside = pipeline.Pipeline._next, list[EngineUnavailable](), False

    def handle(*_: object) -> None:
        nonlocal is_inside
        if not is_inside:
            is_inside = True
            with pytest.raises(EngineUnavailable, match="began inside another one") as caught:
                call(engine)
            refusals.append(caught.value)
            is_inside = False

    def interrupt(*arguments: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return wait(*arguments, **options)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(pipeline.Pipeline, "_next", interrupt)
            around(engine)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert {each.applied for each in refusals} == {False}
    assert len(set(drain(engine))) == engine.overview().done > 2


def test_a_signal_handler_closes_the_engine(
    server: PostgresServer, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at SIGTERM, while the call waits for the disk: it ends with an error."""
    engine = opened(server.url)
    wait = flusher._result

    def interrupt(*arguments: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return wait(*arguments)

    before = signal.signal(signal.SIGUSR1, lambda *_: engine.close())
    monkeypatch.setattr(flusher, "_result", interrupt)
    try:
        with pytest.raises(EngineUnavailable) as caught:
            engine.put(some(2))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert caught.value.applied is None
    monkeypatch.undo()
    again = opened(server.url, namespace=engine.namespace)  # type: ignore[attr-defined]
    assert drain(again) == ["m0", "m1"]

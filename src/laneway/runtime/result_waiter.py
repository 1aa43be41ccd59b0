"""Wait for jobs: one thread per process listens for all of them and calls back."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from laneway.engines.base import FullEngine, ResultListener, result_name
from laneway.errors import EngineUnavailable
from laneway.message import StoredResult

Callback = Callable[[StoredResult], object]

log = logging.getLogger("laneway.job")

LISTEN = 60.0
"""Seconds of one poll; engines check more often on their own if a notification may be lost."""

IDLE = 30.0
"""Seconds after the last wait until the thread ends."""

AWAY = 0.2
"""Seconds between attempts while the engine is unavailable."""


class ResultWaiter:
    """
    Calls back with the stored result of jobs: once at the start, and at each change. `engine`:
    returns the engine to listen to.
    """

    def __init__(self, engine: Callable[[], FullEngine]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listening: _Listening | None = None

    def watch(self, job_id: str, topic: str | None, callback: Callback) -> None:
        """
        Call `callback` with the stored result of a job, from the waiter's thread: immediately, and
        at each change. It must not block.
        """
        engine = self._engine()
        with self._lock:
            listening = self._listening
            while (
                listening is None
                or not listening.serves(engine)
                or not listening.add(job_id, topic, callback)
            ):
                listening = self._listening = _Listening(engine)
                listening.start()

    def unwatch(self, job_id: str, topic: str | None, callback: Callback) -> None:
        """Stop calling `callback`."""
        with self._lock:
            if self._listening is not None:
                self._listening.remove(_name(job_id, topic), callback)

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            listening.end()


class _Listening(threading.Thread):
    """The thread that listens while a job is being waited for."""

    def __init__(self, engine: FullEngine) -> None:
        super().__init__(name="laneway-jobs", daemon=True)
        self._engine = engine
        self._process = os.getpid()
        self._listener: ResultListener = engine.result_listener()
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[tuple[str, str | None], list[Callback]]] = {}
        self._ended = False
        self._idle_since = time.monotonic()

    def serves(self, engine: FullEngine) -> bool:
        """Whether it listens to that engine, in this process."""
        return self._engine is engine and self._process == os.getpid() and not self._ended

    def add(self, job_id: str, topic: str | None, callback: Callback) -> bool:
        """Returns False if the thread has just ended because it was idle."""
        name = _name(job_id, topic)
        with self._lock:
            if self._ended:
                return False
            self._watched.setdefault(name, ((job_id, topic), []))[1].append(callback)
        self._listener.subscribe(name)
        return True

    def remove(self, name: str, callback: Callback) -> None:
        with self._lock:
            known = self._watched.get(name)
            if known is None or callback not in known[1]:
                return
            known[1].remove(callback)
            if known[1]:
                return
            del self._watched[name]
            self._idle_since = time.monotonic()
        self._listener.unsubscribe(name)

    def end(self) -> None:
        self._ended = True
        self._listener.wake()

    def run(self) -> None:
        try:
            while not self._ended:
                notified = self._listener.poll(LISTEN)
                with self._lock:
                    if not self._watched and time.monotonic() - self._idle_since > IDLE:
                        self._ended = True
                        break
                    wanted = (
                        list(self._watched)
                        if notified is None
                        else [each for each in dict.fromkeys(notified) if each in self._watched]
                    )
                if wanted and not self._ended:
                    self._call_back(wanted)
        finally:
            self._ended = True
            self._listener.close()

    def _call_back(self, wanted: list[str]) -> None:
        with self._lock:
            those = [self._watched[each] for each in wanted if each in self._watched]
        try:
            results = self._engine.results([message for message, _ in those])
        except EngineUnavailable as error:
            if not self._ended:
                log.warning(
                    "the results of %d jobs cannot be read, retrying: %s", len(those), error
                )
                time.sleep(AWAY)  # all jobs wait for the same engine
                with contextlib.suppress(OSError):
                    self._listener.subscribe(*wanted)
            return
        for (_, calls), result in zip(those, results, strict=True):
            for callback in list(calls):
                try:
                    callback(result)
                except Exception:
                    log.exception("a callback for a change of a job failed")


def _name(job_id: str, topic: str | None) -> str:
    """The name of a job's result; without a topic, no notification arrives."""
    return result_name(job_id, topic or "")

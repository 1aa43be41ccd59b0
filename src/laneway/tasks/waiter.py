"""
Waiting for jobs: one thread of a process hears of all that it waits for, and tells whoever wants to
know.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING

from laneway.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.base import FullEngine, ResultListener
    from laneway.message import StoredResult

    Told = Callable[[StoredResult], object]

log = logging.getLogger("laneway.job")

LISTEN = 60.0
"""
Seconds of one listening; engines look by themselves more often where they may have missed
something.
"""

IDLE = 30.0
"""Seconds after the last wait until the thread ends."""

AWAY = 0.2
"""Seconds between attempts while the engine is away."""


class ResultWaiter:
    """
    Tells what is kept of jobs: once when asked, and at each change. `engine`: gives the engine that
    is to be heard now.
    """

    def __init__(self, engine: Callable[[], FullEngine]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._listening: _Listening | None = None

    def watch(self, job_id: str, topic: str | None, told: Told) -> None:
        """
        Call `told` with what is kept of a job, from the hub's thread: at once, and at each change.
        It must not block.
        """
        engine = self._engine()
        with self._lock:
            listening = self._listening
            while (
                listening is None
                or not listening.serves(engine)
                or not listening.add(job_id, topic, told)
            ):
                listening = self._listening = _Listening(engine)
                listening.start()

    def unwatch(self, job_id: str, told: Told) -> None:
        """Not any more."""
        with self._lock:
            if self._listening is not None:
                self._listening.remove(job_id, told)

    def close(self) -> None:
        """Hear of nothing more."""
        with self._lock:
            listening, self._listening = self._listening, None
        if listening is not None:
            listening.end()


class _Listening(threading.Thread):
    """The thread, as long as there is something to wait for."""

    def __init__(self, engine: FullEngine) -> None:
        super().__init__(name="laneway-jobs", daemon=True)
        self._engine = engine
        self._process = os.getpid()
        self._listener: ResultListener = engine.result_listener()
        self._lock = threading.Lock()
        self._watched: dict[str, tuple[str | None, list[Told]]] = {}
        self._ended = False
        self._idle_since = time.monotonic()

    def serves(self, engine: FullEngine) -> bool:
        """Whether it can be asked to hear for that engine."""
        return self._engine is engine and self._process == os.getpid() and not self._ended

    def add(self, job_id: str, topic: str | None, told: Told) -> bool:
        """False: it has just ended, since there was nothing to hear."""
        with self._lock:
            if self._ended:
                return False
            known = self._watched.get(job_id)
            if known is None:
                self._watched[job_id] = (topic, [told])
            else:
                known[1].append(told)
        self._listener.subscribe(job_id)
        return True

    def remove(self, job_id: str, told: Told) -> None:
        with self._lock:
            known = self._watched.get(job_id)
            if known is None or told not in known[1]:
                return
            known[1].remove(told)
            if known[1]:
                return
            del self._watched[job_id]
            self._idle_since = time.monotonic()
        self._listener.unsubscribe(job_id)

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
                    self._tell(wanted)
        finally:
            self._ended = True
            self._listener.close()

    def _tell(self, wanted: list[str]) -> None:
        with self._lock:
            those = [(each, self._watched[each]) for each in wanted if each in self._watched]
        try:
            found = self._engine.results([(each, topic) for each, (topic, _) in those])
        except EngineUnavailable as error:
            if not self._ended:
                log.warning(
                    "what became of %d jobs cannot be read, trying again: %s", len(those), error
                )
                time.sleep(AWAY)  # nobody is served meanwhile: all of them wait for the same engine
                with contextlib.suppress(OSError):
                    self._listener.subscribe(*wanted)
            return
        for (_, (_, calls)), kept in zip(those, found, strict=True):
            for told in list(calls):
                try:
                    told(kept)
                except Exception:
                    log.exception("what was to be told of a job failed")

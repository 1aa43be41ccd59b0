"""
When suspects run: messages whose lease ran out before, which may have killed their worker.

    waiting ──> start recorded ──> on trial ──> off trial
                                   alone        ended, or ran long enough: others may begin too

The start of a suspect is recorded first, so that killing this process counts as an attempt.
Suspects run one at a time, and nothing else begins while one is on trial, so that no other message
is charged with the death of the process.
A suspect that has failed or lost a worker before also waits until all running handlers have ended.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Protocol

from laneway.working.engine_thread import EngineThread
from laneway.working.handler import Handler
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:

    class TrialWorker(Protocol):
        """What the trials need of their worker; all on the event loop."""

        def has_free_slot(self) -> bool:
            """Whether one more handler may begin."""

        def has_room_for(self, handler: Handler) -> bool:
            """Whether one more call of this handler may begin."""

        def is_idle(self) -> bool:
            """Whether no handler runs."""

        def record_start(self, suspect: WorkerDelivery) -> WorkerDelivery | None:
            """Take a slot for a suspect; record its start. None if its body cannot be decoded."""

        def release_buffered(self) -> None:
            """Release the leases of all messages that have not begun."""

        def begin_others(self) -> None:
            """Begin messages that are no suspects."""

        def dispatch(self) -> None:
            """Begin all messages that may begin."""


TRIAL_SECONDS = 1.0
"""How long a suspect in its first attempt runs alone before others begin."""

ALONE_SECONDS = 30.0
"""
How long a suspect in a later attempt runs alone before others begin; also how long it waits for
running handlers to end before it begins along with them.
"""


class SuspectTrials:
    """Decides when suspects begin, and when others may begin during their trial."""

    def __init__(
        self, worker: TrialWorker, engine_thread: EngineThread, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._worker = worker
        self._engine_thread = engine_thread
        self._loop = loop
        self.waiting: list[tuple[int, int, WorkerDelivery]] = []
        """
        A heap, fewest attempts first: a suspect in its first attempt does not wait for one that may
        kill this process.
        """
        self.on_trial: WorkerDelivery | None = None
        self.blocks_others = False
        """Whether nothing but suspects may begin now."""
        self._wait_until: float | None = None
        """Until when the next suspect waits for running handlers to end (loop time)."""

    def add(self, suspect: WorkerDelivery) -> None:
        """Add a suspect that was leased."""
        heapq.heappush(self.waiting, (suspect.lease.attempt, suspect.lease.fence, suspect))

    def begin_next(self) -> None:
        """Begin the next suspect if it may begin now; lease again if none is left."""
        self._begin_next()
        if not self.waiting and self.on_trial is None:
            self._wait_until = None
            self._engine_thread.resume()
        self._update()

    def _update(self) -> None:
        self.blocks_others = self.on_trial is not None or self._wait_until is not None

    def _begin_next(self) -> None:
        while self.waiting and self.on_trial is None and self._worker.has_free_slot():
            attempt, _, suspect = self.waiting[0]
            if suspect.is_gone():
                heapq.heappop(self.waiting)
                continue
            if not self._worker.has_room_for(suspect.handler):
                return
            if attempt > 1 and not self._is_alone():
                return
            heapq.heappop(self.waiting)
            self.on_trial = self._worker.record_start(suspect)

    def _is_alone(self) -> bool:
        """
        Whether a suspect may begin that may have killed more than one worker: nothing else runs, or
        has not ended for long.

        Messages that have not begun are released: they should not wait until their leases expire if
        this process dies.
        """
        self._engine_thread.is_paused = True
        now = self._loop.time()
        is_idle = self._worker.is_idle()
        if self._wait_until is None and not is_idle:
            self._wait_until = now + ALONE_SECONDS
            self._loop.call_later(ALONE_SECONDS, self._worker.dispatch)
        if not is_idle and self._wait_until is not None and now < self._wait_until:
            return False
        self._wait_until = None
        self._worker.release_buffered()
        return True

    def set_timer(self, unit: WorkerDelivery) -> None:
        """The suspect's handler begins now: end its trial after a while."""
        seconds = TRIAL_SECONDS if unit.lease.attempt == 1 else ALONE_SECONDS
        self._loop.call_later(seconds, self.end, unit)

    def end(self, unit: WorkerDelivery) -> None:
        """
        End the trial if it is this unit's. It has ended, or has run long enough that others may
        begin: first those that are no suspects.
        """
        if self.on_trial is unit:
            self.on_trial = None
            self._update()
            self._engine_thread.resume()
            if not unit.over:
                self._worker.begin_others()
            self._loop.call_soon(self._worker.dispatch)

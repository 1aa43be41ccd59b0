"""The elections of an application, in which its workers are candidates while they run handlers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Protocol

from laneway.errors import UsageError
from laneway.working.options import Options


class Candidacy(Protocol):
    """What a worker needs of an election."""

    def start(self) -> threading.Thread:
        """Be a candidate in a thread of its own. Raises UsageError."""

    def stop(self) -> None:
        """End the candidacy; a holder hands over first."""


log = logging.getLogger("laneway.worker")


class ElectionThreads:
    """
    Candidates from a worker's start until it stops. A worker with `burst` is none. Used once.

    `start` is called once the worker obeys signals: a signal before would end a holder that has
    not handed over. The `with` block ends when all have.
    """

    def __init__(self, elections: Sequence[Candidacy], options: Options) -> None:
        self._elections = () if options.burst else tuple(elections)
        self._lock = threading.Lock()  # guards the next two
        self._started: list[tuple[Candidacy, threading.Thread]] = []
        self._is_over = False

    def __bool__(self) -> bool:
        """Whether there are elections in which this worker is a candidate."""
        return bool(self._elections)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.join()

    def start(self) -> None:
        """Start them, unless the worker was stopped before."""
        with self._lock:
            for election in () if self._is_over else self._elections:
                try:
                    self._started.append((election, election.start()))
                except UsageError as error:  # another worker of this process is a candidate
                    log.warning("%s; this worker is no candidate", error)

    def stop(self) -> None:
        """Stop them, when the worker begins to stop; does not wait for their end."""
        with self._lock:
            self._is_over = True
            for election, _ in self._started:
                election.stop()

    def join(self) -> None:
        """Wait until they have handed over, which has a bound of its own."""
        self.stop()
        for _, thread in self._started:
            thread.join()

"""The elections of an application, in which its workers are candidates beside their handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from laneway.working.options import Options


class Candidacy(Protocol):
    """What a worker needs of an election."""

    def start(self) -> threading.Thread:
        """Be a candidate in a thread of its own."""
        ...

    def stop(self) -> None:
        """End the candidacy; a holder hands over first."""
        ...


class ElectionThreads:
    """Candidates from a worker's start until it stops. A worker with `burst` is none."""

    def __init__(self, elections: Sequence[Candidacy], options: Options) -> None:
        self._elections = () if options.burst else tuple(elections)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.join()

    def start(self) -> None:
        self._threads = [election.start() for election in self._elections]

    def stop(self) -> None:
        """Stop them, when the worker begins to stop; does not wait."""
        for election in self._elections:
            election.stop()

    def join(self) -> None:
        """Wait until they have handed over, which has a bound of its own."""
        self.stop()
        for thread in self._threads:
            thread.join()

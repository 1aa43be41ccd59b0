"""`app.control`: commands to running workers."""

from __future__ import annotations

from laneway import arguments
from laneway.admin import workers
from laneway.awaitable import async_variant
from laneway.runtime.noun import Noun
from laneway.units import Duration
from laneway.working.commands import WorkerCommand


class Control(Noun):
    """Commands to the workers that `Laneway.workers` lists: `app.control`."""

    def ping(
        self, worker_id: str | None = None, *, timeout: Duration = 5.0
    ) -> dict[str, float | None]:
        """
        Ask one worker, or all workers (None), for a heartbeat now, and wait for it.

        Returns the seconds until each worker answered, by id, or None if it did not within
        `timeout`. Raises Refused if no worker has this id.
        """
        worker_id = None if worker_id is None else arguments.name("ping", "the id", worker_id)
        seconds = arguments.seconds("ping", "timeout", timeout)
        return workers.ping(self._runtime.engine, worker_id, seconds)

    def drain(self, worker_id: str, *, timeout: Duration = 5.0) -> None:
        """
        Tell a worker to lease no more messages, finish those that run, and exit.

        Raises Refused if no worker has this id, or if it does not confirm within `timeout`.
        """
        self._command("drain", worker_id, timeout)

    def stacks(self, worker_id: str, *, timeout: Duration = 5.0) -> str:
        """
        Return what a worker is doing: its messages, and the stack of each thread and coroutine.

        Raises Refused if no worker has this id, or it did not answer within `timeout`.
        """
        return self._command("stack_dump", worker_id, timeout)

    def _command(self, command: WorkerCommand, worker_id: str, timeout: Duration) -> str:
        checked = arguments.name("control", "the id", worker_id)
        seconds = arguments.seconds("control", "timeout", timeout)
        return workers.command(self._runtime.engine, checked, command, seconds)

    aping = async_variant(ping)
    adrain = async_variant(drain)
    astacks = async_variant(stacks)

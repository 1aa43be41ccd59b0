"""
Runs functions in child processes that can be killed.

Each running unit has a child of its own for as long as it runs; a thread of the worker waits for
the child's answer.
A child is a new interpreter that imports the handler by its name, or, for a handler in the main
module, a copy of this process. It serves one unit after the other until it dies.
`process_child` is what runs inside a child.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from laneway.working import child_processes
from laneway.working.child_processes import CannotStart, ForkServer, Process, describe_exit
from laneway.working.engine_priority import EnginePriority
from laneway.working.error_details import ChildDied
from laneway.working.executors.threads import ThreadExecutor
from laneway.working.handler import Handler
from laneway.working.log_format import LogStyle
from laneway.working.middleware import HandlingMiddlewares
from laneway.working.worker_delivery import WorkerDelivery

if TYPE_CHECKING:
    from laneway.working.executors.executor import Dispatch, Finished

START_SECONDS = 60.0
"""How long a child may take to import the handler's module; a slower one counts as failed."""

END_SECONDS = 5.0
"""How long to wait for the exit code of a child that was killed or has closed its pipe."""

MAX_TRIES = 3
"""How many children may turn out to have died while they were idle; after that the worker ends."""


def fork_server_for(handlers: Iterable[Handler]) -> ForkServer | None:
    """
    The process that children of the main module's handlers are copied from, or None if not needed.

    Call it before the worker starts its threads.
    """
    is_needed = any(
        handler.kind == "process" and handler.address.startswith(f"{child_processes.MAIN}:")
        for handler in handlers
    )
    return child_processes.ForkServer() if is_needed else None


class ProcessExecutor(ThreadExecutor):
    """
    Calls functions in children. An `Executor`.

    A thread that has a unit takes an idle child of its handler, or starts one.
    `began` is called, from that thread, when the child begins the unit: the child's own start does
    not count. `cannot_start` is called on the event loop instead of `finished` for a unit that got
    no child because the system starts none, with a CannotStart.
    """

    reports_begin = True

    def __init__(
        self,
        finished: Finished,
        dispatch: Dispatch,
        middlewares: HandlingMiddlewares,
        max_threads: int,
        priority: EnginePriority,
        *,
        began: Callable[[WorkerDelivery], object],
        cannot_start: Callable[[WorkerDelivery, CannotStart], object],
        fork_server: ForkServer | None = None,
    ) -> None:
        super().__init__(self._route, dispatch, middlewares, max_threads, priority)
        self.runner = self
        self._unit_finished = finished
        self._began = began
        self._cannot_start = cannot_start
        self._fork_server = fork_server
        self._children_lock = threading.Lock()  # guards the next three
        self._idle_children: dict[str, list[_Child]] = {}
        self._busy_children: dict[WorkerDelivery, _Child] = {}
        self._is_children_closed = False

    def start(self, unit: WorkerDelivery) -> None:
        unit.is_starting = True
        super().start(unit)

    def warn(self, unit: WorkerDelivery, error: Exception) -> None:
        """Does nothing: a child knows its soft time limit and raises the error itself."""

    def stop(self, unit: WorkerDelivery, error: Exception) -> None:
        """Kill the child that runs a unit; the thread notices the end of the pipe."""
        del error
        with self._children_lock:
            child = self._busy_children.get(unit)
            if child is not None:
                child.is_stopped = True
                child.kill()

    async def close(self, seconds: float) -> None:
        """End all threads and children. Does not wait for the handlers."""
        await super().close(seconds)
        with self._children_lock:
            self._is_children_closed = True
            idle = [child for children in self._idle_children.values() for child in children]
            busy = list(self._busy_children.values())
            self._idle_children.clear()
        for child in idle + busy:
            child.kill()
        for child in idle:
            child.close()
        if self._fork_server is not None:
            self._fork_server.close()

    def _route(self, unit: WorkerDelivery, returned: Any, error: BaseException | None) -> None:
        if type(error) is CannotStart:
            self._cannot_start(unit, error)
        else:
            self._unit_finished(unit, returned, error)

    def _call_handler(self, unit: WorkerDelivery) -> Any:
        """
        Run the handler in a child. Raises what it raised, ChildDied, or CannotStart.
        """
        arguments = unit.arguments()
        for _ in range(MAX_TRIES):
            child = self._take_child(unit)
            try:
                if not child.is_ready:
                    child.wait_until_ready()
                if not child.begins(arguments, unit.limits[1], is_batch=unit.parts is not None):
                    continue  # it had died while it was idle, and has seen nothing of the unit
                unit.began = perf_counter()
                unit.is_starting = False
                self._began(unit)
                kind, value = child.answer()
            except (EOFError, OSError) as error:
                raise ChildDied(
                    f"the child process of handler {unit.handler.name} {child.end_in_words()}"
                ) from error
            finally:
                self._return_child(unit, child)
            if kind == "returned":
                return value
            raise value
        raise CannotStart(
            f"child processes of handler {unit.handler.name} end before they receive a message;"
            " is something killing them?"
        )

    def _take_child(self, unit: WorkerDelivery) -> _Child:
        address = unit.handler.address
        with self._children_lock:
            if self._is_children_closed:
                raise ChildDied("the worker is being stopped")
            idle = self._idle_children.get(address)
            child = idle.pop() if idle else _Child(unit.handler, self._fork_server)
            self._busy_children[unit] = child
            return child

    def _return_child(self, unit: WorkerDelivery, child: _Child) -> None:
        with self._children_lock:
            self._busy_children.pop(unit, None)
            is_reusable = child.is_ready and not child.has_ended and not child.is_stopped
            if is_reusable and not self._is_children_closed:
                self._idle_children.setdefault(child.address, []).append(child)
                return
        child.kill()
        child.close()


class _Child:
    """One child process and the pipe to it. Raises CannotStart if the system starts none."""

    def __init__(self, handler: Handler, fork_server: ForkServer | None) -> None:
        self.address = address = handler.address
        self.is_stopped = False
        self.is_ready = False
        self.has_ended = False
        entry = "laneway.working.executors.process_child:serve"
        args = (address, handler.child_setup, LogStyle.present())
        try:
            is_copy = fork_server is not None and address.startswith(f"{child_processes.MAIN}:")
            self._process: Process = (
                child_processes.ServedProcess(fork_server, entry, args)
                if fork_server is not None and is_copy
                else child_processes.SpawnedProcess(entry, args)
            )
        except OSError as error:
            raise CannotStart(
                f"a child process for {address} cannot be started: {error}"
            ) from error
        self._pipe = self._process.pipe

    def wait_until_ready(self) -> None:
        """
        Wait until it takes units. Raises ChildDied if it cannot import its handler: a failure of
        the message, since other handlers work; EOFError if this worker ended the child.
        """
        try:
            problem = (
                self._pipe.recv()
                if self._pipe.poll(START_SECONDS)
                else f"it was not ready after {START_SECONDS:g} s"
            )
        except (EOFError, OSError):
            if self.is_stopped:
                raise
            problem = f"it {self.end_in_words()}"
        if problem is not None:
            self.has_ended = True
            raise ChildDied(f"a child process for {self.address} cannot be started: {problem}")
        self.is_ready = True

    def begins(
        self,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        soft_time_limit: float | None,
        *,
        is_batch: bool,
    ) -> bool:
        """Send it a unit; False: it had ended before."""
        try:
            self._pipe.send((arguments, soft_time_limit, is_batch))
            self._pipe.recv()
        except (EOFError, OSError):
            self.has_ended = True
            if self.is_stopped:
                raise
            return False
        return True

    def answer(self) -> tuple[str, Any]:
        """Wait for ("returned", value) or ("raised", error)."""
        try:
            answer: tuple[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            self.has_ended = True
            raise
        return answer

    def end_in_words(self) -> str:
        """How it ended."""
        return describe_exit(self._process.exit_code(END_SECONDS))

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Release the pipe and collect the exit code; by the thread that used it, after its end."""
        self._pipe.close()
        self._process.exit_code(END_SECONDS)

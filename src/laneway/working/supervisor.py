"""
Runs several workers as processes: restarts those that die, forwards signals, and, in development,
restarts them when the code changes.

Each worker is a new interpreter that imports the application by its address.
If the application is in the main module, each worker is a copy of this process, so that the main
module never runs twice. Workers share nothing but the engine.

    starting ──> running ──> ended on its own, or stopped: no longer wanted
       ↑            ├─ died: waits for restart_at ──┐
       │            └─ code changed ────────────────┤
       └────────────────────────────────────────────┘
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.connection
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import EngineUnavailable, LanewayError, UsageError
from laneway.printable import escaped, without_passwords
from laneway.working import child_processes, log_format
from laneway.working.election_threads import ElectionThreads
from laneway.working.event_loop import handled
from laneway.working.options import Options, Summary
from laneway.working.source_files import as_at_start, source_states
from laneway.working.user_imports import own_files, own_lines
from laneway.working.worker import Worker, check_handlers

if TYPE_CHECKING:
    from laneway.working.host import ProcessApplication

log = logging.getLogger("laneway.supervisor")

MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.1, 10.0
"""
How long to wait before a worker that died is restarted; the wait doubles from the first to the
second while the worker keeps dying.
"""

HEALTHY_SECONDS = 30.0
"""How long a worker has to run so that its death is not blamed on its start."""

LOOK_SECONDS = 1.0
"""How often source files are checked in development; a change is noticed that late at most."""

IN_MAIN = f"{child_processes.MAIN}:"

EXIT_USAGE, EXIT_AWAY, EXIT_RELOAD = 2, 3, 4
"""
Exit codes of a worker: the program has to be changed; the store is unavailable, try again; the code
has changed.
"""


def target_of(app: ProcessApplication, options: Options) -> str | ProcessApplication:
    """
    `module:name` by which another process imports the application. If it is in the main module: the
    application itself, because its workers are copies of this process.

    Raises UsageError if the application is not at the top of a module.
    """
    if app.address is not None:
        return app.address
    addresses = [
        f"{name}:{each}"
        for name, module in list(sys.modules.items())
        for each in _names_of(app.app, name, module)
    ]
    if not addresses:
        raise UsageError(
            "run_worker: several processes need the application at the top of a module, like `app ="
            " Laneway(…)`"
        )
    is_of_main = any(
        each.startswith(IN_MAIN)
        for each in [*addresses, *(handler.address for handler in app.handlers)]
    )
    if is_of_main and options.reload:
        name = Path(
            getattr(sys.modules[child_processes.MAIN], "__file__", None) or "program.py"
        ).stem
        raise UsageError(
            "run_worker: reload imports the program again, which the main module cannot be; use:"
            f" laneway worker {name} --reload"
        )
    return app if is_of_main else addresses[0]


def _names_of(app: object, module_name: str, module: object) -> list[str]:
    if module_name.startswith("laneway."):
        return []
    return [
        name
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app or _wraps(value, app)
    ]


def _wraps(value: object, app: object) -> bool:
    """Whether a value is a compatibility application (Celery, RQ) around this one."""
    module = getattr(type(value), "__module__", None)  # a user's class may have any value
    return (
        isinstance(module, str)
        and module.startswith("laneway.compat.")
        and getattr(value, "laneway", None) is app
    )


class Supervisor:
    """
    Keeps `processes` workers running until it is stopped, or until all have ended on their own.
    """

    def __init__(self, target: str | ProcessApplication, options: Options) -> None:
        """
        `target`: see `target_of`. `options.store`: the store to use instead of the code's.
        """
        self._options = options
        self._workers = [
            _SupervisedWorker(number, target, options) for number in range(options.processes)
        ]
        self._stops = 0

    def run(self) -> Summary:
        """
        Returns what all workers together handled. Raises UsageError if a worker cannot run because
        of a mistake in the program.
        """
        with handled((signal.SIGTERM, signal.SIGINT), self._stop):
            for worker in self._workers:
                worker.start()
            while any(worker.is_wanted for worker in self._workers):
                self._look()
        total = Summary()
        for worker in self._workers:
            total.add(worker.summary)
        return total

    def _look(self) -> None:
        processes = [worker.process for worker in self._workers if worker.process is not None]
        answering = [each.pipe for each in processes if not each.pipe.closed]
        pauses = [
            worker.restart_at - time.monotonic()
            for worker in self._workers
            if worker.is_wanted and worker.process is None
        ]
        ending = len(answering) < len(processes)
        seconds = max(0.0, min([*pauses, child_processes.WAIT_SECONDS if ending else LOOK_SECONDS]))
        if answering:
            multiprocessing.connection.wait(answering, timeout=seconds)
        else:
            time.sleep(seconds)
        for worker in self._workers:
            worker.collect()
            if worker.process is not None and (code := worker.process.exit_code()) is not None:
                worker.end(code, is_stopping=self._stops > 0)
            if worker.is_wanted and worker.process is None:
                if self._stops:
                    worker.is_wanted = False
                elif time.monotonic() >= worker.restart_at:
                    worker.start()

    def _stop(self, *_: object) -> None:
        self._stops += 1
        for worker in self._workers:
            worker.signal(kill=self._stops > 2)  # 1: in order; 2: immediately; 3: by force


class _SupervisedWorker:
    """One of the workers, with all its restarts."""

    def __init__(self, number: int, target: str | ProcessApplication, options: Options) -> None:
        self.number = number
        self.is_wanted = True
        self.restart_at = 0.0
        self.process: child_processes.Process | None = None
        self.summary = Summary()
        self._target = target
        port = (
            None
            if options.health_port is None
            else options.health_port + (number if options.health_port else 0)
        )
        self._options = msgspec.structs.replace(options, processes=1, health_port=port)
        self._pause = MIN_RESTART_SECONDS
        self._started = 0.0

    def start(self) -> None:
        self._started = time.monotonic()
        kind = (
            child_processes.SpawnedProcess
            if isinstance(self._target, str)
            else child_processes.ForkedProcess
        )
        try:
            self.process = kind(
                "laneway.working.supervisor:serve",
                (self._target, self._options, log_format.LogStyle.present()),
            )
        except OSError as error:
            self._start_later(f"cannot be started ({error})")

    def signal(self, *, kill: bool) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def end(self, code: int, *, is_stopping: bool) -> None:
        """Its process has ended with an exit code: give it up, or decide when to restart it."""
        while self.process is not None and not self.process.pipe.closed:
            self.collect()
        self.process = None
        if code == EXIT_USAGE:
            raise UsageError(f"worker: {self._name} cannot be run, see the error above")
        if code == 0 or is_stopping:
            self.is_wanted = False
            return
        if code == EXIT_RELOAD or time.monotonic() - self._started > HEALTHY_SECONDS:
            self._pause = MIN_RESTART_SECONDS
        if code == EXIT_RELOAD:
            self.restart_at = time.monotonic()
        else:
            self._start_later(child_processes.describe_exit(code))

    @property
    def _name(self) -> str:
        return self._target if isinstance(self._target, str) else "the application"

    def _start_later(self, problem: str) -> None:
        log.warning("worker %d %s; restarting in %.1f s", self.number, problem, self._pause)
        self.restart_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, MAX_RESTART_SECONDS)

    def collect(self) -> None:
        """Add the summary that it has sent on its pipe, if any."""
        if self.process is None or self.process.pipe.closed:
            return
        answers = self.process.pipe
        try:
            if not answers.poll() and self.process.exit_code() is None:
                return
            summary: Summary | None = answers.recv() if answers.poll() else None
        except (EOFError, OSError):
            summary = None
        if summary is None:
            answers.close()
            return
        self.summary.add(summary)


def serve(
    answers: Connection,
    target: str | ProcessApplication,
    options: Options,
    style: log_format.LogStyle,
) -> None:
    """The entry point of a worker process: runs a worker and sends its summary."""
    # A Ctrl-C in the terminal reaches every process of the group; only the parent acts on it, and
    # sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    style.apply()
    began = time.time()
    try:
        value: Any = child_processes.resolve(target) if isinstance(target, str) else target
        app: ProcessApplication = value
        if isinstance(target, str):
            app = (value.for_worker() if hasattr(value, "for_worker") else value).runtime
            app.use_store(*options.store)
        app.schedules.install()
        elections = ElectionThreads(app.elections_in_workers, options)
        check_handlers(app.handlers, elections)
        worker = Worker(app.engine, app.handlers, options, elections.stop)
    except Exception as error:  # noqa: BLE001  # whatever the user's module raises
        sys.exit(_cannot_start(error, options, began))
    child_processes.when_orphaned(worker.stop)  # no supervisor would restart or stop it
    changed = _watch_files(worker, began) if options.reload else None
    try:
        with elections:
            summary = worker.run((signal.SIGTERM,), elections.start)
    except child_processes.CannotStart as error:
        log.error("worker failed: %s", error)  # noqa: TRY400  # one sentence
        sys.exit(1)
    with contextlib.suppress(OSError):
        answers.send(summary)
    if changed is not None and changed.is_set():
        sys.exit(EXIT_RELOAD)


def _cannot_start(error: Exception, options: Options, began: float) -> int:
    """
    Log the error, with the user's lines of its traceback; returns the exit code.

    In development, waits for the next change of the code.
    """
    sys.stderr.write(
        ""
        if isinstance(error, LanewayError)
        else escaped(without_passwords(own_lines(error)), lines=True)
    )
    text = error if isinstance(error, LanewayError) else f"{type(error).__name__}: {error}"
    log.error("the worker cannot start: %s", text)
    if isinstance(error, EngineUnavailable):
        return EXIT_AWAY
    if not options.reload:
        return EXIT_USAGE if isinstance(error, LanewayError) else 1
    files = own_files(error)
    before = as_at_start(source_states(files), began)
    log.info("waiting for the code to change")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while source_states(files) == before:
        if child_processes.is_orphan():
            return 0
        time.sleep(LOOK_SECONDS)
    return EXIT_RELOAD


def _watch_files(worker: Worker, began: float) -> threading.Event:
    """Stop the worker when the source of a loaded module changes."""
    changed = threading.Event()

    def watch() -> None:
        before = as_at_start(source_states(), began)
        while True:
            time.sleep(LOOK_SECONDS)
            now = source_states()
            different = sorted(
                path for path, modified in now.items() if before.get(path, modified) != modified
            )
            if different:
                log.info("%s has changed; restarting", different[0])
                changed.set()
                worker.stop()
                return
            before = now | before

    threading.Thread(target=watch, name="laneway-reload", daemon=True).start()
    return changed

"""
Several whole workers under one parent that restarts the dead, forwards signals, and, in
development, begins anew when the code changes.

Each worker is a fresh interpreter that imports the application by its address; one of the main
module is a copy of this process, so that the main module never runs twice. Nothing is shared but
the engine.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.errors import EngineUnavailable, LanewayError, UsageError
from laneway.safetext import escaped, without_passwords
from laneway.working import child_processes, log_format
from laneway.working.executors.processes import describe_exit
from laneway.working.options import Options, Summary
from laneway.working.user_imports import own_files, own_lines
from laneway.working.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.connection import Connection

    from laneway.working.child_processes import Process
    from laneway.working.host import ProcessApplication

log = logging.getLogger("laneway.supervisor")

RESTART_FIRST, RESTART_MOST = 0.1, 10.0
"""Seconds before a worker that died is started again, doubled while it keeps dying."""

HEALTHY_SECONDS = 30.0
"""A worker that lived so long did not die of its start."""

LOOK_SECONDS = 1.0
"""How often source files are looked at in development."""

IN_MAIN = f"{child_processes.MAIN}:"

USAGE, AWAY, RELOAD = 2, 3, 4
"""
Exit codes of a worker: the program has to be changed; the engine is away, try again; the code has
changed.
"""


def target_of(app: ProcessApplication, options: Options) -> str | ProcessApplication:
    """
    `module:name` by which another process finds the application; of the main module, itself: its
    workers are copies. Raises UsageError.
    """
    found = [
        f"{name}:{each}"
        for name, module in list(sys.modules.items())
        for each in _names_of(app, name, module)
    ]
    if not found:
        raise UsageError(
            "run_worker: several processes need the application at the top of a module, like `app ="
            " Laneway(…)`"
        )
    is_of_main = any(
        each.startswith(IN_MAIN)
        for each in [*found, *(handler.address for handler in app.handlers)]
    )
    if is_of_main and options.reload:
        name = Path(
            getattr(sys.modules[child_processes.MAIN], "__file__", None) or "program.py"
        ).stem
        raise UsageError(
            "run_worker: reload imports the program again, which the main module cannot be; use:"
            f" laneway worker {name} --reload"
        )
    return app if is_of_main else found[0]


def _names_of(app: ProcessApplication, module_name: str, module: object) -> list[str]:
    if module_name.startswith("laneway."):
        return []
    return [
        name
        for name, value in list(getattr(module, "__dict__", {}).items())
        if value is app or _stands_for(value, app)
    ]


def _stands_for(value: object, app: ProcessApplication) -> bool:
    """Whether it is an application in another system's words, with this one beneath it."""
    module = getattr(type(value), "__module__", None)  # of a stranger's class it may be anything
    return (
        isinstance(module, str)
        and module.startswith("laneway.compat.")
        and getattr(value, "laneway", None) is app
    )


class Supervisor:
    """
    Keeps `processes` workers running until told to stop, or until all have ended by themselves.
    """

    def __init__(self, target: str | ProcessApplication, options: Options) -> None:
        """
        `options.store` is what the application was told to use instead of what its code names.
        """
        self._options = options
        self._workers = [
            _SupervisedWorker(number, target, options) for number in range(options.processes)
        ]
        self._stops = 0

    def run(self) -> Summary:
        """
        Returns what all workers together did. Raises UsageError where a worker could not be started
        by the program's fault.
        """
        with _signals(self._stop):
            for worker in self._workers:
                worker.start()
            while any(worker.is_wanted for worker in self._workers):
                self._look()
        total = Summary()
        for worker in self._workers:
            for field in Summary.__struct_fields__:
                setattr(total, field, getattr(total, field) + getattr(worker.summary, field))
        return total

    def _look(self) -> None:
        answering = [worker.answers for worker in self._workers if worker.answers is not None]
        pauses = [
            worker.restart_at - time.monotonic()
            for worker in self._workers
            if worker.is_wanted and worker.process is None
        ]
        ending = any(
            worker.process is not None and worker.answers is None for worker in self._workers
        )
        seconds = max(0.0, min([*pauses, child_processes.WAIT_SECONDS if ending else LOOK_SECONDS]))
        if answering:
            multiprocessing.connection.wait(answering, timeout=seconds)
        else:
            time.sleep(seconds)
        for worker in self._workers:
            worker.collect()
            if worker.process is not None and (code := worker.process.exit_code()) is not None:
                worker.bury(code, is_stopping=self._stops > 0)
            if worker.is_wanted and worker.process is None:
                if self._stops:
                    worker.is_wanted = False
                elif time.monotonic() >= worker.restart_at:
                    worker.start()

    def _stop(self, *_: object) -> None:
        self._stops += 1
        for worker in self._workers:
            worker.signal(kill=self._stops > 2)  # first: in order; second: at once; third: by force


class _SupervisedWorker:
    """One of the workers, through all its restarts."""

    def __init__(self, number: int, target: str | ProcessApplication, options: Options) -> None:
        self.number = number
        self.is_wanted = True
        self.restart_at = 0.0
        self.process: Process | None = None
        self.answers: Connection | None = None
        """What it says at its end; None once its end of the pipe is closed."""
        self.summary = Summary()
        self._target = target
        port = (
            None
            if options.health_port is None
            else options.health_port + (number if options.health_port else 0)
        )
        self._options = msgspec.structs.replace(options, processes=1, health_port=port)
        self._pause = RESTART_FIRST
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
                "laneway.working.supervisor:work",
                (self._target, self._options, log_format.LogStyle.present()),
            )
        except OSError as error:
            self._start_later(f"cannot be started ({error})")
        else:
            self.answers = self.process.pipe

    def signal(self, *, kill: bool) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)

    def bury(self, code: int, *, is_stopping: bool) -> None:
        """A worker ended: by itself, by the program's fault, for new code, or by an accident."""
        while self.answers is not None:
            self.collect()
        self.process = None
        if code == USAGE:
            raise UsageError(f"worker: {self._name} cannot be run, see the error above")
        if code == 0 or is_stopping:
            self.is_wanted = False
            return
        if code == RELOAD or time.monotonic() - self._started > HEALTHY_SECONDS:
            self._pause = RESTART_FIRST
        if code == RELOAD:
            self.restart_at = time.monotonic()
        else:
            self._start_later(describe_exit(code))

    @property
    def _name(self) -> str:
        return self._target if isinstance(self._target, str) else "the application"

    def _start_later(self, what: str) -> None:
        log.warning("worker %d %s; it is started again in %.1f s", self.number, what, self._pause)
        self.restart_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, RESTART_MOST)

    def collect(self) -> None:
        """Take in what it says, if it has said something."""
        if self.answers is None:
            return
        try:
            if (
                self.process is not None
                and not self.answers.poll()
                and self.process.exit_code() is None
            ):
                return
            done: Summary | None = self.answers.recv() if self.answers.poll() else None
        except (EOFError, OSError):
            done = None
        if done is None:
            self.answers.close()
            self.answers = None
            return
        for field in Summary.__struct_fields__:
            setattr(self.summary, field, getattr(self.summary, field) + getattr(done, field))


@contextlib.contextmanager
def _signals(stop: Callable[..., None]) -> Iterator[None]:
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def work(
    answers: Connection,
    target: str | ProcessApplication,
    options: Options,
    style: log_format.LogStyle,
) -> None:
    """What a worker process does."""
    # A Ctrl-C in the terminal reaches every process of the group; only the parent acts on it, and
    # sends SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    style.apply()
    began = time.time()
    try:
        found: Any = child_processes.resolve(target) if isinstance(target, str) else target
        app: ProcessApplication = found.for_worker() if hasattr(found, "for_worker") else found
        if isinstance(target, str):
            app.use_store(*options.store)
        app.install_schedules()
        worker = Worker(app.engine, app.handlers, options)
    except Exception as error:  # noqa: BLE001  # whatever the user's module raises
        sys.exit(_cannot_start(error, options, began))
    child_processes.when_orphaned(worker.stop)  # nobody would restart or stop it
    changed = _watch_files(worker, began) if options.reload else None
    try:
        summary = worker.run((signal.SIGTERM,))
    except child_processes.CannotStart as error:
        log.error("the worker ends: %s", error)  # noqa: TRY400  # one sentence
        sys.exit(1)
    with contextlib.suppress(OSError):
        answers.send(summary)
    if changed is not None and changed.is_set():
        sys.exit(RELOAD)


def _cannot_start(error: Exception, options: Options, began: float) -> int:
    """
    Tell why, in one line and the user's own; returns the exit code. In development the next change
    of the code is waited for.
    """
    sys.stderr.write(
        ""
        if isinstance(error, LanewayError)
        else escaped(without_passwords(own_lines(error)), lines=True)
    )
    what = error if isinstance(error, LanewayError) else f"{type(error).__name__}: {error}"
    log.error("the worker cannot start: %s", what)
    if isinstance(error, EngineUnavailable):
        return AWAY
    if not options.reload:
        return USAGE if isinstance(error, LanewayError) else 1
    files = own_files(error)
    before = _as_they_were(_modification_times(files), began)
    log.info("waiting for the code to change")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while _modification_times(files) == before:
        if child_processes.is_orphan():
            return 0
        time.sleep(LOOK_SECONDS)
    return RELOAD


def _watch_files(worker: Worker, began: float) -> threading.Event:
    """Stop the worker when the source of a loaded module changes."""
    changed = threading.Event()

    def watch() -> None:
        before = _as_they_were(_modification_times(), began)
        while True:
            time.sleep(LOOK_SECONDS)
            now = _modification_times()
            different = sorted(
                path for path, modified in now.items() if before.get(path, modified) != modified
            )
            if different:
                log.info("%s has changed; beginning anew", different[0])
                changed.set()
                worker.stop()
                return
            before = now | before

    threading.Thread(target=watch, name="laneway-reload", daemon=True).start()
    return changed


def _as_they_were(times: dict[str, float], began: float) -> dict[str, float]:
    """
    What was changed after the worker had begun to read it counts as changed, whichever of the two
    it has read.
    """
    return {
        path: began if modified > began and path.endswith(".py") else modified
        for path, modified in times.items()
    }


def _modification_times(others: Iterable[str] = ()) -> dict[str, float]:
    """
    Of all loaded modules, and of other files with their folders (something may be added there).
    """
    times: dict[str, float] = {}
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for path in [*paths, *others, *map(os.path.dirname, others)]:
        if path and not path.startswith(sys.base_prefix):
            with contextlib.suppress(OSError):
                times[path] = os.stat(path).st_mtime
    return times

"""
The process of the program under `laneway dev`: imports it, reports what it found, and runs one
worker.

    importing ──> loaded ──"go"──> working ──SIGTERM──> ended
        └──> failed: the error was reported; the process ends
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from laneway import Laneway
from laneway.cli.loading import load_app
from laneway.errors import EngineUnavailable, LanewayError
from laneway.printable import escaped, without_passwords
from laneway.subscriptions import SEPARATOR
from laneway.working import banner, child_processes
from laneway.working.election_threads import ElectionThreads
from laneway.working.log_format import FIELDS, LogStyle
from laneway.working.options import Options
from laneway.working.source_files import as_at_start, source_states
from laneway.working.user_imports import own_files, own_lines
from laneway.working.worker import Worker, check_handlers

log = logging.getLogger("laneway.worker")

NEW_FILES_SECONDS = 1.0
"""How often newly imported modules are reported."""

MAX_HELD = 1 << 20
"""Bytes of output that are kept while another program has the terminal."""

PACKAGES = ("site-packages", "dist-packages")

OWN = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
"""The folder of this package, whose files do not change."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """
    The program was imported. `pushes`: it sends messages to endpoints. `files`: the states of its
    files (`source_states`).
    """

    namespace: str
    handlers: list[str]
    tasks: list[str]
    schedules: list[str]
    pushes: bool
    code_url: str | None
    files: dict[str, float]


class Failed(msgspec.Struct, frozen=True):
    """
    The program cannot run. `lines`: the program's lines of the traceback. `reason`: its code, how
    it was named, or a store that is unavailable.
    """

    text: str
    lines: str
    files: dict[str, float]
    reason: Literal["code", "name", "store"]


class NewFiles(msgspec.Struct, frozen=True):
    """Files of modules that were imported later."""

    files: dict[str, float]


def run(pipe: Connection, target: str, options: Options, style: LogStyle) -> None:
    """The entry point of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent sends SIGTERM
    style.apply()
    began = time.time()
    app: Laneway | None = None
    if options.store[0] is not None:
        os.environ["LANEWAY_URL"] = options.store[0]  # for what the program starts
    try:
        app = load_app(target, shows_lines=False)  # the parent shows them
        code_url = (
            app.runtime.holder.choice.url
            if app.runtime.holder.choice.source == "argument in the code"
            else None
        )
        app.runtime.use_store(*options.store)
        app.schedules.install()
        elections = ElectionThreads(app.runtime.elections_in_workers, options)
        check_handlers(app.runtime.handlers, elections)
        worker = Worker(app.engine, app.runtime.handlers, options, elections.stop)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the program raises
        _report(pipe, error, began, is_imported=app is not None)
        sys.exit(0)
    child_processes.when_orphaned(worker.stop)
    pipe.send(_found(app, code_url, began))
    pages = _wait_until_needed(pipe)
    if pages is None:
        sys.exit(0)
    log.addFilter(lambda record: _add_page(record, pages))
    threading.Thread(
        target=_serve_parent, args=(pipe, worker), name="laneway-dev", daemon=True
    ).start()
    try:
        with elections:
            worker.run((signal.SIGTERM,), elections.start)
    except LanewayError as error:  # a child process or a package that it needs is missing
        log.error("worker failed: %s", error)  # noqa: TRY400  # one sentence
        sys.exit(1)


def program_files(others: set[str] | None = None) -> dict[str, float]:
    """The states of the program's files (`source_states`): no installed packages."""
    return {
        path: state
        for path, state in source_states(others or ()).items()
        if not path.startswith(OWN) and not any(each in path for each in PACKAGES)
    }


def _report(pipe: Connection, error: BaseException, began: float, *, is_imported: bool) -> None:
    cause = error
    while isinstance(cause, LanewayError) and cause.__cause__ is not None:
        cause = cause.__cause__
    files = {
        each
        for each in own_files(cause)
        if not each.startswith(OWN) and not any(name in each for name in PACKAGES)
    }
    reason: Literal["code", "name", "store"] = "code" if files or is_imported else "name"
    if isinstance(error, EngineUnavailable):
        reason = "store"
    text = str(error) if isinstance(error, LanewayError) else f"{type(error).__name__}: {error}"
    pipe.send(
        Failed(
            text,
            escaped(without_passwords(own_lines(cause)), lines=True) if files else "",
            as_at_start(program_files(files), began),
            reason,
        )
    )


def _found(app: Laneway, code_url: str | None, began: float) -> Found:
    handlers = app.runtime.handlers
    return Found(
        namespace=app.namespace,
        handlers=[
            f"{each.pattern} ({each.name})"
            for each in handlers.by_pattern()
            if not each.pattern.startswith("laneway.")
            and not (each.kind == "push" and SEPARATOR in each.pattern)
        ],
        tasks=[*handlers.task_names(), *sorted(handlers.queues)],
        pushes=any(each.kind == "push" for each in handlers),
        schedules=banner.schedules(app),
        code_url=code_url,
        files=as_at_start(program_files(), began),
    )


def _wait_until_needed(pipe: Connection) -> str | None:
    """Wait until the worker may begin. Returns the pages' URL, or None if no longer needed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        request, _, pages = pipe.recv().partition(" ")
    except (EOFError, OSError):
        return None
    return str(pages) if request == "go" else None


def _add_page(record: logging.LogRecord, pages: str) -> bool:
    """To the line of a failed attempt add the page of its topic."""
    fields = getattr(record, FIELDS, {})
    if record.levelno >= logging.WARNING and "attempt" in fields:
        record.msg = f"{record.msg}; see %s"
        record.args = (*_arguments(record), f"{pages}/topic?name={quote(fields['topic'], safe='')}")
    return True


def _arguments(record: logging.LogRecord) -> tuple[object, ...]:
    return record.args if isinstance(record.args, tuple) else ()


def _serve_parent(pipe: Connection, worker: Worker) -> None:
    """Obey the parent, and report modules that are imported later."""
    held: _HeldOutput | None = None
    known = len(sys.modules)
    try:
        while True:
            if pipe.poll(NEW_FILES_SECONDS):
                request: Any = pipe.recv()
                if request == "hold" and held is None:
                    held = _HeldOutput()
                elif request == "show" and held is not None:
                    held.show()
                    held = None
            elif len(sys.modules) != known:
                known = len(sys.modules)
                pipe.send(NewFiles(program_files()))
    except (EOFError, OSError):
        worker.stop()  # the parent has ended


class _HeldOutput:
    """Standard output and error go into a file until `show` writes them to the terminal."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by show
        child_processes.flush()
        self._before = [os.dup(number) for number in (1, 2)]
        for number in (1, 2):
            os.dup2(self._file.fileno(), number)

    def show(self) -> None:
        child_processes.flush()
        for number, before in zip((1, 2), self._before, strict=True):
            os.dup2(before, number)
            os.close(before)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(max(0, size - MAX_HELD))
        os.write(2, self._file.read())
        self._file.close()

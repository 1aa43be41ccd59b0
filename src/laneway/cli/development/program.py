"""
Runs the program of `laneway dev` in a process, and replaces the process when a source file changes.

    importing ──> loaded ──> current ──> retiring ──> ended
        └──> failed: the current one continues

A new process imports the program while the current one works. Once it has, the current one leases
nothing more and gets `GRACE_SECONDS` for its running handlers. The new one begins as soon as the
old one has ended, and after `HAND_OVER_SECONDS` at the latest.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from laneway.cli.development.program_process import Failed, Found, NewFiles
from laneway.working.child_processes import SpawnedProcess, describe_exit
from laneway.working.log_format import LogStyle
from laneway.working.options import Options
from laneway.working.source_files import states_of

if TYPE_CHECKING:
    from laneway.cli.development.screen import Screen

GRACE_SECONDS = 5.0
"""How long running handlers may continue after the code has changed."""

KILL_SECONDS = 2.0
"""How long after its grace a process that does not end is killed."""

HAND_OVER_SECONDS = 0.5
"""How long a new process waits for the end of the one before it."""

LOOK_SECONDS = 0.2
"""How often the source files are checked."""

END_LOOK_SECONDS = 0.02
"""How often it is checked whether a process has ended that should."""

STOP_SECONDS, STOP_KILL_SECONDS = 1.0, 1.5
"""At the end: when running handlers are stopped, and when the process is killed."""

MIN_RESTART_SECONDS, MAX_RESTART_SECONDS = 0.5, 10.0
"""How long to wait before a process that died is replaced; the wait doubles."""

HEALTHY_SECONDS = 30.0
"""How long a process has to run so that its death is not blamed on its start."""

Request = Literal["reload", "stop", "stop now", "hold", "show"]


class _Process(SpawnedProcess):
    """One process of the program."""

    def __init__(self, target: str, options: Options, style: LogStyle) -> None:
        self.started = time.monotonic()
        self.found: Found | None = None
        self.kill_at: float | None = None
        super().__init__("laneway.cli.development.program_process:run", (target, options, style))

    def messages(self) -> list[Any]:
        found: list[Any] = []
        try:
            while self.pipe.poll():
                found.append(self.pipe.recv())
        except (EOFError, OSError):  # it is closed, too
            self.pipe.close()
        return found

    def send(self, message: str) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def stop(self, kill_after: float) -> None:
        self.kill_at = time.monotonic() + kill_after
        self.send_signal(signal.SIGTERM)


class Program(threading.Thread):
    """
    The program, in a process that is replaced when its code changes.

    `pages` waits until the gateway serves, and returns its URL; nothing is reported before.
    `on_found` is called when the program was imported, also again; `on_fatal` with an error if it
    was named wrongly. All in this thread.
    """

    def __init__(
        self,
        target: str,
        options: Options,
        style: LogStyle,
        screen: Screen,
        pages: Callable[[], str],
        on_found: Callable[[Found], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        super().__init__(name="laneway-dev", daemon=True)
        self.has_failed = threading.Event()
        """Set once an import has failed."""
        self._target = target
        self._options = options
        self._style = style
        self._screen = screen
        self._pages = pages
        self._on_found = on_found
        self._on_fatal = on_fatal
        self._requests, self._receive = multiprocessing.Pipe()
        self._next: _Process | None = None
        self._next_since = 0.0
        self._current: _Process | None = None
        self._retiring: list[_Process] = []
        self._files: dict[str, float] = {}
        self._restart_at: float | None = None
        self._pause = MIN_RESTART_SECONDS
        self._stopped_at: float | None = None
        self._is_hurried = False
        self._is_held = False
        self._start()

    def request(self, request: Request) -> None:
        """Ask for something, from any thread; does not wait."""
        with contextlib.suppress(OSError):
            self._requests.send(request)

    # In the thread

    def run(self) -> None:
        """Run until `request("stop")`, and then until all processes have ended."""
        while self._stopped_at is None or self._processes():
            waiting = [each.pipe for each in self._processes() if not each.pipe.closed]
            is_ending = any(each.pipe.closed for each in self._processes()) or self._retiring
            multiprocessing.connection.wait(
                [self._receive, *waiting],
                END_LOOK_SECONDS if is_ending or self._stopped_at else LOOK_SECONDS,
            )
            while self._receive.poll():
                self._obey(self._receive.recv())
            for process in self._processes():
                for message in process.messages():
                    self._take(process, message)
            self._collect()
            if self._stopped_at is not None:
                if time.monotonic() - self._stopped_at > STOP_SECONDS:
                    self._hurry()
            else:
                self._hand_over()
                self._look()

    def _processes(self) -> list[_Process]:
        return [each for each in (self._next, self._current, *self._retiring) if each is not None]

    def _obey(self, request: Request) -> None:
        if request == "reload":
            self._start()
        elif request == "stop":
            if self._stopped_at is None:
                self._stopped_at = time.monotonic()
                for process in self._processes():
                    process.stop(STOP_KILL_SECONDS)
        elif request == "stop now":
            self._stopped_at = self._stopped_at or time.monotonic()
            self._hurry()
        else:
            self._is_held = request == "hold"
            for process in self._processes():
                process.send(request)

    def _start(self) -> None:
        """Import the program in a new process."""
        if self._stopped_at is not None:
            return
        if self._next is not None:  # its code is old already
            self._next.stop(0)
            self._retiring.append(self._next)
        self._restart_at = None
        try:
            self._next = _Process(self._target, self._options, self._style)
        except OSError as error:
            self._next = None
            self._restart_later(f"cannot be started ({error})")

    def _take(self, process: _Process, message: Any) -> None:
        """A process has reported something."""
        if isinstance(message, NewFiles):
            if process is self._current:
                self._files = message.files | self._files
            return
        if process is not self._next:  # it was replaced meanwhile
            return
        self._pages()
        if isinstance(message, Found):
            process.found = message
            self._next_since = time.monotonic()
            self._files = message.files
            if self._current is not None:
                self._current.stop(GRACE_SECONDS + KILL_SECONDS)
                self._retiring.append(self._current)
                self._current = None
            self._hand_over()
        elif isinstance(message, Failed):
            self._fail(message)

    def _fail(self, failure: Failed) -> None:
        process, self._next = self._next, None
        if process is not None:
            self._retiring.append(process)
            process.kill_at = time.monotonic() + KILL_SECONDS
        if failure.reason == "store":
            self._screen.error(failure.text)
            self._restart_later("needs its store")
            return
        is_first = self._current is None and not self._files
        if is_first and failure.reason == "name":
            self._on_fatal(failure.text)
            return
        self._files = (self._files if self._current is not None else {}) | failure.files
        effect = "nothing is handled" if self._current is None else "the old code keeps running"
        self._screen.write(failure.lines)
        self._screen.error(f"{failure.text}; {effect} until a file changes")
        self.has_failed.set()

    def _hand_over(self) -> None:
        """Let the new process begin once the old one has ended, or takes long."""
        process = self._next
        if process is None or process.found is None:
            return
        if self._retiring and time.monotonic() - self._next_since < HAND_OVER_SECONDS:
            return
        self._next, self._current = None, process
        process.send(f"go {self._pages()}")
        if self._is_held:
            process.send("hold")
        self._on_found(process.found)

    def _look(self) -> None:
        """Replace the process if a file has changed or the process has died."""
        changed = _changed(self._files)
        if changed is not None:
            self._files |= states_of(self._files)  # reported once
            path = os.path.relpath(changed)
            what = f"modules in {path} have" if os.path.isdir(changed) else f"{path} has"
            self._screen.say(f"{what} changed; loading the program")
            self._start()
        elif self._restart_at is not None and time.monotonic() >= self._restart_at:
            self._start()

    def _collect(self) -> None:
        """Notice processes that have ended."""
        now = time.monotonic()
        for process in self._processes():
            if process.kill_at is not None and now >= process.kill_at:
                process.send_signal(signal.SIGKILL)
            code = process.exit_code()
            if code is None:
                continue
            for message in process.messages():
                self._take(process, message)
            process.pipe.close()
            if process in self._retiring:
                self._retiring.remove(process)
            elif self._stopped_at is None and process in (self._next, self._current):
                self._died(process, code)
            if process is self._current:
                self._current = None
            elif process is self._next:
                self._next = None

    def _died(self, process: _Process, code: int) -> None:
        if time.monotonic() - process.started > HEALTHY_SECONDS:
            self._pause = MIN_RESTART_SECONDS
        if process is self._current and self._next is not None:
            self._screen.error(f"the program {describe_exit(code)}")
        else:
            self._restart_later(describe_exit(code))

    def _restart_later(self, problem: str) -> None:
        self._screen.error(f"the program {problem}; it starts again in {self._pause:g} s")
        self._restart_at = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, MAX_RESTART_SECONDS)

    def _hurry(self) -> None:
        """Stop running handlers now; their messages go back."""
        if not self._is_hurried:
            self._is_hurried = True
            for process in self._processes():
                process.stop(STOP_KILL_SECONDS - STOP_SECONDS)


def _changed(files: dict[str, float]) -> str | None:
    """The first file that is not as it was."""
    for path, state in states_of(files).items():
        if state != files[path]:
            return path
    return None

"""
Starts processes that never run the program's main module again.

A *spawned* process is a new interpreter that imports what it needs by name.
A *forked* process also has what only this process has, such as the functions of the main module.
It is copied from this process, or from a `ForkServer`: a copy of this process that was made while
no other threads were at work.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.connection
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from laneway.engines.shared import forking
from laneway.errors import LanewayError
from laneway.working.user_imports import importing

PARENT_LOOK_SECONDS = 0.5
"""How long between two checks for the parent; an orphan ends that late at most."""

WAIT_SECONDS = 0.01
"""How long between two checks for the end of a process; its end is noticed that late at most."""

END_SECONDS = 5.0
"""How long to wait for the exit code of a killed process; after that it stays unknown."""

MAIN = "__main__"
"""The name of the program's main module, which only copies of this process have."""

_BOOT = (
    # A Ctrl-C in the terminal reaches the whole group; the parent acts on it.
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from multiprocessing.connection import Connection; pipe = Connection({fd}); sys.path[:] ="
    " pipe.recv(); "
    "from laneway.working.child_processes import boot; boot(pipe)"
)


class CannotStart(LanewayError):
    """A child process could not be started; no message caused that."""


class Process(ABC):
    """A process that this one has started, with the pipe to it."""

    pid: int
    pipe: Connection
    _code: int | None = None

    @abstractmethod
    def _collect(self, seconds: float) -> int | None:
        """Its exit code, or None if it still runs after `seconds`."""

    def exit_code(self, seconds: float = 0) -> int | None:
        """
        Its exit code, or the negative signal number if a signal killed it. Waits up to `seconds`;
        returns None if it still runs.
        """
        if self._code is None:
            self._code = self._collect(seconds)
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal if it still runs."""
        if self.exit_code() is None:
            os.kill(self.pid, number)


class SpawnedProcess(Process):
    """
    A new interpreter that calls `entry` ("module:function") with its end of the pipe and `args`.
    """

    def __init__(self, entry: str, args: tuple[Any, ...]) -> None:
        with forking.undivided():
            self.pipe, theirs = multiprocessing.Pipe()
            try:
                with theirs:
                    fd = theirs.fileno()
                    command = [
                        sys.executable,
                        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]  # noqa: SLF001
                        "-P",
                        "-c",
                        _BOOT.format(fd=fd),
                    ]
                    self._process = subprocess.Popen(  # noqa: S603  # this interpreter
                        command, pass_fds=[fd], stdin=subprocess.DEVNULL
                    )
                self.pid = self._process.pid
                # A process that has died already is noticed by the next use of the pipe.
                with contextlib.suppress(OSError):
                    self.pipe.send(list(sys.path))
                    self.pipe.send((list(sys.argv), entry, args))
            except BaseException:
                self.pipe.close()
                raise

    def _collect(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds) if seconds else self._process.poll()
        except subprocess.TimeoutExpired:
            return None


def boot(pipe: Connection) -> None:
    """The entry point of a spawned process: receives what to call, and calls it."""
    parent = os.getppid()
    sys.argv[:], entry, args = pipe.recv()
    _begin(pipe, parent, entry, args)


def _begin(pipe: Connection, parent: int, entry: str, args: tuple[Any, ...]) -> None:
    global _parent  # noqa: PLW0603  # of this process
    _parent = parent
    resolve(entry)(pipe, *args)


_parent = 0
"""The id of the worker or supervisor that started this process; 0: another program did."""


def is_child() -> bool:
    """Whether a worker or a supervisor started this process."""
    return _parent != 0


def is_orphan() -> bool:
    """Whether the process that started this one has ended."""
    return _parent not in (0, os.getppid())


def when_orphaned(call: Callable[[], object]) -> None:
    """Call `call` from a thread once this process's parent has ended; a no-op in other programs."""
    if not is_child():
        return

    def watch() -> None:
        while not is_orphan():
            time.sleep(PARENT_LOOK_SECONDS)
        call()

    threading.Thread(target=watch, name="laneway-parent", daemon=True).start()


def end_at_once() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def resolve(address: str) -> Any:
    """The object at `module:attribute`. Raises what importing the module raises."""
    module, _, name = address.partition(":")
    with importing(module):
        value: Any = sys.modules[MAIN] if module == MAIN else importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


class ForkedProcess(Process):
    """A copy of this process that calls `entry`; it has none of this process's threads."""

    def __init__(self, entry: str, args: tuple[Any, ...]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = fork(lambda parent: self._become(theirs, parent, entry, args))
        theirs.close()

    def _become(self, theirs: Connection, parent: int, entry: str, args: tuple[Any, ...]) -> None:
        self.pipe.close()
        _begin(theirs, parent, entry, args)

    def _collect(self, seconds: float) -> int | None:
        return wait_for(self.pid, seconds)


def fork(run: Callable[[int], object]) -> int:
    """
    Copy this process and return the copy's id. The copy calls `run` with this process's id, then
    exits.
    """
    parent = os.getpid()
    flush()
    with warnings.catch_warnings():
        # The warning is about other threads; the locks that matter are renewed after a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)  # an event loop's
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        run(parent)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  # no caller in this process could show it
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def flush() -> None:
    """Write buffered standard output and standard error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def wait_for(pid: int, seconds: float = 0) -> int | None:
    """The exit code of a child of this process, or None if it still runs after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # other code in this process has collected it
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(WAIT_SECONDS)


class ForkServer:
    """
    A copy of this process that does nothing but fork further copies on request.

    These have the functions of the main module, and no lock that another thread holds.
    Create it before the worker starts its threads.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._pid = fork(lambda parent: self._become(theirs, parent))
        theirs.close()

    def _become(self, theirs: socket.socket, parent: int) -> None:
        self._socket.close()
        _serve_copies(theirs, parent)

    def copy(self, fd: int) -> int:
        """Start a copy that has this end of a pipe; returns its id. Raises OSError."""
        with self._lock:
            socket.send_fds(self._socket, [b"copy"], [fd])
            return self._answer()

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """The exit code of a copy, or None if it still runs after `seconds`. Raises OSError."""
        deadline = time.monotonic() + seconds
        while True:
            with self._lock:
                self._socket.sendall(pid.to_bytes(4, "big"))
                code = self._answer()
            if code != _RUNS:
                return code
            if time.monotonic() >= deadline:
                return None
            time.sleep(WAIT_SECONDS)

    def _answer(self) -> int:
        answer = self._socket.recv(4)
        if not answer:
            raise OSError("the process that children are copied from has ended")
        number = int.from_bytes(answer, "big", signed=True)
        if number == _REFUSED:
            raise OSError("the system refuses another process")
        return number

    def close(self) -> None:
        """End it; its copies end with it."""
        with self._lock:
            self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        wait_for(self._pid, END_SECONDS)


_RUNS, _REFUSED = 1_000_000, 1_000_001
"""Answers of the fork server that no exit code and no process id equals."""


class ServedProcess(Process):
    """
    A copy of the fork server that calls `entry`. Its id is not reused before its exit code is
    collected.
    """

    def __init__(self, server: ForkServer, entry: str, args: tuple[Any, ...]) -> None:
        self._server = server
        self.pipe, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self.pid = server.copy(theirs.fileno())
            self.pipe.send((entry, args))
        except BaseException:
            self.pipe.close()
            raise

    def _collect(self, seconds: float) -> int | None:
        try:
            return self._server.exit_code(self.pid, seconds)
        except OSError:  # the fork server has ended, and its copies with it
            return -signal.SIGKILL


def _serve_copies(requests: socket.socket, parent: int) -> None:
    """The fork server's loop: a request is a pipe's end, or a copy's id to get its exit code."""
    global _parent  # noqa: PLW0603  # of this process
    _parent = parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests.settimeout(PARENT_LOOK_SECONDS)
    while not is_orphan():
        try:
            request, fds, _, _ = socket.recv_fds(requests, 4, 1)
        except TimeoutError:
            continue
        except OSError:
            return
        if not request:
            return
        if fds:
            answer = _copy(requests, fds[0])
        else:
            code = wait_for(int.from_bytes(request, "big"))
            answer = _RUNS if code is None else code
        requests.sendall(answer.to_bytes(4, "big", signed=True))


def _copy(requests: socket.socket, fd: int) -> int:
    def run(parent: int) -> None:
        requests.close()
        pipe = multiprocessing.connection.Connection(fd)
        entry, args = pipe.recv()
        _begin(pipe, parent, entry, args)

    try:
        return fork(run)
    except OSError:
        return _REFUSED
    finally:
        os.close(fd)


def describe_exit(code: int | None) -> str:
    """How a process ended, by its exit code (None: unknown)."""
    if code is None:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "unknown"
    return f"was killed by signal {-code} ({name})"

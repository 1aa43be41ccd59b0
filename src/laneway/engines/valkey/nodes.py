"""Which node has a key: one server, the master that sentinels name, or the nodes of a cluster."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import hiredis
import redis
from redis import exceptions as refusals
from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.sentinel import Sentinel

from laneway.engines.valkey import server_check
from laneway.engines.valkey.address import Address
from laneway.errors import LanewayError, UsageError


class Nodes(Protocol):
    """Finds the node of a key."""

    def pool(self, key: str) -> ConnectionPool:
        """The connections to the node that has the key; "": to any master."""

    def refresh(self, error: Exception) -> None:
        """A call failed: the key may have moved to another node."""

    def close(self) -> None: ...


class OneNode:
    """One server."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def refresh(self, error: Exception) -> None:
        """There is no other node."""

    def pool(self, key: str) -> ConnectionPool:
        del key
        return self._client.connection_pool

    def close(self) -> None:
        self._client.connection_pool.disconnect()


class SentinelNodes(OneNode):
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


class ClusterNodes:
    """The nodes of a cluster."""

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
        Read the cluster's slots again, at most twice a second unless a node has just said that a
        slot moved.
        """
        with self._lock:
            now = time.monotonic()
            if not isinstance(error, refusals.MovedError) and now - self._refreshed < 0.5:
                return
            self._refreshed = now
            # No node may answer, or none may have slots: the call goes on trying.
            with contextlib.suppress(
                refusals.RedisError, refusals.RedisClusterException, OSError, IndexError
            ):
                self._client.nodes_manager.initialize()

    def close(self) -> None:
        self._client.close()


def connect(address: Address, explain: Callable[[Exception], LanewayError]) -> Nodes:
    """The nodes of an address. Of a cluster they are asked for at once."""
    options = _options(address)
    if address.kind == "cluster":
        return ClusterNodes(address, options, explain)
    if address.kind == "sentinel":
        return SentinelNodes(address, options)
    if address.kind == "unix":
        return OneNode(redis.Redis(unix_socket_path=address.path, db=address.database, **options))
    (host, port), *more = address.hosts
    if more:
        raise UsageError(
            f"engine URL: {address.name} names several servers; write valkey+cluster:// or"
            " valkey+sentinel://"
        )
    return OneNode(redis.Redis(host=host, port=port, db=address.database, **options))


def _options(address: Address) -> dict[str, Any]:
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
            server_check.check_authority(address.name, address.ca)
        options |= {
            "ssl": True,
            "ssl_ca_certs": address.ca,
            "ssl_cert_reqs": "required" if address.verify else "none",
            "ssl_check_hostname": address.verify,
        }
    return options

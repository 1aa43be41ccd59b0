"""
Setups of Valkey: one server, restricted rights, sentinels, a cluster, and Redis.

Each process of the tests starts a setup once; every test uses a new namespace in it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest import mock

import msgspec

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.valkey.server_check import COMMANDS
from laneway.testing.servers import Server
from tests.server_groups import Cluster, Sentinels

REDIS = shutil.which("redis-server")


@cache
def server() -> Server:
    """A single server."""
    started = Server()
    started.start()
    atexit.register(started.close)
    return started


@cache
def guarded() -> str:
    """A server whose user has only the rights that docs list."""
    started = Server(requirepass="for the others")
    started.start()
    atexit.register(started.close)
    started.run("ACL", "SETUSER", "laneway", "on", ">secret", *acl_rule().split())
    return f"valkey://laneway:secret@127.0.0.1:{started.port}"


@cache
def sentinels() -> str:
    """A master and a replica watched by three sentinels; the replica confirms every write."""
    try:
        started = Sentinels().__enter__()
    except TimeoutError:  # another process may have taken a port between its choice and its use
        started = Sentinels().__enter__()
    atexit.register(started.close)
    started.never_replace()
    return started.url


@cache
def cluster() -> str:
    """Three masters, each with a replica."""
    started = Cluster(3, 1).__enter__()
    atexit.register(started.close)
    started.never_replace()
    return started.url


@cache
def redis() -> Server:
    """The redis-server of this machine."""
    with mock.patch.dict(os.environ, LANEWAY_SERVER_BINARY=str(REDIS)):
        started = Server()
        started.start()
    atexit.register(started.close)
    return started


URLS: dict[str, Callable[[], str]] = {
    "valkey": lambda: server().url,
    "valkey, few rights": guarded,
    "valkey, sentinels": sentinels,
    "valkey, cluster": lambda: f"{cluster()}?shards=1",  # the order of one shard is exact
}
if REDIS is not None:
    URLS["redis"] = lambda: redis().url.replace("valkey", "redis")


def acl_rule() -> str:
    """The rights of a user who may do nothing else, as `ACL SETUSER` takes them."""
    commands = " ".join(f"+{name}" for name in COMMANDS)
    return f"resetkeys ~laneway:* resetchannels &laneway:* -@all {commands}"


def open_setup(name: str, folder: Path, settings: Settings) -> FullEngine:
    """Open an engine whose namespace is derived from the folder."""
    namespace = hashlib.sha256(str(folder).encode()).hexdigest()[:20]
    durability = "replicated" if "sentinels" in name else settings.durability
    url = URLS[name]()
    return open_engine(
        f"{url}{'&' if '?' in url else '?'}timeout=60",
        msgspec.structs.replace(settings, namespace=namespace, durability=durability),
    )

"""Whether a server can hold a namespace, and which command confirms that a write is durable."""

from __future__ import annotations

import re
import ssl
from typing import Any, Protocol

import msgspec

from laneway.engines.valkey.address import Address
from laneway.engines.valkey.wire import packed
from laneway.errors import EngineUnavailable, LanewayError, UsageError

COMMANDS = (
    "client|setname",
    "del",
    "dump",
    "exists",
    "expire",
    "fcall",
    "function|load",
    "get",
    "hdel",
    "hexists",
    "hget",
    "hgetall",
    "hincrby",
    "hlen",
    "hmget",
    "hscan",
    "hset",
    "hsetnx",
    "hvals",
    "info",
    "lindex",
    "llen",
    "lpop",
    "lpos",
    "lrange",
    "lrem",
    "ltrim",
    "mget",
    "ping",
    "publish",
    "restore",
    "rpop",
    "rpush",
    "scan",
    "set",
    "subscribe",
    "time",
    "unlink",
    "unsubscribe",
    "wait",
    "waitaof",
    "zadd",
    "zcard",
    "zcount",
    "zlexcount",
    "zmscore",
    "zpopmax",
    "zrandmember",
    "zrange",
    "zrem",
    "zremrangebyrank",
    "zscan",
    "zscore",
)
"""
All that a user of Laneway has to be allowed; on a cluster `cluster|slots` and `cluster|shards` too.
"""


CONFIRM_PART = 0.8
"""The part of a connection's timeout for which a server waits for its disk and its replicas."""

OLDEST = {"valkey": (8, 0), "redis": (7, 0)}
OLDEST_WAITAOF = {"valkey": (8, 0), "redis": (7, 2)}


class Server(Protocol):
    """What the check needs of the connections."""

    @property
    def name(self) -> str:
        """The server's name in errors."""

    @property
    def address(self) -> Address:
        """The URL, taken apart."""

    @property
    def durability(self) -> str: ...

    def ask(self, *command: Any) -> Any:
        """Send one command about the server to a master."""

    def info(self) -> dict[str, str]:
        """The fields of a master's INFO."""


class Facts(msgspec.Struct):
    """What a server reports about itself."""

    product: str
    version: tuple[int, ...]
    role: str
    is_cluster: bool
    policy: str
    appends: bool
    fsync: str
    replicas: int

    @property
    def name(self) -> str:
        return f"{self.product.capitalize()} {'.'.join(map(str, self.version))}"


class Confirm(msgspec.Struct):
    """
    What follows a durable call: WAITAOF or WAIT, and the least that the last one has to answer.

    `answers`: how many answers the server sends to `command`.
    """

    command: bytes
    answers: int
    local: int
    replicas: int
    seconds: float

    def check(self, name: str, answer: Any) -> None:
        """Raises EngineUnavailable where fewer confirmed than were asked."""
        if isinstance(answer, Exception):
            raise EngineUnavailable(
                f"{name}: the write was done, and cannot be confirmed ({answer})", applied=None
            ) from answer
        local, replicas = answer if isinstance(answer, list) else (self.local, answer)
        if local < self.local:
            raise EngineUnavailable(
                f"{name}: the write was not on disk within {self.seconds:g} s; whether it lasts is"
                " not known",
                applied=None,
            )
        if replicas < self.replicas:
            raise EngineUnavailable(
                f"{name}: {replicas} of {self.replicas} replicas confirmed the write within"
                f" {self.seconds:g} s; whether it lasts is not known",
                applied=None,
            )


def facts(server: Server) -> Facts:
    """Read them from the server."""
    fields = server.info()
    product = "valkey" if "valkey_version" in fields else "redis"
    version = tuple(
        int(part) for part in re.findall(r"\d+", fields.get(f"{product}_version", "0"))[:3]
    )
    fsync = ""
    if fields.get("aof_enabled") == "1":
        try:
            setting = server.ask("CONFIG", "GET", "appendfsync")
            fsync = setting[1].decode() if setting else ""
        except LanewayError:
            fsync = ""  # this user may not ask
    return Facts(
        product,
        version,
        fields.get("role", "?"),
        fields.get("cluster_enabled") == "1",
        fields.get("maxmemory_policy", "noeviction"),
        fields.get("aof_enabled") == "1",
        fsync,
        int(fields.get("connected_slaves", "0")),
    )


def check(server: Server) -> Confirm | None:
    """
    Refuse a server that cannot keep the durability. Returns what follows every durable call.
    """
    found = facts(server)
    for problem in problems(found, server.address, server.durability):
        raise (
            UsageError(f"{server.name}: {problem}")
            if problem.is_usage
            else EngineUnavailable(f"{server.name}: {problem}")
        )
    return confirm(server.address, found, server.durability)


class Problem(str):
    """
    Why a server cannot be used, and what to do. `is_usage`: change the program or its URL.
    """

    __slots__ = ("is_usage",)
    is_usage: bool

    def __new__(cls, text: str, *, is_usage: bool = False) -> Problem:
        problem = super().__new__(cls, text)
        problem.is_usage = is_usage
        return problem


def problems(found: Facts, address: Address, durability: str) -> list[Problem]:
    """The reasons why the server cannot be used."""
    against: list[Problem] = []
    oldest = OLDEST[found.product]
    if found.version < oldest:
        against.append(
            Problem(f"{found.name} is too old; Laneway needs Valkey 8 or Redis 7, or newer")
        )
    if found.is_cluster and address.kind != "cluster":
        against.append(
            Problem("this is a node of a cluster; write valkey+cluster:// instead", is_usage=True)
        )
    if not found.is_cluster and address.kind == "cluster":
        against.append(Problem("this is no cluster; write valkey:// instead", is_usage=True))
    if found.role not in ("master", "?"):
        against.append(
            Problem("this is a replica; name its master, or use valkey+sentinel://", is_usage=True)
        )
    if found.policy != "noeviction":
        against.append(
            Problem(
                f'its maxmemory-policy is "{found.policy}", which drops keys; run CONFIG SET'
                " maxmemory-policy noeviction"
            )
        )
    if durability == "fsync":
        against += _cannot_append(found, durability)
    if durability == "replicated":
        if found.replicas < address.replicas:
            against.append(
                Problem(
                    f'durability "replicated" needs {address.replicas} or more replicas, it has'
                    f" {found.replicas}; start more, or set ?replicas="
                )
            )
        elif found.appends:
            against += _cannot_append(found, durability)
    return against


def _cannot_append(found: Facts, durability: str) -> list[Problem]:
    if found.version < OLDEST_WAITAOF[found.product]:
        return [
            Problem(
                f'{found.name} has no WAITAOF, which durability "{durability}" needs; use Valkey 8'
                ' or Redis 7.2, or durability "memory"'
            )
        ]
    if not found.appends:
        return [
            Problem(
                f'durability "{durability}" needs the append-only file; run CONFIG SET appendonly'
                " yes appendfsync always"
            )
        ]
    return []


def confirm(address: Address, found: Facts, durability: str) -> Confirm | None:
    """What follows every durable call."""
    seconds = max(0.1, address.timeout * CONFIRM_PART)
    whole, half = round(seconds * 1000), round(seconds * 500)
    replicas = address.replicas if durability == "replicated" else 0
    if durability == "fsync":
        return Confirm(packed("WAITAOF", 1, 0, whole), 1, 1, 0, seconds)
    if durability == "replicated" and found.appends:
        # A replica that reads the write and WAITAOF's question at once answers before its fsync,
        # and its next report is a second away. After WAIT the fsync is over (appendfsync always).
        command = packed("WAIT", replicas, half) + packed("WAITAOF", 1, replicas, half)
        return Confirm(command, 2, 1, replicas, seconds)
    if durability == "replicated":
        return Confirm(packed("WAIT", replicas, whole), 1, 0, replicas, seconds)
    return None


def check_authority(name: str, file: str) -> None:
    """Raises UsageError where the file of `?ca=` holds no certificates."""
    try:
        ssl.create_default_context(cafile=file)
    except ssl.SSLError as error:
        raise UsageError(
            f"{name}: ?ca={file}: there are no certificates in this file; name one in PEM form"
        ) from error
    except OSError as error:
        raise UsageError(
            f"{name}: ?ca={file}: the file of certificates cannot be read ({error.strerror}); check"
            " the path"
        ) from error

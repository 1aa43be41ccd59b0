"""
Whether a server is fit to hold a namespace, what has to confirm a write, and what its refusals
mean: one line each.
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Any

import hiredis
import msgspec
from redis import exceptions as refusals

from laneway.errors import (
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    SchemaMismatch,
    UsageError,
)

if TYPE_CHECKING:
    from laneway.engines.valkey.address import Address
    from laneway.engines.valkey.connection import Link

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
    "wait",
    "waitaof",
    "zadd",
    "zcard",
    "zcount",
    "zlexcount",
    "zmscore",
    "zpopmax",
    "zrange",
    "zrem",
    "zremrangebyrank",
    "zscan",
    "zscore",
)
"""
All that a user of Laneway has to be allowed; on a cluster `cluster|slots` and `cluster|shards` too.
"""


def acl_rule(*, cluster: bool = False) -> str:
    """The rights of a user who may do nothing else, as `ACL SETUSER` takes them."""
    commands = (*COMMANDS, "cluster|slots", "cluster|shards") if cluster else COMMANDS
    return " ".join(
        [
            "resetkeys",
            "~laneway:*",
            "resetchannels",
            "&laneway:*",
            "-@all",
            *(f"+{name}" for name in commands),
        ]
    )


OLDEST = {"valkey": (8, 0), "redis": (7, 0)}
OLDEST_WAITAOF = {"valkey": (8, 0), "redis": (7, 2)}


def packed(*words: Any) -> bytes:
    """A command as it is sent."""
    command: bytes = hiredis.pack_command(words)
    return command


class NamespaceGone(EngineUnavailable):
    """The shard is not there; never leaves the engine, unless what was there should have lasted."""


class Facts(msgspec.Struct):
    """What a server says of itself."""

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
    """What follows a durable call: WAITAOF or WAIT, and what it has to answer at least."""

    command: bytes
    local: int
    replicas: int
    seconds: float

    def look(self, name: str, answer: Any) -> None:
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


def facts(link: Link) -> Facts:
    """Ask the server."""
    fields = link.info()
    product = "valkey" if "valkey_version" in fields else "redis"
    version = tuple(
        int(part) for part in re.findall(r"\d+", fields.get(f"{product}_version", "0"))[:3]
    )
    fsync = ""
    if fields.get("aof_enabled") == "1":
        try:
            told = link.ask("CONFIG", "GET", "appendfsync")
            fsync = told[1].decode() if told else ""
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


def read_info(answer: bytes) -> dict[str, str]:
    """
    The fields of INFO. Raises BusyLoadingError of a server that does not know yet what it holds,
    nor whether it appends.
    """
    fields: dict[str, str] = {}
    for line in answer.decode(errors="replace").splitlines():
        field, _, value = line.partition(":")
        fields[field] = value
    if fields.get("loading", "0") != "0":
        left = fields.get("loading_eta_seconds", "")
        raise refusals.BusyLoadingError(
            "LOADING" + (f", about {left} s more" if left.isdecimal() else "")
        )
    return fields


def check(link: Link) -> Confirm | None:
    """
    Refuse a server that cannot keep what is promised. Returns what has to follow a durable call.
    """
    found = facts(link)
    for problem in problems(found, link.address, link.durability):
        raise (
            UsageError(f"{link.name}: {problem}")
            if problem.is_usage
            else EngineUnavailable(f"{link.name}: {problem}")
        )
    return confirm(link.address, found, link.durability)


class Problem(str):
    """
    Why a server is not fit, and what to do. `is_usage`: the program or its URL is to be changed.
    """

    __slots__ = ("is_usage",)
    is_usage: bool

    def __new__(cls, text: str, *, is_usage: bool = False) -> Problem:
        made = super().__new__(cls, text)
        made.is_usage = is_usage
        return made


def problems(found: Facts, address: Address, durability: str) -> list[Problem]:
    """Everything that speaks against a server."""
    told: list[Problem] = []
    oldest = OLDEST[found.product]
    if found.version < oldest:
        told.append(
            Problem(f"{found.name} is too old; Laneway needs Valkey 8 or Redis 7, or newer")
        )
    if found.is_cluster and address.kind != "cluster":
        told.append(
            Problem("this is a node of a cluster; write valkey+cluster:// instead", is_usage=True)
        )
    if not found.is_cluster and address.kind == "cluster":
        told.append(Problem("this is no cluster; write valkey:// instead", is_usage=True))
    if found.role not in ("master", "?"):
        told.append(
            Problem("this is a replica; name its master, or use valkey+sentinel://", is_usage=True)
        )
    if found.policy != "noeviction":
        told.append(
            Problem(
                f'its maxmemory-policy is "{found.policy}", which drops keys; say CONFIG SET'
                " maxmemory-policy noeviction"
            )
        )
    if durability == "fsync":
        told += _cannot_append(found, durability)
    if durability == "replicated":
        if found.replicas < address.replicas:
            told.append(
                Problem(
                    f'durability "replicated" needs {address.replicas} replicas, it has'
                    f" {found.replicas}; start more, or say ?replicas="
                )
            )
        elif found.appends:
            told += _cannot_append(found, durability)
    return told


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
                f'durability "{durability}" needs the append-only file; say CONFIG SET appendonly'
                " yes, and appendfsync always"
            )
        ]
    return []


def confirm(address: Address, found: Facts, durability: str) -> Confirm | None:
    """What has to follow a durable call."""
    seconds = max(0.1, address.timeout * 0.8)
    replicas = address.replicas if durability == "replicated" else 0
    if durability == "fsync" or (durability == "replicated" and found.appends):
        return Confirm(packed("WAITAOF", 1, replicas, round(seconds * 1000)), 1, replicas, seconds)
    if durability == "replicated":
        return Confirm(packed("WAIT", replicas, round(seconds * 1000)), 0, replicas, seconds)
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


# What failures mean


def is_hopeless(error: Exception) -> bool:
    """Whether trying again would not help."""
    text = str(error)
    return (
        isinstance(error.__cause__ or error, ssl.SSLError)
        or "Protocol Error" in text
        or "protected mode" in text.lower()
        or "DENIED" in text
    )


def explain(address: Address, error: Exception, *, applied: bool | None) -> LanewayError:
    """In one line: what was wrong, where, what to do."""
    name, text = address.name, " ".join(str(error).split())
    unknown = (
        "; whether the change happened is not known" if applied is None else "; nothing was changed"
    )
    lowered = text.lower()

    def unavailable(what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{name}: {what}", applied=applied)

    if "denied" in lowered and "protected mode" in lowered:
        return unavailable(
            "the server is in protected mode and takes no connections from elsewhere; give it a"
            " password (requirepass)"
        )
    if address.kind == "sentinel" and "unknown command" in lowered and "sentinel" in lowered:
        return UsageError(
            f"{name}: this is no sentinel; name the hosts of the sentinels, or write valkey:// for"
            " the server itself"
        )
    if isinstance(error.__cause__ or error, ssl.SSLError) or "ssl" in lowered:
        if "certificate" in lowered:
            return unavailable(
                f"its certificate is not trusted ({_short(text)}); name the authority with ?ca=FILE"
            )
        return UsageError(f"{name}: this port speaks no TLS; write valkey:// instead of valkeys://")
    if isinstance(error, refusals.AuthenticationError | refusals.AuthorizationError):
        return _not_let_in(name, address, text)
    if isinstance(error, refusals.NoPermissionError):
        return unavailable(
            f"the user may not do this ({_short(text)}); see the list of commands in"
            " docs/engines.md"
        )
    if "MasterNotFoundError" in type(error).__name__ or (
        isinstance(error, refusals.ConnectionError) and "No master found" in text
    ):
        return unavailable(
            f'the sentinels know no master "{address.master}" that answers; check the name, and the'
            " sentinels"
        )
    if (
        isinstance(error, hiredis.ProtocolError)
        or "Protocol Error" in text
        or isinstance(error, refusals.InvalidResponse)
    ):
        return UsageError(f"{name}: this is not a Valkey or Redis server; check the port")
    if "cluster support disabled" in lowered or "cluster mode is not enabled" in lowered:
        return UsageError(f"{name}: this is no cluster; write valkey:// instead")
    if (
        isinstance(error, refusals.OutOfMemoryError)
        or text.startswith("OOM")
        or "maxmemory" in lowered
    ):
        return unavailable(
            "the server is out of memory (maxmemory) and takes nothing in; nothing was changed:"
            " consume, or raise maxmemory"
        )
    if isinstance(error, refusals.BusyLoadingError) or text.startswith("LOADING"):
        left = text.removeprefix("LOADING") if text.startswith("LOADING,") else ""
        return unavailable(
            f"the server is still loading its data{left}; wait until it has, or try again later"
        )
    if isinstance(error, refusals.ReadOnlyError):
        return unavailable(
            "this is a replica and takes nothing in; name its master, or use valkey+sentinel://"
        )
    if isinstance(error, refusals.MaxConnectionsError) or "max number of clients" in lowered:
        return unavailable(
            "the server has no connection left (maxclients); raise it, or start fewer workers"
        )
    if isinstance(
        error,
        refusals.MovedError
        | refusals.AskError
        | refusals.TryAgainError
        | refusals.ClusterDownError
        | refusals.MasterDownError,
    ):
        return unavailable(
            f"the cluster does not serve the shard now ({_short(text)}){unknown}; try again"
        )
    if isinstance(error, refusals.TimeoutError | TimeoutError):
        no_tls = (
            "; if the server speaks no TLS, write valkey://"
            if address.tls and applied is False
            else ""
        )
        return unavailable(f"no answer within {address.timeout:g} s{unknown}{no_tls}")
    if isinstance(error, refusals.ResponseError):
        return _refused(name, text, unavailable)
    if "connection refused" in lowered or "no such file" in lowered:
        return unavailable("nothing listens there; start the server, or check the URL")
    if (
        "name or service not known" in lowered
        or "getaddrinfo" in lowered
        or "name resolution" in lowered
    ):
        return unavailable("there is no such host; check the URL")
    if isinstance(error, refusals.RedisClusterException):
        return unavailable(
            f"no node of the cluster answers ({_short(text)}); start it, or check the URL"
        )
    if applied is False and ("closed by server" in lowered or "reset by peer" in lowered):
        return unavailable(
            f"the server hung up ({_short(text)}); if it speaks TLS, write valkeys://"
        )
    return unavailable(f"the connection was lost ({_short(text)}){unknown}")


def _not_let_in(name: str, address: Address, text: str) -> LanewayError:
    if address.password is None:
        return UsageError(
            f"{name}: the server asks for a password; write valkey://:PASSWORD@HOST, or"
            " USER:PASSWORD@"
        )
    who = f'user "{address.username}"' if address.username else "the default user"
    if "no password" in text.lower() or "without any password" in text.lower():
        return UsageError(
            f"{name}: the server wants no password from {who}; leave it out of the URL"
        )
    return UsageError(f"{name}: wrong password for {who}, or no such user")


def _refused(name: str, text: str, unavailable: Any) -> LanewayError:
    if "WRONGTYPE" in text:
        return EngineCorrupt(
            f"{name}: a key of another program is in the way (laneway:…); use another database, or"
            " another namespace"
        )
    if text.startswith("NOSHARD"):
        return NamespaceGone(
            f"{name}: the namespace is gone: the server has lost its data; restore a copy of it, or"
            " open it again to begin anew"
        )
    if text.startswith("BADLAYOUT"):
        return SchemaMismatch(
            f"{name}: the namespace has layout {text.partition(' ')[2]}, which this Laneway does"
            " not know; upgrade Laneway"
        )
    if text.startswith("MISCONF"):
        return unavailable(  # type: ignore[no-any-return]
            "the server cannot write to its disk (MISCONF) and takes nothing in; nothing was"
            " changed: look at its log"
        )
    if text.startswith("NOREPLICAS"):
        return unavailable(  # type: ignore[no-any-return]
            "the server has too few replicas (min-replicas-to-write) and takes nothing in; nothing"
            " was changed"
        )
    if "unknown command" in text.lower():
        return UsageError(
            f"{name}: this is no Valkey or Redis that Laneway can use ({_short(text)})"
        )
    if "DB index is out of range" in text:
        return UsageError(f"{name}: the server has no such database; take a smaller number")
    return unavailable(_short(text, 300))  # type: ignore[no-any-return]


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[:most]}…"

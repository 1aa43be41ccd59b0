"""What failures of the client library and refusals of the server mean: one line for the caller."""

from __future__ import annotations

import ssl
from typing import Any

import hiredis
from redis import exceptions as refusals

from laneway.engines.valkey.address import Address
from laneway.errors import (
    BadMessage,
    EngineCorrupt,
    EngineUnavailable,
    LanewayError,
    SchemaMismatch,
    UsageError,
)


class NamespaceGone(EngineUnavailable):
    """
    The shard does not exist. The engine creates it again, unless its durability promised that the
    data would last.
    """


def is_hopeless(error: Exception) -> bool:
    """Whether another try cannot help."""
    text = str(error)
    return (
        isinstance(error.__cause__ or error, ssl.SSLError)
        or "Protocol Error" in text
        or "protected mode" in text.lower()
        or "DENIED" in text
    )


def is_too_large(refusal: Exception) -> bool:
    """Whether the server refuses a value for its size; it closes the connection then."""
    return "invalid bulk length" in str(refusal)


def explain(address: Address, error: Exception, *, applied: bool | None) -> LanewayError:
    """What was wrong, where, and what to do, in one line."""
    name, text = address.name, " ".join(str(error).split())
    unknown = (
        "; whether the change happened is not known" if applied is None else "; nothing was changed"
    )
    lowered = text.lower()

    def unavailable(what: str) -> EngineUnavailable:
        return EngineUnavailable(f"{name}: {what}", applied=applied)

    if "denied" in lowered and "protected mode" in lowered:
        return unavailable(
            "the server is in protected mode and refuses connections from other machines; give it a"
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
        return _authentication_failed(name, address, text)
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
            "the server is out of memory (maxmemory) and accepts no writes; nothing was"
            " changed: consume messages, or raise maxmemory"
        )
    if isinstance(error, refusals.BusyLoadingError) or text.startswith("LOADING"):
        left = text.removeprefix("LOADING") if text.startswith("LOADING,") else ""
        return unavailable(
            f"the server is still loading its data{left}; wait until it has, or try again later"
        )
    if isinstance(error, refusals.ReadOnlyError):
        return unavailable(
            "this is a replica and accepts no writes; name its master, or use valkey+sentinel://"
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
        return _refused(name, error, text, unavailable)
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


def _authentication_failed(name: str, address: Address, text: str) -> LanewayError:
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


def _refused(name: str, error: Exception, text: str, unavailable: Any) -> LanewayError:
    if "WRONGTYPE" in text:
        return EngineCorrupt(
            f"{name}: a key of another program is in the way (laneway:…); use another database, or"
            " another namespace"
        )
    if text.startswith("NOSHARD"):
        return NamespaceGone(
            f"{name}: the namespace is gone: the server has lost its data; restore a copy of it, or"
            " open it again to begin with an empty one"
        )
    if text.startswith("BADLAYOUT"):
        return SchemaMismatch(
            f"{name}: the namespace has layout {text.partition(' ')[2]}, which this Laneway does"
            " not know; upgrade Laneway"
        )
    if text.startswith("MISCONF"):
        return unavailable(  # type: ignore[no-any-return]
            "the server cannot write to its disk (MISCONF) and accepts no writes; nothing was"
            " changed: look at its log"
        )
    if text.startswith("NOREPLICAS"):
        return unavailable(  # type: ignore[no-any-return]
            "the server has too few replicas (min-replicas-to-write) and accepts no writes; nothing"
            " was changed"
        )
    if "unknown command" in text.lower():
        return UsageError(
            f"{name}: this is no Valkey or Redis that Laneway can use ({_short(text)})"
        )
    if is_too_large(error):
        return BadMessage(
            f"{name}: the call has a value that is larger than the server takes"
            " (proto-max-bulk-len); nothing was changed: make the body smaller, or raise that"
            " setting of the server"
        )
    if "DB index is out of range" in text:
        return UsageError(f"{name}: the server has no such database; take a smaller number")
    return unavailable(_short(text, 300))  # type: ignore[no-any-return]


def _short(text: str, most: int = 120) -> str:
    return text if len(text) <= most else f"{text[:most]}…"

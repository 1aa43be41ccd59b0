"""The URL of an engine, taken apart: where the server is."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote

import msgspec

from laneway.engines.own import VALKEY_SCHEMES
from laneway.engines.shared.urls import ENCODE, MOST_SHARDS, split
from laneway.errors import UsageError
from laneway.printable import meant, meant_or_known, redacted

PORT, SENTINEL_PORT = 6379, 26379


class Address(msgspec.Struct, frozen=True):
    """
    The parts of a URL.

    `kind`: `"one"`, `"unix"`, `"cluster"` or `"sentinel"`. `master`: its name at the
    sentinels. `timeout`: seconds for an answer. `replicas`: how many have to confirm, for
    durability "replicated". `shards` None: the namespace's, or the usual number for a new one.
    """

    kind: str
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    username: str | None = None
    password: str | None = None
    database: int = 0
    master: str = ""
    tls: bool = False
    ca: str | None = None
    verify: bool = True
    timeout: float = 5.0
    replicas: int = 1
    shards: int | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    def __repr__(self) -> str:
        return f"<Address {self.name}>"

    @property
    def name(self) -> str:
        """The name in errors, without the password."""
        if self.kind == "unix":
            return f"unix://{self.path}"
        return ",".join(f"{host}:{port}" for host, port in self.hosts)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not low <= number <= high:
            raise ValueError
        return number

    return read


def _shards(text: str) -> int:
    number = _whole(1, MOST_SHARDS)(text)
    if number & (number - 1):
        raise ValueError
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0.1 <= number <= 3600:
        raise ValueError
    return number


def _flag(text: str) -> bool:
    return {"yes": True, "true": True, "no": False, "false": False}[text]


_OPTIONS: dict[str, tuple[Callable[[str], object], str]] = {
    "shards": (_shards, f"a power of two up to {MOST_SHARDS}"),
    "replicas": (_whole(1, 100), "a number from 1 to 100"),
    "timeout": (_seconds, "seconds from 0.1 to 3600"),
    "ca": (str, "the path of a file of certificates"),
    "verify": (_flag, "yes or no"),
    "sentinel_username": (str, "a name"),
    "sentinel_password": (str, "a password"),
}


def parse(url: str) -> Address:
    """Take a URL apart. Raises UsageError, whose text never has the password."""
    scheme, _, rest = url.partition("://")
    safe = redacted(url)
    if scheme not in VALKEY_SCHEMES:
        hint = meant(scheme, VALKEY_SCHEMES)
        raise UsageError(f'engine URL {safe!r}: there is no scheme "{scheme}"{hint}')
    kind = scheme.partition("+")[2] or ("unix" if scheme == "unix" else "one")
    parts = split(safe, f"x://{rest}")
    credentials, _, hosts = parts.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    settings: dict[str, object] = {
        "username": unquote(username) or None,
        "password": unquote(password) or None,
        "tls": scheme.startswith(("valkeys", "rediss")),
    }
    settings |= _options(safe, parts.query)
    if kind == "unix":
        path = unquote(hosts + parts.path)
        if not path:
            raise UsageError(
                f'engine URL {safe!r}: the path is missing; write "unix:///run/valkey.sock"'
            )
        return Address(kind, path=path, **settings)  # type: ignore[arg-type]
    found = tuple(
        _host(safe, each, SENTINEL_PORT if kind == "sentinel" else PORT)
        for each in hosts.split(",")
    )
    where = [unquote(part) for part in parts.path.split("/") if part]
    if kind == "sentinel":
        if not where:
            raise UsageError(
                f"engine URL {safe!r}: the name of the master is missing; write"
                f' "{scheme}://host:26379/mymaster"'
            )
        settings["master"] = where.pop(0)
    if where:
        settings["database"] = _database(safe, where)
    if kind == "cluster" and settings.get("database"):
        raise UsageError(
            f"engine URL {safe!r}: a cluster has only database 0; use a separate namespace instead"
        )
    return Address(kind, found, **settings)  # type: ignore[arg-type]


def _options(safe: str, query: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            hint = meant_or_known(name, _OPTIONS)
            raise UsageError(f'engine URL {safe!r}: unknown option "{name}"{hint}')
        read, expected = _OPTIONS[name]
        try:
            found[name] = read(text)
        except (ValueError, KeyError):
            raise UsageError(
                f"engine URL {safe!r}: {name}: expected {expected}, got {text!r}"
            ) from None
    return found


def _host(safe: str, text: str, usual: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host, port = text, str(usual)
    try:
        number = _whole(1, 65_535)(port)
    except ValueError:
        raise UsageError(
            f"engine URL {safe!r}: expected a port from 1 to 65535 after the host; {ENCODE}"
        ) from None
    return host.strip("[]") or "localhost", number


def _database(safe: str, where: list[str]) -> int:
    try:
        if len(where) > 1:
            raise ValueError
        return _whole(0, 100_000)(where[0])
    except ValueError:
        raise UsageError(
            f'engine URL {safe!r}: expected the number of a database, got "{"/".join(where)}"'
        ) from None

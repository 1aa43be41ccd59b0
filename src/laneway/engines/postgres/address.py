"""Where a namespace is: the schemas of a database."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl, urlsplit

import msgspec

from laneway.engines.shared.urls import ENCODE, shard_count, split
from laneway.errors import UsageError
from laneway.printable import redacted

OWN_OPTIONS = ("shards", "pooler", "listen")
"""The options of a URL that libpq does not get."""
MOST_NAME_BYTES = 48
"""Longer namespaces are named by a part and a digest: a schema's name has at most 63 bytes."""


class Address(msgspec.Struct, frozen=True):
    """
    A URL of this engine.

    `server`: the URL that libpq understands. `shards`: the number of schemas; None: the URL does
    not say it. `is_pooled`: whether a pooler in transaction mode is between; None: a connection
    tells. `listen_server`: the URL for the connection that listens to notifications.
    """

    server: str
    listen_server: str
    shards: int | None = None
    is_pooled: bool | None = None

    def at(self, place: str) -> Address:
        """
        The same on another server: `HOST[:PORT][/DATABASE]`. Raises UsageError for another text.
        """
        if not _PLACE.fullmatch(place):
            raise UsageError(f"server {place!r}: expected HOST:PORT/DATABASE, without a password")
        host, _, database = place.partition("/")
        parts = urlsplit(self.server)
        user, at, _ = parts.netloc.rpartition("@")
        left_out = (*_HOSTS, "dbname") if database else _HOSTS
        path = f"/{database}" if database else parts.path
        server = _joined(f"{user}{at}{host}", path, _without(left_out, parts.query))
        return msgspec.structs.replace(self, server=server, listen_server=server)

    @property
    def place(self) -> str:
        """The server and the database, as `at` takes them."""
        parts = urlsplit(self.server)
        return f"{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def name(self) -> str:
        """The server and the database, without the password."""
        return redacted(self.server)


def parse(url: str) -> Address:
    """
    Take a URL apart: `postgresql://user@host/database?shards=4`. Options other than `shards`,
    `pooler` and `listen` are libpq's. Raises UsageError.
    """
    parts = split(redacted(url), url)
    if _ENDS_A_PASSWORD.search(parts.netloc):  # libpq would repeat what is behind it
        raise UsageError(
            f"engine URL {redacted(url)!r}: its user or password cannot be read; {ENCODE}"
        )
    if not parts.path.strip("/") and "dbname=" not in parts.query:
        raise UsageError(
            f"engine URL {redacted(url)!r}: the database is missing; write"
            ' "postgresql://host/database"'
        )
    options = parse_qsl(parts.query, keep_blank_values=True)
    own = {name: value for name, value in options if name in OWN_OPTIONS}
    query = _without(OWN_OPTIONS, parts.query)
    server = _joined(parts.netloc, parts.path, query)
    direct = parts.netloc
    if "listen" in own:
        user, at, _ = parts.netloc.rpartition("@")
        direct = f"{user}{at}{own['listen']}"
    pooler = own.get("pooler")
    if pooler not in _POOLERS:
        raise UsageError(
            f'engine URL {redacted(url)!r}: pooler: expected "transaction" or "none", got'
            f" {pooler!r}"
        )
    return Address(
        server,
        _joined(direct, parts.path, query),
        shard_count(url, own["shards"]) if "shards" in own else None,
        _POOLERS[pooler],
    )


def _without(names: Sequence[str], query: str) -> str:
    """The options of a URL without these; libpq reads `%20` as a space, and not `+`."""
    return "&".join(each for each in query.split("&") if each.partition("=")[0] not in names)


def _joined(netloc: str, path: str, query: str) -> str:
    """A URL of libpq; one without a host has `//`, too."""
    return f"postgresql://{netloc}{path}{'?' * bool(query)}{query}"


_ENDS_A_PASSWORD = re.compile(r"@.*@|%(?![0-9A-Fa-f]{2})")
_PLACE = re.compile(r"[^/@?#\s]+(/[^/@?#\s]+)?")
_HOSTS = ("host", "hostaddr", "port")
_POOLERS = {None: None, "transaction": True, "none": False}


def schema_of(namespace: str, shard: int = 0) -> str:
    """The schema of a namespace, or of one of its shards: the first one's has no number."""
    name = namespace
    if len(name.encode()) > MOST_NAME_BYTES:
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        name = f"{re.sub('[^ -~]', '_', name)[:30]}_{digest}"
    return f"laneway_{name}.{shard}" if shard else f"laneway_{name}"

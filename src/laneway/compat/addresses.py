"""The store of a Celery or RQ program, as an engine's URL."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import quote

from laneway.errors import UsageError
from laneway.printable import redacted

_QUEUES = ("amqp", "amqps", "pyamqp", "librabbitmq", "rpc")
"""Schemes of message brokers."""

_KNOWN = ("redis", "rediss", "valkey", "valkeys", "unix", "sqlite")


def url_of(store: Any, setting: str) -> str | None:
    """
    The engine's URL for a broker's URL or a Redis client; None means the default store.

    `setting` names the setting in error messages and logs. Raises UsageError for any other value.
    """
    if store is None or store == "":
        return None
    if isinstance(store, str):
        if store.partition("://")[0] in _QUEUES:
            if os.environ.get("LANEWAY_URL"):
                return None
            raise UsageError(
                f"{setting}: {redacted(store)}: Laneway needs no broker, and cannot use this one;"
                " set LANEWAY_URL to the store that all machines use, such as redis://host"
            )
        if store.startswith(("memory://", "cache+memory://")):
            return "sqlite://"
        scheme = store.partition("://")[0].partition("+")[0]
        if scheme not in _KNOWN or "://" not in store:
            raise UsageError(
                f"{setting}: {redacted(store)} is not a store that Laneway supports; use Redis or"
                " Valkey (redis://host), a file (sqlite:///jobs.db), or leave it out to use"
                " LANEWAY_URL"
            )
        return store
    pool = getattr(store, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    if options is None:
        raise UsageError(f"{setting}: expected a URL or a Redis client, got {store!r:.80}")
    credentials = ""
    if options.get("password"):
        user, password = options.get("username") or "", options["password"]
        credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    if options.get("path"):
        return f"unix://{credentials}{options['path']}"
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    is_secure = "SSL" in getattr(pool, "connection_class", object).__name__
    return f"redis{'s' * is_secure}://{credentials}{host}:{port}/{options.get('db') or 0}"

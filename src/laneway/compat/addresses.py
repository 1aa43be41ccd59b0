"""Where a program of Celery or RQ keeps its messages, as an engine's URL."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

from laneway.errors import UsageError
from laneway.safetext import redacted

log = logging.getLogger("laneway.compat")

_QUEUES = ("amqp", "amqps", "pyamqp", "librabbitmq", "rpc")
"""What tutorials name, and nobody has to run here."""

_KNOWN = ("redis", "rediss", "valkey", "valkeys", "unix", "sqlite")


def url_of(said: Any, where: str) -> str | None:
    """
    An engine's URL of a broker's URL or a Redis client; None: the default. Raises UsageError for
    what is neither.
    """
    if said is None or said == "":
        return None
    if isinstance(said, str):
        if said.partition("://")[0] in _QUEUES:
            log.warning(
                "%s: %s:// is not spoken here; messages are kept in the default store (LANEWAY_URL,"
                " else laneway.db)",
                where,
                said.partition("://")[0],
            )
            return None
        if said.startswith(("memory://", "cache+memory://")):
            return "sqlite://"
        scheme = said.partition("://")[0].partition("+")[0]
        if scheme not in _KNOWN or "://" not in said:
            raise UsageError(
                f"{where}: {redacted(said)} is no store of Laneway's; name a Redis or Valkey"
                " (redis://host), a file (sqlite:///jobs.db), or nothing: then LANEWAY_URL counts"
            )
        return said
    pool = getattr(said, "connection_pool", None)
    options = getattr(pool, "connection_kwargs", None)
    if options is None:
        raise UsageError(f"{where}: expected a URL or a Redis client, got {said!r:.80}")
    who = ""
    if options.get("password"):
        user, password = options.get("username") or "", options["password"]
        who = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    if options.get("path"):
        return f"unix://{who}{options['path']}"
    host, port = options.get("host", "localhost"), options.get("port", 6379)
    return f"redis://{who}{host}:{port}/{options.get('db') or 0}"

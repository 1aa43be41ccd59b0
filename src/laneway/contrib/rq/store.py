"""The Laneway application of a Redis connection."""

from __future__ import annotations

import os
import threading

from redis import Redis

from laneway.app import Laneway
from laneway.compat.addresses import url_of

_applications: dict[tuple[str, str], Laneway] = {}
_lock = threading.Lock()


def application(connection: Redis, namespace: str) -> Laneway:
    """
    The application of `LANEWAY_URL`, else of the same Redis database. Raises UsageError for a
    connection whose address is unknown, such as that of a cluster, if `LANEWAY_URL` is not set.
    """
    url = os.environ.get("LANEWAY_URL") or str(url_of(connection, "connection"))
    with _lock:
        if (url, namespace) not in _applications:
            _applications[url, namespace] = Laneway(url, namespace=namespace, program="rq")
        return _applications[url, namespace]


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603  # another thread of the parent may have held it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)

"""The application of each store that a process has connections to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from laneway import Laneway, UsageError
from laneway.contrib.kombu import names

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "laneway+"
"""The beginning of URLs of brokers and result backends."""

PROGRAM = "laneway.contrib.kombu"
"""The program that owns the policies of this package."""

REPLY_TTL = "1h"
"""How long a reply waits whose reader has gone."""

_apps: dict[tuple[str, str, str | None], Laneway] = {}
_lock = threading.Lock()


def app_of(url: str, options: Mapping[str, Any]) -> Laneway:
    """
    The application of a store; connections of a process share it.

    `options`: `namespace` and `durability`, as those of `Laneway`. Raises UsageError.
    """
    url = url.removeprefix(PREFIX)
    if "://" not in url:
        raise UsageError(
            f"broker {url!r:.80}: expected a URL of a store, like laneway+sqlite:///jobs.db"
        )
    namespace, durability = options.get("namespace", "default"), options.get("durability")
    with _lock:
        app = _apps.get((url, namespace, durability))
        if app is None:
            app = Laneway(url, namespace=namespace, durability=durability, program=PROGRAM)
            declare(app)
            _apps[url, namespace, durability] = app
        return app


def declare(app: Laneway) -> None:
    """Declare what holds for the topics that are no queues."""
    app.policy(f"{names.OWN}*", pool=names.POOL)
    app.policy(names.EXCHANGES, own_backlog=False)
    app.policy(names.REPLIES, ttl=REPLY_TTL, on_expiry="drop")


def close_all() -> None:
    """Close the applications of all connections; for tests and for programs that end."""
    with _lock:
        apps = list(_apps.values())
        _apps.clear()
    for app in apps:
        app.close()

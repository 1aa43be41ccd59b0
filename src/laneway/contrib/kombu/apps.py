"""The application of each store that a process has connections to."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from laneway import Laneway, UsageError
from laneway.contrib.kombu import names

PREFIX = "laneway+"
"""The beginning of URLs of brokers and result backends."""

PROGRAM = "laneway.contrib.kombu"
"""The program that owns the policies of this package."""

REPLY_TTL = "1h"
"""How long a reply waits whose reader has gone."""

OPTIONS = ("durability", "fair", "lease", "namespace", "pool")
"""The options of connections."""

OF_OTHERS = frozenset(
    """
    ack_emulation body_encoding callback client_properties confirm_publish connect_retries_timeout
    deadletter_queue errback fanout_patterns fanout_prefix fetch_message_attributes
    health_check_interval heartbeat interval_max interval_start interval_step is_secure
    login_method master_name max_connections max_retries min_other_sentinels polling_interval
    pool_timeout port predefined_exchanges predefined_queues priority_steps queue_name_prefix
    queue_order_strategy queue_tags read_timeout region result_chord_ordered retry_on_timeout
    retry_policy sentinel_fanout_compat sentinel_kwargs sep socket_connect_timeout socket_keepalive
    socket_keepalive_options socket_settings socket_timeout sqs-base64-encoding supports_fanout
    unacked_index_key unacked_key unacked_mutex_expire unacked_mutex_key unacked_restore_interval
    unacked_restore_limit unacked_restore_throttle visibility_timeout wait_time_seconds
    write_timeout
    """.split()  # noqa: SIM905  # one name would be a line
)
"""Options of connections to other brokers: they have no effect."""

_apps: dict[tuple[str, str, str | None], Laneway] = {}
_lock = threading.Lock()


def app_of(
    url: str, options: Mapping[str, Any], setting: str = "broker_transport_options"
) -> Laneway:
    """
    The application of a store; connections of a process share it.

    `options`: `namespace` and `durability`, as those of `Laneway`; `setting`: their name in errors.
    Raises UsageError.
    """
    if unknown := sorted(options.keys() - OPTIONS - OF_OTHERS):
        raise UsageError(
            f"{setting}: unknown option {unknown[0]!r:.80}; there are: {', '.join(OPTIONS)}"
        )
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

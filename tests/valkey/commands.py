"""What a server does for calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis

from laneway.testing.servers import Server


def client_of(server: Server) -> Any:
    return redis.Redis.from_url(server.url.replace("valkey://", "redis://"))


def commands(server: Server, call: Callable[[], object]) -> dict[str, int]:
    """How often the server runs each command meanwhile."""
    with client_of(server) as client:
        client.config_resetstat()
        call()
        return {
            name.removeprefix("cmdstat_"): each["calls"]
            for name, each in client.info("commandstats").items()
            if not name.startswith("cmdstat_config")
        }

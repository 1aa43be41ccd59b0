"""What a namespace on a server consists of, to compare two of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from laneway.engines.valkey import record_formats
from laneway.engines.valkey.scripts import SOURCE

UNDIVIDED = SOURCE.replace(b"HOUSE_US = 1500", b"HOUSE_US = 1e9")
"""The library, with leases that a slow machine does not divide."""


def stored(client: Any, namespace: str) -> dict[str, Any]:
    """All keys of the namespace, without what differs between two namespaces."""
    prefix = f"laneway:{{{namespace}/0}}:"
    reads: dict[bytes, Callable[[bytes], Any]] = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda name: client.lrange(name, 0, -1),
        b"zset": lambda name: client.zrange(name, 0, -1, withscores=True),
    }
    found: dict[str, Any] = {
        name.decode().removeprefix(prefix): reads[client.type(name)](name)
        for name in client.scan_iter(f"{prefix}*")
    }
    counters = record_formats.read_counters(found["shard"])
    found["shard"] = msgspec.structs.replace(counters, nonce="", version=0)
    return {name: found[name] for name in found if name not in ("settings", "policies")}

"""What the servers of a namespace use, and what they have left, as they tell with INFO."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from laneway.engines.base import StorePart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from laneway.engines.valkey.namespace import Namespace


def of_servers(space: Namespace) -> list[StorePart]:
    """The masters that have shards of the namespace, the one of the first shard first."""
    server = space.server
    found: dict[str, StorePart] = {}
    for shards in server.shards_by_node(range(space.shards)):
        began = time.perf_counter()
        fields = server.info(space.key(shards[0], "shard"))
        part = _part(space, fields, len(shards), time.perf_counter() - began)
        before = found.get(part.name)  # it took over another one's shards meanwhile
        if before is not None:
            part = msgspec.structs.replace(part, shards=before.shards + part.shards)
        found[part.name] = part
    return list(found.values())


def _part(space: Namespace, fields: Mapping[str, str], shards: int, seconds: float) -> StorePart:
    used, most = _number(fields, "used_memory") or 0, _number(fields, "maxmemory")
    product = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get(f"{product.lower()}_version", "")
    port = fields.get("tcp_port", "")
    return StorePart(
        name=f"port {port} ({fields.get('run_id', '')[:8]})"
        if space.server.address.kind == "cluster"
        else space.server.name,
        what=f"{product} {version}, {fields.get('connected_slaves', '0')} replicas",
        shards=shards,
        used=used,
        free=max(0, most - used) if most else None,
        log=_number(fields, "aof_current_size") if fields.get("aof_enabled") == "1" else None,
        per_second=_number(fields, "instantaneous_ops_per_sec"),
        seconds=seconds,
    )


def _number(fields: Mapping[str, str], name: str) -> int | None:
    text = fields.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None

"""What a message of another store means to the shards that import it."""

from __future__ import annotations

import zlib

from laneway.engines.base import ExportedMessage
from laneway.engines.sharded.namespace import ShardedNamespace
from laneway.engines.shared.naming import merge_key
from laneway.message import Draft


class Arrival:
    """A message that is imported, with what its shard has to know."""

    __slots__ = ("merge_key", "message", "number", "spread")

    def __init__(self, namespace: ShardedNamespace, message: ExportedMessage) -> None:
        self.message = message
        self.merge_key = (
            merge_key(Draft(message.topic, message.bodies[0], key=message.key))
            if message.merges
            else None
        )
        generated = namespace.generated(message.id)
        self.number = generated[1] if generated is not None else None
        """The message's number, where this namespace generated its id."""
        self.spread = self._spread(namespace)
        """What selects its partition; None: its number does."""

    def _spread(self, namespace: ShardedNamespace) -> int | None:
        message = self.message
        if message.key is not None:
            return zlib.crc32(message.key.encode())
        if message.merges:
            return zlib.crc32(message.bodies[0])
        policy = namespace.routes.route(message.topic).policy
        if policy.partitions > 1 and namespace.shards > 1:
            return zlib.crc32(message.id.encode())
        return None

    def shard(self, namespace: ShardedNamespace) -> int:
        """Where it is imported."""
        route = namespace.routes.route(self.message.topic)
        if route.policy.partitions == 1:
            return route.shard
        part = self.spread if self.spread is not None else zlib.crc32(self.message.id.encode())
        return namespace.routes.shard_of(self.message.topic, part)

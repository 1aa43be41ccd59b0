"""
A namespace of several schemas: `postgresql://host/database?shards=4`.

Each schema is a shard, see `engines.sql.shard_engine`. The first one has the name that it has where
it is the only one, so it tells how many there are, whatever the URL says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from laneway.engines.base import Capabilities, FullEngine, Settings
from laneway.engines.postgres.address import parse, schema_of
from laneway.engines.postgres.connecting import ServerConnection
from laneway.engines.postgres.engine import DURABILITIES, NOUN, HasShards, PostgresEngine
from laneway.engines.postgres.servers import MOVED, ShardServer, name_of
from laneway.engines.postgres.wakeup import Wakeup
from laneway.engines.sql.shard_engine import ShardsEngine
from laneway.engines.sql.shard_opening import OpenedShards
from laneway.engines.sql.shard_store import ShardStore
from laneway.engines.sql.store import Place
from laneway.engines.sql.wakeup import take_back
from laneway.message import Lease


def open_schemas(url: str, settings: Settings) -> FullEngine:
    """Open the engine on one schema or on several, as the URL or the first schema says."""
    if (parse(url).shards or 1) == 1:
        try:
            return PostgresEngine(url, settings)
        except HasShards:
            pass
    return SchemasEngine(url, settings)


class ShardSchema(ShardStore, PostgresEngine):
    """The engine on one of the schemas."""

    noun = NOUN

    def __init__(
        self,
        url: str,
        settings: Settings,
        place: Place,
        wakeup: Wakeup,
        known_version: Callable[[], int],
    ) -> None:
        self._known_version = known_version
        server = None
        if place.shard:
            server = ShardServer(parse(url), settings.namespace, place.shard)
        super().__init__(url, settings, place, wakeup, server)

    def connect(self) -> ServerConnection:
        """A new connection for notifications, on which the schema comes first."""
        return self._store.connect(listens=True)

    def clock(self) -> int:
        """The time of its server."""
        return self._store.clock()

    def has_schema(self, name: str) -> bool:
        with self._store.reading() as connection:
            return connection.one("schema_find", name) is not None


class SchemaNamespace(OpenedShards):
    """The namespace's schemas as this process has opened them."""

    stores: list[ShardSchema]  # type: ignore[assignment]  # assigned once
    wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(
        self,
        url: str,
        settings: Settings,
        look: Callable[[str, Sequence[str] | None], float],
        take_back: Callable[[Lease], None],
    ) -> None:
        first = schema_of(settings.namespace)
        # The first store is not open yet.
        self.wakeup = Wakeup(
            lambda: self.stores[0].connect(),  # noqa: PLW0108
            first,
            look,
            take_back,
            lambda: self.stores[0].clock(),  # noqa: PLW0108
        )
        self.open(url, settings, parse(url).shards)
        self.wakeup.serve(self.shards)

    def _path(self, shard: int) -> str:
        return schema_of(self.name, shard)

    def _exists(self, shard: int) -> bool:
        """Only a schema that was never moved can be missing; opening the others tells."""
        return (
            self.stores[0].setting(name_of(shard)) is not None
            or self.stores[0].has_schema(self._path(shard))
            or self.stores[0].has_schema(self._path(shard) + MOVED)
        )

    def _open_store(self, url: str, settings: Settings, place: Place) -> ShardSchema:
        return ShardSchema(url, settings, place, self.wakeup, self._known_version)


class SchemasEngine(ShardsEngine):
    """The whole engine on the schemas."""

    _space: SchemaNamespace  # type: ignore[mutable-override]  # assigned once
    _wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(self, url: str, settings: Settings) -> None:
        space = SchemaNamespace(url, settings, self.has_work, partial(take_back, self.settle))
        super().__init__(url, settings, space)
        self.capabilities = Capabilities(
            name="postgres",
            durability=frozenset(DURABILITIES),
            persistent=True,
            processes=True,
            transactions=False,
            shards=space.shards,
            only=True,
            reserves=True,
        )

    def close(self) -> None:
        super().close()
        self._wakeup.close()

"""Opening the stores of a namespace: the first one stores how many there are."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from laneway.engines.base import Settings
from laneway.engines.sharded.routes import Routes
from laneway.engines.sharded.splitting import part_of
from laneway.engines.sql.shard_namespace import ShardsOfNamespace
from laneway.engines.sql.shard_store import ShardStore
from laneway.engines.sql.store import Place
from laneway.errors import EngineUnavailable, UsageError
from laneway.printable import redacted

COMPLETE = "complete"
"""The setting of the first store that says that all stores were created."""


class OpenedShards(ShardsOfNamespace):
    """
    A namespace that opens its stores. A database implements where they are.

    `open` calls `_open_store` for the first store, then for the others, because another process may
    be creating them now in this order.
    """

    stores: list[ShardStore]  # type: ignore[mutable-override]  # assigned once

    @abstractmethod
    def _path(self, shard: int) -> str:
        """The path of a shard's store."""

    @abstractmethod
    def _exists(self, shard: int) -> bool:
        """Whether a shard's store exists."""

    @abstractmethod
    def _open_store(self, url: str, settings: Settings, place: Place) -> ShardStore:
        """Open a store, or create it if the settings allow."""

    def open(self, url: str, settings: Settings, shards: int | None) -> None:
        """
        Open all stores, or create them. `shards`: how many the URL says. Raises UsageError for
        another number than that of the namespace, EngineUnavailable for a store that is missing.
        """
        self.name = settings.namespace
        self.stores = []
        self.routes = None  # type: ignore[assignment]  # the first store tells how many there are
        try:
            self._open(url, settings, shards)
        except BaseException:
            self.close()
            raise

    def _open(self, url: str, settings: Settings, shards: int | None) -> None:
        own = msgspec.structs.replace(
            settings,
            max_backlog=None,  # until their number is known
            max_backlog_bytes=None,
        )
        first = self._open_store(url, own, Place(self._path(0), 0, shards or 0))
        self.stores.append(first)
        self.shards = first.place.shards
        if shards not in (None, self.shards):
            raise UsageError(
                f"engine URL {redacted(url)!r}: namespace {self.name} was created with"
                f" {self.shards} {first.noun}{'s' if self.shards > 1 else ''}, the URL asks"
                f" for {shards}; the number is fixed when a namespace is created: omit ?shards=, or"
                " move to a new namespace with `laneway migrate`"
            )
        self.nonce = first.nonce
        is_complete = first.setting(COMPLETE) is not None
        others = msgspec.structs.replace(
            own,
            tiers=None,
            default_tier=None,
            create=settings.create and not is_complete,
            max_backlog=part_of(settings.max_backlog, self.shards),
            max_backlog_bytes=part_of(settings.max_backlog_bytes, self.shards),
        )
        if others.max_backlog or others.max_backlog_bytes:
            first.limit_backlog(others)
        tiers = first.setting("tiers")
        for shard in range(1, self.shards):
            path = self._path(shard)
            if is_complete and not self._exists(shard):
                raise self._missing(shard, first.noun)
            place = Place(path, shard, self.shards, self.nonce, tiers, is_complete)
            self.stores.append(self._open_store(url, others, place))
        if not is_complete:
            with first.transaction_at_any_version(None) as tx:
                tx.run("setting_write", COMPLETE, "1")
        self.tier_layers = first.tier_layers()
        self.tiers = self.tier_layers.in_force()
        self.routes = Routes(self.tiers, self.shards, lambda _: b"")
        self.reload()
        self.change_tiers(
            lambda layers: layers.declare(
                settings.tiers, settings.default_tier, self.tier_named_by
            ),
            None,
        )

    def _missing(self, shard: int, noun: str) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self._path(shard)}: this {noun} of namespace {self.name} is missing, but others"
            f" exist; put it back, or restore a copy of all {noun}s"
        )

    def _known_version(self) -> int:
        return self.routes.version

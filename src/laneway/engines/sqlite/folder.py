"""
A namespace of several files: `sqlite:///folder?shards=4`.

Each file is a shard, see `engines.sql.shard_engine`. Here is what is SQLite's about them: which
files belong together, and opening them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from laneway.engines.base import Capabilities
from laneway.engines.sharded.routes import Routes
from laneway.engines.sharded.splitting import part_of
from laneway.engines.sql.engine import PLACE
from laneway.engines.sql.shard_engine import ShardsEngine
from laneway.engines.sql.shard_namespace import ShardsOfNamespace
from laneway.engines.sql.shard_store import ShardStore
from laneway.engines.sql.store import Place
from laneway.engines.sqlite.address import file_in, has_others, parse
from laneway.engines.sqlite.engine import DURABILITIES, SqliteEngine
from laneway.engines.sqlite.wakeup import Wakeup
from laneway.errors import EngineCorrupt, EngineUnavailable, UsageError
from laneway.printable import redacted

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.engines.base import Settings

COMPLETE = "complete"
"""The setting of the first file that says that all files were created."""


class ShardFile(ShardStore, SqliteEngine):
    """The engine on one of the files."""

    def __init__(
        self,
        url: str,
        settings: Settings,
        place: Place,
        wakeup: Wakeup,
        known_version: Callable[[], int],
    ) -> None:
        self._known_version = known_version
        super().__init__(url, settings, place, wakeup)

    def _join(self, place: Place) -> Place:
        """
        Take the place in a new file, or check that an old one has it. The namespace reads from the
        first file how many there are, so the answer has that number.
        """
        wanted = msgspec.json.encode((place.shard, place.shards)).decode()
        with self._store.writing(durable=True) as connection:
            stored = connection.one("setting_read", PLACE)
            if stored is None:
                if place.is_complete:
                    raise EngineCorrupt(
                        f"{place.path}: this file of the namespace is empty, and it was not before;"
                        " restore a copy of all files"
                    )
                if connection.one("setting_read", "tiers") is not None:
                    raise UsageError(
                        f"{place.path}: this file is a namespace by itself; name it"
                        f" (sqlite:///{place.path}), or another folder"
                    )
                if not place.shards:
                    raise UsageError(
                        f"{place.path}: the program that created the namespace ended before it was"
                        " complete; say how many files it has, like ?shards=4"
                    )
                connection.run("setting_write", PLACE, wanted)
                if place.tiers is not None:
                    connection.run("setting_write", "tiers", place.tiers)
                return place
            (nonce,) = connection.one("nonce_read")
        shard, shards = msgspec.json.decode(stored[0])
        if shard == 0 == place.shard:
            return msgspec.structs.replace(place, shards=shards)
        if (shard, shards, nonce) != (place.shard, place.shards, place.nonce):
            raise EngineCorrupt(
                f"{place.path}: expected file {place.shard} of {place.shards} of this namespace,"
                f" found file {shard} of {shards}{'' if nonce == place.nonce else ' of another'};"
                " put all files of one copy back under their names"
            )
        return place


class FileNamespace(ShardsOfNamespace):
    """The namespace's files as this process has opened them."""

    stores: list[ShardFile]  # type: ignore[mutable-override]  # assigned once
    wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(self, url: str, settings: Settings, wakeup: Callable[[Path], Wakeup]) -> None:
        address = parse(url)
        self.name = settings.namespace
        self.folder = address.path or Path()
        self.stores = []
        self.routes = None  # type: ignore[assignment]  # the first file tells how many there are
        try:
            self._open(url, settings, address.shards, wakeup)
        except BaseException:
            self.close()
            raise

    # Opening

    def _open(
        self, url: str, settings: Settings, shards: int | None, wakeup: Callable[[Path], Wakeup]
    ) -> None:
        self._make_folder(settings)
        self.wakeup = wakeup(file_in(self.folder, self.name, 0))
        own = msgspec.structs.replace(
            settings,
            max_backlog=None,  # until their number is known
            max_backlog_bytes=None,
        )
        # In this order, because another process may be creating the files now, the first one first.
        if has_others(self.folder, self.name) and not os.path.exists(self._path(0)):
            raise self._missing(0)
        first = self._open_file(url, own, Place(self._path(0), 0, shards or 0))
        self.shards = first.place.shards
        if shards not in (None, self.shards):
            raise UsageError(
                f"engine URL {redacted(url)!r}: namespace {self.name} was made with"
                f" {self.shards} files, the URL says {shards}; the number is fixed when a namespace"
                " is made: leave ?shards= out, or move to a new namespace with `laneway migrate`"
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
        for shard in range(1, self.shards):
            if is_complete and not os.path.exists(self._path(shard)):
                raise self._missing(shard)
            self._open_file(
                url,
                others,
                Place(
                    self._path(shard),
                    shard,
                    self.shards,
                    self.nonce,
                    first.setting("tiers"),
                    is_complete,
                ),
            )
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

    def _missing(self, shard: int) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self._path(shard)}: this file of namespace {self.name} is missing, and others of it"
            " are there; put it back, or restore a copy of all files"
        )

    def _make_folder(self, settings: Settings) -> None:
        folder = self.folder
        if folder.is_dir():
            return
        if folder.exists() and not folder.is_dir():  # else another process has just made it
            raise UsageError(
                f"{folder}: this is a file, and ?shards= asks for a folder of several; leave"
                " ?shards= out, or move to a new folder with `laneway migrate`"
            )
        if not settings.create:
            raise EngineUnavailable(
                f"{folder}: there is no such folder; check the path, or start a program that"
                " publishes to it"
            )
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise EngineUnavailable(
                f"{folder}: the folder cannot be created ({error.strerror}); check its parent"
            ) from error

    def _path(self, shard: int) -> str:
        return str(file_in(self.folder, self.name, shard))

    def _open_file(self, url: str, settings: Settings, place: Place) -> ShardFile:
        file = ShardFile(url, settings, place, self.wakeup, self._known_version)
        self.stores.append(file)
        return file

    def _known_version(self) -> int:
        return self.routes.version


class FilesEngine(ShardsEngine):
    """The whole engine on the files."""

    _space: FileNamespace  # type: ignore[mutable-override]  # assigned once
    _wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(self, url: str, settings: Settings) -> None:
        space = FileNamespace(url, settings, lambda folder: Wakeup(str(folder), self.has_work))
        super().__init__(url, settings, space)
        self.capabilities = Capabilities(
            name="sqlite",
            durability=frozenset(DURABILITIES),
            persistent=True,
            processes=True,
            transactions=space.shards == 1,
            shards=space.shards,
            only=True,
            reserves=True,
            embedded=True,
        )

"""
A namespace of several files: `sqlite:///folder?shards=4`.

Each file is a shard, see `engines.sql.shard_engine`. Here is what is SQLite's about them: which
files belong together, and their folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from laneway.engines.base import Capabilities, Settings
from laneway.engines.sql.shard_engine import ShardsEngine
from laneway.engines.sql.shard_opening import OpenedShards
from laneway.engines.sql.shard_store import ShardStore
from laneway.engines.sql.store import Place
from laneway.engines.sqlite.address import file_in, has_others, parse
from laneway.engines.sqlite.engine import DURABILITIES, SqliteEngine
from laneway.engines.sqlite.wakeup import Wakeup
from laneway.errors import EngineUnavailable, UsageError


class ShardFile(ShardStore, SqliteEngine):
    """The engine on one of the files."""

    noun = "file"

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


class FileNamespace(OpenedShards):
    """The namespace's files as this process has opened them."""

    stores: list[ShardFile]  # type: ignore[assignment]  # assigned once
    wakeup: Wakeup  # type: ignore[mutable-override]

    def __init__(self, url: str, settings: Settings, wakeup: Callable[[Path], Wakeup]) -> None:
        address = parse(url)
        self.folder = address.path or Path()
        self._make_folder(settings)
        self.wakeup = wakeup(file_in(self.folder, settings.namespace, 0))
        if has_others(self.folder, settings.namespace):
            self.name = settings.namespace
            if not self._exists(0):
                raise self._missing(0, ShardFile.noun)
        self.open(url, settings, address.shards)

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

    def _exists(self, shard: int) -> bool:
        return os.path.exists(self._path(shard))

    def _open_store(self, url: str, settings: Settings, place: Place) -> ShardFile:
        return ShardFile(url, settings, place, self.wakeup, self._known_version)


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

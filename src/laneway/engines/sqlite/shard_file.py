"""One file of a namespace with several: an engine of its own, which knows its place."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from laneway.engines.sqlite.admin import SqliteEngine
from laneway.engines.sqlite.engine import PLACE
from laneway.errors import EngineCorrupt, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from laneway.engines.base import Settings
    from laneway.engines.sqlite.address import Place
    from laneway.engines.sqlite.transaction import Transaction
    from laneway.engines.sqlite.wakeup import Wakeup
    from laneway.message import Draft, Receipt


class OtherVersion(Exception):  # it is answered by another attempt, and never seen
    """The file has another version of the policies than this process. Nothing was changed."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class ShardFile(SqliteEngine):
    """
    The engine on one of the files.

    Its transactions raise OtherVersion where the file's policies are not those that this process
    routes messages by; those of `transaction_at_any_version` do not.
    """

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

    def limit_backlog(self, settings: Settings) -> None:
        """Limit the file's backlog."""
        self._settle_limits(settings)

    def has_work(self, pool: str, topics: Sequence[str] | None) -> float:
        """In how many seconds a pool may have something to lease here; 0: it has now."""
        return self._look(pool, topics)

    @contextmanager
    def _transaction(self, now_us: int | None, *, durable: bool) -> Iterator[Transaction]:
        with super()._transaction(now_us, durable=durable) as tx:
            if tx.shard.policy_version != self._known_version():
                raise OtherVersion(tx.shard.policy_version)
            yield tx

    @contextmanager
    def transaction_at_any_version(
        self, now_us: int | None, *, durable: bool = True
    ) -> Iterator[Transaction]:
        """A transaction that may change the policies, or does not depend on them."""
        with super()._transaction(now_us, durable=durable) as tx:
            yield tx

    def _empty_inbox(self) -> None:
        with self.transaction_at_any_version(0, durable=False):
            pass

    def _put_in_inbox(self, draft: Draft, now_us: int | None) -> Receipt | None:
        if self._rules.version != self._known_version():
            return None  # the transaction says so
        return super()._put_in_inbox(draft, now_us)

    @property
    def is_busy(self) -> bool:
        """Whether another process, or another thread of this one, is writing into the file now."""
        return self._store.is_busy()

    def changed_us(self) -> int:
        """When the file was changed last, by its own time; -1: its inbox has messages."""
        with self._store.reading() as connection:
            now, has_inbox = connection.one("shard_changed")
        return -1 if has_inbox else int(now)

    def transaction(self, now_us: int | None) -> AbstractContextManager[Transaction]:
        """A durable transaction at the policies that this process knows."""
        return self._transaction(now_us, durable=True)

    def view(self, now_us: int | None = None) -> AbstractContextManager[Transaction]:
        """A read transaction."""
        return self._view(now_us)

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

    def _declare_tiers(self, settings: Settings) -> None:
        """The namespace declares them for all its files."""

"""One store of a namespace with several: an engine of its own, which knows its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import ClassVar

import msgspec

from laneway.engines.base import FullEngine, Settings
from laneway.engines.sql.admin import SqlEngine
from laneway.engines.sql.engine import PLACE
from laneway.engines.sql.lane_cache import LaneCache
from laneway.engines.sql.store import Place, Read, Store
from laneway.engines.sql.transaction import Transaction
from laneway.errors import EngineCorrupt, UsageError
from laneway.message import Draft, Receipt


class OtherVersion(Exception):  # it is answered by another attempt, and never seen
    """The store has another version of the policies than this process. Nothing was changed."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


def take_place(store: Store, place: Place, noun: str) -> Place:
    """
    Take the place in a new store, or check that an old one has it. The namespace reads from the
    first store how many there are, so the answer has that number. `noun`: what a store is.
    """
    wanted = msgspec.json.encode((place.shard, place.shards)).decode()
    with store.writing(durable=True) as connection:
        stored = connection.one("setting_read", PLACE)
        if stored is None:
            if place.is_complete:
                raise EngineCorrupt(
                    f"{store.name}: this {noun} of the namespace is empty, and it was not before;"
                    f" restore a copy of all {noun}s"
                )
            if connection.one("setting_read", "tiers") is not None:
                raise UsageError(
                    f"{store.name}: this {noun} is a namespace of its own; leave ?shards= out and"
                    f" name the {noun}, or choose another place"
                )
            if not place.shards:
                raise UsageError(
                    f"{store.name}: the program that created the namespace ended before it was"
                    f" complete; say how many {noun}s it has, like ?shards=4"
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
            f"{store.name}: expected {noun} {place.shard} of {place.shards} of this namespace,"
            f" found {noun} {shard} of {shards}{'' if nonce == place.nonce else ' of another'};"
            f" put all {noun}s of one copy back under their names"
        )
    return place


class ShardStore(SqlEngine, FullEngine):
    """
    The engine on one of the stores, to which a database adds opening it.

    Its transactions raise OtherVersion where the store's policies are not those that this process
    routes messages by; those of `transaction_at_any_version` do not.
    """

    noun: ClassVar[str]
    """What a store of this database is, for messages: "file"."""

    _known_version: Callable[[], int]

    def _join(self, place: Place) -> Place:
        return take_place(self._store, place, self.noun)

    @property
    def name(self) -> str:
        """The store's name, for messages."""
        return self._store.name

    @contextmanager
    def transaction(
        self,
        now_us: int | None,
        *,
        durable: bool = True,
        reads: Callable[[LaneCache], Iterable[Read]] | None = None,
        cold_reads: Callable[[], Iterable[Read]] = tuple,
    ) -> Iterator[Transaction]:
        with super().transaction(now_us, durable=durable, reads=reads, cold_reads=cold_reads) as tx:
            if tx.shard.policy_version != self._known_version():
                raise OtherVersion(tx.shard.policy_version)
            yield tx

    @contextmanager
    def transaction_at_any_version(
        self, now_us: int | None, *, durable: bool = True
    ) -> Iterator[Transaction]:
        """A transaction that may change the policies, or does not depend on them."""
        with super().transaction(now_us, durable=durable) as tx:
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
        """Whether another process, or another thread of this one, is writing into the store now."""
        return self._store.is_busy()

    def changed_us(self) -> int:
        """When the store was changed last, by its own time; -1: its inbox has messages."""
        with self._store.reading() as connection:
            now, has_inbox = connection.one("shard_changed")
        return -1 if has_inbox else int(now)

    def _declare_tiers(self, settings: Settings) -> None:
        """The namespace declares them for all its stores."""

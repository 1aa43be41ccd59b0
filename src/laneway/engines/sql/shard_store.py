"""One store of a namespace with several: an engine of its own, which knows its place."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from laneway.engines.base import FullEngine
from laneway.engines.sql.admin import SqlEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from laneway.engines.base import Settings
    from laneway.engines.sql.transaction import Transaction
    from laneway.message import Draft, Receipt


class OtherVersion(Exception):  # it is answered by another attempt, and never seen
    """The store has another version of the policies than this process. Nothing was changed."""

    def __init__(self, version: int) -> None:
        super().__init__(version)
        self.version = version


class ShardStore(SqlEngine, FullEngine):
    """
    The engine on one of the stores, to which a database adds opening it.

    Its transactions raise OtherVersion where the store's policies are not those that this process
    routes messages by; those of `transaction_at_any_version` do not.
    """

    _known_version: Callable[[], int]

    @contextmanager
    def transaction(self, now_us: int | None, *, durable: bool = True) -> Iterator[Transaction]:
        with super().transaction(now_us, durable=durable) as tx:
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

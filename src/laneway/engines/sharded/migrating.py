"""Export and import over the shards. What is exported is stored until its arrival is confirmed."""

from __future__ import annotations

import itertools
import zlib
from typing import TYPE_CHECKING, Protocol

from laneway.engines.sharded.splitting import Numbers, by_shard, group, pages
from laneway.engines.shared.naming import merge_key
from laneway.message import Draft

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from laneway.engines.base import ExportedMessage, ImportAnswer
    from laneway.engines.sharded.namespace import ShardedNamespace

AT_ONCE = 200
"""Messages that one call exports or imports."""


class Store(Protocol):
    """How an engine exports and imports messages of one shard."""

    def exported(self, shard: int, limit: int) -> Sequence[ExportedMessage]:
        """The first exported messages that were not confirmed, in the order of their numbers."""

    def lanes(self, shard: int) -> Iterator[str]:
        """The lanes of a shard."""

    def export(self, shard: int, lane: str | None, limit: int) -> Sequence[ExportedMessage]:
        """Export the first messages of a lane; None: dead letters."""

    def confirm(self, shard: int, numbers: Sequence[int]) -> None:
        """Forget exported messages, by the shard's own numbers."""

    def import_(self, shard: int, messages: Sequence[Arrival]) -> list[ImportAnswer]:
        """Import messages: "accepted" or "duplicate" for each."""

    def import_finished(self, shard: int, ids: Sequence[tuple[str, str, int | None]]) -> None:
        """Remember finished ids: (topic, id, until when)."""


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


class Export:
    """
    The export of a namespace, page by page.

    A page continues at the lane where the last one ended. Lanes stay for a moment after their last
    message, so to begin with the first one each time would read all emptied lanes for each page.
    """

    def __init__(self) -> None:
        self._lanes: Iterator[tuple[int, str | None]] = iter(())
        """The lanes (None: dead letters) that follow, each with its shard."""
        self._lane: tuple[int, str | None] | None = None
        """The lane that the last page ended in."""

    def page(self, namespace: ShardedNamespace, store: Store, limit: int) -> list[ExportedMessage]:
        """The exported messages that were not confirmed yet, then the next ones."""
        messages: list[ExportedMessage] = []
        for shard in range(namespace.shards):
            messages += store.exported(shard, limit)
        self._fill(messages, store, limit)
        if not messages:  # what came after their lane was read is still there
            self._lanes = _lanes(namespace, store)
            self._fill(messages, store, limit)
        return messages

    def _fill(self, messages: list[ExportedMessage], store: Store, limit: int) -> None:
        while len(messages) < limit:
            self._lane = self._lane or next(self._lanes, None)
            if self._lane is None:
                return
            page = store.export(*self._lane, min(AT_ONCE, limit - len(messages)))
            messages += page
            if not page:
                self._lane = None


def _lanes(namespace: ShardedNamespace, store: Store) -> Iterator[tuple[int, str | None]]:
    for shard in range(namespace.shards):
        for lane in itertools.chain(store.lanes(shard), (None,)):
            yield shard, lane


def confirm_export(
    namespace: ShardedNamespace, store: Store, messages: Sequence[ExportedMessage]
) -> None:
    """Forget messages that have arrived in the other store."""
    numbers = Numbers(namespace.shards)
    for shard, own in group(
        (numbers.shard(each.number), numbers.number(each.number)) for each in messages
    ).items():
        store.confirm(shard, own)


def import_(
    namespace: ShardedNamespace, store: Store, messages: Sequence[ExportedMessage]
) -> list[ImportAnswer]:
    """Import each shard's part, in calls of at most `AT_ONCE`."""
    arrivals = [Arrival(namespace, message) for message in messages]
    answers: list[ImportAnswer] = ["accepted"] * len(arrivals)
    for shard, positions in by_shard(arrival.shard(namespace) for arrival in arrivals).items():
        for page in pages(positions, AT_ONCE):
            outcomes = store.import_(shard, [arrivals[n] for n in page])
            for position, outcome in zip(page, outcomes, strict=True):
                answers[position] = outcome
    return answers


def import_finished(
    namespace: ShardedNamespace, store: Store, ids: Sequence[tuple[str, str, int | None]]
) -> None:
    """Remember finished ids on every shard of their topics."""
    on_shards = group(
        (shard, (topic, message_id, until))
        for topic, message_id, until in ids
        for shard in namespace.routes.shards_of(topic)
    )
    for shard, several in on_shards.items():
        for page in pages(several, AT_ONCE):
            store.import_finished(shard, page)

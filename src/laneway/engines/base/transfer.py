"""Move messages to another store while both are in use: `laneway migrate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import msgspec

from laneway.policy import Gate, Layer

ImportAnswer = Literal["accepted", "duplicate"]
"""The answers of `Transfer.import_`; `"duplicate"`: the id is already known here."""


class ExportedMessage(msgspec.Struct, kw_only=True):
    """
    A message on its way to another store, with its complete state. Times are microseconds.

    - `number`: the number of the message in its source.
    - `bodies`: one body, or several that were merged.
    - `serial`: how the message treats its key (`"hold"` or `"yield"`), from the policy when
      it was published, or None if it is not serial.
    - `holds_key`: whether the other messages with its serial key wait for it: it was delivered and
      will be delivered again.
    - `merges`: whether it merges with others of its key.
    - `joined`: ids of messages that were merged into it.
    - `unhandled_us`: since when no worker had a handler for it; `unhandled_times`: how many times.
    - `history`: (time, what happened, error) of its failures, the last 20.
    - `death`: (time, end of retention, reason, error) if it is a dead letter.
    """

    number: int
    id: str
    topic: str
    bodies: list[bytes]
    key: str | None = None
    priority: int = 0
    at_front: bool = False
    headers: dict[str, str] | None = None
    published_us: int
    since_us: int
    expires_us: int | None = None
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    serial: str | None = None
    holds_key: bool = False
    merges: bool = False
    sticky: bool = False
    joined: list[str] = []
    unhandled_us: int | None = None
    unhandled_times: int = 0
    history: list[tuple[int, str, str | None]] = []
    death: tuple[int, int, str, str | None] | None = None


class SpoolBatch(NamedTuple):
    """
    The last batch of a spool that a store has taken, see `Queue.forward`.

    - `taken`: the keys of its messages that the store has taken, see `forwarded_key`.
    - `at_us`: when the store took the last of them.
    """

    spool: str
    batch: str
    taken: frozenset[bytes]
    at_us: int


@runtime_checkable
class Transfer(Protocol):
    """Export from one store and import into another, so that a broken connection loses nothing."""

    def export(self, limit: int) -> list[ExportedMessage]:
        """
        Take up to `limit` messages out of their lanes, in the order of delivery, dead letters last.
        Leased messages stay.

        Exported messages cannot be leased, but stay in the store until `confirm_export`. Messages
        that an earlier call exported and that were not confirmed are returned first, so an
        interrupted migration can be repeated. Returns an empty list if only leased messages are
        left.
        """

    def confirm_export(self, exported_messages: Sequence[ExportedMessage]) -> None:
        """Delete exported messages, after the other store has imported them."""

    def import_(self, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
        """
        Store messages that another store exported. Importing the same messages twice is harmless.

        Returns an answer for each, in their order.
        """

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        """
        Iterate over the ids of finished messages that are still known for `dedupe`.

        Yields (topic, id, the time until which it is known in microseconds, or None for forever).
        """

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        """Store ids of finished messages, as `finished_ids` yields them."""

    def spool_batches(self) -> Iterator[SpoolBatch]:
        """
        Iterate over the last batch of each spool. Several shards may have taken parts of a batch,
        so a spool may appear several times.
        """

    def import_spool_batches(self, batches: Sequence[SpoolBatch]) -> None:
        """
        Record on each shard which messages of these batches another store has taken, so that a
        repeat is `"duplicate"` here too. A later batch of the same spool that this store has taken
        itself is kept.
        """

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        """Return (name, layer, gate) for each gate that the code or an operator defined."""

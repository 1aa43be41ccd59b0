"""
Administration of engines on a SQL database: policies, gates, topics, dead letters, overview.

A read takes the write lock only if messages are in the inbox: it puts them into their lanes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from laneway.engines.base import (
    Explanation,
    ExportedMessage,
    IdState,
    ImportAnswer,
    MessageView,
    RecordChange,
    RecordKind,
    SpoolBatch,
)
from laneway.engines.shared.policy_changes import PolicyChanges
from laneway.engines.sql import (
    forwarding,
    messages,
    migrating,
    policies,
    purging,
    tiers,
    views,
)
from laneway.engines.sql.engine import SqlQueue
from laneway.engines.sql.reads import Reads, View
from laneway.engines.sql.store import Connection
from laneway.message import Draft
from laneway.policy import (
    PROGRAM,
    Gate,
    Layer,
    Layers,
    PolicyTable,
    Resolved,
    check_policy_pattern,
    own_rows,
    sources,
)
from laneway.tiers import Tier, TierLayers
from laneway.topic_groups import GROUP


class SqlEngine(SqlQueue, Reads, PolicyChanges):
    """The hot path of `SqlQueue`, and administration; a database adds what is its own."""

    def _view(self, now_us: int | None = None) -> View:
        return View([self.view(now_us)], lambda _: (0,))

    # Tiers

    def tier_layers(self) -> TierLayers:
        with self.view() as tx:
            return tx.rules.tier_layers

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        with self.transaction(now_us, durable=True) as tx:
            tiers.change(tx, layer, changes)

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        with self.transaction(now_us, durable=True) as tx:
            return tiers.reset(tx, name)

    # Policies

    def policies(self) -> PolicyTable:
        with self.view() as tx:
            policy_table = PolicyTable(tx.rules.tiers, self.policy_own)
            policy_table.load(tx.rules.policy_table.stored_rows())
            return policy_table

    def _change_policies(
        self,
        layer: str,
        changes: Sequence[tuple[str, dict[str, Any]]],
        now_us: int | None,
        *,
        as_stored: bool,
    ) -> list[dict[str, Any]]:
        with self.transaction(now_us, durable=True) as tx:
            return policies.change(tx, layer, changes, as_stored=as_stored)

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        check_policy_pattern(pattern)
        with self.transaction(now_us, durable=True) as tx:
            there = sources(policies.layers_of(tx, pattern)).get(layer)
            if there is None:
                return False
            policies.change(tx, layer, [(pattern, dict.fromkeys(there))])
            return True

    def programs(self) -> dict[str, bytes]:
        with self.view() as tx:
            return {name: value.encode() for name, value in tx.all("settings_of_programs")}

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        with self._store.writing(durable=True) as connection:
            return _swap(connection, PROGRAM + name, before, after)

    # Elections: no part of the queue, so their transactions touch nothing of it

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        with self._store.reading() as connection:
            stored = connection.one("election_read", name)
            now = self._reader(connection, now_us).now
        return (stored[0].encode() if stored is not None else None), now

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        del now_us
        statement, values = (
            ("election_insert", (name, after.decode()))
            if before is None
            else ("election_replace", (after.decode(), name, before.decode()))
        )
        with self._store.writing(durable=durable) as connection:
            return connection.change(statement, *values) == 1

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        with self._store.reading() as connection:
            rows = connection.all("elections_list", after, limit)
        return [name for (name,) in rows]

    # Records: no part of the queue, either

    def record_read(self, kind: RecordKind, names: Sequence[str]) -> list[bytes | None]:
        asked = [f"record:{kind}:{name}" for name in names]
        with self._store.reading() as connection:
            stored = connection.all("records_read", connection.array(asked))
        return [each.encode() if each is not None else None for (each,) in stored]

    def record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> bool:
        return self.record_swap_many(kind, [(name, before, after)])[0]

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        with self._store.writing(durable=True) as connection:
            return [
                _swap(connection, f"record:{kind}:{name}", *values) for name, *values in changes
            ]

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        prefix = f"record:{kind}:"
        with self._store.reading() as connection:
            rows = connection.all("records_list", prefix + after, f"record:{kind};", limit)
        return [(name.removeprefix(prefix), value.encode()) for name, value in rows]

    # History

    def history_read(self, names: Sequence[str]) -> list[bytes | None]:
        with self._store.reading() as connection:
            return [_history(connection, name) for name in names]

    def history_write(self, name: str, before: bytes | None, records: Mapping[str, bytes]) -> bool:
        # Not a transaction of the queue, and not synced.
        with self._store.writing(durable=False, changes_queue=False) as connection:
            if _history(connection, name) != before:
                return False
            connection.run_many("history_write", list(records.items()))
            return True

    def policy_own(self, topic: str) -> Layers:
        with self.view() as tx:
            return tx.own_layers(tx.own_of(topic))

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        with self.view() as tx:
            topics = policies.page(tx, after, limit)
            return topics, topics[-1][0] if len(topics) == limit else None

    def policy_of(self, topic: str) -> Resolved:
        with self.view() as tx:
            return tx.policy(topic)

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        with self.view() as tx:
            policies = map(tx.policy, {draft.topic for draft in drafts})
            return not any(policy.limits_backlog or policy.is_copied for policy in policies)

    # Gates

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        with self.transaction(now_us, durable=True) as tx:
            policies.set_gate(tx, name, gate, layer)

    def gate_reset(self, name: str, *, now_us: int | None = None) -> bool:
        with self.transaction(now_us, durable=True) as tx:
            return policies.reset_gate(tx, name)

    def topic_group_set(
        self, name: str, settings: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        self.gate_set(GROUP + name, settings, layer=layer, now_us=now_us)

    # Topics

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        removed = 0
        last: int | None = None
        while True:
            with self.transaction(now_us, durable=True) as tx:
                last = tx.shard.seq if last is None else last
                got, has_more = purging.purge(tx, topic, last)
            removed += got
            if not has_more:
                return removed

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        removed = self.topic_purge(topic, now_us=now_us)
        deletion = purging.Deletion(topic)
        while not deletion.is_over:
            with self.transaction(now_us, durable=True) as tx:
                deletion.step(tx)
        return removed + deletion.removed

    # Messages

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, IdState]:
        with self.view(now_us) as tx:
            return views.lookup(tx, topic, ids)

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        with self.view() as tx:
            row = messages.find(tx, message_id, topic)
            return views.message_view(tx, row) if row is not None else None

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        return self._explained([0], message_id, topic, now_us)

    # Dead letters

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        with self.view() as tx:
            rows = (
                tx.all("dead_list", after, limit)
                if topic is None
                else tx.all("dead_list_of", topic, after, limit)
            )
            tx.messages.load([mid for _, mid, *_ in rows])
            views.prefetch(tx, [tx.messages.get(mid) for _, mid, *_ in rows])
            return [
                (row[0], view) for row in rows if (view := views.dead_view(tx, row)) is not None
            ]

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        first_us: int = 0,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        with self.transaction(now_us, durable=True) as tx:
            letters = purging.dead_letters(tx, topic, ids, limit)
            return purging.redrive(tx, letters, first=tx.now + first_us, spacing_us=spacing_us)

    def dead_drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        now_us: int | None = None,
    ) -> int:
        with self.transaction(now_us, durable=True) as tx:
            return purging.drop_dead(tx, purging.dead_letters(tx, topic, ids, limit))

    # Export to another store

    def export(self, limit: int) -> list[ExportedMessage]:
        with self.transaction(None, durable=True) as tx:
            return migrating.export(tx, limit)

    def confirm_export(self, exported_messages: Sequence[ExportedMessage]) -> None:
        with self.transaction(None, durable=True) as tx:
            migrating.confirm_export(tx, exported_messages)

    def import_(self, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
        with self.transaction(None, durable=True) as tx:
            return migrating.import_(tx, exported_messages)

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        with self.view() as tx:
            return iter(list(migrating.finished_ids(tx)))

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        with self.transaction(None, durable=True) as tx:
            migrating.import_finished(tx, ids)

    def spool_batches(self) -> Iterator[SpoolBatch]:
        with self.view() as tx:
            return iter(forwarding.spool_batches(tx))

    def import_spool_batches(self, batches: Sequence[SpoolBatch]) -> None:
        with self.transaction(None, durable=True) as tx:
            forwarding.import_spool_batches(tx, batches)

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        layers: tuple[Layer, Layer] = ("code", "operator")
        with self.view() as tx:
            states = [tx.cached_gate(row) for row in tx.all("gates")]
            stored = (
                (state.name, layer, text)
                for state in states
                for layer, text in zip(layers, (state.code, state.operator), strict=True)
            )
            return [
                (name, layer, msgspec.json.decode(text, type=Gate))
                for name, layer, text in stored
                if text
            ]

    # The namespace

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        del topic
        with self.view(now_us) as tx:
            return tx.now

    def _policy_rows(self) -> list[tuple[str, str, dict[str, Any]]]:
        with self.view() as tx:
            return [*tx.rules.policy_table.stored_rows(), *own_rows(policies.page(tx, "", 1 << 60))]


def _swap(connection: Connection, name: str, before: bytes | None, after: bytes | None) -> bool:
    """Replace a setting, if it is still `before`; None: there is none."""
    if before is None:
        if after is None:
            return connection.one("setting_read", name) is None
        values: tuple[str, ...] = (name, after.decode())
        statement = "record_insert"
    elif after is None:
        statement, values = "record_remove", (name, before.decode())
    else:
        statement, values = "record_replace", (after.decode(), name, before.decode())
    return connection.change(statement, *values) == 1


def _history(connection: Connection, name: str) -> bytes | None:
    row = connection.one("history_read", name)
    return row[0] if row is not None else None

"""Administration of the SQLite engine: policies, gates, topics, dead letters, and the overview. Reading costs no write lock."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.engines.base import Check, Explanation, MessageView, Overview, Parcel, TierStats, TopicStats
from laneway.engines.sqlite import explaining, health, listing, moving, policies, purging, tiers, views
from laneway.engines.sqlite.engine import Core, _clock
from laneway.engines.sqlite.rows import Row
from laneway.engines.sqlite.turn import Turn
from laneway.policy import PROGRAM, Gate, PolicyBook, check_changes, check_pattern, own_rows, sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from laneway.message import Draft
    from laneway.policy import Layer, Layers, Resolved
    from laneway.tiers import Tier, TierLayers

COUNTED = 1000
"""Lanes are counted up to here for people; more is "1,000+"."""


class SqliteEngine(Core):
    """Both faces of the engine."""

    @contextmanager
    def _view(self, now_us: int | None = None) -> Iterator[Turn]:
        with self._store.reading() as connection:
            yield Turn(connection, self._rules, _clock() if now_us is None else now_us)

    # Tiers

    def tier_layers(self) -> TierLayers:
        with self._view() as turn:
            return turn.rules.tier_layers

    def tier_set(self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None) -> None:
        with self._turn(now_us, durable=True) as turn:
            tiers.change(turn, layer, changes)

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        with self._turn(now_us, durable=True) as turn:
            return tiers.reset(turn, name)

    # Policies

    def policies(self) -> PolicyBook:
        with self._view() as turn:
            book = PolicyBook(turn.rules.tiers, self.policy_own)
            book.load(turn.rules.book.stored_rows())
            return book

    def policy_set(self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None) -> dict[str, Any]:
        return self.policy_set_many(layer, [(pattern, fields)], now_us=now_us)[0]

    def policy_set_many(self, layer: str, changes: Sequence[tuple[str, Mapping[str, Any]]], *, now_us: int | None = None) -> list[dict[str, Any]]:
        checked = check_changes(changes)
        if not checked:
            return []
        with self._turn(now_us, durable=True) as turn:
            return policies.change(turn, layer, checked)

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        check_pattern(pattern)
        with self._turn(now_us, durable=True) as turn:
            there = sources(policies.layers_of(turn, pattern)).get(layer)
            if there is None:
                return False
            policies.change(turn, layer, [(pattern, dict.fromkeys(there))])
            return True

    def programs(self) -> dict[str, bytes]:
        with self._view() as turn:
            return {name: value.encode() for name, value in turn.all("settings_of_programs")}

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        with self._turn(None, durable=True) as turn:
            stored = turn.one("setting_read", PROGRAM + name)
            if (stored[0].encode() if stored is not None else None) != before:
                return False
            if after is None:
                turn.run("setting_delete", PROGRAM + name)
            else:
                turn.run("setting_write", PROGRAM + name, after.decode())
            return True

    def policy_own(self, topic: str) -> Layers:
        with self._view() as turn:
            return turn.own_layers(turn.own_of(topic))

    def policy_own_list(self, after: str = "", limit: int = 1000) -> tuple[list[tuple[str, Layers]], str | None]:
        with self._view() as turn:
            found = policies.page(turn, after, limit)
            return found, found[-1][0] if len(found) == limit else None

    def policy_of(self, topic: str) -> Resolved:
        with self._view() as turn:
            return turn.policy(topic)

    def puts_whole(self, drafts: Sequence[Draft]) -> bool:
        with self._view() as turn:
            return not any(turn.policy(topic).limits_backlog for topic in {draft.topic for draft in drafts})

    # Gates

    def gate_set(self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None) -> None:
        with self._turn(now_us, durable=True) as turn:
            state = turn.make_gate(name)
            text = msgspec.json.encode(gate).decode()
            if layer == "operator":
                state.operator = text
            else:
                state.code = text
            state.limits = msgspec.json.decode(state.operator or state.code or text, type=Gate)
            state.rebase(turn.now)

    def gate_list(self) -> list[dict[str, Any]]:
        with self._view() as turn:
            return _gates(turn)

    # Topics

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        with self._view(now_us) as turn:
            stats = views.topic_stats(turn, topic)
            stats.cursors = views.cursors(turn, topic)
            return stats

    def topic_list(
        self, *, order: str = "name", pattern: str = "*", limit: int = 20, after: str | None = None, now_us: int | None = None
    ) -> list[TopicStats]:
        with self._view(now_us) as turn:
            return listing.topics(turn, order, pattern, limit, after)

    def topic_peek(self, topic: str, *, limit: int = 10, now_us: int | None = None) -> list[MessageView]:
        with self._view(now_us) as turn:
            return views.peek(turn, topic, limit)

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        removed = 0
        last: int | None = None
        while True:
            with self._turn(now_us, durable=True) as turn:
                last = turn.shard.seq if last is None else last
                got = purging.purge(turn, topic, last)
            removed += got
            if got < purging.PAGE:
                return removed

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        removed = self.topic_purge(topic, now_us=now_us)
        while True:
            with self._turn(now_us, durable=True) as turn:
                got = purging.drop_dead(turn, topic, None, purging.PAGE)
                if got < purging.PAGE:
                    return removed + got + purging.delete(turn, topic)
            removed += got

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        with self._view() as turn:
            return views.cursors(turn, topic)

    # Messages

    def lookup(self, topic: str, ids: Sequence[str], *, now_us: int | None = None) -> dict[str, str]:
        with self._view(now_us) as turn:
            leased = views.Leased(turn)
            return {message_id: views.state_of(turn, topic, message_id, leased) for message_id in ids}

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        with self._view() as turn:
            row = views.find(turn, message_id, topic)
            return views.message_view(turn, row, views.Leased(turn)) if row is not None else None

    def explain(self, message_id: str, topic: str | None = None, *, now_us: int | None = None) -> Explanation:
        with self._view(now_us) as turn:
            return explaining.explain(turn, message_id, topic)

    # Dead letters

    def dead_list(self, topic: str | None = None, *, limit: int = 50, after: int = 0) -> list[tuple[int, MessageView]]:
        with self._view() as turn:
            found = turn.all("dead_list", after, limit) if topic is None else turn.all("dead_list_of", topic, after, limit)
            return [(row[0], view) for row in found if (view := views.dead_view(turn, row)) is not None]

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
        with self._turn(now_us, durable=True) as turn:
            return purging.redrive(turn, topic, ids, limit, first=turn.now + first_us, spacing_us=spacing_us)

    def dead_drop(self, topic: str | None = None, ids: Sequence[str] | None = None, *, limit: int = 1000, now_us: int | None = None) -> int:
        with self._turn(now_us, durable=True) as turn:
            return purging.drop_dead(turn, topic, ids, limit)

    # Moving to another store

    def send(self, limit: int) -> list[Parcel]:
        with self._turn(None, durable=True) as turn:
            return moving.send(turn, limit)

    def sent(self, parcels: Sequence[Parcel]) -> None:
        with self._turn(None, durable=True) as turn:
            moving.sent(turn, parcels)

    def receive(self, parcels: Sequence[Parcel]) -> list[str]:
        with self._turn(None, durable=True) as turn:
            return moving.receive(turn, parcels)

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        with self._view() as turn:
            return iter(list(moving.finished_ids(turn)))

    def receive_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        with self._turn(None, durable=True) as turn:
            moving.receive_finished(turn, ids)

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        layers: tuple[Layer, Layer] = ("code", "operator")
        with self._view() as turn:
            states = [turn.keep_gate(row) for row in turn.all("gates")]
            told = ((state.name, layer, text) for state in states for layer, text in zip(layers, (state.code, state.operator), strict=True))
            return [(name, layer, msgspec.json.decode(text, type=Gate)) for name, layer, text in told if text]

    # The whole

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        del topic
        with self._view(now_us) as turn:
            return turn.now

    def overview(self, *, now_us: int | None = None) -> Overview:
        with self._view(now_us) as turn:
            shard = turn.shard
            tiers = [
                TierStats(band.pool, band.tier, turn.rules.tiers[band.tier].share if band.tier in turn.rules.tiers else 0, band.delivered,
                          turn.one("band_runnable", band.band, COUNTED)[0])
                for band in turn.bands.values()
            ]  # fmt: skip
            return Overview(
                now_us=turn.now, topics=shard.lanes, waiting=shard.waiting, leased=shard.leased, dead=shard.dead, bytes=shard.bytes,
                published=shard.published, delivered=shard.delivered, done=shard.done, retried=shard.retried, died=shard.died,
                merged=shard.merged, expired=shard.expired, removed=shard.removed, last_number=shard.seq, tiers=tiers,
            )  # fmt: skip

    def doctor(self, *, repair: bool = False) -> list[Check]:
        checks = health.check_file(self._store)
        if not all(check.ok for check in checks):
            return checks
        with self._turn(0, durable=True) as turn:
            return checks + health.check_parts(turn, repair=repair)

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        with self._view(now_us) as turn:
            leased = views.Leased(turn)
            rows = [Row(*row) for row in turn.all("messages_all")]
            found = [view for row in rows if (view := views.message_view(turn, row, leased)) is not None]
            names = sorted({view.topic for view in found} | {lane.topic for lane in views.all_lanes(turn) if lane.topic is not None})
            return {
                "now_us": turn.now,
                "totals": msgspec.structs.asdict(self.overview(now_us=now_us)),
                "topics": {name: msgspec.structs.asdict(views.topic_stats(turn, name)) for name in names},
                "messages": [msgspec.structs.asdict(view) for view in found],
                "gates": _gates(turn),
                "policies": sorted([*turn.rules.book.stored_rows(), *own_rows(policies.page(turn, "", 1 << 60))], key=lambda row: row[:2]),
            }


def _gates(turn: Turn) -> list[dict[str, Any]]:
    return [views.gate_view(turn, turn.keep_gate(row), COUNTED) for row in turn.all("gates")]

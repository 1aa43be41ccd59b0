"""
The engine on a namespace of several stores, its shards.

Each shard has a write lock of its own, so processes that are on different shards do not
wait for each other. `laneway.engines.sharded` splits the calls.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from laneway.engines.base import (
    BY_OPERATOR,
    CancelAnswer,
    Capabilities,
    Check,
    DoctorStep,
    Explanation,
    ExportedMessage,
    IdState,
    ImportAnswer,
    LogEntry,
    MessageView,
    MoveAnswer,
    MoveTarget,
    RecordChange,
    RecordKind,
    Settings,
    SpoolBatch,
    StorePart,
    WorkerFacts,
    WorkerView,
    WorkListener,
)
from laneway.engines.sharded.admin import DeadAction, ShardedAdmin
from laneway.engines.sharded.migrating import Arrival
from laneway.engines.sharded.presence import ShardedCoordination
from laneway.engines.sharded.queue import LeaseRequest, ShardedQueue
from laneway.engines.sharded.splitting import Numbers, by_shard, group
from laneway.engines.shared.doctor import HANDLERS, finding, unhandled
from laneway.engines.shared.naming import generated_id
from laneway.engines.shared.refusals import nobody_follows
from laneway.engines.sql import messages, purging, results
from laneway.engines.sql.reads import Reads, View
from laneway.engines.sql.rows import Held
from laneway.engines.sql.shard_namespace import ShardNumbers, ShardsOfNamespace
from laneway.engines.sql.shard_store import ShardStore
from laneway.engines.sql.wakeup import Waits
from laneway.errors import BadMessage, UsageError
from laneway.message import (
    Batch,
    Draft,
    ProgressReport,
    Receipt,
    Settlement,
    SettlementAnswer,
    StoredResult,
)
from laneway.policy import Gate, Layer

_STATES: tuple[IdState, ...] = ("leased", "waiting", "dead", "finished", "unknown")
"""Of a topic in several shards, the first one of these that a shard answers is the id's state."""


class ShardsQueue(Waits, ShardedQueue, ShardedCoordination):
    """The hot path: what each shard gets and answers."""

    most_at_once = 1 << 30
    _space: ShardsOfNamespace
    capabilities: Capabilities

    def __init__(self, url: str, settings: Settings, space: ShardsOfNamespace) -> None:
        self._space = space
        super().__init__(space, settings)
        self._numbers = ShardNumbers(space.shards)
        self._wakeup = space.wakeup
        self.url = url
        self.namespace = settings.namespace
        self.durability: str = space.stores[0].durability

    # Put

    def _put_on(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        return self._space.on(
            shard,
            lambda store: store.put(drafts, now_us=now_us),
            lambda: list(self._split(drafts)) == [shard],
        )

    def _forward_on(
        self, shard: int, drafts: Sequence[Draft], spool: str, batch: str, now_us: int | None
    ) -> list[Receipt]:
        return self._space.on(
            shard,
            lambda store: store.forward(drafts, spool=spool, batch=batch, now_us=now_us),
            lambda: list(self._split(drafts)) == [shard],
        )

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        shards = self._split(drafts)
        return len(shards) <= 1 and all(
            self._space.stores[shard].is_put_atomic(drafts) for shard in shards
        )

    def _check(self, drafts: Sequence[Draft], *, is_current: bool = False) -> None:
        """
        Check what goes to several shards before the first one gets its part. Each one checks its
        own part; it knows the topics' own policies.
        """
        if self._space.shards == 1 or len(drafts) == 1 or is_current:
            return
        try:
            super()._check(drafts, is_current=True)
        except BadMessage:
            # what this process knows may be old, and lacks the topics' own policies
            self._space.refresh_topics({draft.topic for draft in drafts})
            super()._check(drafts, is_current=True)

    # Lease and settle

    def _lease_on(
        self, shard: int, request: LeaseRequest, n: int, startable: int, now_us: int | None
    ) -> Batch:
        return self._space.on(
            shard,
            lambda store: store.lease(
                n,
                pool=request.pool,
                topics=request.topics,
                startable=startable,
                record_start=request.record_start,
                only=request.only,
                without=request.without,
                tiers=request.tiers,
                max_lease_us=request.max_lease_us,
                priorities=request.priorities,
                holder=request.holder,
                now_us=now_us,
            ),
        )

    def _free_first(self, shards: Iterable[int]) -> Iterator[int]:
        """The shards that no other process is writing into now come first."""
        busy: list[int] = []
        for shard in shards:
            if self._space.stores[shard].is_busy:
                busy.append(shard)
            else:
                yield shard
        yield from busy

    def _settle_on(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        publish = group(published)
        return self._space.on(
            shard,
            lambda store: store.settle(settlements, publish=publish, now_us=now_us),
            lambda: self._belong_to(shard, published),
        )

    def _publish_elsewhere(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[tuple[int, Draft]]:
        here = super()._publish_elsewhere(shard, settlements, published, now_us)
        if len(here) < len(published):
            for store in self._space.stores:  # before the ack is committed, in another shard
                store.sync_now()
        return here

    @contextmanager
    def syncing_later(self) -> Iterator[None]:
        """See `base.SyncsLater`."""
        with ExitStack() as stack:
            for store in self._space.stores:
                stack.enter_context(store.syncing_later())
            yield

    def _extend_on(
        self,
        shard: int,
        leases: Sequence[tuple[int, int]],
        by_us: int | None,
        now_us: int | None,
    ) -> list[bool]:
        return self._space.on(
            shard,
            lambda store: (
                store.start(leases, now_us=now_us)
                if by_us is None
                else store.extend(leases, by_us, now_us=now_us)
            ),
        )

    def _leased_id_on(self, shard: int, settlement: Settlement) -> str | None:
        if settlement.action not in ("ack", "dead"):
            return None
        with self._space.stores[shard].view() as tx:
            row = tx.one("leases_read", tx.array([settlement.fence]))
            held = Held(*row) if row is not None else None
            if held is None or held.gone or held.mid != settlement.handle:
                return None
            message = tx.messages.get(held.mid)
            own = message.id if message is not None and held.empty is None else None
            return own or generated_id(self._space.nonce, held.mid)

    def _tick_on(self, shard: int, budget: int, now_us: int | None) -> int | None:
        return self._space.on(shard, lambda store: store.tick(budget=budget, now_us=now_us))

    # Results and progress

    def _report_progress_on(
        self, shard: int, reports: Sequence[ProgressReport], now_us: int | None
    ) -> list[bool]:
        return self._space.on(shard, lambda store: store.report_progress(reports, now_us=now_us))

    def _results_on(self, shard: int, ids: Sequence[tuple[str, str | None]]) -> list[StoredResult]:
        with self._space.stores[shard].view() as tx:
            return results.read(tx, ids)

    def _delete_result_on(self, shard: int, message_id: str, topic: str | None) -> None:
        self._space.on(shard, lambda store: store.delete_result(message_id, topic))

    # Waiting

    def has_work(self, pool: str, topics: Sequence[str] | None) -> float:
        """In how many seconds a pool may have something to lease in a shard; 0: it has now."""
        self._grants.renew()
        soonest = max(0.001, self._grants.look_at - time.monotonic())
        changed, self._wakeup.changed = self._wakeup.changed, set()
        for shard in dict.fromkeys((*changed, *range(self._space.shards))):
            soon = self._space.stores[shard].has_work(pool, topics)
            if soon <= 0:
                self._wakeup.changed.add(shard)
                return 0.0
            soonest = min(soonest, soon)
        return soonest

    def _take_notified(self) -> set[int]:
        notified, self._wakeup.changed = self._wakeup.changed, set()
        return notified

    def _changed_us(self) -> list[int]:
        return [store.changed_us() for store in self._space.stores]

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        return self._wakeup.work_listener(
            pool,
            topics,
            max_lease_us=max_lease_us,
            looks_always=not self._wakeup.names_shards,  # looking finds the shard
        )

    # Coordination

    def _beat_on(
        self, shard: int, facts: WorkerFacts, dead_after_us: int, listed_us: int, now_us: int | None
    ) -> int:
        return self._space.stores[shard].beat(
            facts, dead_after_us=dead_after_us, listed_us=listed_us, now_us=now_us
        )

    def _leave_on(self, shard: int, worker_id: str) -> None:
        self._space.stores[shard].leave(worker_id)

    def _workers_on(
        self, shard: int, limit: int, after: str, pool: str | None, now_us: int | None
    ) -> list[WorkerView]:
        store = self._space.stores[shard]
        return store.workers(limit=limit, after=after, pool=pool, now_us=now_us)

    def ping(self, worker_ids: Sequence[str]) -> None:
        self._space.stores[0].ping(worker_ids)

    def close(self) -> None:
        self._space.close()
        self._wakeup.interrupt()  # last: a wait that begins after it finds the stores closed


class ShardsEngine(ShardsQueue, ShardedAdmin, Reads):
    """The queue and the administration in one object."""

    def _view(self, now_us: int | None = None) -> View:
        self._space.refresh()
        return View(
            (store.view(now_us) for store in self._space.stores), self._space.routes.shards_of
        )

    def _shard_of(self, message_id: str, topic: str | None) -> int | None:
        """The shard that has the message, or had it last; None: no shard knows it."""
        self._space.refresh()
        generated = self._space.generated(message_id)
        shards = self._space.routes.shards_of(topic) if topic is not None else []
        first = [generated[0]] if generated is not None else []
        every: list[int] = [*first, *shards, *range(self._space.shards)]
        for shard in dict.fromkeys(every):
            with self._space.stores[shard].view() as tx:
                if messages.find(tx, message_id, topic) is not None:
                    return shard
        return None

    # Programs

    def programs(self) -> dict[str, bytes]:
        return self._space.stores[0].programs()

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        return self._space.on(0, lambda store: store.program_swap(name, before, after))

    # Records: in the first shard

    def record_read(self, kind: RecordKind, names: Sequence[str]) -> list[bytes | None]:
        return self._space.stores[0].record_read(kind, names)

    def record_swap(
        self, kind: RecordKind, name: str, before: bytes | None, after: bytes | None
    ) -> bool:
        return self._space.on(0, lambda store: store.record_swap(kind, name, before, after))

    def record_swap_many(self, kind: RecordKind, changes: Sequence[RecordChange]) -> list[bool]:
        return self._space.on(0, lambda store: store.record_swap_many(kind, changes))

    def records(
        self, kind: RecordKind, *, limit: int = 1000, after: str = ""
    ) -> list[tuple[str, bytes]]:
        return self._space.stores[0].records(kind, limit=limit, after=after)

    # Elections: each is in the shard of its name

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        return self._store_of(name).election_read(name, now_us=now_us)

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        return self._store_of(name).election_swap(
            name, before, after, durable=durable, now_us=now_us
        )

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        return heapq.nsmallest(
            limit,
            (
                name
                for store in self._space.stores
                for name in store.elections(limit=limit, after=after)
            ),
        )

    # History: in the first shard

    def history_read(self, names: Sequence[str]) -> list[bytes | None]:
        return self._space.stores[0].history_read(names)

    def history_write(self, name: str, before: bytes | None, records: Mapping[str, bytes]) -> bool:
        return self._space.stores[0].history_write(name, before, records)

    # The delivery log: of the first shard

    def delivery_log_append(
        self,
        entries: Sequence[LogEntry],
        *,
        keep_us: int,
        max_bytes: int,
        from_us: int | None = None,
        now_us: int | None = None,
    ) -> None:
        self._space.stores[0].delivery_log_append(
            entries, keep_us=keep_us, max_bytes=max_bytes, from_us=from_us, now_us=now_us
        )

    def delivery_log_read(
        self,
        topic: str | None = None,
        *,
        limit: int = 100,
        before: int | None = None,
        until_us: int | None = None,
    ) -> list[tuple[int, LogEntry]]:
        return self._space.stores[0].delivery_log_read(
            topic, limit=limit, before=before, until_us=until_us
        )

    def _store_of(self, name: str) -> ShardStore:
        return self._space.stores[self._space.routes.home(name)]

    # One shard

    def _advance_clock_on(self, shard: int, now_us: int | None) -> None:
        with self._space.stores[shard].transaction_at_any_version(now_us, durable=False):
            pass

    def _gate_limits(self, gate: str) -> Gate | None:
        with self._space.stores[0].view() as tx:
            state = tx.gate(gate)
            return state.whole if state is not None else None

    def _set_gate(self, name: str, gate: Gate, layer: Layer, now_us: int | None) -> None:
        for shard in range(self._space.shards):
            self._space.set_gate(shard, name, gate, layer, now_us)

    def _reset_gate(self, name: str, now_us: int | None) -> None:
        for shard in range(self._space.shards):
            self._space.on(shard, lambda store: store.gate_reset(name, now_us=now_us))

    def _purge_on(self, shard: int, topic: str, now_us: int | None) -> int:
        return self._space.on(shard, lambda store: store.topic_purge(topic, now_us=now_us))

    def _dead_on(
        self,
        shard: int,
        action: DeadAction,
        topic: str | None,
        numbers: Sequence[int] | None,
        most: int,
        first_us: int,
        spacing_us: int,
        now_us: int | None,
    ) -> int:
        def process(store: ShardStore) -> int:
            with store.transaction(now_us) as tx:
                letters = (
                    purging.oldest_dead(tx, topic, most)
                    if numbers is None
                    else purging.dead_by_number(tx, numbers)
                )
                if action == "drop":
                    return purging.drop_dead(tx, letters)
                return purging.redrive(tx, letters, first=tx.now + first_us, spacing_us=spacing_us)

        return self._space.on(shard, process)

    def _locate(self, ids: Iterable[str], topic: str | None) -> list[tuple[int, int]]:
        located: list[tuple[int, int]] = []
        for message_id in ids:
            shard = self._shard_of(message_id, topic)
            if shard is not None:
                with self._space.stores[shard].view() as tx:
                    row = messages.find(tx, message_id, topic)
                    located += [(shard, row.mid)] if row is not None else []
        return located

    # Topics

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        self._space.refresh()
        return sum(
            self._space.on(shard, lambda store: store.topic_delete(topic, now_us=now_us))
            for shard in self._space.routes.shards_of(topic)
        )

    # Messages

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, IdState]:
        self._space.refresh()
        found: dict[str, IdState] = dict.fromkeys(ids, "unknown")
        for shard in self._space.routes.shards_of(topic):
            states = self._space.stores[shard].lookup(topic, ids, now_us=now_us)
            for message_id, state in states.items():
                found[message_id] = min(found[message_id], state, key=_STATES.index)
        return found

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        shard = self._shard_of(message_id, topic)
        return self._space.stores[shard].find(message_id, topic) if shard is not None else None

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        shard = self._shard_of(message_id, topic)
        shards = range(self._space.shards) if shard is None else [shard]
        return self._explained(shards, message_id, topic, now_us)

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> CancelAnswer:
        shard = self._shard_of(message_id, topic)
        if shard is None:
            return "unknown"
        return self._space.on(shard, lambda store: store.cancel(message_id, topic, now_us=now_us))

    def message_move(
        self,
        message_id: str,
        topic: str | None = None,
        *,
        to: MoveTarget,
        reason: str = BY_OPERATOR,
        now_us: int | None = None,
    ) -> MoveAnswer:
        shard = self._shard_of(message_id, topic)
        if shard is None:
            return "unknown"
        return self._space.on(
            shard,
            lambda store: store.message_move(
                message_id, topic, to=to, reason=reason, now_us=now_us
            ),
        )

    def topic_back_off(self, topic: str, by_us: int, *, now_us: int | None = None) -> int:
        self._space.refresh()
        return sum(
            self._space.on(shard, lambda store: store.topic_back_off(topic, by_us, now_us=now_us))
            for shard in self._space.routes.shards_of(topic)
        )

    def on_end(self, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
        shard = self._shard_of(message_id, topic)
        shards = self._shards_of_result(message_id, topic) if shard is None else [shard]
        for each in shards:
            try:
                return self._space.on(each, lambda store: store.on_end(message_id, topic, follower))
            except UsageError:
                continue
        raise nobody_follows(message_id)

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        self._space.refresh()
        return [
            name
            for shard in self._space.routes.shards_of(topic)
            for name in self._space.on(
                shard, lambda store: store.watch_topic(topic, seconds, now_us=now_us)
            )
        ]

    # Dead letters

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        self._space.refresh()
        numbers = Numbers(self._space.shards)
        routes = self._space.routes
        found: list[tuple[int, MessageView]] = []
        for shard in range(self._space.shards) if topic is None else routes.shards_of(topic):
            last = numbers.first_beyond(shard, after) - 1
            letters = self._space.stores[shard].dead_list(topic, limit=limit, after=last)
            found += [(numbers.join(shard, number), view) for number, view in letters]
        return sorted(found, key=lambda each: each[0])[:limit]

    # Moving to another store

    def export(self, limit: int) -> list[ExportedMessage]:
        exported: list[ExportedMessage] = []
        for shard in range(self._space.shards):
            if len(exported) < limit:
                left = limit - len(exported)
                exported += self._space.on(shard, lambda store, left=left: store.export(left))  # type: ignore[misc]  # bound now
        return exported

    def confirm_export(self, exported_messages: Sequence[ExportedMessage]) -> None:
        positions = self._numbers.by_shard([each.number for each in exported_messages])
        for shard, those in positions.items():
            part = [exported_messages[n] for n in those]
            self._space.on(shard, lambda store, part=part: store.confirm_export(part))  # type: ignore[misc]

    def import_(self, exported_messages: Sequence[ExportedMessage]) -> list[ImportAnswer]:
        self._space.refresh()
        answers: list[ImportAnswer] = ["accepted"] * len(exported_messages)
        arrivals = (Arrival(self._space, each) for each in exported_messages)
        shards = by_shard(arrival.shard(self._space) for arrival in arrivals)
        for shard, positions in shards.items():
            part = [exported_messages[n] for n in positions]
            outcomes = self._space.on(shard, lambda store, part=part: store.import_(part))  # type: ignore[misc]
            for position, outcome in zip(positions, outcomes, strict=True):
                answers[position] = outcome
        return answers

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        return iter(
            dict.fromkeys(each for store in self._space.stores for each in store.finished_ids())
        )

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        self._space.refresh()
        parts = group(
            (shard, each) for each in ids for shard in self._space.routes.shards_of(each[0])
        )
        for shard, part in parts.items():
            self._space.on(shard, lambda store, part=part: store.import_finished(part))  # type: ignore[misc]

    def spool_batches(self) -> Iterator[SpoolBatch]:
        return (each for store in self._space.stores for each in store.spool_batches())

    def import_spool_batches(self, batches: Sequence[SpoolBatch]) -> None:
        for shard in range(self._space.shards):
            self._space.on(shard, lambda store: store.import_spool_batches(batches))

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        return self._space.stores[0].gate_layers()

    # The namespace

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        shards = range(self._space.shards)
        if topic is not None:
            shards = self._space.routes.shards_of(topic)[:1]  # type: ignore[assignment]
        return max(self._space.stores[shard].time_us(now_us=now_us) for shard in shards)

    def store_parts(self) -> list[StorePart]:
        return [part for store in self._space.stores for part in store.store_parts()]

    def doctor(self, *, repair: bool = False) -> list[Check]:
        policies_agree = self._policies_agree(repair=repair)  # first: other calls repair them
        by_name: dict[str, list[tuple[int, Check]]] = {}
        for shard in range(self._space.shards):
            for check in self._space.on(shard, lambda store: store.doctor(repair=repair)):
                by_name.setdefault(check.name, []).append((shard, check))
        return self._added_up(by_name, policies_agree)

    def doctor_steps(self, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
        shards = self._space.shards
        policies_agree = self._policies_agree(repair=False)
        by_name: dict[str, list[tuple[int, Check]]] = {}
        for shard, store in enumerate(self._space.stores):
            step = None
            for step in store.doctor_steps(pause):
                yield DoctorStep(shard * step.total + step.done, shards * step.total)
            if step is None or not step.checks:  # it has been ended
                return
            for check in step.checks:
                by_name.setdefault(check.name, []).append((shard, check))
        yield DoctorStep(1, 1, self._added_up(by_name, policies_agree))

    def _added_up(
        self, by_name: dict[str, list[tuple[int, Check]]], policies_agree: Check
    ) -> list[Check]:
        handlers = by_name.pop(HANDLERS, [])
        noun = self._space.stores[0].noun
        checks = [_together(those, noun) for those in by_name.values()]
        checks.insert(1, policies_agree)
        return [*checks, unhandled(self._unhandled())] if handlers else checks

    def _unhandled(self) -> int:
        with self._view() as view:
            return sum(tx.one("check_unhandled")[0] for tx in view.transactions)

    def _policies_agree(self, *, repair: bool) -> Check:
        space = self._space
        space.reload()
        right = space.routes.policies.stored_rows()
        wrong = 0
        for shard in range(1, space.shards):
            with space.stores[shard].view() as tx:
                version = tx.shard.policy_version
                if (
                    version == space.routes.version
                    and tx.rules.policy_table.stored_rows() == right
                    and tx.rules.tier_layers.json() == space.tier_layers.json()
                ):
                    continue
            wrong += 1
            if repair:
                space.write_all_policies(shard, version)
        what = f"{space.stores[0].noun}s that do not have the current policies"
        return finding("policies", wrong, what, repair=repair)


def _together(checks: list[tuple[int, Check]], noun: str) -> Check:
    """One check of all shards: those that found something are named by `noun` and number."""
    found = [(shard, check) for shard, check in checks if check.detail != checks[0][1].detail]
    if not found:
        return checks[0][1]
    wrong = [(shard, check) for shard, check in checks if check.detail not in ("fine", "intact")]
    return Check(
        checks[0][1].name,
        all(check.ok for _, check in checks),
        "; ".join(f"{noun} {shard}: {check.detail}" for shard, check in wrong),
        next((check.advice for _, check in wrong if check.advice), ""),
    )

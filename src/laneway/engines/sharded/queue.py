"""
The hot path over the shards of one namespace: which shard gets which part of a batch, in which
order, and how the answers come together.

The methods whose names end in `_on` are the engine's: each is one atomic call (or a few, for large
batches) of a function on one shard, with plain values as arguments and answers.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, cast

import msgspec

from laneway.engines.base import HOUSEKEEPING_LIMIT, SIGNALS_HEADER, Settings
from laneway.engines.sharded.grants import Grants
from laneway.engines.sharded.namespace import ShardedNamespace
from laneway.engines.sharded.routes import Route
from laneway.engines.sharded.splitting import (
    PAGE,
    PAGE_US,
    CallSize,
    Numbers,
    by_shard,
    pages_within,
    partial_call,
)
from laneway.engines.sharded.visits import Visits
from laneway.engines.shared.copies import copies_of, count_copies
from laneway.engines.shared.refusals import (
    backlog_full_with_ack,
    check_draft,
    check_names,
    may_merge,
)
from laneway.errors import BacklogFull, BadMessage, EngineUnavailable
from laneway.message import (
    Batch,
    Draft,
    Lease,
    ProgressReport,
    Receipt,
    Settlement,
    SettlementAnswer,
    StoredResult,
)

PutOn = Callable[[int, Sequence[Draft]], list[Receipt]]

SHARDS_AT_ONCE = 8
"""Shards that one lease visits at most once it has messages. A busy worker leases again soon."""


class Rerouted(Exception):  # it is answered by another attempt, and never seen
    """
    The policies that were read during a call route its messages to other shards. The shard accepted
    only the first ones, those of `receipts`.
    """

    def __init__(self, receipts: Sequence[Receipt] = ()) -> None:
        super().__init__()
        self.receipts = receipts


class LeaseRequest(msgspec.Struct, frozen=True):
    """The arguments of `Queue.lease` that are the same for every shard."""

    pool: str
    topics: Sequence[str] | None
    only: Sequence[str] | None
    without: Sequence[str] | None
    tiers: Sequence[str] | None
    record_start: bool
    max_lease_us: int | None
    priorities: tuple[int, int] | None
    holder: str | None

    @property
    def takes_all(self) -> bool:
        """Whether it leases whatever a pool has."""
        return self.topics is None and not self.has_filter

    @property
    def has_filter(self) -> bool:
        """Whether it passes over lanes, or tiers."""
        return (
            self.only is not None
            or bool(self.without)
            or self.tiers is not None
            or self.priorities is not None
        )


class WholeBatch:
    """What the shards deliver to one lease, and what is still missing."""

    def __init__(self, room: int, startable: int) -> None:
        self.leases: list[Lease] = []
        self.room = room
        self.startable = startable
        self.visited = 0
        self.now_us = 0
        self.wakes: list[int] = []
        self._passed_over = False
        self._goes_on = False
        self._prefers_large_leases = False

    def add(self, batch: Batch) -> None:
        """Add what one shard has delivered."""
        self.leases += batch.leases
        self.room -= len(batch.leases)
        self.startable = max(0, self.startable - sum(lease.limited for lease in batch.leases))
        self.visited += 1
        self.now_us = max(self.now_us, batch.now_us)
        if batch.next_wake_us is not None:
            self.wakes.append(batch.next_wake_us)
        self._passed_over |= batch.passed_over
        self._goes_on |= batch.goes_on
        self._prefers_large_leases |= batch.prefers_large_leases

    def batch(self) -> Batch:
        next_wake_us = min(self.wakes, default=None)
        return Batch(
            self.leases,
            self.now_us,
            next_wake_us,
            self._passed_over,
            self._goes_on,
            self._prefers_large_leases,
        )


class ShardedQueue(ABC):
    """`laneway.engines.base.Queue` over several shards."""

    most_at_once: ClassVar[int]
    """Messages that one call on a shard puts atomically, or settles with what they publish."""

    def __init__(self, namespace: ShardedNamespace, settings: Settings) -> None:
        draw = settings.random or random.random
        self._namespace = namespace
        self._grants = Grants(namespace, draw)
        self._numbers = Numbers(namespace.shards)
        self._removals = CallSize(PAGE, PAGE_US)
        self._visits = Visits(namespace.shards, int(draw() * namespace.shards))
        self._spread = itertools.count(int(draw() * (1 << 16)))

    # One shard

    @abstractmethod
    def _put_on(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        """
        Raises Rerouted instead of putting messages that belong to other shards by policies which
        it has just read.
        """

    @abstractmethod
    def _forward_on(
        self, shard: int, drafts: Sequence[Draft], spool: str, batch: str, now_us: int | None
    ) -> list[Receipt]:
        """As `_put_on`. What the shard takes of the batch is remembered with it."""

    @abstractmethod
    def _lease_on(
        self, shard: int, request: LeaseRequest, n: int, startable: int, now_us: int | None
    ) -> Batch: ...

    @abstractmethod
    def _settle_on(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        """
        `published`: (position of the settlement, draft), in the order of the settlements. Raises
        Rerouted, and settles nothing, if by policies that it has just read some of them belong to
        other shards.
        """

    @abstractmethod
    def _extend_on(
        self,
        shard: int,
        leases: Sequence[tuple[int, int]],
        by_us: int | None,
        now_us: int | None,
    ) -> list[bool]:
        """Extend these leases, (handle, fence). `by_us` None: record their start instead."""

    @abstractmethod
    def _tick_on(self, shard: int, budget: int, now_us: int | None) -> int | None: ...

    @abstractmethod
    def _report_progress_on(
        self, shard: int, reports: Sequence[ProgressReport], now_us: int | None
    ) -> list[bool]: ...

    @abstractmethod
    def _results_on(
        self, shard: int, ids: Sequence[tuple[str, str | None]]
    ) -> list[StoredResult]: ...

    @abstractmethod
    def _delete_result_on(self, shard: int, message_id: str, topic: str | None) -> None: ...

    @abstractmethod
    def _leased_id_on(self, shard: int, settlement: Settlement) -> str | None:
        """The id of a message that an ack (or "dead") ends; None: its lease is lost."""

    @abstractmethod
    def _take_notified(self) -> set[int]:
        """The shards that had something to lease when the last waits ended."""

    def _changed_us(self) -> Sequence[int]:
        """
        When each shard was changed last, by its own clock: the time of its last call, also of a
        lease. Costs much less than a visit of every shard. -1: the engine does not know.
        """
        return [-1] * self._namespace.shards

    # Put

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        if not drafts:
            return []
        self._check(drafts)
        if self._namespace.shards == 1:
            return self._put_on(0, drafts, now_us)
        return self._put_on_all(drafts, lambda shard, part: self._put_on(shard, part, now_us))

    def forward(
        self, drafts: Sequence[Draft], *, spool: str, batch: str, now_us: int | None = None
    ) -> list[Receipt]:
        if not drafts:
            return []
        self._check(drafts)

        def forward_on(shard: int, part: Sequence[Draft]) -> list[Receipt]:
            return self._forward_on(shard, part, spool, batch, now_us)

        if self._namespace.shards == 1:
            return forward_on(0, drafts)
        return self._put_on_all(drafts, forward_on)

    def _put_on_all(self, drafts: Sequence[Draft], put_on: PutOn) -> list[Receipt]:
        """Put each shard's part of the drafts by `put_on`."""
        receipts: list[Receipt | None] = [None] * len(drafts)
        left = list(range(len(drafts)))
        while left:
            self._put_left(drafts, left, receipts, put_on)
            left = [n for n in left if receipts[n] is None]
        return cast("list[Receipt]", receipts)

    def _put_left(
        self,
        drafts: Sequence[Draft],
        left: list[int],
        receipts: list[Receipt | None],
        put_on: PutOn,
    ) -> None:
        """Put the drafts that are left, until other policies than the present ones route them."""
        is_first = len(left) == len(drafts)
        version = self._namespace.routes.version
        for shard, positions in self._split([drafts[n] for n in left]).items():
            if self._namespace.routes.version != version:
                return
            numbers = [left[n] for n in positions]
            try:
                with partial_call(is_first=is_first):
                    answers = put_on(shard, [drafts[n] for n in numbers])
            except Rerouted as rerouted:
                answers = list(rerouted.receipts)
            is_first = is_first and not answers
            self._visits.forget([shard])
            for number, receipt in zip(numbers, answers, strict=False):
                receipts[number] = receipt

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        route_of = self._namespace.routes.route
        policies = (route_of(topic).policy for topic in {draft.topic for draft in drafts})
        if len(drafts) > self.most_at_once or any(
            policy.limits_backlog or policy.is_copied for policy in policies
        ):
            return False
        return self._namespace.shards == 1 or len(self._split(drafts)) == 1

    def _check(self, drafts: Sequence[Draft], *, is_current: bool = False) -> None:
        """
        Raise BadMessage for a draft that its policy refuses. `is_current`: the policies have just
        been read.
        """
        routes = self._namespace.routes
        for draft in drafts:
            policy = routes.route(draft.topic).policy
            if policy.is_copied:
                self._check(copies_of(draft, policy), is_current=is_current)
            try:
                # Only a delay is compared with the ttl here, before a part of the call is done: a
                # due time needs the server's clock.
                check_draft(
                    draft,
                    policy,
                    0 if draft.delay_us and draft.at_us is None else None,
                )
            except BadMessage:
                if is_current:
                    raise
                # No shard is asked about a refused draft: another process may allow it by now.
                self._namespace.refresh_topics([draft.topic])
                self._check([draft], is_current=True)

    def _split(self, drafts: Sequence[Draft]) -> dict[int, list[int]]:
        """The positions of the drafts by shard."""
        namespace = self._namespace

        def shard_of(draft: Draft) -> int:
            route = namespace.routes.route(draft.topic)
            if route.policy.partitions == 1:
                return route.shard
            return namespace.routes.shard_of(draft.topic, self._partition_of(draft, route))

        return by_shard(map(shard_of, drafts))

    def _partition_of(self, draft: Draft, route: Route) -> int:
        """
        What selects the partition of a message where partitions are on several shards: its key,
        else the body that it merges by, else its id, else all in turns.
        """
        partition = spread_of(draft, route)
        if partition is not None:
            return partition
        return zlib.crc32(draft.id.encode()) if draft.id is not None else next(self._spread)

    def _partition_on(self, shard: int, draft: Draft, route: Route) -> int:
        """
        What selects the partition of a message that goes to a shard: as `_partition_of`, but all of
        the shard's partitions in turns.
        """
        if spread_of(draft, route) is not None or draft.id is not None:
            return self._partition_of(draft, route)
        shards = self._namespace.shards
        first = (shard - route.shard) % shards
        here = max(1, -(-(route.policy.partitions - first) // shards))
        return first + next(self._spread) % here * shards

    # Lease

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        only: Sequence[str] | None = None,
        without: Sequence[str] | None = None,
        tiers: Sequence[str] | None = None,
        max_lease_us: int | None = None,
        priorities: tuple[int, int] | None = None,
        holder: str | None = None,
        now_us: int | None = None,
    ) -> Batch:
        startable = n if startable is None else startable
        request = LeaseRequest(
            pool, topics, only, without, tiers, record_start, max_lease_us, priorities, holder
        )
        if self._namespace.shards == 1:
            return self._lease_on(0, request, n, startable, now_us)
        self._grants.renew(now_us)
        self._visits.forget(self._grants.take_grown())
        self._namespace.refresh_tiers()
        whole = WholeBatch(n, startable)
        if topics is None and now_us is None:
            self._lease_where_likely(request, whole)
        elif topics is None:  # a caller with a clock of its own (a test) leases from every shard
            self._lease_from(self._visits.every(pool), request, whole, now_us)
        else:
            self._lease_from(self._shards_of_topics(topics), request, whole, now_us)
        return whole.batch()

    def _lease_where_likely(self, request: LeaseRequest, whole: WholeBatch) -> None:
        """
        Visit the shards that may have something; all of these before the answer is empty. Whether
        one has something that a filter admits is not known, so such a lease visits all.
        """
        visits, pool = self._visits, request.pool
        notified = self._take_notified()
        likely = (
            visits.likely(pool, whole.startable, notified)
            if request.takes_all
            else visits.every(pool, notified)
        )
        first, others = visits.first(pool, likely, notified, prefers_own=request.takes_all)
        self._lease_from(first, request, whole, None)
        if whole.leases and others:
            whole.wakes.append(whole.now_us)  # the others may have more, for the next lease
        else:
            self._lease_from(others, request, whole, None)
        if request.takes_all and (
            not whole.leases or (whole.room > 0 and visits.is_check_due(pool))
        ):
            changed = visits.changed(pool, whole.startable, self._changed_us())
            if whole.leases and (own := visits.own(pool)):
                changed = [shard for shard in changed if shard in own]
            self._lease_from(changed, request, whole, None)
        whole.wakes += visits.wakes(pool) if request.takes_all else []
        is_full = whole.room <= 0
        visits.end(pool, is_idle=not is_full and whole.now_us not in whole.wakes, is_full=is_full)

    def _lease_from(
        self,
        shards: Iterable[int],
        request: LeaseRequest,
        whole: WholeBatch,
        now_us: int | None,
    ) -> None:
        """Lease what is missing from one shard after the other."""
        for shard in self._free_first(shards):
            if whole.leases and (whole.room <= 0 or whole.visited >= SHARDS_AT_ONCE):
                whole.wakes.append(whole.now_us)  # the other shards may have more
                return
            try:
                batch = self._lease_on(shard, request, whole.room, whole.startable, now_us)
            except EngineUnavailable:
                if not whole.leases:
                    raise
                whole.wakes.append(whole.now_us)  # the next lease reports it
                return
            if request.takes_all:
                self._visits.note(request.pool, shard, batch, whole.room, whole.startable)
            whole.add(batch)

    def _shards_of_topics(self, topics: Sequence[str]) -> Iterable[int]:
        """The shards of named topics, in the order of the names."""
        routes = self._namespace.routes
        return dict.fromkeys(shard for topic in topics for shard in routes.shards_of(topic))

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        return self._extend(leases, None, now_us)

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        return self._extend(leases, by_us, now_us)

    def _extend(
        self, leases: Sequence[tuple[int, int]], by_us: int | None, now_us: int | None
    ) -> list[bool]:
        answers = [False] * len(leases)
        for shard, positions in self._numbers.by_shard([handle for handle, _ in leases]).items():
            held = self._extend_on(shard, [leases[n] for n in positions], by_us, now_us)
            for position, answer in zip(positions, held, strict=True):
                answers[position] = answer
        return answers

    # Settle

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        if not settlements:
            return []
        for draft in itertools.chain.from_iterable((publish or {}).values()):
            check_names(draft)
        answers: list[SettlementAnswer] = ["acked"] * len(settlements)
        is_first = True
        by_shard = self._numbers.by_shard([settlement.handle for settlement in settlements])
        for shard in self._free_first(by_shard):
            for page in (
                self._publishing_pages(by_shard[shard], publish)
                if publish
                else self._settle_pages(by_shard[shard])
            ):
                batch = [settlements[n] for n in page]
                published = [
                    (index, draft)
                    for index, n in enumerate(page)
                    for draft in (publish or {}).get(n, ())
                ]
                with partial_call(is_first=is_first):
                    page_answers = self._settle_page(shard, batch, published, now_us)
                self._visits.forget([shard])
                is_first = False
                for position, answer in zip(page, page_answers, strict=True):
                    answers[position] = answer
        return answers

    def _publishing_pages(
        self, positions: Sequence[int], publish: Mapping[int, Sequence[Draft]]
    ) -> Iterable[Sequence[int]]:
        """
        The parts of a shard's settlements, one for each call of it, if some of them publish: a
        refused message undoes all of a call. What a settlement publishes is never divided.
        """
        route_of = self._namespace.routes.route
        published: dict[int, int] = {}
        has_copies = False
        for position, drafts in publish.items():
            policies = [route_of(draft.topic).policy for draft in drafts]
            copies = sum(map(count_copies, drafts, policies))
            published[position] = len(drafts) + copies
            has_copies = has_copies or copies > 0
        return pages_within(
            positions,
            self.most_at_once,
            self._most_copied() if has_copies else self.most_at_once,
            lambda position: published.get(position, 0),
        )

    def _most_copied(self) -> int:
        """How many messages and copies a call publishes, if not one settlement publishes more."""
        return self.most_at_once

    def _settle_pages(self, positions: Sequence[int]) -> Iterable[Sequence[int]]:
        """The parts of a shard's settlements that publish nothing, one for each call of it."""
        return [positions]

    def _settle_page(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        """Settle on one shard what one call of it may, with what it publishes on any shard."""
        if not published or self._namespace.shards == 1:
            return self._settle_on(shard, settlements, published, now_us)
        while True:
            version = self._namespace.routes.version
            published = self._publish_elsewhere(shard, settlements, published, now_us)
            if self._namespace.routes.version != version:
                continue  # what is left may belong to other shards now
            with contextlib.suppress(Rerouted):
                return self._settle_on(shard, settlements, published, now_us)

    def _belong_to(self, shard: int, published: Sequence[tuple[int, Draft]]) -> bool:
        """Whether all these messages are routed to that shard."""
        return all(list(self._split([draft])) == [shard] for _, draft in published)

    def _free_first(self, shards: Iterable[int]) -> Iterable[int]:
        """Shards in the order in which to call them: those that can answer at once come first."""
        return shards

    def _publish_elsewhere(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[tuple[int, Draft]]:
        """
        Put the messages of other shards before the acks that publish them, with ids derived from
        the acked messages: if an ack then fails, its message comes again, and what it publishes is
        a duplicate. Returns the messages of this shard, which the ack publishes in one step.
        """
        here: list[tuple[int, Draft]] = []
        elsewhere: list[Draft] = []
        counts: dict[int, int] = {}
        parents: dict[int, str | None] = {}
        for index, draft in published:
            number = counts[index] = counts.get(index, -1) + 1
            if index not in parents:
                parents[index] = self._leased_id_on(shard, settlements[index])
            parent = parents[index]
            if parent is None:
                continue
            named = msgspec.structs.replace(
                draft, id=draft.id if draft.id is not None else f"{parent}:{number}", sticky=True
            )
            if self._split([named]).get(shard):
                here.append((index, named))
            else:
                elsewhere.append(named)
        for receipt in self.put(elsewhere, now_us=now_us):
            if receipt.outcome == "refused":
                raise BacklogFull(backlog_full_with_ack(receipt), [receipt])
        return here

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        wakes = [self._tick_on(shard, budget, now_us) for shard in range(self._namespace.shards)]
        return min((wake for wake in wakes if wake is not None), default=None)

    # Results and progress

    def report_progress(
        self, reports: Sequence[ProgressReport], *, now_us: int | None = None
    ) -> list[bool]:
        answers = [False] * len(reports)
        for shard, positions in by_shard(map(self._shard_of_report, reports)).items():
            stored = self._report_progress_on(shard, [reports[n] for n in positions], now_us)
            for position, answer in zip(positions, stored, strict=True):
                answers[position] = answer
        return answers

    def _shard_of_report(self, report: ProgressReport) -> int:
        if report.handle:
            return self._numbers.shard(report.handle)
        return self._shards_of_result(report.id, report.topic)[0]

    def results(
        self, ids: Sequence[tuple[str, str | None]], *, now_us: int | None = None
    ) -> list[StoredResult]:
        del now_us  # the server's clock decides when a result expires
        results = [StoredResult() for _ in ids]
        positions_by_shard: dict[int, list[int]] = {}
        for position, (message_id, topic) in enumerate(ids):
            for shard in self._shards_of_result(message_id, topic):
                positions_by_shard.setdefault(shard, []).append(position)
        for shard, positions in positions_by_shard.items():
            stored = self._results_on(shard, [ids[n] for n in positions])
            for position, result in zip(positions, stored, strict=True):
                if result.outcome is not None:
                    results[position].outcome = result.outcome
                if result.progress is not None:
                    results[position].progress = result.progress
        return results

    def delete_result(self, message_id: str, topic: str | None = None) -> None:
        for shard in self._shards_of_result(message_id, topic):
            self._delete_result_on(shard, message_id, topic)

    def _shards_of_result(self, message_id: str, topic: str | None) -> Sequence[int]:
        """The shards that may store the result of a message."""
        generated = self._namespace.generated(message_id)
        shards = [] if topic is None else self._namespace.routes.shards_of(topic)
        if generated is None:
            return shards
        # Another topic may use an id again that was generated for a message of this shard.
        return [generated[0]] if generated[0] in shards else [*shards, generated[0]]


def waits_for_signals(draft: Draft) -> bool:
    """Whether the message waits for signals of other messages."""
    return draft.headers is not None and SIGNALS_HEADER in draft.headers


def merges(draft: Draft, route: Route) -> bool:
    """Whether the message may be merged."""
    return route.policy.merge is not None and draft.signal is None and may_merge(draft)


def spread_of(draft: Draft, route: Route) -> int | None:
    """What selects the partition of a message with a key, or of one that merges by its body."""
    if draft.key is not None:
        return zlib.crc32(draft.key.encode())
    return zlib.crc32(draft.body) if merges(draft, route) else None

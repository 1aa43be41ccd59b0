"""
The hot path of the Valkey engine: how drafts, leases and settlements look to the functions in
`scripts/`, which decide. `admin.py` has the administration.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from laneway.engines.base import HOUSEKEEPING_LIMIT, MAX_PASSED_OVER, Capabilities
from laneway.engines.sharded.grants import Grants
from laneway.engines.sharded.queue import (
    LeaseRequest,
    Rerouted,
    ShardedQueue,
    merges,
    spread_of,
    waits_for_signals,
)
from laneway.engines.sharded.splitting import CallSize, pages, partial_call
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.naming import forwarded_key, merge_key
from laneway.engines.shared.refusals import (
    backlog_full_with_ack,
    check_draft,
    delay_outlasts_ttl,
    full,
)
from laneway.engines.valkey import layouts, records
from laneway.engines.valkey.coordination import ValkeyCoordination
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.settling import SettleCall, milliseconds
from laneway.engines.valkey.wakeup import Wakeup
from laneway.errors import BacklogFull, BadMessage
from laneway.message import (
    Batch,
    Draft,
    Lease,
    Outcome,
    ProgressReport,
    Receipt,
    Settlement,
    SettlementAnswer,
    StoredResult,
)
from laneway.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from laneway.engines.base import ArrivalListener, ResultListener, Settings, WorkListener
    from laneway.engines.sharded.routes import Route

HOUSE = 120
"""
Events, wakes and sweeps that one function call processes at most, because the server answers no
other client meanwhile.
"""

PUT_US = SETTLE_US = 5_000
"""How long a call of these functions should use the server's processor."""

LEASE_US = 4_000
"""The same for a lease, because the lanes of the next one may cost three times as much."""

LEAST_AT_ONCE, AT_ONCE = 60, 250
"""
The limit of messages that one function call puts, leases or settles is between these: it adapts to
the last call, because some messages and lanes cost many times as much as others. A put of no more
than `AT_ONCE` is one call however long it takes, because it has to be atomic.
"""

PLAIN_AT_ONCE = 500
"""The highest limit for plain messages, which take less than half as long to put."""

NOT_PLAIN = -1
"""Stands for the lane of a message that is not plain."""

SOON_US = SECOND
"""Work that is due within this time needs a worker that is not busy."""


class ValkeyQueue(ShardedQueue, ValkeyCoordination):
    """The functions of the hot path on one shard: what they get and answer."""

    most_at_once = AT_ONCE

    def __init__(self, url: str, settings: Settings) -> None:
        self._space = Namespace(url, settings, layouts.bring_up)
        super().__init__(self._space, Grants(self._space))
        self.url = url
        self.namespace = settings.namespace
        self.durability: str = self._space.server.durability
        self.capabilities = Capabilities(
            name="valkey",
            durability=frozenset(("memory", "fsync", "replicated")),
            persistent=True,
            processes=True,
            transactions=self._space.shards == 1,
            only=True,
            shards=self._space.shards,
        )
        self._random = settings.random or random.random
        self._wakeup = Wakeup(self._space, self._grants, self._visits.own)
        self._plain_puts = CallSize(AT_ONCE, PLAIN_AT_ONCE, PUT_US)
        self._puts = CallSize(LEAST_AT_ONCE, AT_ONCE, PUT_US)
        self._leases = CallSize(LEAST_AT_ONCE, AT_ONCE, LEASE_US)
        self._settles = CallSize(LEAST_AT_ONCE, AT_ONCE, SETTLE_US)
        self._cursors: dict[tuple[int, str, bytes], int] = {}
        """Where the next lease with the same `only` goes on, by shard, pool and patterns."""

    # Put

    def _put_on(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        if len(drafts) == 1:
            return [self._put_one(shard, drafts[0], now_us)]
        if len(drafts) <= AT_ONCE:
            return self._put_page(shard, drafts, now_us)
        receipts: list[Receipt] = []
        while len(receipts) < len(drafts):
            left = drafts[len(receipts) : len(receipts) + PLAIN_AT_ONCE]
            with partial_call(is_first=not receipts), _after(receipts):
                receipts += self._put_page(shard, left, now_us, is_whole=False)
        return receipts

    def _forward_on(
        self, shard: int, drafts: Sequence[Draft], spool: str, batch: str, now_us: int | None
    ) -> list[Receipt]:
        return self._put_page(shard, drafts, now_us, (spool, batch))

    def _put_one(self, shard: int, draft: Draft, now_us: int | None) -> Receipt:
        space = self._space
        while True:
            version = space.routes.version
            route = space.routes.route(draft.topic)
            if route.own or draft.id is not None or not _is_plain(draft, route):
                return self._put_page(shard, [draft], now_us)[0]
            answer = space.run(
                "put_one",
                shard,
                now_us,
                version,
                draft.topic,
                _plain_message(draft, route, {}),
                durable=True,
            )
            if not self._is_stale(answer, shard):
                return self._receipt(shard, draft, answer)
            self._check_again(shard, [draft])

    def _put_page(
        self,
        shard: int,
        drafts: Sequence[Draft],
        now_us: int | None,
        forwarded: tuple[str, str] | None = None,
        *,
        is_whole: bool = True,
    ) -> list[Receipt]:
        """
        Put messages with one call of the function: all of them, or only the first, as many as a
        call may have (`is_whole` is False). `forwarded`: spool and batch.
        """
        space = self._space
        while True:
            version = space.routes.version
            lanes, order, own_ids, messages = self._encoded(drafts, is_whole=is_whole)
            drafts = drafts[: len(order)]
            known = space.routes.known_own(drafts)
            head = (
                version,
                *map(records.pack, (lanes, order, known)),
                records.pack(own_ids) if any(own_ids) else b"",
                b"" if forwarded is None else _batch_record(forwarded, drafts),
            )
            answers = space.run("put", shard, now_us, *head, *messages, durable=True)
            if not self._is_stale(answers, shard):
                break
            self._check_again(shard, drafts)
        if answers and answers[0] == b"impossible":
            draft = drafts[answers[1]]
            raise BadMessage(delay_outlasts_ttl(draft, answers[2], space.routes.ttl_of(draft)))
        (self._puts if NOT_PLAIN in order else self._plain_puts).fit(len(order), answers.pop())
        return [
            self._receipt(shard, draft, answer)
            for draft, answer in zip(drafts, answers, strict=True)
        ]

    def _check_again(self, shard: int, drafts: Sequence[Draft]) -> None:
        """Check messages for a shard against the policies that were read just now."""
        self._check(drafts)
        if self._space.shards > 1 and list(self._split(drafts)) != [shard]:
            raise Rerouted

    def _receipt(self, shard: int, draft: Draft, answer: Any) -> Receipt:
        if not isinstance(answer, int):
            return _receipt(draft, answer)
        if draft.id is not None:
            return Receipt(draft.id, draft.topic)
        space = self._space
        return Receipt(f"{space.nonce}-{answer * space.shards + shard:x}", draft.topic)

    def _is_stale(self, answer: Any, shard: int) -> bool:
        """
        Whether the shard has other policies than this process. The older one is updated, and the
        call has to be repeated.
        """
        if not (isinstance(answer, list) and answer and answer[0] in (b"stale", b"own")):
            return False
        if answer[0] == b"own":
            for topic, own, record in answer[1:]:
                self._space.routes.learn(
                    topic.decode(), own, records.own_layers(record) if own else {}
                )
        else:
            self._space.agree(shard, answer[1])
        return True

    def _encoded(
        self, drafts: Sequence[Draft], *, is_whole: bool
    ) -> tuple[list[str], list[int], list[str | bool], list[bytes]]:
        """
        The lanes of plain messages, for each message the lane's number (`NOT_PLAIN`: none) and the
        id of a plain one, and the encoded messages. Of all drafts, or (`is_whole` is False) of the
        first, as many as a call may have.
        """
        route_of = self._space.routes.route
        heads: dict[tuple[str, int], bytes] = {}
        lanes: dict[str, int] = {}
        order: list[int] = []
        own_ids: list[str | bool] = []
        messages: list[bytes] = []
        most = len(drafts) if is_whole else self._plain_puts.limit
        most_if_rich = len(drafts) if is_whole else self._puts.limit
        for draft in drafts:
            if len(messages) >= most:
                break
            route = route_of(draft.topic)
            if _is_plain(draft, route) and (draft.id is None or self._is_plain_id(draft)):
                order.append(lanes.setdefault(draft.topic, len(lanes) + 1))
                own_ids.append(draft.id or False)
                messages.append(_plain_message(draft, route, heads))
            elif len(messages) >= most_if_rich:
                break
            else:
                most = most_if_rich
                order.append(NOT_PLAIN)
                own_ids.append(False)
                messages.append(self._rich(draft, route))
        return list(lanes), order, own_ids, messages

    def _is_plain_id(self, draft: Draft) -> bool:
        """Whether the id needs nothing but to be looked up and stored."""
        assert draft.id is not None
        return draft.signal is None and not draft.own and self._space.generated(draft.id) is None

    def _rich(self, draft: Draft, route: Route) -> bytes:
        policy = route.policy
        mkey = merge_key(draft) if merges(draft, route) else None
        spread = None
        if policy.partitions > 1:
            spread = (
                self._partition_of(draft, route)
                if self._space.shards > 1
                else spread_of(draft, route)
            )
        generated = self._space.generated(draft.id) if draft.id is not None else None
        ttl = draft.ttl_us if draft.ttl_us is not None or draft.signal is not None else policy.ttl
        rank = -2 * draft.priority + (0 if draft.at_front else 1)
        return records.draft_record(
            draft, rank, ttl, mkey, generated[1] if generated is not None else None, spread
        )

    # Lease

    def _lease_on(
        self, shard: int, request: LeaseRequest, n: int, startable: int, now_us: int | None
    ) -> Batch:
        space = self._space
        pool = request.pool
        topics = b"" if request.topics is None else records.pack(list(request.topics))
        patterns = b"" if request.only is None else records.pack(list(request.only))
        leases: list[Lease] = []
        left = HOUSEKEEPING_LIMIT
        while True:
            room = min(n - len(leases), self._leases.limit)
            left -= HOUSE
            cursor = self._cursors.get((shard, pool, patterns), 0) if patterns else 0
            (
                now,
                wake,
                has_more_house,
                nonce,
                fence,
                records_,
                runs,
                bodies,
                passed_over,
                next_cursor,
                call_us,
            ) = space.run(
                "lease",
                shard,
                now_us,
                room,
                pool,
                topics,
                startable,
                int(request.record_start),
                HOUSE,
                int(left <= 0),
                SOON_US,
                patterns,
                cursor,
                MAX_PASSED_OVER,
                b"" if request.max_lease_us is None else request.max_lease_us,
            )
            if has_more_house:
                continue
            if patterns:
                self._cursors[shard, pool, patterns] = max(next_cursor, 0)
            count = len(records_) // 2
            self._leases.fit(room, call_us, is_full=count == room)
            page = records.leases_of(
                records_, runs, bodies, fence, nonce.decode(), space.shards, shard
            )
            leases += page
            startable -= sum(lease.limited for lease in page)
            if count < room or len(leases) >= n:
                return Batch(
                    leases, now, wake if wake >= 0 else None, bool(passed_over), next_cursor >= 0
                )

    def _extend_on(
        self,
        shard: int,
        leases: Sequence[tuple[int, int]],
        by_us: int | None,
        now_us: int | None,
    ) -> list[bool]:
        answers: list[bool] = []
        for page in pages(leases, PLAIN_AT_ONCE):
            pairs = [
                (self._numbers.number(handle), self._numbers.number_on(shard, fence))
                for handle, fence in page
            ]
            answer = self._space.run(
                "extend",
                shard,
                now_us,
                records.pack(pairs),
                b"" if by_us is None else by_us,
                durable=by_us is None,
                repeatable=True,
            )
            answers += [each == 1 for each in answer]
        return answers

    def _take_notified(self) -> set[int]:
        return self._wakeup.take_notified()

    def _changed_us(self) -> list[int]:
        return self._space.changed_us()

    # Settle

    def _settle_pages(self, positions: Sequence[int]) -> Iterable[Sequence[int]]:
        return self._settles.pages(positions)

    def _settle_on(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        space = self._space
        call = SettleCall(shard, self._numbers, settlements, {at for at, _ in published})
        call.encode(self._random)
        while True:
            routes = [space.routes.route(draft.topic) for _, draft in published]
            messages = [
                self._rich(draft, route)
                for (_, draft), route in zip(published, routes, strict=True)
            ]
            places = [
                (call.row_of(at), len(draft.body) > route.policy.max_body)
                for (at, draft), route in zip(published, routes, strict=True)
            ]
            known = space.routes.known_own([draft for _, draft in published])
            answers: list[Any] = space.run(
                "settle",
                shard,
                now_us,
                *call.packed,
                *(
                    (records.pack([space.routes.version, known]), records.pack(places))
                    if published
                    else (b"",)
                ),
                *messages,
                *call.outcomes,
                durable=True,
            )
            if not self._is_stale(answers, shard):
                break
            if space.shards > 1 and not self._belong_to(shard, published):
                raise Rerouted
        self._raise_refused(answers, published)
        unlike, rows, call_us = answers
        self._settles.fit(len(settlements), call_us)
        return call.answers(unlike, rows)

    def _raise_refused(self, answers: list[Any], published: Sequence[tuple[int, Draft]]) -> None:
        """Raise for a message that an ack publishes and that was refused: nothing was changed."""
        space = self._space
        if answers[0] == b"too large":
            draft = published[cast("int", answers[1])][1]
            check_draft(draft, space.routes.route(draft.topic).policy, None)
        if answers[0] == b"impossible":
            draft = published[cast("int", answers[1])][1]
            raise BadMessage(
                delay_outlasts_ttl(draft, cast("int", answers[2]), space.routes.ttl_of(draft))
            )
        if answers[0] == b"refused":
            message_id, topic, *limit = (answer.decode() for answer in answers[1:])
            receipt = Receipt(message_id, topic, "refused", None, _full(topic, *limit))
            raise BacklogFull(backlog_full_with_ack(receipt), [receipt])

    def _leased_id_on(self, shard: int, settlement: Settlement) -> str | None:
        space, mid = self._space, self._numbers.number(settlement.handle)
        stored_lease, stored = space.read_many(shard, [("HGET", "l", mid), ("HGET", "m", mid)])
        lease = (
            records.read_held(stored_lease)
            if stored_lease is not None and settlement.action in ("ack", "dead")
            else None
        )
        fence = self._numbers.number_on(shard, settlement.fence)
        if lease is None or lease.gone or lease.fence != fence:
            return None
        own = (
            records.read_record(mid, stored).id if stored is not None and not lease.empty else None
        )
        return str(own) if own else f"{space.nonce}-{settlement.handle:x}"

    def _tick_on(self, shard: int, budget: int, now_us: int | None) -> int | None:
        left = budget
        while True:
            wake, has_more = self._space.run(
                "tick", shard, now_us, min(left, HOUSE), repeatable=True
            )
            left -= HOUSE
            if not has_more or left <= 0:
                return wake if wake >= 0 else None

    # Results and progress

    def _report_progress_on(
        self, shard: int, reports: Sequence[ProgressReport], now_us: int | None
    ) -> list[bool]:
        rows = [
            (
                report.id,
                milliseconds(report.ttl_us),
                self._numbers.number(report.handle),
                self._numbers.number_on(shard, report.fence),
            )
            for report in reports
        ]
        bodies = [report.body for report in reports]
        answer = self._space.run(
            "report_progress", shard, now_us, records.pack(rows), *bodies, repeatable=True
        )
        return [each == 1 for each in answer]

    def _results_on(self, shard: int, ids: Sequence[str]) -> list[StoredResult]:
        stored = self._space.read_many(
            shard, [("GET", f"{kind}:{message_id}") for message_id in ids for kind in "on"]
        )
        return [
            StoredResult(outcome, progress)
            for outcome, progress in zip(stored[::2], stored[1::2], strict=True)
        ]

    def _delete_result_on(self, shard: int, message_id: str) -> None:
        self._space.read_many(shard, [("DEL", f"{kind}:{message_id}") for kind in "on"])

    def result_listener(self) -> ResultListener:
        return self._wakeup.result_listener()

    # Waiting

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        return self._wakeup.wait(timeout, pool, topics, interrupt or Interrupt())

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        return self._wakeup.work_listener(pool, topics, max_lease_us=max_lease_us)

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        return self._wakeup.arrival_listener(pool)

    def interrupt(self) -> None:
        self._wakeup.interrupt()

    def close(self) -> None:
        self._wakeup.close()
        self._space.server.close()


@contextmanager
def _after(receipts: list[Receipt]) -> Iterator[None]:
    """A part of a put: the shard has accepted others of its messages."""
    try:
        yield
    except Rerouted as rerouted:
        raise Rerouted([*receipts, *rerouted.receipts]) from None


def _is_plain(draft: Draft, route: Route) -> bool:
    """Whether a message without an id is plain."""
    return (
        route.is_plain
        and not waits_for_signals(draft)
        and draft.ttl_us is None
        and not (
            draft.priority
            or draft.delay_us > 0
            or draft.at_us is not None
            or draft.at_front
            or (route.is_serial and draft.key is not None)
        )
    )


def _plain_message(draft: Draft, route: Route, heads: dict[tuple[str, int], bytes]) -> bytes:
    """
    The record of a plain message. `heads`: of earlier messages of this call, by topic and identity
    of the headers, because all calls of a task have the same ones.
    """
    if draft.id is not None or draft.key is not None or draft.sticky:
        return records.plain_record(draft)
    if not draft.headers:
        return route.head + draft.body
    key = (draft.topic, id(draft.headers))
    head = heads.get(key)
    if head is None:
        head = heads[key] = records.plain_head(draft.topic, draft.headers)
    return head + draft.body


def _batch_record(forwarded: tuple[str, str], drafts: Sequence[Draft]) -> bytes:
    """A spool's batch, as the function `put` reads it."""
    return records.pack([*forwarded, [forwarded_key(draft).hex() for draft in drafts]])


def _receipt(draft: Draft, answer: list[bytes]) -> Receipt:
    """The receipt of a message that was merged, refused or a duplicate."""
    outcome, *details = (each.decode() for each in answer)
    if outcome == "merged":
        merged_into = details[0]
        own_id = draft.id if draft.id is not None else merged_into
        return Receipt(own_id, draft.topic, "merged", merged_into)
    if outcome == "refused":
        return Receipt(draft.id or "", draft.topic, "refused", None, _full(draft.topic, *details))
    return Receipt(cast("str", draft.id), draft.topic, cast("Outcome", outcome))


def _full(topic: str, what: str, waiting: str, limit: str) -> str:
    whose, unit = what.split()
    return full(
        f"topic {topic}" if whose == "topic" else "the namespace", int(waiting), unit, int(limit)
    )

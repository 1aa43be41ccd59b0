"""
The hot path of the Valkey engine: how drafts, leases and settlements look to the functions in
`scripts/`, which decide. `admin.py` has the administration.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec
from msgspec import UNSET

from laneway import subscriptions
from laneway.engines.base import (
    HOUSEKEEPING_LIMIT,
    MAX_PASSED_OVER,
    ArrivalListener,
    Capabilities,
    ResultListener,
    Settings,
    WorkListener,
    housekeeping_of_lease,
)
from laneway.engines.sharded.queue import (
    LeaseRequest,
    Rerouted,
    ShardedQueue,
    merges,
    spread_of,
    waits_for_signals,
)
from laneway.engines.sharded.routes import Route
from laneway.engines.sharded.splitting import FIRST_CALL, CallSize, pages, partial_call
from laneway.engines.shared.body_sizes import LEASE_BYTES, BodySizes
from laneway.engines.shared.copies import (
    copies_of,
    expiries,
    is_copied,
    receipt_of_copies,
)
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.naming import forwarded_key, lane_ranges, merge_key
from laneway.engines.shared.refusals import (
    backlog_full_with_ack,
    check_draft,
    costs_too_much,
    delay_outlasts_ttl,
    full,
    uses_reserve,
)
from laneway.engines.valkey import layouts, record_formats
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.presence import ValkeyCoordination
from laneway.engines.valkey.settling import SettleCall, milliseconds
from laneway.engines.valkey.wakeup import Wakeup
from laneway.errors import BacklogFull, BadMessage
from laneway.headers import COST
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

SWEEPING = 2
"""The answer of a call that has more lanes of changed patterns to place."""

HOUSE = 120
"""
Events, wakes and sweeps that one function call processes at most, because the server answers no
other client meanwhile.
"""

SETTLE_US = 5_000
"""How long a call of this function should use the server's processor."""

PUT_US = LEASE_US = 4_000
"""The same for a put or a lease, because the next lanes may cost twice or three times as much."""

MOST_PUT, MOST_SERVED = 150, 200
"""
The upper limits of messages that one function call puts, and that it leases or settles. The limit
adapts to the last call, because some messages and lanes cost many times as much as others. The
first call with such messages after one with others is not too long because of the upper limits.
"""

AT_ONCE = 250
"""A put of no more messages is one call however long it takes, because it has to be atomic."""

PLAIN_AT_ONCE = 400
"""The highest limit for plain messages, which take less than half as long to put."""

MAX_FILTERS = 10_000
"""Filters of leases (`only`, `priorities`) of which the engine knows where the next one begins."""

UNLIMITED = 1 << 30

LEFT = [b"left"]
"""The answer for a copy that the call has left to `finish_copies`."""

SOON_US = SECOND
"""Work that is due within this time needs a worker that is not busy."""


EVERYTHING = ("*", f"*{subscriptions.SEPARATOR}{subscriptions.ANY}")
"""Patterns that match every topic and every subscription."""

WITHOUT, OF_TIER = "\x1f", "\x1e"
"""What stands before patterns that a lease leaves out, and before the names of its tiers."""


class ValkeyQueue(ShardedQueue, ValkeyCoordination):
    """The functions of the hot path on one shard: what they get and answer."""

    most_at_once = AT_ONCE

    def __init__(self, url: str, settings: Settings) -> None:
        self._space = Namespace(url, settings, layouts.bring_up)
        super().__init__(self._space, settings)
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
            reserves=True,
            shards=self._space.shards,
        )
        self._random = settings.random or random.random
        self._wakeup = Wakeup(self._space, self._grants, self._visits.own)
        self._plain_puts = CallSize(PLAIN_AT_ONCE, PUT_US)
        self._puts = CallSize(MOST_PUT, PUT_US)
        self._leases = CallSize(MOST_SERVED, LEASE_US, least=FIRST_CALL)
        self._settles = CallSize(MOST_SERVED, SETTLE_US)
        self._bodies = BodySizes()
        self._begins: dict[tuple[int, str, bytes, tuple[int, int] | None], bytes] = {}
        """Where the next lease begins, by shard, pool, patterns and priorities."""

    # Put

    def _put_on(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        receipts: list[Receipt] = []
        if len(drafts) <= AT_ONCE:
            receipts = self._put_page(shard, drafts, now_us)
        while len(receipts) < len(drafts):
            left = drafts[len(receipts) : len(receipts) + PLAIN_AT_ONCE]
            with partial_call(is_first=not receipts), _after(receipts):
                receipts += self._put_page(shard, left, now_us, is_whole=False)
        return receipts

    def _forward_on(
        self, shard: int, drafts: Sequence[Draft], spool: str, batch: str, now_us: int | None
    ) -> list[Receipt]:
        receipts: list[Receipt | None] = [None] * len(drafts)
        left = list(range(len(drafts)))
        while left:
            done = cast("list[Receipt]", receipts[: left[0]])
            with partial_call(is_first=len(left) == len(drafts)), _after(done):
                answers = self._put_page(shard, [drafts[n] for n in left], now_us, (spool, batch))
            full: dict[str, Receipt] = {}
            for n, receipt in zip(left, answers, strict=False):
                receipts[n] = receipt
                if receipt.outcome == "refused":
                    full[drafts[n].topic] = receipt
            for n in left:  # the function knows only the topics of its own call
                draft = drafts[n]
                if receipts[n] is None and draft.topic in full:
                    receipts[n] = msgspec.structs.replace(full[draft.topic], id=draft.id or "")
            left = [n for n in left if receipts[n] is None]
        return cast("list[Receipt]", receipts)

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
        call may have (`is_whole` is False, or they have many copies). `forwarded`: spool and batch.
        """
        space = self._space
        while True:
            version = space.routes.version
            page = self._encoded(shard, drafts, is_whole=is_whole)
            drafts = drafts[: page.count]
            known = space.routes.known_own(page.drafts)
            head = (
                version,
                record_formats.pack(known),
                b"" if forwarded is None else _batch_record(forwarded, page),
                record_formats.pack([page.copied, page.expires]) if page.copied else b"",
            )
            function = "put_reserve" if all(map(uses_reserve, drafts)) else "put"
            answers = space.run(function, shard, now_us, *head, *page.messages, durable=True)
            if not self._is_stale(answers, shard):
                break
            self._check_again(shard, drafts)
        if answers:
            self._raise_bad(answers, page.drafts)
        call_us = answers.pop()
        left = answers.count(LEFT) if page.copied else 0
        (self._puts if page.has_rich else self._plain_puts).fit(len(page.messages) - left, call_us)
        if left:
            self._finish_copies(shard)
        receipts = [
            self._receipt(shard, draft, answer)
            for draft, answer in zip(page.drafts, answers, strict=True)
        ]
        return page.without_copies(receipts) if page.copied else receipts

    def _finish_copies(self, shard: int) -> None:
        """
        Put the copies that a call has left. Other clients would, too, but this one has to know that
        the server has confirmed them. The message is accepted, whatever happens.
        """
        has_more = True
        with partial_call(is_first=False):
            while has_more:
                has_more = self._space.run("finish_copies", shard, 0, repeatable=True) > 0
            self._space.run("finish_copies", shard, 0, durable=True, repeatable=True)

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
                    topic.decode(), own, record_formats.own_layers(record) if own else {}
                )
        else:
            self._space.agree(shard, answer[1])
        return True

    def _encoded(self, shard: int, drafts: Sequence[Draft], *, is_whole: bool) -> _PutPage:
        """
        The arguments of one call of `put`: of all drafts, or (`is_whole` is False, or they have
        many copies) of the first, as many as a call may have.
        """
        route_of = self._space.routes.route
        page = _PutPage()
        most = UNLIMITED if is_whole else self._plain_puts.limit
        most_if_rich = UNLIMITED if is_whole else self._puts.limit
        most_if_copied = PLAIN_AT_ONCE
        for draft in drafts:
            count = len(page.messages)
            if count >= (min(most, most_if_copied) if page.copied else most):
                break
            route = route_of(draft.topic)
            if route.is_copied and is_copied(draft, route.policy):
                copies = copies_of(draft, route.policy)
                if count and count + len(copies) >= most_if_copied:
                    break
                self._add_copied(shard, page, draft, route, copies)
            elif self._is_plain(draft, route):
                page.messages.append(_plain_message(draft, route, page.heads))
            elif count >= most_if_rich:
                break
            else:
                page.add_rich(self._rich(shard, draft, route))
            if page.has_rich:
                most = most_if_rich
                most_if_copied = self._puts.limit if page.copied else most_if_copied
        page.end(drafts)
        return page

    def _add_copied(
        self, shard: int, page: _PutPage, draft: Draft, route: Route, copies: Sequence[Draft]
    ) -> None:
        """Add a message with its copies."""
        is_stored = route.policy.own_backlog
        expires = expiries(route.policy)
        page.add_group(
            draft, copies, is_stored=is_stored, has_limits=any(map(self._has_limit, copies))
        )
        if not is_stored and (draft.at_us is not None or COST in (draft.headers or {})):
            page.add_rich(self._rich(shard, draft, route))  # the shard checks its time and cost
        elif not is_stored:  # its topic is sent, so that the shard compares its policy
            page.messages.append(route.head)
        for each in (draft, *copies) if is_stored else copies:
            its = self._space.routes.route(each.topic)
            after_us = expires.get(subscriptions.split(each.topic)[1])
            if after_us is not None:  # the function reads the whole lane of such a one
                page.expires[len(page.messages) + 1] = after_us
            elif self._is_plain(each, its):
                page.messages.append(_plain_message(each, its, page.heads))
                continue
            page.add_rich(self._rich(shard, each, its))

    def _has_limit(self, draft: Draft) -> bool:
        """Whether the message's topic may be full, or its cost too high."""
        if draft.headers is not None and COST in draft.headers:
            return True
        policy = self._space.routes.route(draft.topic).policy
        return policy.max_backlog is not None or policy.max_backlog_bytes is not None

    def _is_plain(self, draft: Draft, route: Route) -> bool:
        """Whether the record of a plain message holds all of this one."""
        return (
            route.allows_plain_record
            and not waits_for_signals(draft)
            and (draft.headers is None or COST not in draft.headers)
            and draft.ttl_us is None
            and not (
                draft.priority
                or draft.delay_us > 0
                or draft.at_us is not None
                or draft.at_front
                or (route.is_serial and draft.key is not None)
            )
            and (
                draft.id is None
                or (
                    draft.signal is None
                    and not draft.own
                    and self._space.generated(draft.id) is None
                )
            )
        )

    def _rich(self, shard: int, draft: Draft, route: Route) -> bytes:
        policy = route.policy
        mkey = merge_key(draft) if merges(draft, route) else None
        spread = None
        if policy.partitions > 1:
            spread = (
                self._partition_on(shard, draft, route)
                if self._space.shards > 1
                else spread_of(draft, route)
            )
        generated = self._space.generated(draft.id) if draft.id is not None else None
        ttl = draft.ttl_us if draft.signal is not None else policy.ttl_us(draft.ttl_us)
        rank = -2 * draft.priority + (0 if draft.at_front else 1)
        return record_formats.draft_record(
            draft, rank, ttl, mkey, generated[1] if generated is not None else None, spread
        )

    # Lease

    def _lease_on(
        self, shard: int, request: LeaseRequest, n: int, startable: int, now_us: int | None
    ) -> Batch:
        space = self._space
        pool = request.pool
        topics = b"" if request.topics is None else record_formats.pack(list(request.topics))
        patterns = _named(request)
        has_filter = request.has_filter
        lease_filter = (shard, pool, patterns, request.priorities)
        leases: list[Lease] = []
        share = left = housekeeping_of_lease(n)
        others = HOUSEKEEPING_LIMIT - share
        while True:
            most = min(self._leases.limit, self._bodies.within(LEASE_BYTES))
            room = min(n - len(leases), most)
            # What is left after that waits: the call that delivers does no housekeeping.
            house, is_over = min(HOUSE, left), left == 0
            left -= house
            begins = self._begins.get(lease_filter, b"") if has_filter else b""
            ranges = lane_ranges(request.only, request.without or ()) if begins else ()
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
                next_begins,
                goes_on,
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
                house,
                int(is_over),
                SOON_US,
                patterns,
                begins,
                MAX_PASSED_OVER,
                b"" if request.max_lease_us is None else request.max_lease_us,
                b"" if request.priorities is None else 1 - 2 * request.priorities[0],
                n - room,
                b"" if request.priorities is None else -2 * request.priorities[1],
                request.holder or b"",
                record_formats.pack(ranges) if ranges else b"",
            )
            if has_more_house:
                if has_more_house == SWEEPING:
                    left, others = left + others, 0
                continue
            if has_filter:
                self._remember_begins(lease_filter, next_begins)
            count = len(records_) // 2
            self._leases.fit(room, call_us, is_full=count == room)
            page = record_formats.leases_of(
                records_, runs, bodies, fence, nonce.decode(), space.shards, shard
            )
            self._bodies.note(page)
            leases += page
            if not leases and wake == now and others > 0:  # what is due was not all handled
                left = share
                others -= share
                continue
            startable -= sum(lease.limited for lease in page)
            if count < room or len(leases) >= n:
                return Batch(
                    leases, now, wake if wake >= 0 else None, bool(passed_over), bool(goes_on)
                )

    def _remember_begins(
        self, lease_filter: tuple[int, str, bytes, tuple[int, int] | None], begins: bytes
    ) -> None:
        """The next lease with this filter begins there; empty: at the first lanes."""
        self._begins.pop(lease_filter, None)
        if begins:
            if len(self._begins) >= MAX_FILTERS:
                self._begins.clear()
            self._begins[lease_filter] = begins

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
                record_formats.pack(pairs),
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
        return self._settles.pages(positions, self._bodies.within(LEASE_BYTES))

    def _most_copied(self) -> int:
        return self._puts.limit

    def _settle_on(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        published: Sequence[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        space = self._space
        call = SettleCall(
            shard, self._numbers, settlements, {at for at, _ in published}, space.nonce
        )
        call.encode(self._random)
        while True:
            every = self._with_copies(published)
            places: list[int | bool] = []
            messages: list[bytes] = []
            for at, draft, group in every:
                route = space.routes.route(draft.topic)
                _, count_or_expires, _ = group
                if count_or_expires is False and self._is_plain(draft, route):
                    messages.append(_plain_message(draft, route, {}))
                else:
                    messages.append(self._rich(shard, draft, route))
                places += (at + 1, len(draft.body) > route.policy.max_body, *group)
            known = space.routes.known_own([draft for _, draft, _ in every])
            has_limits = any(self._has_limit(draft) for _, draft, _ in every)
            answers: list[Any] = space.run(
                "settle",
                shard,
                now_us,
                *call.packed,
                *(
                    (
                        record_formats.pack([space.routes.version, known, has_limits]),
                        record_formats.pack(places),
                    )
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
        self._raise_refused(answers, [draft for _, draft, _ in every])
        unlike, call_us, *left = answers
        if left:
            self._finish_copies(shard)
        elif published:
            self._puts.fit(len(every), call_us)
        else:
            self._settles.fit(len(settlements), call_us)
        return call.answers(unlike)

    def _with_copies(
        self, published: Sequence[tuple[int, Draft]]
    ) -> list[tuple[int, Draft, tuple[bool | int, ...]]]:
        """
        The messages that settlements publish, with their copies: the settlement's position, the
        draft, and three values about copies, see `settle.lua`.
        """
        every: list[tuple[int, Draft, tuple[bool | int, ...]]] = []
        for at, draft in published:
            policy = self._space.routes.route(draft.topic).policy
            if not is_copied(draft, policy):
                every.append((at, draft, (False, False, False)))
                continue
            copies = copies_of(draft, policy)
            every.append((at, draft, (False, len(copies), policy.own_backlog)))
            expires = expiries(policy)
            for copy in copies:
                after_us = expires.get(subscriptions.split(copy.topic)[1])
                every.append((at, copy, (True, False if after_us is None else after_us, False)))
        return every

    def _raise_bad(self, answers: list[Any], published: Sequence[Draft]) -> None:
        """Raise BadMessage for a message that cannot be published: nothing was changed."""
        if answers[0] == b"impossible":
            draft = published[answers[1]]
            ttl_us = self._space.routes.ttl_of(draft)
            raise BadMessage(delay_outlasts_ttl(draft, answers[2], ttl_us))
        if answers[0] == b"costs too much":
            raise BadMessage(costs_too_much(published[answers[1]], answers[2], answers[3].decode()))

    def _raise_refused(self, answers: list[Any], published: Sequence[Draft]) -> None:
        """Raise for a message that an ack publishes and that was refused: nothing was changed."""
        space = self._space
        if answers[0] == b"too large":
            draft = published[cast("int", answers[1])]
            check_draft(draft, space.routes.route(draft.topic).policy, None)
        self._raise_bad(answers, published)
        if answers[0] == b"refused":
            message_id, topic, *limit = (answer.decode() for answer in answers[1:])
            receipt = Receipt(message_id, topic, "refused", None, _full(topic, *limit))
            raise BacklogFull(backlog_full_with_ack(receipt), [receipt])

    def _leased_id_on(self, shard: int, settlement: Settlement) -> str | None:
        space, mid = self._space, self._numbers.number(settlement.handle)
        stored_lease, stored = space.read_many(shard, [("HGET", "l", mid), ("HGET", "m", mid)])
        lease = (
            record_formats.read_held(stored_lease)
            if stored_lease is not None and settlement.action in ("ack", "dead")
            else None
        )
        fence = self._numbers.number_on(shard, settlement.fence)
        if lease is None or lease.gone or lease.fence != fence:
            return None
        own = (
            record_formats.read_record(mid, stored).id
            if stored is not None and not lease.empty
            else None
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
                report.topic,
                report.id,
                milliseconds(report.ttl_us),
                self._numbers.number(report.handle),
                self._numbers.number_on(shard, report.fence),
                0 if report.before is UNSET else 1 if report.before is None else 2,
            )
            for report in reports
        ]
        bodies = [report.body for report in reports]
        swapped = [report.before for report in reports if isinstance(report.before, bytes)]
        answer = self._space.run(
            "report_progress",
            shard,
            now_us,
            record_formats.pack(rows),
            *bodies,
            *swapped,
            repeatable=all(report.before is UNSET for report in reports),
        )
        return [each == 1 for each in answer]

    def _results_on(self, shard: int, ids: Sequence[tuple[str, str | None]]) -> list[StoredResult]:
        names = self._space.result_names(shard, ids)
        stored = self._space.read_many(
            shard, [("GET", f"{kind}:{name}") for name in names for kind in "on"]
        )
        return [
            StoredResult(outcome, progress)
            for outcome, progress in zip(stored[::2], stored[1::2], strict=True)
        ]

    def _delete_result_on(self, shard: int, message_id: str, topic: str | None) -> None:
        (name,) = self._space.result_names(shard, [(message_id, topic)])
        self._space.read_many(shard, [("DEL", f"{kind}:{name}") for kind in "on"])

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


_COPIED = Receipt("", "")
"""Stands for the receipt of a message that only subscriptions get."""


class _PutPage:
    """The arguments of one call of `put`."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.has_rich = False
        """Whether one of them is not plain."""
        self.copied: list[int | bool] = []
        """
        Position, number of copies, whether it is stored, size, and whether copies have limits, of
        each message with copies.
        """
        self.expires: dict[int, int] = {}
        """By the position of a copy: when its subscription is unused, in microseconds."""
        self.heads: dict[tuple[str, int], bytes] = {}
        self.count = 0
        """How many messages it has, without copies."""
        self.drafts: Sequence[Draft] = ()
        """All messages and copies."""
        self._copies: dict[int, Sequence[Draft]] = {}

    def add_rich(self, message: bytes) -> None:
        self.has_rich = True
        self.messages.append(message)

    def add_group(
        self, draft: Draft, copies: Sequence[Draft], *, is_stored: bool, has_limits: bool
    ) -> None:
        """
        The next message has these copies; `is_stored`: its topic has a backlog of its own;
        `has_limits`: those of some copies may be full.
        """
        position = len(self.messages)
        self._copies[position] = copies
        self.copied += (position + 1, len(copies), is_stored, len(draft.body), has_limits)

    def end(self, drafts: Sequence[Draft]) -> None:
        """All messages are added: the first ones of `drafts`."""
        self.count = len(self.messages) - sum(map(len, self._copies.values()))
        if not self._copies:
            self.drafts = drafts[: self.count]
            return
        every: list[Draft] = []
        for draft in drafts[: self.count]:
            copies = self._copies.get(len(every), ())
            every += (draft, *copies)
        self.drafts = every

    def messages_of_copies(self) -> Iterator[Draft]:
        position = 0
        while position < len(self.drafts):
            copies = self._copies.get(position, ())
            yield from itertools.repeat(self.drafts[position], 1 + len(copies))
            position += 1 + len(copies)

    def without_copies(self, receipts: Sequence[Receipt]) -> list[Receipt]:
        """The receipts of the messages, from those of all messages and copies."""
        answers: list[Receipt] = []
        position = 0
        while position < len(receipts):
            copies = self._copies.get(position, ())
            following = receipts[position + 1 : position + 1 + len(copies)]
            receipt = receipts[position]
            if receipt is _COPIED:
                receipt = receipt_of_copies(self.drafts[position], following)
            answers.append(receipt)
            position += 1 + len(copies)
        return answers


@contextmanager
def _after(receipts: list[Receipt]) -> Iterator[None]:
    """A part of a put: the shard has accepted others of its messages."""
    try:
        yield
    except Rerouted as rerouted:
        raise Rerouted([*receipts, *rerouted.receipts]) from None


def _plain_message(draft: Draft, route: Route, heads: dict[tuple[str, int], bytes]) -> bytes:
    """
    The record of a plain message. `heads`: of earlier messages of this call, by topic and identity
    of the headers, because all calls of a task have the same ones.
    """
    if draft.id is not None or draft.key is not None or draft.sticky:
        return record_formats.plain_record(draft)
    if not draft.headers:
        return route.head + draft.body
    key = (draft.topic, id(draft.headers))
    head = heads.get(key)
    if head is None:
        head = heads[key] = record_formats.plain_head(draft.topic, draft.headers)
    return head + draft.body


def _batch_record(forwarded: tuple[str, str], page: _PutPage) -> bytes:
    """A spool's batch, as the function `put` reads it; copies have the key of their message."""
    return record_formats.pack(
        [*forwarded, [forwarded_key(draft).hex() for draft in page.messages_of_copies()]]
    )


def _receipt(draft: Draft, answer: list[bytes]) -> Receipt:
    """The receipt of a message that was merged, refused or a duplicate."""
    outcome, *details = (each.decode() for each in answer)
    if outcome == "merged":
        merged_into = details[0]
        own_id = draft.id if draft.id is not None else merged_into
        return Receipt(own_id, draft.topic, "merged", merged_into)
    if outcome == "refused":
        what, waiting, limit, *copy = details
        topic = copy[0] if copy else draft.topic
        return Receipt(draft.id or "", topic, "refused", None, _full(topic, what, waiting, limit))
    if outcome == "copied":
        return _COPIED
    if answer == LEFT:  # nobody needs its number
        return Receipt(draft.id or "", draft.topic)
    return Receipt(draft.id or "", draft.topic, cast("Outcome", outcome))


def _full(topic: str, what: str, waiting: str, limit: str) -> str:
    whose, unit = what.split()
    return full(
        f"topic {topic}" if whose == "topic" else "the namespace", int(waiting), unit, int(limit)
    )


def _named(request: LeaseRequest) -> bytes:
    """What a lease takes and what not, as `lease.lua` reads it; empty: everything."""
    without, tiers = request.without or (), request.tiers
    if request.only is None and not without and tiers is None:
        return b""
    named = list(EVERYTHING if request.only is None else request.only)
    named += (f"{WITHOUT}{pattern}" for pattern in without)
    if tiers is not None:
        named += (f"{OF_TIER}{name}" for name in tiers or ("",))  # no tier has an empty name
    return record_formats.pack(named)

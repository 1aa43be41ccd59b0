"""
The Valkey engine: the hot path. Administration is in `desk.py`; what is decided is decided in
`scripts/`.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
import zlib
from typing import TYPE_CHECKING, Any, cast

import msgspec

from laneway.engines.base import HOUSEKEEPING_LIMIT, MAX_PASSED_OVER, SIGNALS_HEADER, Capabilities
from laneway.engines.shared.interrupt import Interrupt
from laneway.engines.shared.naming import merge_key
from laneway.engines.shared.refusals import (
    backlog_full_with_ack,
    check_draft,
    delay_outlasts_ttl,
    full,
)
from laneway.engines.valkey import records
from laneway.engines.valkey.grants import Grants
from laneway.engines.valkey.namespace import Namespace
from laneway.engines.valkey.wakeup import Wakeup
from laneway.errors import BacklogFull, BadMessage, EngineUnavailable
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
    from collections.abc import Iterator, Mapping, Sequence

    from laneway.engines.base import ArrivalListener, ResultListener, Settings
    from laneway.engines.valkey.namespace import Route
    from laneway.tiers import Tiers

HOUSE = 60
"""
Events, wakes and sweeps that one call of a script brings in at most: the server answers nobody else
meanwhile.
"""

AT_ONCE = 250
"""
Messages that one call of a script takes in or settles at most: a call should hold the server up no
longer than some 5 ms.
"""

PLAIN_AT_ONCE = 500
"""The same of plain messages, which take less than half as long to be taken in."""

NOT_PLAIN = -1
"""What stands for the lane of a message that the script has to look at by itself."""

LEAST_LEASED, MOST_LEASED = 60, 250
"""
Between these are the messages that one call hands out at most: each may be of another lane, and
those of some cost three times what others do.
"""

LEASE_SECONDS = 0.004
"""
How long such a call may take; it is asked for less where the last took longer, and for more where
it took half as long.
"""

SHARDS_AT_ONCE = 8
"""
Shards that one lease asks, once it has something: who waits looks at all of them together, and
comes again at once.
"""

SOON_US = SECOND
"""What is due within it has to be looked at by somebody who is not busy."""


class Core:
    """Put, lease, settle and what belongs to them, on the shards of one namespace."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._space = Namespace(url, settings)
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
        self._grants = Grants(self._space)
        self._wakeup = Wakeup(self._space, self._grants)
        self._spread = itertools.count(random.randrange(1 << 16))
        self._leased_at_once = MOST_LEASED // 2
        self._places: dict[tuple[int, str, bytes], int] = {}
        """Where leases that pass lanes over go on."""
        self._next_shard = random.randrange(self._space.shards)

    @property
    def tiers(self) -> Tiers:
        return self._space.tiers

    # Publishing

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        if not drafts:
            return []
        self._check(drafts)
        if self._space.shards == 1:
            return self._put_in(0, drafts, now_us)
        receipts: list[Receipt | None] = [None] * len(drafts)
        for number, (shard, positions) in enumerate(self._by_shard(drafts).items()):
            with _part_of_it(is_first=not number):
                told = self._put_in(shard, [drafts[n] for n in positions], now_us)
            for position, receipt in zip(positions, told, strict=True):
                receipts[position] = receipt
        return cast("list[Receipt]", receipts)

    def _check(self, drafts: Sequence[Draft], *, is_again: bool = False) -> None:
        book = self._space.book
        route_of = book.route
        for draft in drafts:
            try:
                # A delay can be compared with the ttl without the server's clock: better here,
                # before a part of the call is done.
                check_draft(
                    draft,
                    route_of(draft.topic).policy,
                    0 if draft.delay_us and draft.at_us is None else None,
                )
            except BadMessage:
                if is_again or not book.knows_own(draft.topic):
                    raise
                self._space.refresh_own(draft.topic)  # perhaps it has been changed: nobody says so
                self._check([draft], is_again=True)

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        route_of = self._space.book.route
        if len(drafts) > AT_ONCE or any(
            route_of(topic).policy.limits_backlog for topic in {draft.topic for draft in drafts}
        ):
            return False
        return self._space.shards == 1 or len(self._by_shard(drafts)) == 1

    def _by_shard(self, drafts: Sequence[Draft]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for position, draft in enumerate(drafts):
            route = self._space.book.route(draft.topic)
            shard = (
                route.shard
                if route.policy.partitions == 1
                else self._space.shard_of(draft.topic, self._part(draft, route))
            )
            found.setdefault(shard, []).append(position)
        return found

    def _part(self, draft: Draft, route: Route) -> int:
        """
        What picks the partition where these live on several shards: its key, else the body that it
        merges by, else its id, else chance.
        """
        found = self._spread_by(draft, route)
        if found is None:
            found = zlib.crc32(draft.id.encode()) if draft.id is not None else next(self._spread)
        return found

    @staticmethod
    def _spread_by(draft: Draft, route: Route) -> int | None:
        if draft.key is not None:
            return zlib.crc32(draft.key.encode())
        return zlib.crc32(draft.body) if _merges(draft, route) else None

    def _put_in(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        receipts: list[Receipt] = []
        for start in range(0, len(drafts), PLAIN_AT_ONCE):
            with _part_of_it(is_first=not receipts):
                receipts += self._put_slice(shard, drafts[start : start + PLAIN_AT_ONCE], now_us)
        return receipts

    def _put_slice(self, shard: int, drafts: Sequence[Draft], now_us: int | None) -> list[Receipt]:
        space = self._space
        while True:
            version = space.book.version
            lanes, order, messages = self._encoded(drafts)
            if len(drafts) > AT_ONCE and NOT_PLAIN in order:
                first = self._put_slice(shard, drafts[:AT_ONCE], now_us)
                with _part_of_it(is_first=False):
                    return first + self._put_slice(shard, drafts[AT_ONCE:], now_us)
            known = space.book.known_own(drafts)
            head = (version, records.pack(lanes), records.pack(order), records.pack(known))
            answers = space.run("put", shard, now_us, *head, *messages, durable=True)
            if not self._is_stale(answers, shard):
                break
            self._check(
                drafts
            )  # by the policies that were not known when they were looked at first
        if answers and answers[0] == b"impossible":
            draft = drafts[answers[1]]
            raise BadMessage(delay_outlasts_ttl(draft, answers[2], space.book.ttl_of(draft)))
        nonce, shards = space.nonce, space.shards
        return [
            (
                Receipt(
                    draft.id if draft.id is not None else f"{nonce}-{answer * shards + shard:x}",
                    draft.topic,
                )
                if isinstance(answer, int)
                else _receipt(draft, answer)
            )
            for draft, answer in zip(drafts, answers, strict=True)
        ]

    def _is_stale(self, answer: Any, shard: int) -> bool:
        """
        Whether the shard knows other policies than this process: whoever is behind is told, and the
        call has to be made again.
        """
        if not (isinstance(answer, list) and answer and answer[0] in (b"stale", b"own")):
            return False
        if answer[0] == b"own":
            for topic, own, record in answer[1:]:
                self._space.book.learn(topic.decode(), own, record)
        else:
            self._space.agree(shard, answer[1])
        return True

    def _encoded(self, drafts: Sequence[Draft]) -> tuple[list[str], list[int], list[bytes]]:
        """
        The lanes of plain messages, for each message which one it is (-1: not plain), and the
        messages.
        """
        route_of = self._space.book.route
        places: dict[str, int] = {}
        order: list[int] = []
        messages: list[bytes] = []
        for draft in drafts:
            route = route_of(draft.topic)
            if (
                route.is_plain
                and draft.id is None
                and not _waits(draft)
                and draft.ttl_us is None
                and not (
                    draft.priority
                    or draft.delay_us > 0
                    or draft.at_us is not None
                    or draft.at_front
                    or (route.is_serial and draft.key is not None)
                )
            ):
                order.append(places.setdefault(draft.topic, len(places) + 1))
                is_plainest = draft.key is None and not draft.headers and not draft.sticky
                messages.append(
                    route.head + draft.body if is_plainest else records.plain_record(draft)
                )
            else:
                order.append(NOT_PLAIN)
                messages.append(self._rich(draft, route))
        return list(places), order, messages

    def _rich(self, draft: Draft, route: Route) -> bytes:
        policy = route.policy
        mkey = merge_key(draft) if _merges(draft, route) else None
        spread = None
        if policy.partitions > 1:
            spread = (
                self._part(draft, route)
                if self._space.shards > 1
                else self._spread_by(draft, route)
            )
        made = self._space.made(draft.id) if draft.id is not None else None
        ttl = draft.ttl_us if draft.ttl_us is not None or draft.signal is not None else policy.ttl
        rank = -2 * draft.priority + (0 if draft.at_front else 1)
        return records.draft_record(
            draft, rank, ttl, mkey, made[1] if made is not None else None, spread
        )

    # Handing out

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        only: Sequence[str] | None = None,
        now_us: int | None = None,
    ) -> Batch:
        self._grants.renew()
        self._space.look_at_tiers()
        room, startable = n, n if startable is None else startable
        made = Batch([], 0, None)
        wakes: list[int] = []
        for visited, shard in enumerate(self._shards_of(topics)):
            if made.leases and (room <= 0 or visited >= SHARDS_AT_ONCE):
                wakes.append(made.now_us)  # there may be more
                break
            batch = self._lease_from(
                shard, room, pool, topics, startable, now_us, record_start=record_start, only=only
            )
            made.leases += batch.leases
            made.passed_over |= batch.passed_over
            made.goes_on |= batch.goes_on
            made.now_us = max(made.now_us, batch.now_us)
            if batch.next_wake_us is not None:
                wakes.append(batch.next_wake_us)
            room -= len(batch.leases)
            startable = max(0, startable - sum(lease.limited for lease in batch.leases))
        made.next_wake_us = min(wakes, default=None)
        return made

    def _shards_of(self, topics: Sequence[str] | None) -> Iterator[int]:
        """
        Those to be asked: first where something is known to be, then in turns; of named topics in
        their order.
        """
        shards = self._space.shards
        if topics is not None and shards > 1:
            found = (
                self._space.shard_of(topic, part)
                for topic in topics
                for part in range(self._space.book.route(topic).policy.partitions)
            )
            yield from dict.fromkeys(found)
            return
        first = self._next_shard
        self._next_shard = (first + 1) % shards
        yield from dict.fromkeys(
            (*self._wakeup.take_notified(), *range(first, shards), *range(first))
        )

    def _lease_from(
        self,
        shard: int,
        n: int,
        pool: str,
        topics: Sequence[str] | None,
        startable: int,
        now_us: int | None,
        *,
        record_start: bool,
        only: Sequence[str] | None = None,
    ) -> Batch:
        space = self._space
        patterns = b"" if only is None else records.pack(list(only))
        leases: list[Lease] = []
        left = HOUSEKEEPING_LIMIT
        while True:
            room = min(n - len(leases), self._leased_at_once)
            left -= HOUSE
            began = time.perf_counter()
            begins = self._places.get((shard, pool, patterns), 0) if patterns else 0
            now, wake, again, nonce, fence, found, runs, bodies, passed_over, goes_on = space.run(
                "lease",
                shard,
                now_us,
                room,
                pool,
                b"" if topics is None else records.pack(list(topics)),
                startable,
                int(record_start),
                HOUSE,
                int(left <= 0),
                SOON_US,
                patterns,
                begins,
                MAX_PASSED_OVER,
            )
            if again:
                continue
            if patterns:
                self._places[shard, pool, patterns] = max(goes_on, 0)
            self._fit(room, time.perf_counter() - began, is_full=len(found) == 2 * room)
            made = records.leases_of(
                found, runs, bodies, fence, nonce.decode(), space.shards, shard
            )
            leases += made
            startable -= sum(lease.limited for lease in made)
            if len(found) < 2 * room or len(leases) >= n:
                return Batch(
                    leases, now, wake if wake >= 0 else None, bool(passed_over), goes_on >= 0
                )

    def _fit(self, room: int, seconds: float, *, is_full: bool) -> None:
        """
        The server answers nobody else meanwhile: what one call asks for should take it no longer
        than that.
        """
        if seconds > LEASE_SECONDS:
            self._leased_at_once = max(LEAST_LEASED, room * 3 // 4)
        elif is_full and seconds < LEASE_SECONDS / 2:
            self._leased_at_once = min(MOST_LEASED, max(self._leased_at_once, room + room // 4))

    # Leases

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        return self._keep(leases, b"", now_us, durable=True)

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        return self._keep(leases, by_us, now_us, durable=False)

    def _keep(
        self,
        leases: Sequence[tuple[int, int]],
        by: int | bytes,
        now_us: int | None,
        *,
        durable: bool,
    ) -> list[bool]:
        answers = [False] * len(leases)
        for shard, positions in self._positions([handle for handle, _ in leases]).items():
            pairs = [
                (leases[n][0] // self._space.shards, self._fence(shard, leases[n][1]))
                for n in positions
            ]
            told = self._space.run(
                "extend", shard, now_us, records.pack(pairs), by, durable=durable, repeatable=True
            )
            for position, answer in zip(positions, told, strict=True):
                answers[position] = answer == 1
        return answers

    def _positions(self, handles: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """Positions by shard."""
        if self._space.shards == 1:
            return {0: range(len(handles))}
        found: dict[int, list[int]] = {}
        for position, handle in enumerate(handles):
            found.setdefault(handle % self._space.shards, []).append(position)
        return found

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[SettlementAnswer]:
        if not settlements:
            return []
        answers: list[SettlementAnswer] = ["acked"] * len(settlements)
        is_first = True
        for shard, positions in self._positions(
            [settlement.handle for settlement in settlements]
        ).items():
            for start in range(0, len(positions), AT_ONCE):
                page = positions[start : start + AT_ONCE]
                follow = [
                    (place, draft)
                    for place, n in enumerate(page, 1)
                    for draft in (publish or {}).get(n, ())
                ]
                if follow and self._space.shards > 1:
                    follow = self._publish_elsewhere(
                        shard, [settlements[n] for n in page], follow, now_us
                    )
                with _part_of_it(is_first=is_first):
                    told = self._settle_in(shard, [settlements[n] for n in page], follow, now_us)
                is_first = False
                for position, answer in zip(page, told, strict=True):
                    answers[position] = answer
        return answers

    def _publish_elsewhere(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        follow: list[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[tuple[int, Draft]]:
        """
        What goes with an ack to another shard is put there first, by an id made of its message's:
        where the ack then fails, and the message comes again, so does this, as a duplicate. Returns
        what can be done together with the ack.
        """
        here: list[tuple[int, Draft]] = []
        elsewhere: list[Draft] = []
        counted: dict[int, int] = {}
        parents: dict[int, str | None] = {}
        for place, draft in follow:
            number = counted[place] = counted.get(place, -1) + 1
            if place not in parents:
                parents[place] = self._held_id(shard, settlements[place - 1])
            parent = parents[place]
            if parent is None:
                continue  # its lease is lost
            named = msgspec.structs.replace(
                draft, id=draft.id if draft.id is not None else f"{parent}:{number}", sticky=True
            )
            if self._by_shard([named]).get(shard):
                here.append((place, named))
            else:
                elsewhere.append(named)
        for receipt in self.put(elsewhere, now_us=now_us):
            if receipt.outcome == "refused":
                raise BacklogFull(backlog_full_with_ack(receipt), [receipt])
        return here

    def _held_id(self, shard: int, settlement: Settlement) -> str | None:
        """The id of a message that is acked now, if its lease is held."""
        space, mid = self._space, settlement.handle // self._space.shards
        lease, stored = space.read_many(shard, [("HGET", "l", mid), ("HGET", "m", mid)])
        held = (
            records.read_held(lease)
            if lease is not None and settlement.action in ("ack", "dead")
            else None
        )
        if held is None or held.gone or held.fence != self._fence(shard, settlement.fence):
            return None
        own = records.read_record(mid, stored).id if stored is not None and not held.empty else None
        return str(own) if own else f"{space.nonce}-{settlement.handle:x}"

    def _settle_in(
        self,
        shard: int,
        settlements: Sequence[Settlement],
        follow: list[tuple[int, Draft]],
        now_us: int | None,
    ) -> list[SettlementAnswer]:
        space = self._space
        shards = space.shards
        with_more = {place for place, _ in follow}
        is_simple = len({settlement.handle for settlement in settlements}) == len(
            settlements
        )  # else the first of a lease counts
        simple: list[int] = []
        simple_at: list[int] = []
        others: list[tuple[Any, ...]] = []
        others_at: list[int] = []
        for n, settlement in enumerate(settlements):
            if is_simple and settlement.action == "ack" and n + 1 not in with_more:
                fence, index = divmod(settlement.fence, shards)
                simple += (
                    settlement.handle // shards,
                    fence if index == shard else -1,
                    settlement.cost_us,
                )
                simple_at.append(n)
            else:
                others.append((*self._told(shard, settlement), n + 1))
                others_at.append(n)
        place_of = {n + 1: place for place, n in enumerate(others_at, 1)}
        kept: list[Any] = []
        for n, settlement in enumerate(settlements, 1):
            if settlement.outcome is not None:
                kept += (n, settlement.id, milliseconds(settlement.outcome_ttl_us))
        outcomes = [
            settlement.outcome for settlement in settlements if settlement.outcome is not None
        ]
        packed = (records.pack(simple), records.pack(others), records.pack(kept))
        while True:
            arguments: tuple[Any, ...] = (*packed, b"", *outcomes)
            if follow:
                routes = [space.book.route(draft.topic) for _, draft in follow]
                sizes = [
                    (place_of[place], len(draft.body) > route.policy.max_body)
                    for (place, draft), route in zip(follow, routes, strict=True)
                ]
                messages = [
                    self._rich(draft, route)
                    for (_, draft), route in zip(follow, routes, strict=True)
                ]
                known = space.book.known_own([draft for _, draft in follow])
                arguments = (
                    *packed,
                    records.pack([space.book.version, known]),
                    records.pack(sizes),
                    *messages,
                    *outcomes,
                )
            answers: list[Any] = space.run("settle", shard, now_us, *arguments, durable=True)
            if not self._is_stale(answers, shard):
                break
        self._raise_refused(answers, follow)
        unlike, told = answers
        found: list[SettlementAnswer] = ["acked"] * len(settlements)
        for n, answer in zip(unlike[::2], unlike[1::2], strict=True):
            found[simple_at[n - 1]] = cast("SettlementAnswer", answer.decode())
        for n, answer in zip(others_at, told, strict=True):
            found[n] = cast("SettlementAnswer", answer.decode())
        return found

    def _raise_refused(self, answers: list[Any], follow: list[tuple[int, Draft]]) -> None:
        """What goes with an ack and cannot be published fails the whole call."""
        space = self._space
        if answers[0] == b"too large":
            draft = follow[cast("int", answers[1])][1]
            check_draft(draft, space.book.route(draft.topic).policy, None)
        if answers[0] == b"impossible":
            draft = follow[cast("int", answers[1])][1]
            raise BadMessage(
                delay_outlasts_ttl(draft, cast("int", answers[2]), space.book.ttl_of(draft))
            )
        if answers[0] == b"refused":
            message_id, topic, *told = (answer.decode() for answer in answers[1:])
            receipt = Receipt(message_id, topic, "refused", None, _full(topic, *told))
            raise BacklogFull(backlog_full_with_ack(receipt), [receipt])

    def _fence(self, shard: int, fence: int) -> int:
        """A hand-out's number in its shard; -1 for one of another."""
        inner, index = divmod(fence, self._space.shards)
        return inner if index == shard else -1

    def _told(self, shard: int, settlement: Settlement) -> tuple[Any, ...]:
        mid = settlement.handle // self._space.shards
        draws = settlement.action == "retry" and settlement.delay_us is None
        return (
            mid,
            self._fence(shard, settlement.fence),
            settlement.action,
            False if settlement.delay_us is None else settlement.delay_us,
            settlement.reason or False,
            settlement.error or False,
            settlement.cost_us,
            settlement.begun,
            self._random() if draws else 1,
        )

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        wakes = []
        for shard in range(self._space.shards):
            left = budget
            while True:
                wake, more = self._space.run(
                    "tick", shard, now_us, min(left, HOUSE), repeatable=True
                )
                left -= HOUSE
                if not more or left <= 0:
                    break
            if wake >= 0:
                wakes.append(wake)
        return min(wakes, default=None)

    # What is kept under messages' ids

    def report_progress(
        self, reports: Sequence[ProgressReport], *, now_us: int | None = None
    ) -> list[bool]:
        space = self._space
        answers = [False] * len(reports)
        found: dict[int, list[int]] = {}
        for n, each in enumerate(reports):
            made = space.made(each.id)
            shard = (
                each.handle % space.shards
                if each.handle
                else made[0]
                if made is not None
                else space.shards_of(each.topic)[0]
            )
            found.setdefault(shard, []).append(n)
        for shard, positions in found.items():
            told = [
                (
                    reports[n].id,
                    milliseconds(reports[n].ttl_us),
                    reports[n].handle // space.shards,
                    self._fence(shard, reports[n].fence),
                )
                for n in positions
            ]
            bodies = [reports[n].body for n in positions]
            for n, answer in zip(
                positions,
                space.run(
                    "report_progress", shard, now_us, records.pack(told), *bodies, repeatable=True
                ),
                strict=True,
            ):
                answers[n] = answer == 1
        return answers

    def results(
        self, ids: Sequence[tuple[str, str | None]], *, now_us: int | None = None
    ) -> list[StoredResult]:
        del now_us  # the server itself forgets what is over
        found = [StoredResult() for _ in ids]
        by_shard: dict[int, list[int]] = {}
        for n, (message_id, topic) in enumerate(ids):
            for shard in self._shards_that_keep(message_id, topic):
                by_shard.setdefault(shard, []).append(n)
        for shard, positions in by_shard.items():
            stored = self._space.read_many(
                shard, [("GET", f"{kind}:{ids[n][0]}") for n in positions for kind in "on"]
            )
            for place, n in enumerate(positions):
                found[n].outcome = stored[2 * place] or found[n].outcome
                found[n].progress = stored[2 * place + 1] or found[n].progress
        return found

    def _shards_that_keep(self, message_id: str, topic: str | None) -> Sequence[int]:
        made = self._space.made(message_id)
        if made is not None:
            return [made[0]]
        return range(self._space.shards) if topic is None else self._space.shards_of(topic)

    def delete_result(self, message_id: str, topic: str | None = None) -> None:
        for shard in self._shards_that_keep(message_id, topic):
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

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        return self._wakeup.arrival_listener(pool)

    def interrupt(self) -> None:
        self._wakeup.interrupt()

    def close(self) -> None:
        self._wakeup.close()
        self._space.server.close()


@contextlib.contextmanager
def _part_of_it(*, is_first: bool) -> Iterator[None]:
    """
    A call that is made in several: where not the first of them fails, a part was done, and to the
    caller it is not known which.
    """
    try:
        yield
    except EngineUnavailable as error:
        if not is_first:
            error.applied = None
        raise
    except BadMessage as error:
        if not is_first:
            error.applied = None  # type: ignore[attr-defined]  # whoever commits for several looks at it
        raise


def milliseconds(micros: int) -> int:
    """As the server counts what it keeps, at least one."""
    return max(1, micros // 1000)


def _waits(draft: Draft) -> bool:
    """Whether it waits for signals."""
    return draft.headers is not None and SIGNALS_HEADER in draft.headers


def _merges(draft: Draft, route: Route) -> bool:
    return route.policy.merge is not None and draft.signal is None and not _waits(draft)


def _receipt(draft: Draft, answer: list[bytes]) -> Receipt:
    """Of a message that was not simply accepted."""
    outcome, *told = (each.decode() for each in answer)
    if outcome == "merged":
        return Receipt(
            draft.id if draft.id is not None else told[0], draft.topic, "merged", told[0]
        )
    if outcome == "refused":
        return Receipt(draft.id or "", draft.topic, "refused", None, _full(draft.topic, *told))
    return Receipt(cast("str", draft.id), draft.topic, cast("Outcome", outcome))


def _full(topic: str, what: str, waiting: str, limit: str) -> str:
    whose, unit = what.split()
    return full(
        f"topic {topic}" if whose == "topic" else "the namespace", int(waiting), unit, int(limit)
    )

"""
Fleets whose operators meddle: they redrive, drop, move, cancel, purge and delete messages and
change every policy, while workers die, answers get lost and calls come late.

`python -m tests.simulation SEED --kind operations` runs one.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from laneway.engines.base import (
    ENDED,
    RESULT_TTL_HEADER,
    SIGNALS_HEADER,
    TASK_HEADER,
    FullEngine,
    Settings,
)
from laneway.errors import BacklogFull, BadMessage, LanewayError, UsageError
from laneway.headers import COST
from laneway.message import Action, Draft, Lease, Settlement
from laneway.policy import Gate
from laneway.testing.engine_driver import TIERS
from laneway.testing.simulation import (
    Actor,
    Chaos,
    Check,
    End,
    Fault,
    Fleet,
    Network,
    Operator,
    Publisher,
    Spool,
    Store,
    Worker,
)
from laneway.testing.simulation.checks import Messages
from laneway.testing.simulation.store import Call
from laneway.units import SECOND
from tests.simulation import fleets, publishing
from tests.simulation.fleets import ENGINES, SEVERAL
from tests.simulation.publishing import Repeater

POLICIES: list[dict[str, Any]] = [
    *fleets.POLICIES,
    *publishing.POLICIES,
    {"serial": "hold", "partitions": 3},
    {"serial": "yield", "gate": "g", "group": "{0}"},
    {"key_concurrency": 1, "partitions": 2, "concurrency": 3},
    {"concurrency": 2, "partitions": 4},
    {"delivery": "at_most_once"},
    {"delivery": "at_most_once", "serial": "hold", "concurrency": 1},
    {"subscription:s": {}, "subscription:t": {"where": {"a": "b"}}, "own_backlog": False},
    {"subscription:s": {"expires": 60}, "partitions": 2},
    {"lease": 1, "retries": 0},
    {"on_unhandled": 20},
    {"merge": "all", "serial": "hold"},
    {"dedupe": "forever"},
    {"buckets": 2},
]

CHANGES: dict[str, list[Any]] = {
    "rate": [3, 30, None],
    "concurrency": [1, 3, "auto", None],
    "serial": ["hold", "yield", None],
    "merge": ["first", "last", "all", None],
    "partitions": [1, 2, 5, None],
    "ttl": [2, 30, None],
    "dedupe": [2, 60, None],
    "max_backlog": [3, 20, None],
    "on_full": ["drop_oldest", "refuse", None],
    "key_concurrency": [1, 2, None],
    "key_rate": [2, None],
    "gate": ["g", "h", ["g", "h"], None],
    "group": ["a", "{0}", None],
    "tier": ["high", "low", None],
    "weight": [0.5, 5, None],
    "pool": ["other", "other", None],
    "lease": [1, 5, None],
    "retries": [0, 2, None],
    "paused": [True, None],
    "delivery": ["at_most_once", None],
    "buckets": [1, 3, None],
    "subscription:s": [{}, None],
    "own_backlog": [False, None],
}


CALLS: list[dict[str, Any]] = [
    *({} for _ in range(8)),
    {"only": ["o.*"]},
    {"only": ["a.*", "o.1"], "without": ["a.2"]},
    {"without": ["o.*"]},
    {"topics": ["o.1", "a.1", "o.2", "a.2#s"]},
    {"tiers": ["high"]},
    {"record_start": True, "holder": "somebody"},
]
"""Options of leases."""


ENDS: list[Action] = ["retry", "retry", "dead", "release", "back_off", "unhandled"]
"""How handlers end that fail."""


class Meddler:
    """What an operator does to some topics."""

    def __init__(self, store: Store, topics: list[str], fields: list[str]) -> None:
        self.store, self.topics, self.fields = store, topics, fields
        self.random = store.clock.random

    def topic(self) -> str:
        topic: str = self.random.choice(self.topics)
        policy = self.store.policy_of(topic)
        if policy.subscriptions and self.store.clock.chance(0.3):
            topic = f"{topic}#{self.random.choice(policy.subscriptions).name}"
        return topic

    @property
    def actions(self) -> list[Any]:
        once = [self.redrive_some, self.drop, self.purge, self.delete, self.gate, self.group]
        often = [self.redrive, self.move, self.cancel, self.change, self.change, self.reset]
        return [*once, *often, *often, self.back_off, self.tier, self.gate_reset, self.doctor]

    async def redrive(self, store: Store) -> None:
        topic = self.random.choice([None, self.topic()])
        spacing = self.random.choice([0, 0, SECOND // 2])
        limit = self.random.choice([1, 3, 1000])
        await store.call("dead_redrive", topic, spacing_us=spacing, limit=limit)

    async def redrive_some(self, store: Store) -> None:
        topic = self.topic()
        dead = await store.call("dead_list", topic, limit=4)
        ids = [view.id for _, view in dead]
        self.random.shuffle(ids)
        await store.call("dead_redrive", topic, ids * 2)

    async def drop(self, store: Store) -> None:
        await store.call("dead_drop", self.topic(), limit=self.random.choice([1, 1000]))

    async def move(self, store: Store) -> None:
        topic, to = self.topic(), self.random.choice(["ready", "dead"])
        for view in await store.call("topic_peek", topic, limit=3):
            if is_notice(view.headers):
                continue
            await store.call("message_move", view.id, topic, to=to)

    async def cancel(self, store: Store) -> None:
        topic = self.topic()
        state = self.random.choice([None, "leased", "parked", "delayed"])
        for view in await store.call("topic_peek", topic, limit=3, state=state):
            if is_notice(view.headers):
                continue
            await store.call("cancel", view.id, topic)

    async def purge(self, store: Store) -> None:
        await store.call("topic_purge", self.topic())

    async def delete(self, store: Store) -> None:
        await store.call("topic_delete", self.topic())

    async def change(self, store: Store) -> None:
        names = self.random.sample(self.fields, min(len(self.fields), self.random.randint(1, 3)))
        fields = {name: self.random.choice(CHANGES[name]) for name in names}
        await store.call("policy_set", "operator", self.topic(), fields)

    async def reset(self, store: Store) -> None:
        await store.call("policy_reset", "operator", self.topic())

    async def gate(self, store: Store) -> None:
        name, limits = self.random.choice("gh"), self.random.choice(fleets.GATES)
        await store.call("gate_set", name, limits)

    async def gate_reset(self, store: Store) -> None:
        await store.call("gate_reset", self.random.choice("gh"))

    async def group(self, store: Store) -> None:
        limits = self.random.choice([*fleets.GATES, Gate()])
        await store.call("topic_group_set", self.random.choice(["a", "o"]), limits)

    async def back_off(self, store: Store) -> None:
        by_us = self.random.choice([0, 5 * SECOND])
        await store.call("topic_back_off", self.topic(), by_us)

    async def tier(self, store: Store) -> None:
        name, tier = self.random.choice(["high", "low"]), self.random.choice(list(TIERS.values()))
        await store.call("tier_set", "operator", {name: tier})

    async def doctor(self, store: Store) -> None:
        engine = self.random.choice(store.engines)
        check_doctor(engine, store)


def is_notice(headers: dict[str, str] | None) -> bool:
    """Whether a message reports the end of another one: operators leave it alone."""
    return (headers or {}).get(TASK_HEADER) == ENDED


def check_doctor(engine: FullEngine, store: Store) -> None:
    if not hasattr(engine, "doctor"):  # the model
        return
    bad = [check for check in engine.doctor() if not check.ok]
    if bad:
        raise AssertionError(f"the doctor at {store.clock.seconds:g} s: {bad}")


class Handling(Actor):
    """How handlers end: in every way, until the simulation finishes."""

    def __init__(self, store: Store, seconds: float, topics: list[str]) -> None:
        super().__init__(store)
        self.seconds, self.topics = seconds, topics
        self.is_kind = False
        self.good = store.clock.random.choice([0.3, 0.7, 0.95])

    async def main(self) -> None:
        """It only answers workers."""

    def finish(self) -> None:
        self.is_kind = True

    def handle(self, lease: Lease) -> End:
        chance, seconds = self.clock.random, self.clock.exponential(self.seconds)
        if self.is_kind or chance.random() < self.good:
            is_followed = not self.is_kind and chance.random() < 0.2 and lease.id.count(":") < 3
            return End(seconds, publish=self._followers(lease) if is_followed else [])
        action: Action = chance.choice(ENDS)
        delay = chance.choice([None, None, 0, SECOND, 5 * SECOND])
        return End(seconds, action, delay, begun=chance.random() < 0.7)

    def _followers(self, lease: Lease) -> list[Draft]:
        kinds: list[list[str | None]] = [[None], [None, None], [f"{lease.id}:own"]]
        ids = self.clock.random.choice(kinds)
        topics = [self.clock.random.choice(self.topics) for _ in ids]
        return [
            Draft(topic, b"follows", key=lease.key, id=each)
            for topic, each in zip(topics, ids, strict=True)
        ]


class Handler(Worker):
    """
    A worker that reports outcomes, and settles alone what the store refuses to settle with what it
    publishes. Its leases have the options of one of `CALLS`.
    """

    def __init__(self, *arguments: Any, options: dict[str, Any], **named: Any) -> None:
        self.options = options
        self.handled: dict[int, Lease] = {}
        super().__init__(*arguments, **named)

    async def until_answered(self, operation: str, *arguments: Any, **options: Any) -> Any:
        if operation == "lease":
            options |= self.options
        return await super().until_answered(operation, *arguments, **options)

    async def answer(self, lease: Lease) -> End:
        self.handled[lease.fence] = lease
        return await super().answer(lease)

    def _report(self, settlement: Settlement) -> None:
        lease = self.handled.pop(settlement.fence, None)
        if lease is not None and RESULT_TTL_HEADER in (lease.headers or {}):
            settlement.id, settlement.topic = lease.id, lease.topic
            settlement.outcome, settlement.outcome_ttl_us = b'"so"', 600 * SECOND

    async def _settle(self) -> None:
        ended, self._ended = self._ended, []
        publish = {n: drafts for n, (_, drafts) in enumerate(ended) if drafts}
        settlements = [each for each, _ in ended]
        for each in settlements:
            self._report(each)
        try:
            await self.until_answered("settle", settlements, publish=publish)
        except (BacklogFull, BadMessage):
            await self.until_answered("settle", settlements)


class PartialRepeater(Publisher):
    """Publishes batches; a batch without an answer is published again in part, in other order."""

    async def _publish(self, draft: Draft) -> None:
        drafts = [draft, *(self._next() for _ in range(self.clock.random.randint(0, 6)))]
        while drafts:
            try:
                await self.store.call("put", drafts)
            except LanewayError:
                self.clock.random.shuffle(drafts)
                count = self.clock.random.randint(0, len(drafts))
                drafts = drafts[:count]
            else:
                return
            await self.clock.sleep(self.clock.random.uniform(0, 1))


class Follower(Publisher):
    """Publishes messages whose ends are kept, and asks to be told of them."""

    def __init__(self, *arguments: Any, ends: Ends) -> None:
        super().__init__(*arguments)
        self.ends = ends

    async def _publish(self, draft: Draft) -> None:
        draft.headers = {**(draft.headers or {}), RESULT_TTL_HEADER: "900,900"}
        try:
            await self.until_answered("put", [draft])
            await self.clock.sleep(self.clock.exponential(0.5))
            follower = b'"%s"' % (draft.id or "").encode()
            outcome = await self.until_answered("on_end", draft.id, draft.topic, follower)
        except (BadMessage, UsageError):
            return
        if outcome is None:
            self.ends.expected[draft.id or ""] = draft.topic


class Ends(Check):
    """Who follows a message is told of its end; its headers may be others if it merged."""

    def __init__(self, store: Store, messages: Messages) -> None:
        super().__init__(store)
        self.messages = messages
        self.expected: dict[str, str] = {}
        """The topic of each message."""
        self.reported: Counter[str] = Counter()

    def saw_lease(self, call: Call) -> None:
        for lease in call.answer.leases:
            if is_notice(lease.headers):
                content = msgspec.json.decode(lease.body)
                if lease.deliveries == 1:
                    self.reported.update(content.get("followers", []))

    def end(self) -> None:
        missing = self.expected.keys() - self.reported.keys()
        missing = {each for each in missing if self.expected[each] not in self.messages.lossy}
        if missing:
            raise self.broken(f"nobody was told of the ends of {sorted(missing)}")


class Joiner(Publisher):
    """Publishes messages that wait for two signals, and sends these in any order, repeatedly."""

    def finish(self) -> None:
        super().finish()
        self.spawn(self._end_all())

    async def _end_all(self) -> None:
        """Some wait again: their publish came late, or was repeated after they had ended."""
        await self.clock.sleep(self.store.network.timeout + 200.0)
        for number in range(1, self._number + 1):
            draft = self._draft(number)
            draft = Draft(draft.topic, b"", key=draft.key, id=draft.id, signal=0)
            await self.until_answered("put", [draft])

    async def _publish(self, draft: Draft) -> None:
        draft.headers = {**(draft.headers or {}), SIGNALS_HEADER: "2"}
        try:
            await self.until_answered("put", [draft])
        except BadMessage:
            return
        signals = [
            Draft(draft.topic, b"s%d" % number, key=draft.key, id=draft.id, signal=number)
            for number in (1, 2, 1)
        ]
        self.clock.random.shuffle(signals)
        for signal in signals:
            await self.clock.sleep(self.clock.exponential(0.5))
            await self.until_answered("put", [signal])


class Totals(Check):
    """The namespace's counters are those of the calls."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.counts: Counter[str] = Counter()

    def saw_lease(self, call: Call) -> None:
        self.counts["delivered"] += len(call.answer.leases)

    def saw_settle(self, call: Call) -> None:
        self.counts["retried"] += sum(answer == "retried" for answer in call.answer)

    def end(self) -> None:
        overview = self.store.engine.overview(now_us=self.store.now)
        if overview.waiting or overview.leased:
            raise self.broken(f"{overview.waiting} wait, {overview.leased} are leased")
        tallies = self.store.engine.tallies(now_us=self.store.now).tallies
        for name in ("published", "delivered", "done", "retried", "died", "merged", "waiting"):
            counted = sum(getattr(each, name) for each in tallies)
            if counted != getattr(overview, name):
                raise self.broken(f"the history has {counted} {name}, not {overview}")
        if overview.retried < self.counts["retried"]:
            raise self.broken(f"{overview.retried} retried, {self.counts['retried']} seen")
        if overview.delivered != self.counts["delivered"]:
            raise self.broken(f"{overview.delivered} delivered, {self.counts['delivered']} seen")
        for engine in self.store.engines:
            check_doctor(engine, self.store)


class Drawing:
    """Draws such a fleet."""

    def __init__(self, seed: int, fleet: Fleet, length: float) -> None:
        self.draw = random.Random(f"operations {seed}")
        self.fleet, self.length = fleet, length
        self.topics: list[str] = []

    def everything(self) -> None:
        draw, fleet, store = self.draw, self.fleet, self.fleet.store
        store.network = Network(
            (0.0005, draw.choice([0.001, 0.01, 0.1])),
            lost_calls=draw.choice([0, 0.02, 0.1]),
            lost_answers=draw.choice([0, 0.02, 0.1]),
            slow=draw.choice([0, 0, 0.02]),
            late_calls=draw.choice([0, 0.02, 0.1]),
            latest=draw.choice([3.0, 30.0, 100.0]),
        )
        fleet.check(Totals(store))
        self.ends = Ends(store, fleet.messages)
        fleet.check(self.ends)
        for name in "gh":
            store.apply("gate_set", name, draw.choice(fleets.GATES))
        for number in range(draw.randint(1, 6)):
            self.topic(f"{draw.choice(['o', 'a'])}.{number}")
        handling = fleet.add(Handling(store, draw.choice([0.01, 0.1, 0.5, 4.0]), self.topics))
        workers = [
            fleet.add(
                Handler(
                    store,
                    draw.choice([1, 4, 10]),
                    handling.handle,
                    is_careless=draw.random() < 0.3,
                    options=options,
                    pool=pool,
                )
            )
            for options, pool in self.calls()
        ]
        fields = draw.sample(sorted(CHANGES), draw.choice([1, 2, 4, len(CHANGES)]))
        if not {"serial", "key_concurrency", "key_rate"}.isdisjoint(fields):
            fleet.limits.has_fixed_keys = False
        meddler = Meddler(store, self.topics, fields)
        fleet.add(Operator(store, self.length / draw.choice([10, 40, 100]), meddler.actions))
        faults: list[Fault] = [
            each for each in ("crash", "stop", "restart", "jump") if draw.random() < 0.5
        ]
        if len(store.engines) > 1 and draw.random() < 0.3:
            faults.append("drift")
        if "cluster" in getattr(store.engine, "url", ""):
            mover = fleets.Drawing(0, fleet, self.length)
            fleet.add(Operator(store, self.length / 20, [mover.move_shard]))
        if faults:
            every = self.length / draw.choice([3, 10, 30])
            fleet.add(Chaos(store, every, faults, workers))

    def calls(self) -> list[tuple[dict[str, Any], str]]:
        """The options and the pool of each worker's leases: some take part of the topics only."""
        calls: list[tuple[dict[str, Any], str]] = [({}, "default"), ({}, "other")]
        more = range(self.draw.choice([0, 2, 6]))
        return calls + [(self.draw.choice(CALLS), "default") for _ in more]

    def topic(self, topic: str) -> None:
        draw, fleet = self.draw, self.fleet
        policy = {"dead_ttl": "10d", "backoff": 1, **draw.choice(POLICIES)}
        pattern = topic
        if "buckets" in policy:
            pattern = f"{topic}.*"
            topic = f"{topic}.x"
        fleet.store.apply("policy_set", "code", pattern, policy)
        self.topics.append(topic)
        keys = draw.choice([0, 1, 3])
        if any(name in policy for name in ("serial", "merge", "key_concurrency", "key_rate")):
            keys = draw.choice([1, 3])
        headers = draw.choice([{}, {}, {COST: "3"}, {"a": "b"}, {RESULT_TTL_HEADER: "600,600"}])
        chance = fleet.clock.random
        plain = draw.random() < 0.5

        def make(number: int) -> Draft:
            key = f"k{number % keys}" if keys else None
            body = b"%d" % number
            if plain:
                return Draft(topic, body, key=key, headers=headers or None)
            return Draft(
                topic,
                body,
                key=key,
                headers=headers or None,
                delay_us=chance.choice([0, 0, SECOND, 4 * SECOND]),
                priority=chance.choice([0, 0, 5, -2]),
                at_front=chance.random() < 0.1,
                sticky=chance.random() < 0.1,
            )

        kind: Any = draw.choice(
            [Publisher, Repeater, PartialRepeater, PartialRepeater, Spool, Joiner]
        )
        kind = partial(Follower, ends=self.ends) if draw.random() < 0.2 else kind
        fleet.add(kind(fleet.store, topic, make, draw.choice([0.3, 1, 3, 10])))


@contextmanager
def drawn(seed: int, engine: str, length: float) -> Iterator[Fleet]:
    """The fleet with this seed."""
    settings = Settings(namespace=uuid.uuid4().hex, tiers=TIERS, durability="memory")
    processes = random.Random(seed).choice([1, 2, 3]) if engine in SEVERAL else 1
    fleet = Fleet(ENGINES[engine], settings, seed=seed, processes=processes)
    try:
        Drawing(seed, fleet, length).everything()
        yield fleet
    finally:
        fleet.close()


def run(seed: int, engine: str, length: float) -> Fleet:
    """Run the fleet with this seed for some seconds of virtual time, then to its end."""
    with drawn(seed, engine, length) as fleet:
        fleet.run(length)
        fleet.finish()
    return fleet

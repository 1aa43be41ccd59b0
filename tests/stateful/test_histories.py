"""
Random histories: sequences of calls to an engine and the model (tests/model) in lockstep.

Hypothesis chooses the steps of a history: the rules of the class `Histories`. The clock moves only
in steps. After each step every answer and the whole state of both are compared; every fifth step
the doctor checks the engine's store; at the end all messages must drain.

By default the same few histories run every time. `make histories` runs 500 random ones on each
engine (`LANEWAY_HISTORIES=2000`: more) and prints the seed, which `LANEWAY_SEED=…` repeats.
`LANEWAY_SHRINK=1` shortens a failing history, which takes minutes.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, seed, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from laneway.codec import MAX_PRIORITY, MIN_PRIORITY
from laneway.engines.base import RESULT_TTL_HEADER, SIGNALS_HEADER, FullEngine, RecordKind
from laneway.message import Action, Draft, Lease, Receipt, Settlement
from laneway.policy import Gate, Layer, own_rows
from laneway.tiers import Tier
from laneway.units import SECOND
from tests.conformance.conftest import ENGINES
from tests.model import Model
from tests.stateful.lockstep import START, Lockstep, handles

HISTORIES = os.environ.get("LANEWAY_HISTORIES")
SEED = int(os.environ.get("LANEWAY_SEED") or random.SystemRandom().randrange(1 << 32))
SHRINK = "LANEWAY_SHRINK" in os.environ
FEW = 3
MORE = {"sqlite memory": 10, "valkey": 10}
"""Histories in every run of the tests; the other engines differ from these only in connections."""
STEPS = 50

PUBLISHED = ["a.1", "a.2", "b.1", "c.1", "d.1", "d.2", "e.1", "e.2"]
TOPICS = [*PUBLISHED, "a.1#s", "b.1#s", "c.1#s", "d.1#s", "e.2#s"]
BUSY = [*PUBLISHED, "a.1", "a.1", "a.1", "a.2", "b.1", "b.1", "c.1", "c.1", "d.1", "e.1", "e.2"]
PATTERNS = ["a.*", "b.*", "c.*", "d.*", "e.*", "*", "a.1", "b.1", "d.1", "e.1", "b.1#s", "c.1#s"]
YEARS = 90_000_000 * SECOND
RESULT_TTL = {RESULT_TTL_HEADER: "90000000,90000000"}
COSTS = [{"laneway-cost": str(cost)} for cost in (2, 30, 200)]
WAITS = {**RESULT_TTL, SIGNALS_HEADER: "2"}

IDS = [f"i{n}" for n in range(5)]
GENERATED = [f"generated-{n}" for n in range(1, 30)]
ENGINE, MODEL = 0, 1  # the two sides of a pair
AGAIN = "again"  # replaced by the topic and id of an earlier message
HELD_STATES = ("ready", "delayed", "parked", "leased")
CROWDS = 2  # per history: all their messages are compared after every step
# policies that every history starts with
BASE: dict[str, dict[str, Any]] = {
    "a.*": {"group": "{0}"},
    "a.1": {"tier": "high", "weight": 7, "serial": "yield"},
    "a.2": {"tier": "high", "weight": 0.5, "dedupe": 1},
    "b.*": {"tier": "low", "subscription:s": {"kind": "shared"}},
    "c.1": {
        "subscription:s": {"where": {"a": "b"}},
        "dedupe": 1,
        "merge": "last",
        "window": 1,
        "edge": "leading",
    },
    "d.*": {"partitions": 2, "rate": 5, "serial": "hold", "group": "{0}"},
    "e.*": {"buckets": 2},
    "e.2": {"weight": 2, "dedupe": 1},
    "c.1#s": {"max_backlog": 2, "on_full": "drop_oldest"},
    "*": {"retries": 1, "backoff": 0.5, "lease": 5},
}

FIELDS: dict[str, list[Any]] = {
    "rate": [5, 25, 100, 0.2],
    "burst": [1, 3],
    "concurrency": [1, 2, 4, "auto"],
    "min_concurrency": [1, 2],
    "max_concurrency": [2, 5],
    "weight": [0.5, 7],
    "tier": ["high", "mid", "low", "vip", "gold"],
    "pool": ["other"],
    "lease": [1, 5],
    "time_limit": [1, "forever"],
    "retries": [0, 1],
    "backoff": [
        0.5,
        {"base": 1.0, "factor": 3.0, "cap": 5.0, "jitter": True},
        [0.5, 2.0, "1s"],
    ],
    "ttl": [2, 20],
    "on_expiry": ["drop", "dead"],
    "dead_ttl": [5],
    "on_unhandled": [3, 20],
    "serial": ["hold", "yield"],
    "key_concurrency": [1, 1, 2],
    "key_rate": [1, 5, 0.2],
    "gate": ["g", "h", ["g", "h"], ["h", "g"]],
    "group": ["{0}", "{1}", "all"],
    "merge": ["first", "last", "all"],
    "merge_limit": [2, 3],
    "window": [0.5, 3],
    "debounce": [True],
    "max_wait": [1],
    "edge": ["leading"],
    "max_body": [40],
    "max_cost": [1, 20, 1000],
    "dedupe": [1, "forever"],
    "max_backlog": [1, 3, "90B"],
    "on_full": ["drop_oldest", "refuse", "block"],
    "partitions": [2, 3, 4],
    "buckets": [1, 2],
    "delivery": ["at_most_once"],
    "paused": [True],
    "own_backlog": [False],
    "subscription:s": [{}, {"where": {"a": "b*"}}],
    "subscription:t": [{"expires": 60}, {}, {"where": {"a": ["b", "c"]}}],
}
# combinations that are unlikely to be drawn field by field
COMBINATIONS: list[dict[str, Any]] = [
    {"merge": "last", "window": 0.5, "debounce": True},
    {"merge": "first", "window": 3, "debounce": True, "max_wait": 4},
    {"merge": "all", "merge_limit": 3, "window": 0.5},
    {"merge": "all", "serial": "hold", "retries": 1},
    {"merge": "first", "window": 3, "edge": "leading"},
    {"merge": "last", "window": 0.5, "edge": "leading"},
    {"merge": "last", "serial": "hold", "ttl": 20},
    {"serial": "yield", "backoff": 0.5},
    {"serial": "hold", "lease": 1, "max_backlog": 3, "on_full": "drop_oldest"},
    {"max_backlog": "90B", "on_full": "drop_oldest"},
    {"max_backlog": 3, "on_full": "drop_oldest"},
    {"dedupe": 1},
    {"rate": 5, "burst": 2, "gate": "g"},
    {"gate": "g", "tier": "vip"},
    {"gate": "h", "concurrency": 2},
    {"gate": ["g", "h"]},
    {"gate": ["h", "g"], "tier": "low", "rate": 5},
    {"concurrency": "auto", "min_concurrency": 2, "rate": 25, "gate": "g"},
    {"delivery": "at_most_once", "serial": "hold"},
    {"delivery": "at_most_once", "dedupe": 1, "gate": "g"},
    {"merge": "last"},
    {"merge": "all", "merge_limit": 2},
    {"merge": "first", "dedupe": "forever"},
    {"serial": "hold"},
    {"serial": "hold", "backoff": 0.5, "concurrency": 4},
    {"serial": "yield", "tier": "low"},
    {"retries": 1, "dead_ttl": 5},
    {"key_concurrency": 1, "serial": None},
    {"key_concurrency": 1, "backoff": 0.5, "lease": 1},
    {"key_concurrency": 2, "key_rate": 1},
    {"key_rate": 5, "gate": "h"},
    {"key_rate": 0.2},
    {"key_concurrency": 1, "merge": "last"},
    {"key_concurrency": 1, "delivery": "at_most_once"},
    {"key_rate": 1, "ttl": 2, "max_backlog": 3, "on_full": "drop_oldest"},
    {"concurrency": 4, "partitions": 2},
    {"concurrency": "auto", "max_concurrency": 4},
    {"concurrency": "auto", "min_concurrency": 2, "lease": 5},
    {"rate": 0.2, "burst": 3},
    {"lease": 1},
    {"subscription:s": {}, "subscription:t": {"where": {"a": "*"}}},
    {"subscription:s": {"expires": 60}, "own_backlog": False},
    {"subscription:s": {}, "max_backlog": 3},
    {"subscription:s": {}, "merge": "last", "serial": "hold"},
    {"ttl": 2, "lease": 1, "retries": 0},
    {"tier": "low", "lease": 5, "concurrency": 4},
    {"tier": "low", "lease": 1},
    {"tier": "low", "rate": 5, "gate": "g"},
    {"tier": "high", "weight": 7, "rate": 5},
    {"group": "{0}", "weight": 7},
    {"group": "all", "gate": "g"},
    {"group": "{1}", "tier": "vip"},
]


def a_draft(chance: random.Random, topic: str) -> Draft:
    """A message: a plain one, or one with random options."""
    pick = chance.choice
    if chance.random() < 0.3:
        return Draft(topic=topic, body=b"plain", priority=pick([0, 0, 5, 1_000_000]))
    return Draft(
        topic=topic,
        body=pick([b"1", b"22", b"333", b"4" * 35, b"5" * 60, b"6" * 100]),
        key=pick(["k1", "k1", "k2", None]),
        priority=pick([0, 0, 0, 5, -3, 128, 129, -255, -256, MAX_PRIORITY, MIN_PRIORITY]),
        delay_us=pick([0, 0, 0, 0, 0, 400_000, 2_500_000]),
        at_us=pick([None] * 12 + [START - SECOND, START + 3 * SECOND]),
        id=pick([None] * 9 + IDS + [AGAIN] * 2),
        ttl_us=pick([None] * 6 + [1 * SECOND, 5 * SECOND]),
        headers=pick([None, None, {}, {"a": "b"}, RESULT_TTL, RESULT_TTL, WAITS, *COSTS]),
        at_front=pick([False, False, False, True]),
        sticky=pick([False] * 5 + [True]),
    )


def some_drafts(chance: random.Random, least: int, most: int, busy: str) -> list[Draft]:
    """Messages, half of them for the topic `busy`."""
    return [
        a_draft(chance, chance.choice([busy, chance.choice(BUSY)]))
        for _ in range(chance.randint(least, most))
    ]


def a_call(chance: random.Random) -> dict[str, Any]:
    """Arguments of `lease`."""
    pick = chance.choice
    topics = pick([None] * 7 + [chance.choices(TOPICS, k=3)])
    return {
        "n": pick([1, 2, 3, 5, 7, 40]),
        "pool": pick(["default"] * 5 + ["other"]),
        "startable": pick([None, None, None, 0, 1, 3]),
        "record_start": pick([True, False]),
        "topics": topics,
        # the model does not divide a pool's lanes by priorities
        "priorities": pick(PRIORITIES) if topics is not None else None,
        "max_lease_us": pick([None, None, 2 * SECOND]),
        "holder": pick([None, None, "somebody"]),
    }


PRIORITIES = [
    *(None, None, (0, MAX_PRIORITY), (1, MAX_PRIORITY), (5, MAX_PRIORITY), (-1_000, MAX_PRIORITY)),
    *((0, 0), (5, 5), (-3, 4), (-255, 0), (1_000, 2_000)),
]
"""The least and the largest priority of a lease."""

ACTIONS: list[Action] = [
    *("ack", "ack", "ack", "retry", "retry", "release", "release"),
    *("dead", "back_off", "unhandled"),
]


def an_end(chance: random.Random) -> Settlement:
    """A random settlement."""
    pick = chance.choice
    action = pick(ACTIONS)
    delay = pick([None, None, None, 0, 300_000, 6 * SECOND])
    reason = pick([None, "why"])
    return Settlement(
        0,
        0,
        action,
        delay,
        reason,
        reason,
        pick([0, 1_000, 1_000, 1_500, 2 * SECOND, 500 * SECOND]),
        pick([True, False]),
        pick([None, None, None, "timeout", "answer"]),
    )


NEW_TIERS = [Tier(1), Tier(5), Tier(2.5, "time"), Tier("strict"), None]
chances = st.randoms(use_true_random=True)
_single = st.lists(st.sampled_from(sorted(FIELDS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries(
        {name: st.sampled_from([*FIELDS[name], None]) for name in names}
    )
)
_two = st.tuples(st.sampled_from(COMBINATIONS), st.sampled_from(COMBINATIONS)).map(
    lambda pair: pair[0] | pair[1]
)
policies = st.one_of(st.sampled_from(COMBINATIONS), _two, _single)
group_settings = st.builds(
    Gate,
    rate=st.sampled_from([None, None, 2.0, 50.0]),
    concurrency=st.sampled_from([None, None, 1, 3]),
    weight=st.sampled_from([None, 0.5, 3.0]),
)
gates = st.builds(
    Gate,
    rate=st.sampled_from([None, 2.0, 50.0]),
    burst=st.sampled_from([None, 1, 3]),
    concurrency=st.sampled_from([None, 1, 3]),
    max_cost=st.sampled_from([None, None, 1, 20, 1000]),
)
layers = st.sampled_from(["code", "code", "operator"])
policy_layers = st.sampled_from(["code", "code", "operator", "program:p", "program:q"])
topics = st.sampled_from(TOPICS)


class Histories(RuleBasedStateMachine):
    """The steps of a history, as rules that Hypothesis draws."""

    name = ""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[Lease, Lease]] = []  # (the engine's, the model's)
        self.receipts: list[Receipt] = []  # as the model answered
        self.batches: dict[str, tuple[str, list[Draft]]] = {}  # of spools
        self.crowds = 0
        self.signalled: set[str] = set()  # ids of messages that wait for signals
        self.busy = BUSY[-1]  # the topic with most messages now
        self.steps = 0

    @initialize(
        wide=policies,
        narrow=st.lists(st.tuples(st.sampled_from(PATTERNS), policies), min_size=2, max_size=5),
        limits=st.sampled_from(
            [{}] * 6
            + [
                {"max_backlog": 6},
                {"max_backlog": 4, "on_full": "drop_oldest"},
                {"max_backlog_bytes": 150},
            ]
        ),
    )
    def begin(
        self, wide: dict[str, Any], narrow: list[tuple[str, dict[str, Any]]], limits: dict[str, Any]
    ) -> None:
        self.lockstep = Lockstep(self.name, **limits)
        self.do("gate_set", "g", Gate(concurrency=2))
        self.do("gate_set", "h", Gate(rate=5.0, burst=1))
        for pattern, fields in BASE.items():
            self.do("policy_set", "code", pattern, fields)
        self.do("policy_set", "code", "*", wide)
        for pattern, fields in narrow:
            self.do("policy_set", "operator", pattern, fields)

    def do(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Call both with the same arguments."""
        return self.lockstep.call(operation, arguments, now_us=self.lockstep.now, **options)

    def for_engine(self, batch: list[Draft]) -> list[Draft]:
        return [
            msgspec.structs.replace(
                draft, id=self.lockstep.names.for_engine(draft.id) if draft.id else None
            )
            for draft in batch
        ]

    # Publishing, leasing, settling

    @rule(chance=chances)
    def put(self, chance: random.Random) -> None:
        batch = [
            self.again(draft, chance) if draft.id == AGAIN else draft
            for draft in some_drafts(chance, 1, 6, self.busy)
        ]
        _, receipts = self.lockstep.call(
            "put", (self.for_engine(batch),), (batch,), now_us=self.lockstep.now
        )
        if not isinstance(receipts, str):
            self.signalled |= {
                receipt.id
                for receipt, draft in zip(receipts, batch, strict=True)
                if SIGNALS_HEADER in (draft.headers or {})
            }
            self.receipts += [receipt for receipt in receipts if receipt.id]

    @precondition(lambda self: self.crowds < CROWDS)
    @rule(chance=chances)
    def forward(self, chance: random.Random) -> None:
        """Forward a spool's batch, half of them the same one as before."""
        spool = chance.choice(["s1", "s2"])
        name, batch = self.batches.get(spool, ("", []))
        if not batch or chance.random() < 0.5:
            name = f"batch {self.steps} {chance.random()}"
            batch = some_drafts(chance, 1, 6, self.busy)
            for draft in batch:
                draft.sticky = True
                if draft.id is None or draft.id == AGAIN:
                    draft.id = f"f{chance.randrange(1 << 30)}"
        _, receipts = self.lockstep.call(
            "forward",
            (self.for_engine(batch),),
            (batch,),
            spool=spool,
            batch=name,
            now_us=self.lockstep.now,
        )
        if not isinstance(receipts, str):  # else there is nothing to repeat
            self.batches[spool] = (name, batch)
            self.receipts += receipts

    @rule(chance=chances)
    def put_a_crowd(self, chance: random.Random) -> None:
        """
        Publish more messages than a lane's record holds, than one visit takes, and than the
        smallest size class of the top lists.
        """
        self.crowds += 1
        topics = [self.busy, chance.choice(BUSY)]
        batch = [
            Draft(chance.choice(topics), b"%d" % n, key=chance.choice([None, None, "k"]))
            for n in range(chance.choice([15, 18, 40, 90]))
        ]
        self.lockstep.call("put", (batch,), (batch,), now_us=self.lockstep.now)

    def again(self, draft: Draft, chance: random.Random) -> Draft:
        """Publish an earlier message again."""
        before = chance.choice(self.receipts[-10:]) if self.receipts else None
        return msgspec.structs.replace(
            draft, topic=before.topic if before else draft.topic, id=before.id if before else None
        )

    @rule(chance=chances)
    def lease(self, chance: random.Random) -> None:
        call = a_call(chance)
        ours, theirs = self.do("lease", call.pop("n"), **call)
        self.held += zip(ours.leases, theirs.leases, strict=True)

    @precondition(lambda self: self.held)
    @rule(chance=chances)
    def settle(self, chance: random.Random) -> None:
        """
        Settle several leases at once, some late, some twice, some with a wrong handle.
        """
        recent = self.held[-12:]
        pairs = chance.sample(recent, k=min(len(recent), chance.randint(1, 8)))
        if chance.random() < 0.05:
            pairs = [*pairs, *pairs]
        ends = [an_end(chance) for _ in pairs]
        settlements = [
            [
                msgspec.structs.replace(end, handle=pair[side].handle, fence=pair[side].fence)
                for pair, end in zip(pairs, ends, strict=True)
            ]
            for side in (ENGINE, MODEL)
        ]
        for n, pair in enumerate(pairs):
            if chance.random() < 0.2:
                for side in (ENGINE, MODEL):
                    settlement = settlements[side][n]
                    settlement.id, settlement.topic = pair[side].id, pair[side].topic
                    settlement.outcome = b"so"
                    settlement.outcome_ttl_us = YEARS
        if chance.random() < 0.05:
            for batch in settlements:
                batch[0].handle = batch[-1].handle
        publish = {
            0: [
                msgspec.structs.replace(draft, id=None)
                for draft in some_drafts(chance, 0, chance.choice([0, 0, 2]), self.busy)
            ]
        }
        answers, _ = self.lockstep.call(
            "settle",
            (settlements[0],),
            (settlements[1],),
            now_us=self.lockstep.now,
            publish=publish,
        )
        if isinstance(answers, str):
            return
        ended = [
            pair
            for pair, answer in zip(pairs, answers, strict=True)
            if answer in ("lost", "gone") or chance.random() < 0.8
        ]
        self.held = [pair for pair in self.held if pair not in ended]

    @rule(chance=chances)
    def work(self, chance: random.Random) -> None:
        """Publish, lease and settle several times, as programs do."""
        self.busy = chance.choice(BUSY)
        for _ in range(chance.randint(1, 4)):
            for step in (self.put, self.lease, self.settle):
                if chance.random() < 0.2:
                    self.lockstep.change_over()
                if step != self.settle or self.held:
                    step(chance)
                    self.engine_and_model_agree()
            if self.held and chance.random() < 0.06:
                self.do("topic_delete", self.held[-1][0].topic)
                self.settle(chance)
            self.later(chance.choice([0, 0.1, 0.4, 0.5, 1.0, 1.0, 6.0]))

    # Repeated under several names, so that Hypothesis draws them more often.

    @rule(chance=chances)
    def work_more(self, chance: random.Random) -> None:
        self.work(chance)

    @rule(chance=chances)
    def work_again(self, chance: random.Random) -> None:
        self.work(chance)

    @rule(chance=chances)
    def work_on(self, chance: random.Random) -> None:
        self.work(chance)

    @precondition(lambda self: self.held)
    @rule(
        operation=st.sampled_from(["start", "extend"]),
        by_us=st.sampled_from([100_000, 3 * SECOND, 100 * SECOND]),
        most=st.integers(1, 4),
    )
    def start_or_extend(self, operation: str, by_us: int, most: int) -> None:
        """Start or extend leases, also with a wrong handle: that of the previous lease."""
        some = [handles(list(leases)) for leases in zip(*self.held[-most:], strict=True)]
        for leases in some:
            leases += [(one, fence) for (one, _), (_, fence) in pairwise(leases)]
        more = () if operation == "start" else (by_us,)
        self.lockstep.call(operation, (some[0], *more), (some[1], *more), now_us=self.lockstep.now)

    # Signals, outcomes, cancelling

    @precondition(lambda self: self.receipts)
    @rule(chance=chances)
    def signal(self, chance: random.Random) -> None:
        """Send a signal to a message that waits for signals, or to one that does not."""
        waiting = [receipt for receipt in self.receipts[-30:] if receipt.id in self.signalled]
        for receipt in waiting[-3:] or self.receipts[-1:]:
            draft = Draft(
                receipt.topic, b"s", id=receipt.id, signal=chance.choice([0, 1, 1, 1, 2, 2])
            )
            if chance.random() < 0.3:
                draft.delay_us, draft.ttl_us = (
                    chance.choice([0, 2 * SECOND]),
                    chance.choice([None, SECOND, 9 * SECOND]),
                )
            self.lockstep.call(
                "put", (self.for_engine([draft]),), ([draft],), now_us=self.lockstep.now
            )

    signal_more = signal

    @precondition(lambda self: self.receipts)
    @rule(chance=chances, named=st.booleans())
    def cancel(self, chance: random.Random, *, named: bool) -> None:
        receipt = chance.choice(self.receipts[-10:])
        # Ids of users are unique only in their topic.
        topic = receipt.topic if named or receipt.id not in GENERATED else None
        self.lockstep.call(
            "cancel",
            (self.lockstep.names.for_engine(receipt.id), topic),
            (receipt.id, topic),
            now_us=self.lockstep.now,
        )
        self.do("tick")  # an engine that had nothing to do need not have read the clock

    @precondition(lambda self: self.receipts)
    @rule(chance=chances, to=st.sampled_from(["ready", "ready", "dead"]))
    def message_move(self, chance: random.Random, to: str) -> None:
        receipt = chance.choice(self.receipts[-10:])
        self.lockstep.call(
            "message_move",
            (self.lockstep.names.for_engine(receipt.id), receipt.topic),
            (receipt.id, receipt.topic),
            to=to,
            now_us=self.lockstep.now,
        )
        self.do("tick")  # as in `cancel`

    @rule(topic=topics, by_us=st.sampled_from([0, SECOND, 5 * SECOND]))
    def topic_back_off(self, topic: str, by_us: int) -> None:
        self.do("topic_back_off", topic, by_us)
        self.do("tick")

    # Elections

    @rule(name=st.sampled_from(["a", "b"]), number=st.integers(0, 3), knows=st.booleans())
    def election(self, name: str, number: int, *, knows: bool) -> None:
        """Swap a record, as somebody who knows the present one or not."""
        before = self.lockstep.model.election_records.get(name) if knows else b"{}"
        self.do("election_swap", name, before, b'{"number":%d}' % number)
        assert self.lockstep.engine.elections() == self.lockstep.model.elections()

    @rule(
        kind=st.sampled_from(["token", "endpoint"]),
        name=st.sampled_from(["a", "b"]),
        after=st.sampled_from([None, b"{}", b"[]"]),
        knows=st.booleans(),
    )
    def record(self, kind: RecordKind, name: str, after: bytes | None, *, knows: bool) -> None:
        """As an election's, but it can be removed."""
        before = self.lockstep.model.record_read(kind, [name])[0] if knows else b"[1]"
        self.lockstep.call("record_swap_many", (kind, [(name, before, after)]))
        assert self.lockstep.engine.records(kind) == self.lockstep.model.records(kind)

    # Time

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.2, 0.5, 1.0, 1.0, 3.0, 7.0, 70.0, 4000.0, -2.0]))
    def later(self, seconds: float) -> None:
        """Move the clock forward or back."""
        self.lockstep.now += round(seconds * SECOND)

    later_on = later_still = later

    @rule(budget=st.sampled_from([1000, 1000, 1, 2]))
    def tick(self, budget: int) -> None:
        self.do("tick", budget=budget)

    @rule()
    def wake(self) -> None:
        """Move the clock to the next time that `tick` answers."""
        wake = self.do("tick")[1]
        if wake is not None and wake < self.lockstep.now + 100_000 * SECOND:
            self.lockstep.now = max(self.lockstep.now, wake)
            self.do("tick")

    @rule()
    def crash(self) -> None:
        self.lockstep.crash()

    @rule()
    def change_over(self) -> None:
        self.lockstep.change_over()

    # Administration

    @rule(layer=policy_layers, pattern=st.sampled_from(PATTERNS), fields=policies)
    def policy(self, layer: str, pattern: str, fields: dict[str, Any]) -> None:
        self.do("policy_set", layer, pattern, fields)

    @rule(
        layer=layers,
        changes=st.dictionaries(
            st.sampled_from(["high", "mid", "low", "vip", "gold"]),
            st.sampled_from(NEW_TIERS),
            max_size=2,
        ),
    )
    def tiers(self, layer: str, changes: dict[str, Tier | None]) -> None:
        self.do("tier_set", layer, changes)

    @rule(name=st.sampled_from([None, "high", "gold"]))
    def tier_reset(self, name: str | None) -> None:
        self.do("tier_reset", name)

    @rule(
        what=st.sampled_from(
            [
                *("policy_reset", "gate_set", "gate_set", "topic_group_set", "topic_group_set"),
                *("gate_reset", "topic_purge", "topic_delete"),
            ]
        ),
        layer=layers,
        policy_layer=policy_layers,
        pattern=st.sampled_from(PATTERNS),
        name=st.sampled_from(["g", "h"]),
        gate=gates,
        group=st.tuples(st.sampled_from(["a", "a", "d", "all"]), group_settings),
        topic=topics,
        chance=chances,
    )
    def administer(
        self,
        *,
        what: str,
        layer: str,
        policy_layer: str,
        pattern: str,
        name: str,
        gate: Gate,
        group: tuple[str, Gate],
        topic: str,
        chance: random.Random,
    ) -> None:
        if what == "policy_reset":
            self.do(what, policy_layer, pattern)
        elif what == "gate_set":
            self.do(what, name, gate, layer=layer)
        elif what == "gate_reset":
            self.do(what, name)
        elif what == "topic_group_set":
            self.do(what, *group, layer=layer)
        else:
            topic = self.held[-1][0].topic if self.held and pattern != "*" else topic
            self.do(what, topic)
            assert self.lockstep.engine.topic_stats(topic, now_us=self.lockstep.now).waiting == 0
            if self.held:
                self.settle(chance)

    @rule(
        operation=st.sampled_from(["dead_redrive", "dead_redrive", "dead_drop"]),
        topic=st.one_of(st.none(), topics),
        ids=st.one_of(st.none(), st.lists(st.sampled_from(IDS + GENERATED), max_size=8)),
        limit=st.sampled_from([1, 3, 1000]),
        spacing=st.sampled_from([0, 0, 400_000]),
    )
    def dead(
        self, operation: str, topic: str | None, ids: list[str] | None, limit: int, spacing: int
    ) -> None:
        if topic is None and ids is not None:
            # Ids of users are unique only in their topic.
            ids = [each for each in ids if each in GENERATED]
        options = (
            {"first_us": spacing * 2, "spacing_us": spacing} if operation == "dead_redrive" else {}
        )
        for_engine = (
            [self.lockstep.names.for_engine(each) for each in ids] if ids is not None else None
        )
        self.lockstep.call(
            operation,
            (topic, for_engine),
            (topic, ids),
            limit=limit,
            now_us=self.lockstep.now,
            **options,
        )
        self.do("tick")  # as in `cancel`

    # Views

    @rule(
        topic=topics,
        limit=st.integers(1, 10),
        order=st.sampled_from(["name", "backlog", "age", "rate", "throttled", "dead"]),
        pattern=st.sampled_from(["*", "a.*", "d.*", "e.*", "e.1", "a.1"]),
        after=st.sampled_from([None, None, "a.1", "e"]),
        ids=st.lists(st.sampled_from(IDS + GENERATED), min_size=1, max_size=4, unique=True),
    )
    def look(
        self, *, topic: str, limit: int, order: str, pattern: str, after: str | None, ids: list[str]
    ) -> None:
        self.do("topic_stats", topic)
        self.do("topic_peek", topic, limit=limit)
        for state in HELD_STATES:
            self.do("topic_peek", topic, limit=limit, state=state)
        self.do("delayed_counts", topic, [self.lockstep.now, self.lockstep.now + 5 * SECOND])
        for operation in ("cursors", "policy_of"):
            self.lockstep.call(operation, (topic,))
        self.do(
            "topic_list",
            order=order,
            pattern=pattern,
            limit=limit,
            after=after if order == "name" else None,
        )
        self.look_at_messages(topic, ids)
        self.look_at_dead_letters(topic if limit % 2 else None, limit)

    def look_up(self, topic: str, ids: list[str]) -> None:
        theirs = [self.lockstep.names.for_engine(each) for each in ids]
        states = self.lockstep.engine.lookup(topic, theirs, now_us=self.lockstep.now)
        self.lockstep.compare(
            "lookup",
            [states[each] for each in theirs],
            list(self.lockstep.model.lookup(topic, ids, now_us=self.lockstep.now).values()),
        )

    def look_at_messages(self, topic: str, ids: list[str]) -> None:
        self.look_up(topic, ids)
        for mine in ids:
            ours = self.lockstep.names.for_engine(mine)
            self.lockstep.call("find", (ours, topic), (mine, topic))
            explanations = [
                side.explain(each, topic, now_us=self.lockstep.now)
                for side, each in ((self.lockstep.engine, ours), (self.lockstep.model, mine))
            ]
            self.lockstep.compare(
                "explain", *([each.state, each.ahead, each.message] for each in explanations)
            )

    def look_at_dead_letters(self, topic: str | None, limit: int) -> None:
        """Page by page; the numbers of dead letters are each side's own."""
        sides: tuple[FullEngine | Model, ...] = (self.lockstep.engine, self.lockstep.model)
        after = [0, 0]
        for _ in range(3):
            pages = [
                side.dead_list(topic, limit=limit, after=at)
                for side, at in zip(sides, after, strict=True)
            ]
            self.lockstep.compare("dead_list", *([view for _, view in page] for page in pages))
            if not pages[0]:
                break
            after = [page[-1][0] for page in pages]

    # Checks after every step

    @invariant()
    def engine_and_model_agree(self) -> None:
        if not hasattr(self, "lockstep"):
            return
        self.lockstep.compare_everything()
        for topic in {receipt.topic for receipt in self.receipts[-10:]}:
            ids = list({receipt.id for receipt in self.receipts[-10:] if receipt.topic == topic})
            self.look_up(topic, ids)
            kept = self.lockstep.engine.results(
                [(self.lockstep.names.for_engine(each), topic) for each in ids],
                now_us=self.lockstep.now,
            )
            self.lockstep.compare(
                "results",
                [each.outcome for each in kept],
                [self.lockstep.model.outcomes.get((topic, each)) for each in ids],
            )
        self.steps += 1
        if self.steps % 5 == 0:
            assert [check for check in self.lockstep.engine.doctor() if not check.ok] == [], (
                "the store is consistent"
            )

    def teardown(self) -> None:
        """Deliver and ack everything, until the store is empty."""
        if hasattr(self, "lockstep"):
            try:
                drain(self.lockstep)
            finally:
                self.lockstep.close()


def drain(lockstep: Lockstep) -> None:
    engine = lockstep.engine
    own, _ = engine.policy_own_list()
    for layer, pattern, fields in [*engine.policies().rows(), *own_rows(own)]:
        if "paused" in fields:
            engine.policy_set(cast("Layer", layer), pattern, {"paused": False}, now_us=lockstep.now)
    for _ in range(20_000):  # a rate of 5 may have a crowd behind it
        leased = 0
        wake = None
        for pool in ("default", "other"):
            batch = engine.lease(50, pool=pool, now_us=lockstep.now)
            engine.settle(
                [Settlement(lease.handle, lease.fence) for lease in batch.leases],
                now_us=lockstep.now,
            )
            leased += len(batch.leases)
            wake = batch.next_wake_us
        overview = engine.overview(now_us=lockstep.now)
        if not overview.waiting and not overview.leased and not overview.topics:
            return
        if not leased:
            lockstep.now = max(lockstep.now + 1_000, wake or 0)
    raise AssertionError(f"messages are left: {engine.overview(now_us=lockstep.now)}")


def _settings(name: str) -> settings:
    phases = [Phase.generate, Phase.shrink] if SHRINK else [Phase.generate]
    common: dict[str, Any] = {
        "stateful_step_count": STEPS,
        "deadline": None,
        "database": None,
        "suppress_health_check": list(HealthCheck),
    }
    return settings(
        max_examples=int(HISTORIES or MORE.get(name, FEW)),
        derandomize=HISTORIES is None,
        phases=phases,
        **common,
    )


@pytest.mark.timeout(0 if HISTORIES or SHRINK else 300)
@pytest.mark.parametrize("name", list(ENGINES))
def test_engine_and_model_agree(name: str) -> None:
    """In every history the engine answers as the model does."""
    machine: type[Histories] = type("Histories", (Histories,), {"name": name})
    if HISTORIES is None:
        print(
            "these histories are the same every time: repeat with pytest tests/stateful;"
            " LANEWAY_SHRINK=1 shortens a failing one"
        )
    else:
        print(
            f"repeat with LANEWAY_HISTORIES={HISTORIES} LANEWAY_SEED={SEED}; LANEWAY_SHRINK=1"
            " shortens a failing one"
        )
        machine = seed(SEED)(machine)
    run_state_machine_as_test(machine, settings=_settings(name))

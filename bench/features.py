"""
What each feature costs: put, lease and settle on the engine, in batches of 500, beside the same
messages without features ("plain") in the same run.

Plain messages and those of one feature run in turn, round by round, each in a store of its own. A
round puts its messages over random topics, then leases and settles until none is left; the clock is
virtual (`now_us`), so delays cost no waiting. The best round of each step counts.

`CPU : plain` is the ratio of the processor time of the client and the servers, over all three
steps: of what a shared machine does to a run, it shows the least.

A unit of `put` is a message put, also one that merges. A unit of `lease` and `settle` is a
delivery; with merging it is a message put, delivered with the one that it joined. `together` is
their sum: a message is put, leased and settled. With retries the first settlement of a message is a
retry, so that half of the deliveries are second ones.

On SQLite the last columns are the most SQL statements that one call of 500 ran on one topic, with
BEGIN and COMMIT, in a pass that is not timed. Each further lane that a call changes is one more.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from bench.common import BATCH, BODY, Store, options, pick, publish_table, store, usual
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.message import Draft, Lease, Settlement
from laneway.policy import Gate

STEPS = ("put", "lease", "settle")
SECOND = 1_000_000
LATER_US = 30 * SECOND
"""What is delayed, by itself or by a window, is leased so much later."""

MANY = 1_000_000
"""A limit that is looked at and holds nothing back."""

KEYS = 10_000
"""Serial keys of all topics together."""

MERGING = 0.5
"""The share of messages that join a waiting one."""


class Feature(NamedTuple):
    """
    A row: the policy of all topics, and what the messages and their settlements have besides.

    `draft`: the options of message `n` (unique in the run) with this key. `is_merging`: the share
    `MERGING` of the messages have topic and key of an earlier one of their round.
    """

    name: str
    policy: dict[str, Any]
    draft: Callable[[int, str], dict[str, Any]] = lambda _n, _key: {}
    settlement: Callable[[Lease], dict[str, Any]] = lambda _lease: {}
    is_merging: bool = False


def _retried(lease: Lease) -> dict[str, Any]:
    return {"action": "retry", "delay_us": 0, "error": "failed"} if lease.attempt == 1 else {}


def _dead(_: Lease) -> dict[str, Any]:
    return {"action": "dead", "reason": "refused", "error": "failed"}


def _mixed(lease: Lease) -> dict[str, Any]:
    """A tenth is retried, a hundredth dies."""
    if lease.handle % 100 == 1:
        return _dead(lease)
    return _retried(lease) if lease.handle % 10 == 0 else {}


_HEADERS = {"content-type": "application/json", "trace": "0123456789abcdef"}

_LIMITS = {"rate": MANY, "burst": MANY, "concurrency": MANY}

PLAIN = Feature("plain", {})

ALL = Feature(
    "all together",
    {
        "serial": "hold",
        "dedupe": 60,
        "merge": "last",
        "window": LATER_US // SECOND,
        "ttl": 3600,
        "gate": "g",
        "retries": 5,
        **_LIMITS,
    },
    lambda n, key: {
        "key": key,
        "id": f"order-{n}",
        "priority": n % 5,
        "headers": _HEADERS,
        **({"delay_us": SECOND} if n % 10 == 0 else {}),
    },
    _mixed,
    is_merging=True,
)

FEATURES = (
    Feature("serial keys", {"serial": "hold"}, lambda _n, key: {"key": key}),
    Feature("own ids, dedupe", {"dedupe": 60}, lambda n, _: {"id": f"order-{n}"}),
    *(
        Feature(f"merge={which}", {"merge": which}, lambda _n, key: {"key": key}, is_merging=True)
        for which in ("first", "last", "all")
    ),
    Feature(
        "merge=last, window",
        {"merge": "last", "window": LATER_US // SECOND},
        lambda _n, key: {"key": key},
        is_merging=True,
    ),
    Feature("priorities", {}, lambda n, _: {"priority": n % 5}),
    Feature("delays", {}, lambda n, _: {"delay_us": 1 + n % LATER_US}),
    Feature("ttl", {"ttl": 3600}),
    Feature("headers", {}, lambda _n, _key: {"headers": _HEADERS}),
    Feature("retries", {}, settlement=_retried),
    Feature("dead letters", {}, settlement=_dead),
    Feature("gates", {"gate": "g"}),
    Feature("rate, concurrency", _LIMITS),
    Feature("key_concurrency", {"key_concurrency": MANY}, lambda _n, key: {"key": key}),
    Feature("key_rate", {"key_rate": MANY}, lambda _n, key: {"key": key}),
    ALL,
)


class Contender:
    """Messages of one feature in a store of their own, and the best time of each step."""

    def __init__(
        self, place: Store, durability: str, feature: Feature, topics: int, seed: int
    ) -> None:
        self.engine: FullEngine = open_engine(place.url, Settings(durability=durability))  # type: ignore[arg-type]
        self._place = place
        self._feature = feature
        self._topics = topics
        self._draw = random.Random(seed)
        self._now = 1_700_000_000 * SECOND
        self._count = 0
        self.best = [float("inf")] * len(STEPS)
        """Microseconds of a unit."""
        self.cpu = float("inf")
        """Microseconds of processor time of a message over all steps."""
        self.units = (0, 0, 0)
        """Of each step, in the last round."""
        if "gate" in feature.policy:
            self.engine.gate_set(
                "g", Gate(rate=MANY, burst=MANY, concurrency=MANY), now_us=self._now
            )
        if feature.policy:
            self.engine.policy_set("code", "t.*", feature.policy, now_us=self._now)

    def _cpu(self) -> float:
        return time.process_time() + self._place.cpu()

    def drafts(self, number: int) -> list[Draft]:
        """The messages of a round."""
        feature, draw = self._feature, self._draw
        drafts: list[Draft] = []
        places: list[tuple[str, str]] = []
        for _ in range(number):
            self._count += 1
            if feature.is_merging:
                place = f"t.{draw.randrange(self._topics)}", f"k{self._count}"
                if places and draw.random() < MERGING:
                    place = draw.choice(places)
                else:
                    places.append(place)
            else:
                place = (
                    f"t.{draw.randrange(self._topics)}",
                    f"k{draw.randrange(KEYS // self._topics)}",
                )
            topic, key = place
            drafts.append(Draft(topic, BODY, **feature.draft(self._count, key)))
        return drafts

    def round(self, number: int, watch: Callable[[str], None] = lambda _: None) -> None:
        """Put so many messages, lease and settle them; `watch`: called after each call's step."""
        drafts = self.drafts(number)
        took = [0.0] * len(STEPS)
        waiting = deliveries = 0

        def timed(step: int, work: Callable[[], Any]) -> Any:
            began = time.perf_counter()
            answer = work()
            took[step] += time.perf_counter() - began
            watch(STEPS[step])
            return answer

        began = self._cpu()
        for first in range(0, number, BATCH):
            batch = drafts[first : first + BATCH]
            receipts = timed(0, lambda batch=batch: self.engine.put(batch, now_us=self._now))
            waiting += sum(receipt.outcome == "accepted" for receipt in receipts)
        merged = number - waiting
        stored = self._cpu()
        self._now += LATER_US
        while waiting:
            self._now += 1_000
            leases = timed(1, lambda: self.engine.lease(BATCH, now_us=self._now).leases)
            ends = [
                Settlement(lease.handle, lease.fence, **self._feature.settlement(lease))
                for lease in leases
            ]
            answers = timed(2, lambda ends=ends: self.engine.settle(ends, now_us=self._now))
            waiting -= sum(answer in {"acked", "died"} for answer in answers)
            deliveries += len(leases)
        self.units = units = number, deliveries + merged, deliveries + merged
        cpu = (stored - began) / units[0] + (self._cpu() - stored) / units[1]
        self.cpu = min(self.cpu, cpu * 1e6)
        for step, count in enumerate(units):
            self.best[step] = min(self.best[step], took[step] / count * 1e6)
        while self.engine.dead_drop(limit=1000, now_us=self._now):
            pass
        self._now += 120 * SECOND  # until known ids are forgotten

    @property
    def together(self) -> float:
        """Microseconds of a message over all steps."""
        return sum(self.best)


def measure(
    chosen: argparse.Namespace, feature: Feature, topics: int, messages: int, rounds: int
) -> tuple[Contender, Contender]:
    """Plain messages and those of the feature, in turn."""
    durability = usual(chosen)
    with ExitStack() as stack:
        plain, ours = (
            Contender(
                stack.enter_context(store(chosen, durability)),
                durability,
                each,
                topics,
                chosen.seed,
            )
            for each in (PLAIN, feature)
        )
        for each in (plain, ours):
            stack.callback(each.engine.close)
        for _ in range(rounds):
            plain.round(messages)
            ours.round(messages)
    return plain, ours


def statements(feature: Feature) -> Sequence[int]:
    """The most statements that one call ran in each step, on one topic in a store in memory."""
    contender = Contender(Store("sqlite://"), "memory", feature, 1, 1)
    most = dict.fromkeys(STEPS, 0)
    texts: list[str] = []

    def watch(step: str) -> None:
        most[step] = max(most[step], len(texts))
        texts.clear()

    contender.round(2 * BATCH)  # the first round creates the lane
    contender.engine._store.connection.set_trace_callback(texts.append)  # type: ignore[attr-defined]
    contender.round(2 * BATCH, watch)
    contender.engine.close()
    return list(most.values())


def main() -> None:
    chosen = options(
        __doc__ or "",
        lambda parser: parser.add_argument("--only", help="rows whose names contain this text"),
    )
    topics, messages, rounds = pick(chosen, (1_000, 5_000, 9), (1_000, 5_000, 3), (100, 1_000, 1))
    rows: list[tuple[Any, ...]] = []
    for feature in (PLAIN, *FEATURES):
        if chosen.only is not None and chosen.only not in feature.name:
            continue
        plain, ours = measure(chosen, feature, topics, messages, rounds)
        counted = statements(feature) if chosen.engine == "sqlite" else ("-",) * len(STEPS)
        rates = [1e6 / step for step in ours.best]
        steps = [a / b for a, b in zip(plain.best, ours.best, strict=True)]
        ratio = plain.together / ours.together
        cpu = plain.cpu / ours.cpu
        rows.append((feature.name, *rates, 1e6 / ours.together, *steps, ratio, cpu, *counted))
    publish_table(
        "features",
        chosen,
        (
            "feature",
            *(f"{step}/s" for step in STEPS),
            "together/s",
            *(f"{step} : plain" for step in STEPS),
            "ratio",
            "CPU : plain",
            *(f"{step}, statements" for step in STEPS),
        ),
        rows,
        f"{messages:,} messages a round over {topics:,} topics, batches of {BATCH}, best of"
        f" {rounds} rounds; {MERGING:.0%} of the messages with merging join a waiting one;"
        f" durability {usual(chosen)}; ratio: all three steps together, compared with"
        " plain messages",
    )


if __name__ == "__main__":
    main()

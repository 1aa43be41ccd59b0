"""
What a subscription's copy costs beside a plain message: 1,000 subscriptions of one topic, and many
topics with 3 subscriptions each.

Plain messages and messages with copies run in turn, round by round, each in a store of its own. A
round stores the same number of messages over the same number of lanes on both sides, in calls of
about 500 messages and copies, and then leases and settles them all. The processor time of this
process and of the servers counts, because the cost is compared and not the speed; the cheapest
round of each side does.

`longest put` is the longest call that stored a part of a batch of 20 messages of the topic with
1,000 subscriptions: others wait for it. On a server it is the server's processor time, which its
answer says.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from contextlib import ExitStack
from typing import NamedTuple

from bench.common import BATCH, BODY, Store, options, pick, publish_table, store
from laneway.engines import open_engine
from laneway.engines.base import Settings
from laneway.message import Draft, Settlement

SECOND = 1_000_000


class Shape(NamedTuple):
    """So many topics, with so many subscriptions each."""

    name: str
    topics: int
    subscriptions: int
    stored: int
    """Messages and copies of a round."""

    @property
    def each(self) -> int:
        """How many messages one message becomes."""
        return 1 + self.subscriptions


class Contender:
    """One side: plain messages, or messages with copies."""

    def __init__(
        self, place: Store, chosen: argparse.Namespace, shape: Shape, *, has_copies: bool
    ) -> None:
        self._place = place
        self._shape = shape
        self._has_copies = has_copies
        self._draw = random.Random(chosen.seed)
        self.engine = open_engine(place.url, Settings(durability="memory"))
        self.best: list[float] = [float("inf")] * 3
        """Microseconds of a message or copy: put, lease and settle, all of it."""
        if has_copies:
            fields = {f"subscription:s{n}": {} for n in range(shape.subscriptions)}
            changes = [(f"t.{topic}", fields) for topic in range(shape.topics)]
            for first in range(0, len(changes), 1000):
                self.engine.policy_set_many("code", changes[first : first + 1000])

    def _drafts(self) -> list[Draft]:
        """The messages of one call."""
        shape, pick_one = self._shape, self._draw.randrange
        if self._has_copies:
            count = max(1, BATCH // shape.each)
            return [Draft(f"t.{pick_one(shape.topics)}", BODY) for _ in range(count)]
        lanes = shape.topics * shape.each
        return [Draft(f"t.{pick_one(lanes)}", BODY) for _ in range(max(BATCH, shape.each))]

    def _cpu(self) -> float:
        return time.process_time() + self._place.cpu()

    def round(self) -> None:
        """Put, lease and settle."""
        began = self._cpu()
        stored = 0
        each = self._shape.each if self._has_copies else 1
        while stored < self._shape.stored:
            stored += len(self.engine.put(self._drafts())) * each
        put = self._cpu() - began
        left = stored
        while left:
            leases = self.engine.lease(BATCH).leases
            left -= len(leases)
            self.engine.settle([Settlement(lease.handle, lease.fence) for lease in leases])
        together = self._cpu() - began
        costs = (put, together - put, together)
        for n, cost in enumerate(costs):
            self.best[n] = min(self.best[n], cost / stored * SECOND)


def measure(
    chosen: argparse.Namespace, shape: Shape, rounds: int
) -> tuple[list[float], list[float], float]:
    """The costs of plain messages and of copies, and the longest call of a put in milliseconds."""
    with ExitStack() as stack:
        plain, ours = (
            Contender(
                stack.enter_context(store(chosen, "memory")), chosen, shape, has_copies=has_copies
            )
            for has_copies in (False, True)
        )
        for side in (plain, ours):
            stack.callback(side.engine.close)
        for _ in range(rounds):
            plain.round()
            ours.round()
        return plain.best, ours.best, longest(ours, shape)


def longest(side: Contender, shape: Shape) -> float:
    """The longest call of a put of 20 messages, in milliseconds."""
    drafts = [Draft("t.0", BODY)] * 20
    engine = side.engine
    if not hasattr(engine, "_store"):
        call_us: list[int] = []
        for call_size in (engine._puts, engine._plain_puts):  # type: ignore[attr-defined]
            call_size.fit = lambda count, used_us: call_us.append(used_us)
        engine.put(drafts)
        for call_size in (engine._puts, engine._plain_puts):  # type: ignore[attr-defined]
            del call_size.fit
        return max(call_us) / 1e3
    ends = [time.perf_counter()]
    real = engine._put  # type: ignore[attr-defined]

    def timed(*arguments: object, **named: object) -> object:
        answer = real(*arguments, **named)
        ends.append(time.perf_counter())
        return answer

    engine._put = timed  # type: ignore[attr-defined]
    engine.put(drafts)
    del engine._put  # type: ignore[attr-defined]
    return max(after - before for before, after in itertools.pairwise(ends)) * 1e3


def main() -> None:
    chosen = options(__doc__ or "")
    many = pick(chosen, 100_000, 20_000, 200)
    wide = pick(chosen, 1_000, 1_000, 50)
    stored = pick(chosen, 50_000, 20_000, 1_000)
    rounds = pick(chosen, 9, 3, 1)
    shapes = (
        Shape(f"1 topic, {wide:,} subscriptions", 1, wide, stored),
        Shape(f"{many:,} topics, 3 subscriptions each", many, 3, stored),
    )
    rows: list[tuple[object, ...]] = []
    for shape in shapes:
        plain, ours, longest_ms = measure(chosen, shape, rounds)
        ratios = [mine / other for mine, other in zip(ours, plain, strict=True)]
        rows.append(
            (shape.name, plain[0], ours[0], plain[2], ours[2], ratios[0], ratios[2], longest_ms)
        )
    publish_table(
        "subscriptions",
        chosen,
        (
            "topics",
            "plain put, us",
            "copy put, us",
            "plain together, us",
            "copy together, us",
            "put ratio",
            "ratio",
            "longest put, ms",
        ),
        rows,
        f"{stored:,} messages and copies a round, calls of about {BATCH}, best of {rounds} rounds;"
        " processor time of clients and servers; durability memory",
    )


if __name__ == "__main__":
    main()

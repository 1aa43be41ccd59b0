"""A gate on shards in memory, with lanes that wait at it and handlers, under a clock of its own."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec

from laneway.engines.sharded.grants import Answer, Grant, Grants, Usage
from laneway.engines.sql.rows import GateState
from laneway.policy import Gate
from laneway.units import SECOND

STEP_US = 5_000
"""How often workers look at all shards."""


class Shards:
    """
    `lanes`: those of each shard, and how many messages wait in each (-1: always some). Decides as
    an engine does: what a shard admits, from the lane that got least.
    """

    def __init__(
        self, limits: Gate, lanes: Sequence[Mapping[str, int]], draw: random.Random
    ) -> None:
        self.shards = len(lanes)
        self.limits = limits
        self.lanes = [dict(each) for each in lanes]
        self.draw = draw
        self.states = [
            GateState("g", msgspec.json.encode(limits).decode(), None, 0, 0, 1, None) for _ in lanes
        ]
        self.now = 2_000_000_000_000_000
        self.delivered: list[tuple[int, str]] = []
        self.got: Counter[str] = Counter()
        self.most_leased = 0
        self.ends: list[tuple[int, int, int]] = []
        self.blocked: set[int] = set()
        """Shards whose lanes wait for another gate."""
        for state in self.states:
            state.grant(Gate(concurrency=0), self.now)
        self.grants = Grants(self)
        self.grants._random = draw
        self.grants.begin("g", limits, None, self.now)

    def set_limits(self, limits: Gate) -> None:
        """Change the limits, without grants of them."""
        self.limits = limits
        for state in self.states:
            state.code = msgspec.json.encode(limits).decode()
            state.set_limits()

    # Gates

    def has_gates(self) -> bool:
        return True

    def waited_gates(self) -> Collection[str]:
        return {"g"} if any(any(each.values()) for each in self.lanes) else set()

    def claim_grants(self, seconds: float) -> bool:
        raise AssertionError

    def hold_grants(self, seconds: float) -> None:
        raise AssertionError

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        usage = [
            Usage(
                state.leased,
                sum(waiting != 0 for waiting in lanes.values()),
                state.limits.concurrency,
                state.here,
            )
            for state, lanes in zip(self.states, self.lanes, strict=True)
        ]
        return [(self.limits, usage) for _ in gates]

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        answers = []
        for shard, grant in grants.items():
            state = self.states[shard]
            gave_up = state.grant(grant.gate, now_us or self.now, grant.permits)
            answers.append(Answer(max(state.limits.concurrency or 0, state.leased), gave_up))
        return answers

    def end_grant(self, gate: str, shard: int, now_us: int | None) -> None:
        raise AssertionError

    # Workers

    def run(self, seconds: float, handler: tuple[float, float], *, step_us: int = STEP_US) -> None:
        """Let workers deliver what all shards admit; handlers take that long at random."""
        end = self.now + round(seconds * SECOND)
        while self.now < end:
            while self.ends and self.ends[0][0] <= self.now:
                _, _, shard = heapq.heappop(self.ends)
                self.states[shard].leased -= 1
            self.grants.renew(self.now)
            for shard, state in enumerate(self.states):
                slots = state.limits.concurrency
                # Of 64 shards most have no slot: skip them quickly.
                if (slots is None or state.leased < slots) and shard not in self.blocked:
                    self._deliver(shard, handler)
            self.now += step_us

    def _deliver(self, shard: int, handler: tuple[float, float]) -> None:
        state, lanes = self.states[shard], self.lanes[shard]
        while state.room(self.now) and (ready := [lane for lane, count in lanes.items() if count]):
            lane = min(ready, key=lambda lane: self.got[lane])
            lanes[lane] -= lanes[lane] > 0
            state.take(0, 1, 1, 1, self.now)
            self.got[lane] += 1
            self.delivered.append((self.now, lane))
            self.most_leased = max(self.most_leased, sum(each.leased for each in self.states))
            until = self.now + round(self.draw.uniform(*handler) * SECOND)
            heapq.heappush(self.ends, (until, len(self.delivered), shard))

    def most_above(self) -> float:
        """By how much the deliveries of any time exceed the rate at most: the burst."""
        most, debt, before = 0.0, 0.0, 0
        for at, _ in self.delivered:
            debt = max(0.0, debt - (self.limits.rate or 0.0) * (at - before) / SECOND) + 1
            most, before = max(most, debt), at
        return most

    def longest_pause(self) -> float:
        """In seconds, of any lane."""
        last = dict.fromkeys((lane for lanes in self.lanes for lane in lanes), self.delivered[0][0])
        longest = 0
        for at, lane in [*self.delivered, *((self.now, lane) for lane in last)]:
            longest = max(longest, at - last[lane])
            last[lane] = at
        return longest / SECOND

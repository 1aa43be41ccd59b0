"""Candidates of elections, with the rules of `laneway.cluster`, and their check."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict

from laneway.cluster.term_store import Candidate as Identity, Claim, EngineTerms
from laneway.errors import EngineUnavailable
from laneway.testing.simulation import Actor, Check, Store
from tests.simulation.blocking import blocking, engine_of


class Elections(Check):
    """At each moment at most one candidate acts, and term numbers only grow."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.terms: Counter[str] = Counter()
        self._holders: dict[str, dict[str, float]] = defaultdict(dict)
        """By election and candidate, until when it acts."""
        self._numbers: dict[str, tuple[int, str]] = {}

    def acts(self, name: str, who: str, number: int, now: float, until: float) -> None:
        """A candidate acts from now on, with the number of its term."""
        others = {each: end for each, end in self._holders[name].items() if each != who}
        for other, end in others.items():
            if end > now:
                raise self.broken(f"{name}: {who} holds it, and {other} for {end - now:g} s more")
        largest, holder = self._numbers.get(name, (0, ""))
        if number < largest or (number == largest and who != holder):
            raise self.broken(f"{name}: the term {number} of {who} follows {largest} of {holder}")
        self.terms[name] += number > largest
        self._numbers[name] = number, who
        self._holders[name] = {**others, who: until}

    def ends(self, name: str, who: str) -> None:
        """It does not act any more."""
        self._holders[name].pop(who, None)


class Candidate(Actor):
    """
    Runs for an election with the rules of `laneway.cluster`, by a clock that nobody sets.

    It tells `elections` from when until when it acts, with the number of its term.
    """

    def __init__(
        self, store: Store, name: str, who: str, term: float, elections: Elections
    ) -> None:
        super().__init__(store)
        self.name, self.who, self.term, self.elections = name, who, term, elections
        self._lives = 0

    def crash(self) -> None:
        super().crash()
        self.elections.ends(self.name, self.who)

    async def main(self) -> None:
        self._lives += 1
        identity = Identity(f"{self.who}.{self._lives}", self.who)
        engine = engine_of(self.store)
        terms = EngineTerms(lambda: engine, self.name, own_clock=lambda: self.clock.seconds)
        while True:
            with contextlib.suppress(EngineUnavailable):
                await blocking(terms.state)
                break
        while True:
            asked = self.clock.seconds
            try:
                answer = await blocking(lambda: terms.claim(identity, self.term))
            except EngineUnavailable:
                answer = None
            if isinstance(answer, Claim) and asked + answer.left > self.clock.seconds:
                await self._hold(terms, answer.number, asked + answer.left)
            await self.clock.sleep(self.clock.random.uniform(0.5, 1.5) * self.term / 3)

    async def _hold(self, terms: EngineTerms, number: int, until: float) -> None:
        while self.clock.seconds < until:
            self.elections.acts(self.name, self.who, number, self.clock.seconds, until)
            if self.clock.chance(0.05):
                self.elections.ends(self.name, self.who)
                with contextlib.suppress(EngineUnavailable):
                    await blocking(lambda: terms.end(number, handed_over=True))
                return
            await self.clock.sleep(self.term / 3)
            asked = self.clock.seconds
            try:
                renewal = await blocking(lambda: terms.renew(number, self.term, self.term))
            except EngineUnavailable:
                continue
            if renewal is None:
                break
            until = asked + renewal.left
        self.elections.ends(self.name, self.who)

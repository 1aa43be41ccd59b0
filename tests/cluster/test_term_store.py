"""The rules of terms, by the engine's clock, which these tests move."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from laneway import EngineUnavailable, Laneway
from laneway.cli.migrate import move
from laneway.cluster.renewal import TermRenewal, TermTimes
from laneway.cluster.term import Term, clock
from laneway.cluster.term_store import (
    Candidate,
    Claim,
    ElectionState,
    EngineTerms,
    Renewal,
    copy_terms,
)
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.units import SECOND

ONE, OTHER = Candidate("one", "web-1:1"), Candidate("other", "web-2:2")
START = 1_800_000_000


class Clocked:
    """An engine's elections at a time that the test sets."""

    def __init__(self, engine: FullEngine) -> None:
        self.engine = engine
        self.seconds = 0.0
        self.before_swap: Callable[[], None] = lambda: None

    def election_read(self, name: str, *, now_us: int | None = None) -> tuple[bytes | None, int]:
        return self.engine.election_read(name, now_us=START * SECOND + round(self.seconds * SECOND))

    def election_swap(
        self,
        name: str,
        before: bytes | None,
        after: bytes,
        *,
        durable: bool = True,
        now_us: int | None = None,
    ) -> bool:
        self.before_swap()
        return self.engine.election_swap(name, before, after, durable=durable)

    def elections(self, *, limit: int = 1000, after: str = "") -> list[str]:
        return self.engine.elections(limit=limit, after=after)


@pytest.fixture
def clocked() -> Iterator[Clocked]:
    engine = open_engine("sqlite://", Settings())
    yield Clocked(engine)
    engine.close()


@pytest.fixture
def terms(clocked: Clocked) -> EngineTerms:
    return EngineTerms(lambda: clocked, "a", own_clock=lambda: clocked.seconds)


def claim(terms: EngineTerms, candidate: Candidate = ONE, term: float = 10) -> Claim:
    claimed = terms.claim(candidate, term)
    assert isinstance(claimed, Claim), claimed
    return claimed


def test_number_grows_with_the_time(clocked: Clocked, terms: EngineTerms) -> None:
    """A number is at least the store's time in ms, and one more than the last at least."""
    first = claim(terms)
    assert first == Claim(START * 1000, 10, was_handed_over=False)
    terms.end(first.number, handed_over=True)
    assert claim(terms) == Claim(START * 1000 + 1, 10, was_handed_over=True)
    clocked.seconds = 3600
    assert claim(terms).number == (START + 3600) * 1000


def test_held_term(clocked: Clocked, terms: EngineTerms) -> None:
    """A term belongs to its holder until it runs out; a renewal counts from its own time."""
    number = claim(terms).number
    clocked.seconds = 9.9
    state = terms.claim(OTHER, 10)
    assert not isinstance(state, Claim)
    assert (state.number, state.holder, state.candidate) == (number, "web-1:1", "one")
    assert state.left == pytest.approx(0.1)
    assert terms.renew(number, 10, 30) == Renewal(10, is_asked=False)
    clocked.seconds = 19.8
    assert terms.state().state == "held"
    clocked.seconds = 19.9
    assert terms.state().state == "free"
    assert terms.renew(number, 10, 30) is None, "a term that has run out is not renewed"
    assert not claim(terms, OTHER).was_handed_over
    assert terms.renew(number, 10, 30) is None


def test_bound_for_handing_over(clocked: Clocked, terms: EngineTerms) -> None:
    """Renewals do not prolong a term beyond the bound after the first request to step down."""
    number = claim(terms).number
    clocked.seconds = 5
    assert terms.ask().state == "stepping down"
    clocked.seconds = 7
    assert terms.ask().state == "stepping down"
    assert terms.renew(number, 10, 12) == Renewal(10, is_asked=True)
    clocked.seconds = 16
    assert terms.renew(number, 10, 12) == Renewal(1, is_asked=True)
    clocked.seconds = 17
    assert terms.renew(number, 10, 12) is None
    assert not isinstance(terms.claim(ONE, 10), str)


def test_stale_holder_changes_nothing(clocked: Clocked, terms: EngineTerms) -> None:
    """Who has lost the term neither ends the next one, nor asks its holder."""
    old = claim(terms).number
    clocked.seconds = 10
    new = claim(terms, OTHER).number
    terms.end(old, handed_over=True)
    assert terms.ask(old).state == "held"
    assert terms.state().number == new
    terms.end(new, handed_over=True)
    assert terms.ask().state == "free"
    assert terms.state().handed_over


def test_late_end(clocked: Clocked, terms: EngineTerms) -> None:
    """A term that had run out before its end was not handed over."""
    number = claim(terms).number
    clocked.seconds = 10
    terms.end(number, handed_over=True)
    assert not terms.state().handed_over


def test_the_stores_clock_stands_still(clocked: Clocked, terms: EngineTerms) -> None:
    """
    The machine's clock was set back: a term that nobody renews is free after its time by the
    candidate's own clock, one that is renewed is not.
    """
    now = 100.0
    other = EngineTerms(lambda: clocked, "a", own_clock=lambda: now)
    number = claim(terms).number
    for _ in range(20):
        now += 4
        assert terms.renew(number, 10, 30) == Renewal(10, is_asked=False)
        assert not isinstance(other.claim(OTHER, 10), Claim)
    now += 9.9
    assert not isinstance(other.claim(OTHER, 10), Claim)
    now += 0.1
    late = EngineTerms(lambda: clocked, "a", own_clock=lambda: now)
    assert not isinstance(late.claim(OTHER, 10), Claim), "it has seen nothing yet"
    taken = claim(other, OTHER)
    assert taken.number == number + 1
    assert terms.renew(number, 10, 30) is None
    assert terms.renew(taken.number, 10, 30) is not None


def test_the_stores_clock_jumps_forward(clocked: Clocked, terms: EngineTerms) -> None:
    """The holder counts by its own clock: who has seen it waits for as long by its own, too."""
    now = 100.0
    other = EngineTerms(lambda: clocked, "a", own_clock=lambda: now)
    number = claim(terms).number
    assert not isinstance(other.claim(OTHER, 10), Claim)
    clocked.seconds = 3_600
    now += 9.5
    waiting = other.claim(OTHER, 10)
    assert isinstance(waiting, ElectionState)
    assert (waiting.state, waiting.left) == ("held", 0.5)
    now += 0.5
    assert claim(other, OTHER).number > number


def test_the_clock_jumps_after_a_renewal(clocked: Clocked, terms: EngineTerms) -> None:
    """A candidate that has not seen the last renewal waits for it, too, but at most a term."""
    now = 100.0
    other = EngineTerms(lambda: clocked, "a", own_clock=lambda: now)
    number = claim(terms).number
    assert not isinstance(other.claim(OTHER, 10), Claim)
    now += 4
    clocked.seconds = 4
    assert terms.renew(number, 10, 30) == Renewal(10, is_asked=False)
    now += 1
    clocked.seconds = 3_600
    waiting = other.claim(OTHER, 10)
    assert isinstance(waiting, ElectionState)
    assert (waiting.state, round(waiting.left or 0, 3)) == ("held", 9)
    now += 9
    assert claim(other, OTHER).number > number


@pytest.mark.parametrize("renews", [False, True])
def test_the_clock_jumps_while_the_record_is_written(clocked: Clocked, renews: bool) -> None:
    """
    The end was decided before the jump and written after it: others see a term that has run out,
    so the candidate does not hold it.
    """
    now = 100.0
    one, other = (EngineTerms(lambda: clocked, "a", own_clock=lambda: now) for _ in range(2))
    number = claim(one).number if renews else 0

    def jump() -> None:
        clocked.before_swap = lambda: None
        clocked.seconds = 600
        other.state()  # has seen the jump, and not the record that follows

    clocked.before_swap = jump
    if renews:
        assert one.renew(number, 10, 30) is None
    else:
        assert isinstance(one.claim(ONE, 10), ElectionState)
    assert isinstance(other.claim(OTHER, 10), Claim)


def test_lost_term_is_given_up(clocked: Clocked) -> None:
    """Again and again while the store is away: the holder's method may never return."""
    ends = threading.Semaphore(0)

    class Away(EngineTerms):
        tries = 0

        def end(self, number: int, *, handed_over: bool) -> None:
            self.tries += 1
            if self.tries < 3:
                raise EngineUnavailable("no route to it")
            super().end(number, handed_over=handed_over)
            ends.release()

    terms = Away(lambda: clocked, "a")
    term = Term("a", claim(terms).number, clock() + 60, was_handed_over=False)
    renewal = TermRenewal(terms, term, TermTimes(0.5, 1.0))
    renewal.start()
    term.lose("the test says so")
    assert ends.acquire(timeout=30)
    assert terms.state().state == "free"
    renewal.close()


def test_copied_numbers(clocked: Clocked, terms: EngineTerms) -> None:
    """The numbers of another store continue; a larger one there stays."""
    number = claim(terms).number
    new = Clocked(open_engine("sqlite://", Settings()))
    new.seconds = -1_000_000_000
    there = EngineTerms(lambda: new, "a")
    for _ in range(2):
        assert copy_terms(clocked, new) == 1
        assert there.state().state == "free"
    assert claim(there).number == number + 1
    assert copy_terms(clocked, new) == 1
    assert there.state().number == number + 1
    assert there.state().state == "held"
    new.engine.close()


def test_migrated_numbers(tmp_path: Path) -> None:
    """`laneway migrate` moves them."""
    with (
        Laneway(f"sqlite:///{tmp_path}/a.db") as old,
        Laneway(f"sqlite:///{tmp_path}/b?shards=4") as new,
    ):
        for name in ("a", "b", "ü\n"):
            EngineTerms(lambda: old.engine, name).claim(ONE, 10)
        assert move(old.engine, new.engine, lambda _: None, wait=False)["elections"] == 3
        assert [state.number for state in new.elections.list()] == [
            state.number for state in old.elections.list()
        ]
        assert {state.state for state in new.elections.list()} == {"free"}
        assert [state.name for state in new.elections.list(limit=1, after="a")] == ["b"]

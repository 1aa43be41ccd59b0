"""
Who holds the term of an election: the rules, and where they are stored.

A *term* is the time during which one candidate holds an election. Its number is a fencing token: it
is larger than that of every earlier term. The store keeps one record for each election:

    free ──claim──► held ──ask──► stepping down ──end──► free
                      │                 │
                      └── the term ran out, or the bound for handing over passed ──► free

`EngineTerms` stores the record in an engine, `laneway.cluster.zookeeper` in ZooKeeper. An engine's
record is changed by compare and swap: a decision based on an older record is not written.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, Protocol

import msgspec

from laneway.cluster.term import clock
from laneway.engines.base import Elections
from laneway.units import SECOND

NUMBERS_PER_SECOND = 1000
"""
A term's number is at least the store's time in milliseconds. It therefore grows even if the store
has lost its data or was restored from a copy: no process takes a thousand terms per second.
"""


class ElectionState(msgspec.Struct, frozen=True, kw_only=True):
    """
    An election as the store knows it.

    - `number`: the current or last term's number; 0 before the first term.
    - `state`: `"held"`; `"stepping down"`: the holder was asked to step down, or does so on its
      own; `"free"`.
    - `holder`: the holder's host and process id, such as `"web-3:4711"`, or None.
    - `candidate`: the holder's id, unique among all candidates.
    - `since`: when the current or last term began.
    - `left`: seconds until the term ends unless it is renewed, or None if no process holds it or
      the store does not report it (ZooKeeper).
    - `handed_over`: whether the last term ended with the holder's `hand_over`.
    """

    name: str
    number: int = 0
    state: Literal["held", "stepping down", "free"] = "free"
    holder: str | None = None
    candidate: str | None = None
    since: datetime | None = None
    left: float | None = None
    handed_over: bool = False


class Claim(msgspec.Struct, frozen=True):
    """
    A term that a candidate has taken.

    `left`: for how many seconds. `was_handed_over`: whether the previous holder has handed over.
    """

    number: int
    left: float
    was_handed_over: bool


class Renewal(msgspec.Struct, frozen=True):
    """
    `left`: the term's remaining seconds. `is_asked`: whether the holder was asked to step down.
    """

    left: float
    is_asked: bool


class Candidate(msgspec.Struct, frozen=True):
    """A candidate of an election. `id` is unique, `who` is for display."""

    id: str
    who: str


class TermStore(Protocol):
    """One election in a store. Every method blocks; each may raise EngineUnavailable."""

    def state(self) -> ElectionState:
        """Read who holds the term."""

    def claim(self, candidate: Candidate, term: float) -> Claim | ElectionState:
        """Take the term for `term` seconds if no process holds it; else return the state."""

    def renew(self, number: int, term: float, bound: float) -> Renewal | None:
        """
        Hold the term for `term` seconds from now, but not beyond `bound` seconds after its holder
        was asked to step down.

        Returns None if the term has ended.
        """

    def ask(self, number: int | None = None) -> ElectionState:
        """
        Ask the holder to step down; with `number`, only the holder of that term. Returns the state
        with the holder that was asked.
        """

    def end(self, number: int, *, handed_over: bool) -> None:
        """End the term, if it has not ended. `handed_over`: by the holder's `hand_over`."""

    def close(self) -> None:
        """Free this object's own connection, if any. The object cannot be used after this."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    What an engine stores of an election. Times are microseconds of the engine's clock.

    `candidate`, `who`: the holder's, or None if no process holds the term. `renewals`: the number
    of the term's renewals: each one changes the record, even while the engine's clock does not
    advance.
    """

    number: int = 0
    candidate: str | None = None
    who: str = ""
    since_us: int = 0
    until_us: int = 0
    asked_us: int | None = None
    handed_over: bool = False
    renewals: int = 0

    def is_held(self, now_us: int) -> bool:
        """Whether a process holds the term."""
        return self.candidate is not None and now_us < self.until_us

    def next_number(self, now_us: int) -> int:
        """The number of the next term."""
        return max(self.number + 1, now_us * NUMBERS_PER_SECOND // SECOND)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


class EngineTerms:
    """
    The terms of one election in an engine. A `TermStore`.

    An engine's clock never goes back: it stops for a while after the machine's clock was set back.
    A candidate therefore also counts by its own clock. A term is free once its record has not
    changed for as long as the term had left when the candidate first saw it: by then its holder has
    given it up, by its own clock. (DynamoDB's lock client does the same.)

    An engine's clock may also jump forward, while the holder counts by its own. A term that a
    candidate has seen held is therefore not free until it has also expired by the candidate's own
    clock.

    `own_clock`: the candidate's, in seconds.
    """

    def __init__(
        self,
        engine: Callable[[], Elections],
        name: str,
        *,
        own_clock: Callable[[], float] = clock,
    ) -> None:
        self._engine = engine
        self._name = name
        self._clock = own_clock
        self._seen: tuple[Record, float, float, float] | None = None
        """
        The last record; when it was first seen, by the candidate's own clock; for how many seconds
        it was held then; and how far the engine's clock had jumped since the previous read.
        """
        self._ahead_us: int | None = None
        """By how much the engine's clock was ahead of the candidate's own at the last read."""

    def state(self) -> ElectionState:
        _, record, now = self._read()
        return state_of(self._name, record, now)

    def claim(self, candidate: Candidate, term: float) -> Claim | ElectionState:
        def change(record: Record, now: int) -> Record | None:
            if record.candidate is not None and self._left(term) > 0:
                return None
            return Record(
                number=record.next_number(now),
                candidate=candidate.id,
                who=candidate.who,
                since_us=now,
                until_us=now + round(term * SECOND),
            )

        before, after, now = self._change(change, durable=True)
        if after is None:
            until = max(before.until_us, now + math.ceil(self._left(term) * SECOND))
            return state_of(self._name, msgspec.structs.replace(before, until_us=until), now)
        return Claim(after.number, (after.until_us - now) / SECOND, before.handed_over)

    def _left(self, term: float) -> float:
        """
        For how many seconds the term that was read last may still be held: its remaining time when
        this candidate first saw its record, counted by the candidate's own clock.

        The record may have been renewed just before the engine's clock jumped forward. Its time
        therefore also counts by the engine's clock at the candidate's previous read, but for no
        longer than a whole term.
        """
        assert self._seen is not None
        _, at, left, jumped = self._seen
        return round(at + max(left, min(left + jumped, term)) - self._clock(), 6)

    def renew(self, number: int, term: float, bound: float) -> Renewal | None:
        def change(record: Record, now: int) -> Record | None:
            if record.number != number or not record.is_held(now):
                return None
            until = now + round(term * SECOND)
            if record.asked_us is not None:
                until = min(until, record.asked_us + round(bound * SECOND))
            return (
                msgspec.structs.replace(record, until_us=until, renewals=record.renewals + 1)
                if until > now
                else None
            )

        _, after, now = self._change(change, durable=False)
        if after is None:
            return None
        return Renewal((after.until_us - now) / SECOND, after.asked_us is not None)

    def ask(self, number: int | None = None) -> ElectionState:
        def change(record: Record, now: int) -> Record | None:
            if (
                not record.is_held(now)
                or record.asked_us is not None
                or number not in (None, record.number)
            ):
                return None
            return msgspec.structs.replace(record, asked_us=now)

        before, after, now = self._change(change, durable=True)
        return state_of(self._name, after or before, now)

    def end(self, number: int, *, handed_over: bool) -> None:
        def change(record: Record, now: int) -> Record | None:
            if record.number != number or record.candidate is None:
                return None
            return Record(
                number=number,
                since_us=record.since_us,
                until_us=now,
                handed_over=handed_over and record.is_held(now),
            )

        self._change(change, durable=True)

    def close(self) -> None:
        """Do nothing: the engine belongs to the application."""

    # The record

    def _read(self) -> tuple[bytes | None, Record, int]:
        stored, now = self._engine().election_read(self._name)
        record = _decode(stored) if stored is not None else Record()
        own = self._clock()
        ahead_us = now - round(own * SECOND)
        if self._seen is None or self._seen[0] != record:
            jumped = (ahead_us - (ahead_us if self._ahead_us is None else self._ahead_us)) / SECOND
            self._seen = record, own, (record.until_us - now) / SECOND, jumped
        self._ahead_us = ahead_us
        return stored, record, now

    def _change(
        self, change: Callable[[Record, int], Record | None], *, durable: bool
    ) -> tuple[Record, Record | None, int]:
        """
        Replace the record by the answer of `change` for it and the time, or leave it if that is
        None.

        Returns the previous record, the new one if it was replaced, and the time after that. A
        record that has run out by then is changed once more.
        """
        while True:  # a swap fails only if another one has succeeded
            stored, before, now = self._read()
            after = change(before, now)
            if after is None:
                return before, None, now
            if self._engine().election_swap(self._name, stored, _encode(after), durable=durable):
                # The clock may have jumped before the swap: a candidate that has seen the jump, and
                # not this record, takes the term as soon as `until_us` has passed.
                _, _, now = self._read()
                if after.candidate is None or after.is_held(now):
                    return before, after, now


def state_of(name: str, record: Record, now_us: int) -> ElectionState:
    """The public state of a record."""
    is_held = record.is_held(now_us)
    return ElectionState(
        name=name,
        number=record.number,
        state="free" if not is_held else "held" if record.asked_us is None else "stepping down",
        holder=record.who if is_held else None,
        candidate=record.candidate if is_held else None,
        since=datetime.fromtimestamp(record.since_us / SECOND, UTC) if record.since_us else None,
        left=(record.until_us - now_us) / SECOND if is_held else None,
        handed_over=record.handed_over,
    )


def copy_terms(old: Elections, new: Elections) -> int:
    """
    Make the numbers of another store continue above those of this one. No process holds a copied
    term: its holder finds the term gone, or continues in the old store until it is restarted.

    Returns the number of elections.
    """
    count = 0
    after = ""
    while page := old.elections(after=after):
        for name in page:
            stored, _ = old.election_read(name)
            record = _decode(stored) if stored is not None else Record()
            _raise_number(new, name, record.number)
            count += 1
        after = page[-1]
    return count


def _raise_number(engine: Elections, name: str, number: int) -> None:
    while True:
        stored, _ = engine.election_read(name)
        known = _decode(stored) if stored is not None else Record()
        if known.number >= number:
            return
        if engine.election_swap(
            name, stored, _encode(msgspec.structs.replace(known, number=number))
        ):
            return

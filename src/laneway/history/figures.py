"""The public view of the history: rows, parts, waiting times, and forecasts."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Sequence

import msgspec

from laneway.engines.base import WAIT_BOUNDS_US, FullEngine, TopicStats, WaitCounts
from laneway.errors import UsageError
from laneway.history import sampling
from laneway.history.records import RINGS, Cell, Row, added, decode, is_in, name_of
from laneway.policy import is_pattern, matches
from laneway.subscriptions import is_copy
from laneway.units import SECOND

RECENT_SECONDS = 60.0
"""The period over which `inflow`, `outflow` and `growth` are measured."""

PAGE = 500
"""Records per read."""

WAIT_BOUNDS = [bound / SECOND for bound in WAIT_BOUNDS_US]
"""The bounds of waiting times in seconds."""

LONGEST_SECONDS = max(seconds * count for seconds, count in RINGS.items())


class HistoryRow(msgspec.Struct, kw_only=True):
    """
    What happened in one interval.

    - `start`: Unix time in seconds, by the store's clock; `seconds`: how long the interval was. It
      is longer than the step if no process took samples meanwhile.
    - `published`, `delivered`, `done`, `retried`, `died`, `merged`: numbers of messages. A message
      that merged into a waiting one does not count as published.
    - `throttled`: the seconds for which rates held back ready messages, summed over all topics.
    - `waiting`: messages that waited at the end of the interval. `oldest`: the age of the oldest
      one in seconds, or None if nothing waited or it is unknown.
    """

    start: float
    seconds: float
    published: int = 0
    delivered: int = 0
    done: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    throttled: float = 0.0
    waiting: int = 0
    oldest: float | None = None

    @property
    def inflow(self) -> float:
        """Messages published per second, in one second at least."""
        return self.published / max(1.0, self.seconds)

    @property
    def outflow(self) -> float:
        """Messages done or died per second, in one second at least."""
        return (self.done + self.died) / max(1.0, self.seconds)


class HistoryPart(HistoryRow, kw_only=True):
    """What happened in the topics of a tier and pattern, as one row for the whole period."""

    tier: str
    pattern: str


class WaitingTimes(msgspec.Struct):
    """
    How long messages had waited when they were delivered, since they were published or due.

    - `bounds`: the upper bounds of the classes, in seconds; the last class has none.
    - `counts`: the messages in each class; one more class than bounds.
    """

    bounds: list[float]
    counts: list[int]

    @property
    def count(self) -> int:
        """The number of all messages."""
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """
        Return the bound in seconds below which this fraction (0 … 1) of the messages waited, or
        None if no message was delivered or no bound is large enough.
        """
        if not 0 <= part <= 1:
            raise UsageError(f"quantile: expected a part from 0 to 1, got {part!r}")
        if not self.count:
            return None
        sums = list(itertools.accumulate(self.counts))
        place = bisect.bisect_left(sums, max(1, part * self.count))
        return self.bounds[place] if place < len(self.bounds) else None


class History(msgspec.Struct, kw_only=True):
    """
    The history of a namespace, or of a tier or pattern in it. Times are Unix times in seconds, by
    the store's clock; durations are seconds.

    - `now`: when it was read. `step`: the interval of its rows.
    - `rows`: the intervals in which samples were taken, the oldest first; the last one is still
      open.
    - `parts`: each tier and pattern, the largest backlog first.
    - `noisy`, `others`: waiting times at delivery; the noisiest 1 % of the topics (at least one)
      and the rest. They are counted by tier, so a pattern does not affect them.
    - `waiting`, `oldest`: current values.
    - `inflow`, `outflow`: messages published per second, and done or died, in the last minute.
    - `growth`: the messages per second by which `waiting` has grown in the last minute; negative
      if it has fallen. If it grew in a burst and has fallen for 10 to 20 s, only these count.
    - `drain_seconds`: the time until nothing waits, at that growth, or None if it does not drain.
    - `max_backlog`: the limit in messages that is reached first: that of `full_topic`, or the
      namespace's if that is None; or None if no limit exists.
    - `full_seconds`: the earliest time until the limit is reached, assuming that all growth is in
      that topic, or None if it does not fill.
    """

    now: float
    step: float
    rows: list[HistoryRow]
    parts: list[HistoryPart]
    noisy: WaitingTimes
    others: WaitingTimes
    waiting: int = 0
    oldest: float | None = None
    inflow: float = 0.0
    outflow: float = 0.0
    growth: float = 0.0
    drain_seconds: float | None = None
    max_backlog: int | None = None
    full_topic: str | None = None
    full_seconds: float | None = None


def read(
    engine: FullEngine,
    *,
    last: float = 3600.0,
    step: float | None = None,
    tier: str | None = None,
    pattern: str = "*",
    max_backlog: int | None = None,
    must_exist: bool = True,
    latest: Row | None = None,
    largest: Sequence[TopicStats] | None = None,
) -> History:
    """
    Read the history; `app.history.read` explains the arguments. `max_backlog`: the namespace's.
    `must_exist`: a pattern that is not counted separately is an error. `latest`: the result of
    `sampling.latest_row`, which costs most; read if None. `largest`: the topics of the pattern with
    the largest backlogs, at least one; read if None.

    Raises UsageError for an invalid argument.
    """
    step = step_for(last, step)
    selected = _Selection(engine, tier, pattern)
    latest = latest or sampling.latest_row(engine)
    now_us = latest.end_us
    rows = _rows(engine, round(step), now_us - round(last * SECOND), now_us, latest)
    history = History(
        now=now_us / SECOND,
        step=step,
        rows=[_row(row, selected) for row in rows],
        parts=_parts(rows, latest, selected),
        noisy=_waiting_times(rows, selected, "noisy"),
        others=_waiting_times(rows, selected, "others"),
    )
    if must_exist:
        selected.check({part.pattern for part in history.parts})
    present = _row(latest, selected)
    history.waiting, history.oldest = present.waiting, present.oldest
    _set_flows(engine, history, selected, latest, min(last, RECENT_SECONDS))
    if largest is None:
        largest = (
            engine.topic_list(order="backlog", pattern=pattern, limit=1)
            if is_pattern(pattern)
            else [engine.topic_stats(pattern)]
        )
    _foresee(engine, history, selected, max_backlog, largest[:1])
    return history


def _set_flows(
    engine: FullEngine, history: History, selected: _Selection, latest: Row, last: float
) -> None:
    """
    Set the flows and the growth of the backlog, from the end of the row before the period. If fewer
    wait than two rows ago, a burst has ended, and the growth is that of the last two rows.
    """
    step, now_us = min(RINGS), latest.end_us
    since_us = now_us - round(last * SECOND)
    rows = _rows(engine, step, since_us - step * SECOND, now_us, latest)
    before = [_row(row, selected) for row in rows if row.end_us <= since_us]
    recent = [_row(row, selected) for row in rows if row.end_us > since_us]
    if not recent:
        return
    seconds = max(1.0, sum(row.seconds for row in recent))  # a namespace may be younger
    history.inflow = sum(row.published for row in recent) / seconds
    history.outflow = sum(row.done + row.died for row in recent) / seconds
    history.growth = history.inflow - history.outflow
    if before:
        history.growth = (history.waiting - before[-1].waiting) / seconds
    if history.growth > 0 and len(recent) >= 3 and recent[-3].waiting > history.waiting:
        fell_for = sum(row.seconds for row in recent[-2:])
        history.growth = (history.waiting - recent[-3].waiting) / fell_for


def step_for(last: float, step: float | None) -> float:
    """
    The interval of the rows: the shortest that is kept for that long, unless `step` is given.

    Raises UsageError if the step is not kept, or not for that long.
    """
    if not 0 < last <= LONGEST_SECONDS:
        raise UsageError(
            f"history: expected last to be at most {LONGEST_SECONDS // 86_400} days and more than"
            f" 0, got {last:g} s"
        )
    if step is None:
        return next(seconds for seconds, count in RINGS.items() if last <= seconds * count)
    if step not in RINGS:
        raise UsageError(
            f"history: expected step to be one of {', '.join(map(str, RINGS))} s, got {step:g} s"
        )
    if last > step * RINGS[round(step)]:
        raise UsageError(
            f"history: rows of {step:g} s are kept for {step * RINGS[round(step)] / 3600:g} h; ask"
            f" for a longer step, or for less than {last:g} s"
        )
    return step


class _Selection:
    """The requested tier and pattern."""

    def __init__(self, engine: FullEngine, tier: str | None, pattern: str) -> None:
        check_pattern(pattern)
        if tier is not None and tier not in engine.tiers:
            raise UsageError(
                f"history: expected tier to be one of {', '.join(engine.tiers)}, got {tier!r:.80}"
            )
        self._engine = engine
        self.tier = tier
        self.pattern = pattern
        self._names = {
            row[1] for row in engine.policies().rows() if is_pattern(row[1]) and not is_copy(row[1])
        }

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole namespace."""
        return self.tier is None and self.pattern == "*"

    def takes(self, cell: Cell) -> bool:
        """Whether a cell belongs to it."""
        if self.tier is not None and cell.tier != self.tier:
            return False
        return self.pattern == "*" or covers(self.pattern, cell.pattern)

    def check(self, patterns: Collection[str]) -> None:
        """Raise UsageError if no figures can be kept for the pattern."""
        if self.pattern == "*" or self.pattern in self._names or self.pattern in patterns:
            return
        if not is_pattern(self.pattern):
            if self._engine.policy_of(self.pattern).history:
                return
            raise UsageError(
                f"history: topic {self.pattern!r:.80} is not counted apart; a policy with"
                " history=True counts it from then on"
            )
        if not any(covers(self.pattern, each) for each in (*self._names, *patterns)):
            kept = ", ".join(sorted({*self._names, "*"})[:10])
            raise UsageError(
                f"history: no policy has the pattern {self.pattern!r:.80}, so its topics are not"
                f" counted apart; patterns with figures: {kept}"
            )


def check_pattern(pattern: str) -> None:
    """Raise UsageError for a pattern of subscriptions, which are not counted separately."""
    if is_pattern(pattern) and is_copy(pattern):
        raise UsageError(
            f'history: expected a pattern like "push.*", or a topic, got {pattern!r:.80}'
        )


def covers(pattern: str, other: str) -> bool:
    """Whether the first pattern covers the other pattern or topic."""
    if other == pattern:
        return True
    return other != "*" and matches(pattern, other[:-1] + "x" if is_pattern(other) else other)


def read_rows(engine: FullEngine, last: float, latest: Row) -> list[Row]:
    """
    The stored rows of the last seconds, in the shortest step that is kept for that long, the oldest
    first. `latest`: the result of `sampling.latest_row`, which becomes the last row or part of it.
    """
    now_us = latest.end_us
    return _rows(engine, round(step_for(last, None)), now_us - round(last * SECOND), now_us, latest)


def _rows(engine: FullEngine, seconds: int, since_us: int, now_us: int, latest: Row) -> list[Row]:
    """The rows of a ring since a time, with the latest one, which is not yet stored."""
    length = seconds * SECOND
    starts = range(since_us // length * length, now_us + 1, length)
    names = [name_of(seconds, start) for start in starts]
    stored: list[bytes | None] = []
    for first in range(0, len(names), PAGE):
        stored += engine.history_read(names[first : first + PAGE])
    found: list[Row] = []
    for start, record in zip(starts, stored, strict=True):
        row = decode(record, Row)
        if row is not None and is_in(row, seconds, start):
            found.append(row)
    latest = msgspec.msgpack.decode(msgspec.msgpack.encode(latest), type=Row)  # a copy
    if found and is_in(found[-1], seconds, latest.at_us):
        found[-1].add(latest)
    elif latest.end_us > latest.begin_us or latest.cells:
        found.append(latest)
    return found


def _row(row: Row, selected: _Selection) -> HistoryRow:
    found = HistoryRow(start=row.begin_us / SECOND, seconds=(row.end_us - row.begin_us) / SECOND)
    for cell in row.cells:
        if selected.takes(cell):
            _add_flows(found, cell)
            found.waiting += cell.waiting
            found.oldest = _oldest(found.oldest, cell)
    if selected.is_whole:
        found.waiting = row.waiting
    return found


def _parts(rows: Sequence[Row], latest: Row, selected: _Selection) -> list[HistoryPart]:
    parts: dict[tuple[str, str], HistoryPart] = {}
    start = rows[0].begin_us / SECOND if rows else latest.end_us / SECOND
    seconds = sum(row.end_us - row.begin_us for row in rows) / SECOND
    for row in rows:
        for cell in row.cells:
            if selected.takes(cell):
                key = cell.tier, cell.pattern
                part = parts.get(key)
                if part is None:
                    part = parts[key] = HistoryPart(
                        tier=cell.tier, pattern=cell.pattern, start=start, seconds=seconds
                    )
                _add_flows(part, cell)
    for cell in latest.cells:
        part = parts.get((cell.tier, cell.pattern))
        if part is not None:
            part.waiting, part.oldest = cell.waiting, _oldest(None, cell)
    return sorted(
        parts.values(), key=lambda part: (-part.waiting, -part.published, part.tier, part.pattern)
    )


def _add_flows(found: HistoryRow, cell: Cell) -> None:
    found.published += cell.published
    found.delivered += cell.delivered
    found.done += cell.done
    found.retried += cell.retried
    found.died += cell.died
    found.merged += cell.merged
    found.throttled += cell.throttled_us / SECOND


def _oldest(known: float | None, cell: Cell) -> float | None:
    if cell.oldest_us is None:
        return known
    return max(known or 0.0, cell.oldest_us / SECOND)


def _waiting_times(rows: Sequence[Row], selected: _Selection, which: str) -> WaitingTimes:
    counts = [0] * (len(WAIT_BOUNDS) + 1)
    for row in rows:
        for each in row.waits:
            if selected.tier in (None, each.tier):
                counts = added(counts, _counts(each, which))
    return WaitingTimes([*WAIT_BOUNDS], counts)


def _counts(waits: WaitCounts, which: str) -> list[int]:
    return waits.noisy if which == "noisy" else waits.others


def _foresee(
    engine: FullEngine,
    history: History,
    selected: _Selection,
    max_backlog: int | None,
    largest: Sequence[TopicStats],
) -> None:
    """Set the times until the backlog is drained and until the first limit is reached."""
    growth = history.growth
    if not history.waiting:
        history.drain_seconds = 0.0
    elif growth < 0:
        history.drain_seconds = history.waiting / -growth
    limits: list[tuple[int, int, str | None]] = []
    if max_backlog is not None and selected.is_whole:
        limits.append((max(0, max_backlog - history.waiting), max_backlog, None))
    for stats in largest:
        limit = engine.policy_of(stats.topic).max_backlog
        if limit is not None and selected.tier in (None, stats.tier):
            limits.append((max(0, limit - stats.waiting), limit, stats.topic))
    if limits:
        room, history.max_backlog, history.full_topic = min(limits, key=lambda each: each[0])
        if not room:
            history.full_seconds = 0.0
        elif growth > 0:
            history.full_seconds = room / growth

"""The figures of the demo, and which promises were kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from laneway.demo.logs import Handled
from laneway.demo.merchants import BEST_SELLER, BROKEN, CONCURRENCY, FLOOD, RATE, SLOW, TIERS
from laneway.engines.base import FullEngine, Overview
from laneway.policy import default_burst

BEFORE, ARRIVING, DURING, AFTER = (
    "before the flood",
    "publishing the flood",
    "during the flood",
    "after the flood",
)
SHARING = "while all tiers had work"

START_SLACK = CONCURRENCY
"""
Extra starts within a second: messages that took their permits before it began, and whose handlers
had not started. A merchant never has more of them than its concurrency, on the slowest machine too.
"""

QUIET_FACTOR = 2.0
"""The largest allowed growth of the quiet merchants' p99 during the flood."""

QUIET_FLOOR = 0.01
"""
A p99 up to this many seconds counts as no wait: timers and two processes that share a processor
are not more exact.
"""

QUIET_MOST = 0.25
"""
A p99 above this many seconds before the flood means that the machine is too busy to compare.
"""

OTHERS = 0.2
"""
If other programs use this share of the processors or more, the machine is too busy to measure.
"""

LATE = 0.02
"""The same if an idle process wakes up this many seconds late (p99)."""

SHARE_SLACK = 0.01

ENOUGH_DELIVERIES = 10_000
"""With fewer deliveries, the worker's prefetched messages alone change a share by `SHARE_SLACK`."""

State = Literal["pending", "held", "broken", "not judged"]


class Phase(msgspec.Struct):
    """A part of the demo: its start and end (seconds since 1970), with the store's counters."""

    began: float
    ended: float
    before: Overview
    after: Overview
    others: float | None = None  # the share of the processors that other programs used

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Promise(msgspec.Struct, frozen=True):
    """A promise, whether it was kept, and the figures."""

    name: str
    state: State = "pending"
    detail: str = ""


class Seen(msgspec.Struct):
    """
    All that was measured so far. `lags`: (time, seconds by which an idle process woke up late).
    """

    phases: dict[str, Phase] = {}
    handled: list[Handled] = []
    lags: list[tuple[float, float]] = []


def report(engine: FullEngine, seen: Seen, took: float) -> dict[str, Any]:
    """All figures of the run, and whether the promises were kept."""
    end, phases, handled = engine.overview(), seen.phases, seen.handled
    quiet = quiet_only(handled)
    judged = promises(engine, seen, is_over=True)
    return {
        "throughput": {
            "in all": f"{end.done:,} messages handled in {took:.1f} s",
            **{
                name: f"{(phase.after.done - phase.before.done) / phase.seconds:,.0f}/s"
                for name, phase in phases.items()
            },
            "of the flood": f"{sum(each.topic == FLOOD for each in handled):,} messages handled",
        },
        "waiting time of the quiet merchants": {
            name: _p50_p99(_waits(quiet, phase))
            for name, phase in phases.items()
            if name.endswith("the flood")
        },
        "lateness of an idle process": {
            name: _p50_p99(_lags(seen, phase), "looks")
            for name, phase in phases.items()
            if name.endswith("the flood")
        },
        "processors used by other programs": {
            name: f"{phase.others:.0%}"
            for name, phase in phases.items()
            if name.endswith("the flood") and phase.others is not None
        },
        "shares of the tiers, while all had work": _shares(phases[SHARING])[0],
        "limits": {
            f"{BEST_SELLER}: most starts in one second": _starts(handled)[1],
            "any limited merchant: most concurrent": (
                f"{_together(handled)} (concurrency {CONCURRENCY})"
            ),
        },
        "the failing merchant": {
            "attempts that failed": f"{sum(each.topic == BROKEN for each in handled):,}",
            "dead letters": f"{engine.topic_stats(BROKEN).dead:,}",
        },
        "accounts": {
            "published": f"{end.published:,}",
            "= done + waiting + leased + dead": (
                f"{end.done:,} + {end.waiting:,} + {end.leased:,} + {end.dead:,}"
            ),
        },
        "promises": {each.name: f"{each.state}: {each.detail}" for each in judged},
        "in one sentence": sentence(seen),
        "promises held": all(each.state in ("held", "not judged") for each in judged),
        "all judged": all(each.state != "not judged" for each in judged),
    }


def promises(engine: FullEngine, seen: Seen, *, is_over: bool = False) -> list[Promise]:
    """Every promise; those that cannot be judged yet are pending."""
    return [
        _quiet(seen),
        *_limits(seen),
        _failing(engine, is_over=is_over),
        _tiers(seen),
        _accounts(engine, is_over=is_over),
    ]


def sentence(seen: Seen) -> str:
    """The demo in one sentence."""
    if BEFORE not in seen.phases or DURING not in seen.phases:
        return ""
    first = seen.phases.get(ARRIVING, seen.phases[DURING])
    flood = Phase(first.began, seen.phases[DURING].ended, first.before, seen.phases[DURING].after)
    quiet = quiet_only(seen.handled)
    waits = {BEFORE: _waits(quiet, seen.phases[BEFORE]), DURING: _waits(quiet, flood)}
    if not all(waits.values()):
        return ""
    others = len({each.topic for each in quiet})
    published = max(0, flood.after.published - flood.before.published - len(waits[DURING]))
    p50 = [percentile(waits[name], 0.5) * 1000 for name in (DURING, BEFORE)]
    p99 = [percentile(waits[name], 0.99) * 1000 for name in (DURING, BEFORE)]
    return (
        f"While one merchant published about {round(published, -3):,}, the other {others:,} waited"
        f" {p50[0]:.1f} ms instead of {p50[1]:.1f} (p99 {p99[0]:.1f} instead of {p99[1]:.1f})."
    )


def quiet_only(handled: Sequence[Handled]) -> list[Handled]:
    """The runs of ordinary merchants."""
    special = {FLOOD, BROKEN, BEST_SELLER, SLOW}
    return [each for each in handled if each.topic not in special]


def percentile(ordered: Sequence[float], part: float) -> float:
    """A percentile (`part`: 0 to 1) of sorted values, at least one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


# The promises


def _quiet(seen: Seen) -> Promise:
    name = f"the other merchants do not notice the flood: p99 grows {QUIET_FACTOR:g}-fold at most"
    if DURING not in seen.phases:
        return Promise(name)
    quiet = quiet_only(seen.handled)
    before, during = (_waits(quiet, seen.phases[phase]) for phase in (BEFORE, DURING))
    held, was = False, 0.0
    if not before or not during:
        detail = "none of their messages was handled"
    else:
        was, became = percentile(before, 0.99), percentile(during, 0.99)
        detail = f"p99 {_ms(became)}, {_ms(was)} before"
        if ARRIVING in seen.phases and (arriving := _waits(quiet, seen.phases[ARRIVING])):
            detail += f" ({_ms(percentile(arriving, 0.99))} while it was being published)"
        held = became <= max(QUIET_FACTOR * was, QUIET_FLOOR)
    if held and was <= QUIET_MOST:
        return Promise(name, "held", detail)
    if why := _too_busy(seen):
        return Promise(name, "not judged", f"{detail}; {why}")
    return Promise(name, "held" if held else "broken", detail)


def _too_busy(seen: Seen) -> str:
    """How busy the machine was before and during the flood; "" if waits can be compared."""
    late = [
        percentile(lags, 0.99) if (lags := _lags(seen, seen.phases[phase])) else 0.0
        for phase in (BEFORE, DURING)
    ]
    others = max(seen.phases[phase].others or 0.0 for phase in (BEFORE, DURING))
    if others < OTHERS and max(late) < LATE:
        return ""
    return (
        f"the machine is too busy: other programs used {others:.0%} of its processors, an idle"
        f" process was woken {_ms(max(late))} late (p99)"
    )


def _limits(seen: Seen) -> list[Promise]:
    rate = f"at most {RATE} starts per second for each merchant"
    at_most = f"at most {CONCURRENCY} handlers at a time for each merchant"
    if BEFORE not in seen.phases:
        return [Promise(rate), Promise(at_most)]
    starts, starts_text = _starts(seen.handled)
    together = _together(seen.handled)
    return [
        Promise(rate, "held" if starts <= RATE + _burst() + START_SLACK else "broken", starts_text),
        Promise(
            at_most, "held" if together <= CONCURRENCY else "broken", f"most at a time: {together}"
        ),
    ]


def _failing(engine: FullEngine, *, is_over: bool) -> Promise:
    name = "what always fails becomes a dead letter"
    stats = engine.topic_stats(BROKEN)
    left = stats.waiting + stats.leased
    if left and not is_over:
        return Promise(name, "pending", f"{stats.dead:,} dead, {left:,} to go")
    if left:
        state: State = "held" if stats.dead else "not judged"
        return Promise(name, state, f"{stats.dead:,} dead, {left:,} had no time to fail")
    state = "held" if stats.dead else "broken" if is_over else "pending"
    return Promise(name, state, f"{stats.dead:,} dead letters, each with its reason")


def _tiers(seen: Seen) -> Promise:
    name = "tiers share " + " : ".join(f"{share:g}" for share in TIERS.values())
    if SHARING not in seen.phases:
        return Promise(name)
    phase = seen.phases[SHARING]
    _, given, held = _shares(phase)
    total = _all_given(phase)
    detail = (
        " : ".join(f"{part:.1%}" for part in given.values()) + f" (1 % slack, {total:,} deliveries)"
    )
    if held:
        return Promise(name, "held", detail)
    if total < ENOUGH_DELIVERIES:
        return Promise(name, "not judged", f"{detail}; these are too few to tell")
    if any(not _runnable(phase.after, tier) for tier in TIERS):
        return Promise(name, "not judged", f"{detail}; a tier had no more work at the end")
    return Promise(name, "broken", detail)


def _accounts(engine: FullEngine, *, is_over: bool) -> Promise:
    name = "no message is lost, and none is counted twice"
    if not is_over:
        return Promise(name)
    end = engine.overview()
    is_right = end.published == end.done + end.waiting + end.leased + end.dead
    detail = (
        f"{end.published:,} published = {end.done:,} done + {end.waiting + end.leased:,} left +"
        f" {end.dead:,} dead"
    )
    return Promise(name, "held" if is_right else "broken", detail)


# Figures


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _burst() -> float:
    return default_burst(RATE)


def _starts(handled: Sequence[Handled]) -> tuple[int, str]:
    starts = _most_in_a_second([each.started for each in handled if each.topic == BEST_SELLER])
    allowed = (
        f"rate {RATE}/s, burst {_burst():g}, slack {START_SLACK}: a start comes a moment after its"
        " permit"
    )
    return starts, f"{starts} ({allowed})"


def _together(handled: Sequence[Handled]) -> int:
    return max(
        (_most_at_once(each) for each in _by_topic(handled) if each[0].topic != FLOOD), default=0
    )


def _by_topic(handled: Sequence[Handled]) -> list[list[Handled]]:
    found: dict[str, list[Handled]] = {}
    for each in handled:
        found.setdefault(each.topic, []).append(each)
    return list(found.values())


def _waits(handled: Sequence[Handled], phase: Phase) -> list[float]:
    """Sorted seconds from publish to the start, of messages published in the phase."""
    return sorted(each.wait for each in handled if phase.began <= each.published < phase.ended)


def _lags(seen: Seen, phase: Phase) -> list[float]:
    return sorted(late for moment, late in seen.lags if phase.began <= moment < phase.ended)


def _p50_p99(waits: list[float], what: str = "messages") -> str:
    if not waits:
        return f"no {what}"
    p50, p99 = (percentile(waits, part) for part in (0.5, 0.99))
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms ({len(waits):,} {what})"


def _most_in_a_second(starts: list[float]) -> int:
    starts.sort()
    most = first = 0
    for last, moment in enumerate(starts):
        while moment - starts[first] > 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def _most_at_once(handled: list[Handled]) -> int:
    changes = sorted(
        [(each.started, 1) for each in handled] + [(each.ended, -1) for each in handled]
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _shares(phase: Phase) -> tuple[dict[str, str], dict[str, float], bool]:
    """Each tier's part of the deliveries against its target, while all three had work."""
    parts = shares_between(phase.before, phase.after)
    total, targets = _all_given(phase), target_shares()
    texts = {
        tier: f"{part:.1%} of {total:,} (target {targets[tier]:.0%})"
        for tier, part in parts.items()
    }
    return (
        texts,
        parts,
        bool(total) and all(abs(parts[tier] - targets[tier]) <= SHARE_SLACK for tier in TIERS),
    )


def target_shares() -> dict[str, float]:
    """Each tier's part, if all have work."""
    return {tier: share / sum(TIERS.values()) for tier, share in TIERS.items()}


def shares_between(before: Overview, after: Overview) -> dict[str, float]:
    """Each tier's part of the deliveries between two looks; empty where there were none."""
    given = {tier: _delivered(after, tier) - _delivered(before, tier) for tier in TIERS}
    total = sum(given.values())
    return {tier: number / total for tier, number in given.items()} if total else {}


def _all_given(phase: Phase) -> int:
    return sum(_delivered(phase.after, tier) - _delivered(phase.before, tier) for tier in TIERS)


def _runnable(overview: Overview, tier: str) -> int:
    return sum(each.runnable for each in overview.tiers if each.tier == tier)


def _delivered(overview: Overview, tier: str) -> int:
    return sum(each.delivered for each in overview.tiers if each.tier == tier)

"""What happened in the demo, from the handlers' own log and the store's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.demo.merchants import BEST_SELLER, BROKEN, CONCURRENCY, FLOOD, RATE, SLOW, TIERS
from fairlead.policy import default_burst

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.engines.base import FullEngine, Overview

START_SLACK = 2
"""
Starts that may come closer together than their permits: a permit is taken at hand-out, the handler starts a moment later, and that moment
varies.
"""


class Phase(msgspec.Struct):
    """A part of the demo: from when to when (seconds since 1970), and the store's counters then."""

    began: float
    ended: float
    before: Overview
    after: Overview

    @property
    def seconds(self) -> float:
        return self.ended - self.began


class Handled(msgspec.Struct):
    """One line of the log; seconds since 1970."""

    topic: str
    published: float
    started: float
    ended: float

    @staticmethod
    def read(line: str) -> Handled:
        topic, published, started, ended = line.split()
        return Handled(topic, float(published), float(started), float(ended))


def report(engine: FullEngine, phases: dict[str, Phase], handled: list[Handled], took: float) -> dict[str, Any]:
    """All figures of the run, and whether the promises held."""
    end = engine.overview()
    special = {FLOOD, BROKEN, BEST_SELLER, SLOW}
    quiet = [each for each in handled if each.topic not in special]
    burst = default_burst(RATE)
    starts = _most_in_a_second([each.started for each in handled if each.topic == BEST_SELLER])
    together = max((_most_at_once(each) for each in _by_topic(handled) if each[0].topic != FLOOD), default=0)
    shares, shares_held = _shares(phases["while all tiers had work"])
    accounted = end.published == end.done + end.waiting + end.leased + end.dead
    limits_held = starts <= RATE + burst + START_SLACK and together <= CONCURRENCY
    return {
        "throughput": {
            "in all": f"{end.done:,} messages handled in {took:.1f} s",
            **{name: f"{(phase.after.done - phase.before.done) / phase.seconds:,.0f}/s" for name, phase in phases.items()},
            "of the flood": f"{sum(each.topic == FLOOD for each in handled):,} messages handled",
        },
        "waiting time of the quiet merchants": {name: _p50_p99(_waits(quiet, phase)) for name, phase in phases.items() if name.endswith("the flood")},
        "shares of the tiers, while all had work": shares,
        "limits": {
            f"{BEST_SELLER}: most starts in one second": f"{starts} (rate {RATE}/s, burst {burst:g})",
            "any limited merchant: most at once": f"{together} (concurrency {CONCURRENCY})",
        },
        "the failing merchant": {
            "attempts that failed": f"{sum(each.topic == BROKEN for each in handled):,}",
            "dead letters": f"{engine.topic_stats(BROKEN).dead:,}",
        },
        "accounts": {
            "published": f"{end.published:,}",
            "= done + waiting + leased + dead": f"{end.done:,} + {end.waiting:,} + {end.leased:,} + {end.dead:,}",
        },
        "promises held": accounted and limits_held and shares_held,
    }


def _by_topic(handled: list[Handled]) -> list[list[Handled]]:
    found: dict[str, list[Handled]] = {}
    for each in handled:
        found.setdefault(each.topic, []).append(each)
    return list(found.values())


def _waits(handled: Sequence[Handled], phase: Phase) -> list[float]:
    """Seconds from publish to the handler's start of what was published in the phase, in order."""
    return sorted(each.started - each.published for each in handled if phase.began <= each.published < phase.ended)


def _p50_p99(waits: list[float]) -> str:
    if not waits:
        return "none were handled"
    p50, p99 = (waits[min(len(waits) - 1, int(len(waits) * part))] for part in (0.5, 0.99))
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms ({len(waits):,} messages)"


def _most_in_a_second(starts: list[float]) -> int:
    starts.sort()
    most = first = 0
    for last, moment in enumerate(starts):
        while moment - starts[first] > 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def _most_at_once(handled: list[Handled]) -> int:
    changes = sorted([(each.started, 1) for each in handled] + [(each.ended, -1) for each in handled])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def _shares(phase: Phase) -> tuple[dict[str, str], bool]:
    """Each tier's part of the deliveries against its target, while all three had work."""
    given = {tier: _delivered(phase.after, tier) - _delivered(phase.before, tier) for tier in TIERS}
    total, shares = sum(given.values()), sum(TIERS.values())
    told = {tier: f"{given[tier] / total:.1%} of {total:,} (target {TIERS[tier] / shares:.0%})" for tier in TIERS} if total else {}
    return told, bool(total) and all(abs(given[tier] / total - TIERS[tier] / shares) <= 0.01 for tier in TIERS)


def _delivered(overview: Overview, tier: str) -> int:
    return sum(each.delivered for each in overview.tiers if each.tier == tier)

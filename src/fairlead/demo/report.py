"""What happened in the demo, from the handlers' own log and the store's counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fairlead.demo.merchants import BEST_SELLER, BROKEN, CONCURRENCY, FLOOD, RATE, SLOW, TIERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fairlead.demo.show import Phases
    from fairlead.engines.base import FullEngine, Overview

START_SLACK = 2
"""
Starts that may come closer together than their permits: a permit is taken at hand-out, the handler starts a moment later, and that moment
varies.
"""


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


def report(engine: FullEngine, phases: Phases, handled: list[Handled], took: float) -> dict[str, Any]:
    """All figures of the run, and whether the promises held."""
    end = engine.overview()
    special = {FLOOD, BROKEN, BEST_SELLER, SLOW}
    quiet = [each for each in handled if each.topic not in special]
    before = _waits(quiet, phases.quiet, phases.flood)
    during = _waits(quiet, phases.flood, phases.flood_over)
    burst = max(1, RATE // 20)
    starts = _most_in_a_second([each.started for each in handled if each.topic == BEST_SELLER])
    together = max(_most_at_once([each for each in handled if each.topic == topic]) for topic in {each.topic for each in handled} - {FLOOD})
    shares, shares_held = _shares(phases)
    accounted = end.published == end.done + end.waiting + end.leased + end.dead
    limits_held = starts <= RATE + burst + START_SLACK and together <= CONCURRENCY
    return {
        "throughput": {
            "handled": f"{end.done:,} messages in {took:.1f} s",
            "of which the flood": f"{sum(each.topic == FLOOD for each in handled):,}",
        },
        "shares of the tiers, while all had work": shares,
        "waiting of the quiet merchants": {
            "before the flood": _p50_p99(before),
            "during the flood": _p50_p99(during),
        },
        "limits": {
            f"{BEST_SELLER}: most starts in one second": f"{starts} (rate {RATE}/s, burst {burst})",
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


def _waits(handled: Sequence[Handled], since: float, until: float) -> list[float]:
    return sorted(each.started - each.published for each in handled if since <= each.published < until)


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


def _shares(phases: Phases) -> tuple[dict[str, str], bool]:
    """Each tier's part of the deliveries against its target, while all three had work."""
    if phases.shares_from is None or phases.shares_to is None:
        return {}, True
    given = {tier: _delivered(phases.shares_to, tier) - _delivered(phases.shares_from, tier) for tier in TIERS}
    total, shares = sum(given.values()), sum(TIERS.values())
    told = {tier: f"{given[tier] / total:.1%} of {total:,} (target {TIERS[tier] / shares:.0%})" for tier in TIERS} if total else {}
    return told, bool(total) and all(abs(given[tier] / total - TIERS[tier] / shares) <= 0.01 for tier in TIERS)


def _delivered(overview: Overview, tier: str) -> int:
    return sum(each.delivered for each in overview.tiers if each.tier == tier)

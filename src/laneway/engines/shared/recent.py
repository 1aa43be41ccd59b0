"""
Recent counts: how many messages arrived in a topic lately, and how many attempts failed.

Each is one number by topic, its *score*: the logarithm of a sum in which each event counts for
twice as much as one that happened a half-life before it. (Forward decay: Cormode, Shkapenyuk,
Srivastava, Xu, 2009.) A score changes only when something happens, and all of them fall alike as
time passes: so an index by score is the order of the recent counts at any time.

Arrivals are counted `STEP` at a time, when the counter that a lane has in any case passes a
multiple. So the topics with many messages are counted, and a message costs nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from laneway.units import SECOND

STEP = 32
"""Arrivals that are counted together; a topic with fewer is in no list."""

MOST = 1_000
"""Topics that a shard keeps of each kind, at least: those with the highest scores."""

HIGHEST = 1_000.0
"""The highest logarithm of a recent count, so that a clock that was set back breaks nothing."""


class Kind(NamedTuple):
    """
    What is counted. `number`: of its rows. `half_life_us`: after which an event counts for a half.
    `least`: a smaller recent count is 0.
    """

    number: int
    half_life_us: int
    least: float


KINDS = {
    "in-rate": Kind(1, 20 * SECOND, 1.0),
    "failures": Kind(2, 300 * SECOND, 0.05),
}
"""By the order of `Admin.topic_list`. Messages that arrived, and attempts that failed."""


def raised(score: float | None, count: float, now_us: int, kind: Kind) -> float:
    """The score after `count` more events; `score`: the one before, None: there is none."""
    now = now_us / kind.half_life_us
    before = 0.0 if score is None else 2.0 ** min(score - now, HIGHEST)
    return now + math.log2(before + count)


def rate_of(score: float | None, now_us: int, kind: Kind) -> float:
    """Events a second, over about the last half-life."""
    if score is None:
        return 0.0
    count = 2.0 ** min(score - now_us / kind.half_life_us, HIGHEST)
    return 0.0 if count < kind.least else count * math.log(2) / (kind.half_life_us / SECOND)


def least_score(now_us: int, kind: Kind) -> float:
    """The score of a recent count that is 0 by now if it is smaller."""
    return now_us / kind.half_life_us + math.log2(kind.least)


def steps(count: int, more: int) -> int:
    """How many arrivals are counted now that a counter has grown by `more` to `count`."""
    return (count // STEP - (count - more) // STEP) * STEP

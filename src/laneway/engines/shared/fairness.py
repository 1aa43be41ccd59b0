"""
The arithmetic of scheduling: rates, virtual time and the shares of tiers.

Pure functions on integers, so that every engine and language computes the same numbers, which fit
the 53 bits of a double: times are microseconds, rate clocks quarter microseconds ("ticks"). Only
what high costs owe at low rates needs more; there doubles are rounded to less than a millisecond.

- Rates: GCRA, the generic cell rate algorithm (ITU-T I.371), as a virtual-scheduling token bucket:
  one number per lane, the theoretical arrival time (TAT) of the next conforming delivery.
- Lanes: start-time fair queueing / stride scheduling (Waldspurger 1995): a lane's virtual time
  advances by the work that it received, divided by its weight; the smallest is served next.
- Tiers: shares with carried fractions (largest remainder), work-conserving.

A rate of 10/s has a burst of 1.5. A delivery moves the TAT by 400,000 ticks (100 ms), and after it
the TAT may be 600,000 ticks (150 ms) ahead of the clock. So deliveries are possible at (ms):

>>> now, tat, times = 0, 0, []
>>> for _ in range(4):
...     now = next_permit_us(tat, now, 10, 1.5)
...     tat = take_permits(tat, now, 10, 1)
...     times.append(now // 1000)
>>> times
[0, 50, 150, 250]

Visits of lanes with the weights 1 and 1.5 take 2 and 3 messages, and both advance by 201,600.
So lanes `a` and `b` with a backlog are served a a b b b a a b b b. See `leasing`.

>>> chunk(10, 2, 1), stride(2, 1), chunk(10, 2, 1.5), stride(3, 1.5)
(2, 201600, 3, 201600)

Why this is correct. Rates: n deliveries move the TAT by n intervals, and the last one conforms
only if the TAT is then at most the burst ahead of it, so any time T has at most rate · T + burst of
them. Lanes: the smallest virtual time is served, and a visit advances it by one chunk, so the
virtual times of two lanes with a backlog never differ by more. A lane that begins later gets at
least the virtual time of the lane served last, so being idle earns nothing. Tiers: a carry is what
a tier was due less what it took. Carries add up to 0 and are part of the next division.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from math import ceil, floor

TICKS = 4
"""Rate ticks in a microsecond: rounding an interval up costs at most 0.25 % at 10,000 a second."""

VT_SCALE = 100_800
"""
Virtual time of one message (or one second of work) at weight 1; divisible by 1 … 10, so small
weights are exact.
"""

CHUNK = 4
"""
Most messages that one visit takes at weight 1 while other lanes wait, so deliveries of equal lanes
differ by no more. Jain's index stays above 0.99 from 20 deliveries each, and a lease of 500 reads
125 lanes instead of 500.
"""

FEW_LANES = 100
"""
Up to this number of lanes a visit takes half a chunk: reading them costs little, and users notice
the difference between lanes more.
"""

MOST_TAT = 9 * 10**18
"""
The largest TAT, 71,000 years: it fits into 64 bits. A shard's part of the lowest rate may be so
low that a message of a high cost would owe more.
"""

CARRY_SCALE = 1_000_000
"""The unit of a tier's carry: one delivery."""

MOST_CARRIED = 32 * CARRY_SCALE
"""A carry is between this and its negative."""

OWED = 3 * CARRY_SCALE // 10
"""A tier with this carry is served soon: the last slot of a gate is kept for its lanes."""

SMALL_WEIGHT = 0.25
"""
At a gate, a lane or group of this weight or less could be first long before its tier serves it. It
stays in the order of its tier if it is ahead there by one of its deliveries.
"""


@lru_cache(4096)
def interval(rate: float) -> int:
    """Ticks between two deliveries, rounded up so that the rate is never exceeded."""
    return max(1, ceil(1_000_000 * TICKS / rate - 1e-9))


@lru_cache(4096)
def depth(rate: float, burst: float) -> int:
    """
    Ticks by which the TAT may be ahead of now after a delivery.

    A fraction of a permit counts as the time in which the rate produces it. It admits no delivery
    on its own, but a visit that is late by up to that time loses no permit.
    """
    return floor(burst * interval(rate))


def permits(tat: int, now_us: int, rate: float, burst: float) -> int:
    """How many deliveries conform now: the TAT after them is at most `depth` ahead of now."""
    step = interval(rate)
    now = now_us * TICKS
    room = now + depth(rate, burst) - max(tat, now)
    return room // step if room >= step else 0


def admits(tat: int, now_us: int, rate: float, burst: float, cost: int) -> bool:
    """
    Whether a delivery that uses `cost` permits conforms now.

    One that uses more than the burst conforms when the whole burst is available.
    """
    now, most = now_us * TICKS, depth(rate, burst)
    return now + most - max(tat, now) >= min(cost * interval(rate), most)


def admitted(
    clocks: Sequence[tuple[int, float, float]], now_us: int, costs: Sequence[int]
) -> tuple[int, list[bool]]:
    """
    How many of these deliveries, in their order, conform to several rates together: (TAT,
    rate, burst) each. Also answers which rates the next delivery does not conform to.
    """
    tats = [tat for tat, _, _ in clocks]
    for number, cost in enumerate(costs):
        stopped = [
            not admits(tat, now_us, rate, burst, cost)
            for tat, (_, rate, burst) in zip(tats, clocks, strict=True)
        ]
        if any(stopped):
            return number, stopped
        tats = [
            take_permits(tat, now_us, rate, cost)
            for tat, (_, rate, _) in zip(tats, clocks, strict=True)
        ]
    return len(costs), [False] * len(clocks)


def take_permits(tat: int, now_us: int, rate: float, taken: int) -> int:
    """The TAT after deliveries that use `taken` permits."""
    return min(max(tat, now_us * TICKS) + taken * interval(rate), MOST_TAT)


def return_permits(tat: int, rate: float, returned: int, since_us: int) -> int:
    """
    The TAT after a delivery that never began returned so many permits, `since_us` after it took
    them: without what that time has produced, which may have been used by now. Not below 0: the
    rate may have been higher, or none, when they were taken.
    """
    return max(0, tat - max(0, returned * interval(rate) - since_us * TICKS))


def next_permit_us(tat: int, now_us: int, rate: float, burst: float, cost: int = 1) -> int:
    """The engine time at which the next delivery conforms; now, if it conforms already."""
    most = depth(rate, burst)
    return max(now_us, -((most - tat - min(cost * interval(rate), most)) // TICKS))


def held_us(since_us: int, until_us: int, now_us: int) -> int:
    """For how long a rate has held messages back, of the time from `since_us` to `until_us`."""
    return max(0, min(now_us, until_us) - since_us)


def rebase(tat: int, now_us: int, rate: float, burst: float, owes: int = 0) -> int:
    """
    The TAT under a changed rate: at most that of a lane that has just used its burst, so that after
    a rate was raised the next permit is at most one new interval away.

    `owes`: the cost of its last delivery; if that is above the burst, the lane has just used that.
    """
    most = depth(rate, burst)
    if owes:
        most = max(most, owes * interval(rate))
    return min(tat, now_us * TICKS + most)


def recovered(tat: int, now_us: int) -> bool:
    """Whether the whole burst is available again: such a lane need not be stored."""
    return tat <= now_us * TICKS


@lru_cache(4096)
def stride(taken: int, weight: float) -> int:
    """The virtual time that `taken` messages cost a lane of that weight."""
    return max(1, round(taken * VT_SCALE / weight))


def stride_of_work(work_us: int, weight: float) -> int:
    """The virtual time that this much of the workers' time costs a lane of that weight."""
    return round(work_us * VT_SCALE / (1_000_000 * weight))


def chunk(room: int, lanes: int, weight: float) -> int:
    """
    How many messages one visit may take: all that there is room for if no other lane waits, else at
    most `CHUNK` times the weight (half of that among few lanes).
    """
    if lanes <= 1:
        return room
    most = CHUNK // 2 if lanes <= FEW_LANES else CHUNK
    return max(1, min(room, int(most * weight)))


def reached(before: int, after: int, one_chunk: int) -> int:
    """
    A tier queue's virtual time after a visit that moved the lane's from `before` to `after`: where
    the last chunk began, as if the visit had been made chunk by chunk.

    A lane that is alone delivers all that a call has room for in one visit. So a lane that arrives
    next starts at most one chunk behind it.
    """
    return max(before, after - one_chunk)


def split(room: int, shares: Mapping[str, float], carry: Mapping[str, int]) -> dict[str, int]:
    """
    Divide `room` deliveries between the tiers that have work, by their shares and carries.

    Ties go to the tier that is named first.
    """
    total = sum(shares.values())
    claims = {
        tier: carry.get(tier, 0) + round(room * CARRY_SCALE * share / total)
        for tier, share in shares.items()
    }
    given = {tier: max(0, claim // CARRY_SCALE) for tier, claim in claims.items()}
    names: Sequence[str] = list(shares)
    while (left := room - sum(given.values())) != 0:
        # Give one at a time to the largest remaining claim; take back from the smallest if the
        # carries made the floors add up to more than `room`.
        if left > 0:
            tier = max(names, key=lambda name: claims[name] - given[name] * CARRY_SCALE)
            given[tier] += 1
        else:
            tier = min(
                (name for name in names if given[name]),
                key=lambda name: claims[name] - given[name] * CARRY_SCALE,
            )
            given[tier] -= 1
    return given


def carries(
    shares: Mapping[str, float],
    carry: Mapping[str, int],
    taken: Mapping[str, int],
    working: Collection[str],
) -> dict[str, int]:
    """
    Return the carries, in `CARRY_SCALE`, after deliveries to tiers of one pool.

    A tier's carry grows by its share of everything that was taken, and falls by what it took, so
    the carries add up to nothing, and many calls for one delivery obey the shares as well as one
    call for many. A tier that is not `working` keeps one delivery at most; what is above that is
    divided among those that are, or that took something. Otherwise they would keep a claim to what
    they have already taken, and a tier whose messages wait for a limit would not be next when the
    limit admits one.
    """
    total, everything = sum(shares.values()), sum(taken.values())
    if not everything or len(shares) == 1:
        return dict(carry)
    claims = {
        tier: carry[tier]
        + round(everything * CARRY_SCALE * share / total)
        - taken.get(tier, 0) * CARRY_SCALE
        for tier, share in shares.items()
    }
    above = 0
    for tier, claim in claims.items():
        if tier not in working and claim > CARRY_SCALE:
            above, claims[tier] = above + claim - CARRY_SCALE, CARRY_SCALE
    among = [tier for tier in shares if tier in working or (not working and taken.get(tier))]
    weights = sum(shares[tier] for tier in among)
    for tier in among:
        claims[tier] += round(above * shares[tier] / weights)
    return {tier: max(-MOST_CARRIED, min(MOST_CARRIED, claim)) for tier, claim in claims.items()}


def interleave(counts: Sequence[int]) -> list[int]:
    """
    The order of one call's deliveries of several tiers, as positions in `counts`. Each tier's
    deliveries are spread evenly, so that every part of the order has the shares too. The i-th of n
    is at (i + 1/2) / n; ties go to the tier that is named first.
    """
    positions = sorted(
        ((2 * i + 1) / count, tier) for tier, count in enumerate(counts) for i in range(count)
    )
    return [tier for _, tier in positions]

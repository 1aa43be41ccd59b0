"""
The arithmetic of gates: what the limits of a gate admit.

The state of a gate is two numbers, the TAT of its rate (see `fairness`) and its leases. An engine
stores them; these functions compute what they admit. `gate_order` has the order of lanes.

A gate of 10/s and a burst of 3 has delivered twice. One permit is left, the next is due in 100 ms,
and a lane whose next message costs 2 permits waits for them. The gate keeps them for that lane:
others get only what is beyond, and the lane gets nothing before both are there.

>>> limits = Gate(rate=10, burst=3)
>>> tat = take(limits, 0, 2, now_us=0)
>>> room(limits, tat, 2, 0)
1
>>> room(limits, tat, 2, 0, kept=2), room(limits, tat, 2, 0, kept=2, is_holder=True)
(0, 0)
>>> room(limits, tat, 2, 100_000, kept=2), room(limits, tat, 2, 100_000, kept=2, is_holder=True)
(0, 2)

Why this is correct. What is kept is subtracted for all lanes but one, so nothing is admitted twice.
The lane that it is kept for is one that waits at this gate, and it is visited first when the gate
opens; `held_until` ends what a lane that never comes would keep. A gate is held for a lane that
waits at another gate only if that opens within 3/5 of this gate's interval, and for three times as
long, so two gates do not wait for each other for longer; or if its burst suffices for others, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from laneway.engines.shared import adaptive, fairness
from laneway.policy import Gate
from laneway.topic_groups import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laneway.engines.shared.adaptive import Flow
    from laneway.tiers import Tiers

T = TypeVar("T", int, float)

UNLIMITED = 1 << 30
"""The room of a gate that limits nothing."""

HOLD_US = 60_000_000
"""For how long at most a gate is held for a lane."""

LATE_US = 5_000
"""By how much a worker may come late for what is held."""

FOREVER_US = 1 << 62

IN_USE_US = 1_000_000
"""For how long a gate is in use after a delivery."""

HOLD_PART = 8
"""For this part of the time of one delivery a gate is held for a lane that others serve."""


class Debt(NamedTuple):
    """
    What a gate owes and keeps. Until `held_until` it keeps `need` permits, or a slot, for the lane
    `holder`. `owes`: the cost of its last delivery, if above 1.
    """

    need: int = 0
    held_until: int = 0
    owes: int = 0
    holder: int = 0

    def kept(self, now_us: int) -> int:
        """How many permits are kept now; 0: nothing."""
        return self.need if now_us < self.held_until else 0


NO_DEBT = Debt()


def room(
    limits: Gate,
    tat: int,
    leased: int,
    now_us: int,
    owes: int = 0,
    kept: int = 0,
    *,
    is_holder: bool = False,
) -> int:
    """
    How many deliveries of a lane the gate admits now. `kept`: the permits that are kept for a lane,
    `is_holder`: for this one, which waits until the gate has all of them; others get what is beyond
    these.
    """
    admitted = UNLIMITED
    if limits.rate is not None:
        burst = limits.effective_burst  # a TAT beyond it admits nothing, as a rebased one
        admitted = fairness.permits(tat, now_us, limits.rate, burst)
        if not is_holder:
            admitted -= kept
        elif not fairness.admits(
            rebase(limits, tat, now_us, owes), now_us, limits.rate, burst, kept
        ):
            admitted = 0
    if limits.concurrency is not None:
        slot = 1 if kept and not is_holder else 0
        admitted = min(admitted, limits.concurrency - leased - slot)
    if limits.left is not None:
        admitted = min(admitted, limits.left)
    return max(admitted, 0)


def has_spare(
    limits: Gate, tat: int, leased: int, now_us: int, owes: int = 0, claimed: int = 0
) -> bool:
    """
    Whether the gate is in use and decides nothing now: it admits two deliveries, or its permits
    would be lost.

    Then its lanes are served in the order of their tier, as if they had no gate. In the order of
    the gate, one that its tier serves later would keep those behind it waiting, although the gate
    has enough for all of them. `claimed`: how many of such lanes came before, about. A million that
    arrive while it has spare, or while nobody uses it, wait at it: they would have to be looked at,
    one by one, when it is used up.
    """
    if not leased and tat < (now_us - IN_USE_US) * fairness.TICKS:
        return False
    least = 2 + claimed
    if limits.rate is not None and (claimed or not fairness.recovered(tat, now_us)):
        tat, burst = rebase(limits, tat, now_us, owes), limits.effective_burst
        if fairness.permits(tat, now_us, limits.rate, burst) < least:
            return False
    return limits.concurrency is None or limits.concurrency - leased >= least


def keeps_up(limits: Gate, kept: int, owes: int) -> bool:
    """
    Whether others can use the whole rate while these permits are kept: the burst suffices for them
    and the cost of the last delivery.
    """
    return (
        limits.rate is not None
        and limits.concurrency is None
        and kept + max(owes, 1) <= limits.effective_burst
    )


def opens_us(limits: Gate, tat: int, leased: int, now_us: int, debt: Debt = NO_DEBT) -> int | None:
    """When the gate may admit more by the clock alone; None: only when a lease ends, or now."""
    if limits.left == 0 or (limits.concurrency is not None and leased >= limits.concurrency):
        return None
    times = [debt.held_until]
    if limits.rate is not None:
        kept = debt.kept(now_us)  # for the lane that it is held for; others need one more
        times += [
            next_permit_us(limits, tat, now_us, cost, debt.owes) or now_us
            for cost in (1, kept, kept + 1)
            if cost
        ]
    return min((at for at in times if at > now_us), default=None)


def rebase(limits: Gate, tat: int, now_us: int, owes: int = 0) -> int:
    """The TAT under these limits, which may have changed."""
    if limits.rate is None:
        return tat
    return fairness.rebase(tat, now_us, limits.rate, limits.effective_burst, owes)


def take(limits: Gate, tat: int, taken: int, now_us: int, owes: int = 0) -> int:
    """The TAT after deliveries that use `taken` permits; without a rate, when that was."""
    if limits.rate is None:
        return max(tat, now_us * fairness.TICKS)
    if not fairness.recovered(tat, now_us):
        tat = rebase(limits, tat, now_us, owes)
    return fairness.take_permits(tat, now_us, limits.rate, taken)


def give_back(limits: Gate, tat: int, returned: int, since_us: int) -> int:
    """The TAT after a delivery that never began gave so many permits back, as `fairness` has it."""
    if limits.rate is None:
        return tat
    return fairness.return_permits(tat, limits.rate, returned, since_us)


def next_permit_us(limits: Gate, tat: int, now_us: int, cost: int = 1, owes: int = 0) -> int | None:
    """When the rate admits a delivery of that cost; None: the gate has no rate."""
    if limits.rate is None:
        return None
    burst, tat = limits.effective_burst, rebase(limits, tat, now_us, owes)
    return fairness.next_permit_us(tat, now_us, limits.rate, burst, cost)


def of_gates(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The views of gates, without those of topic groups."""
    return [each for each in views if not each["name"].startswith(GROUP)]


def rate_places(limits: Gate) -> int:
    """On how many shards the rate can be used at the same time, see `sharded.grants.places`."""
    return 1 + int((limits.effective_burst - 1) // 2)


def part_of_topic(limits: Gate, here: int, partitions: int, number: int, shards: int) -> Gate:
    """
    What a shard with `here` of a topic's partitions admits while it has no grant: the parts of all
    shards together are at most the limits. `number`: which of the topic's `shards` it is. If the
    burst has a whole permit only for some, the first of them have the rate, and the others none.
    """
    if here == partitions:
        return limits
    count = min(shards, rate_places(limits)) if limits.rate is not None else shards
    if number >= count:
        return Gate(concurrency=0)
    return Gate(
        limits.rate / count if limits.rate is not None else None,
        limits.effective_burst / count if limits.rate is not None else None,
        limits.concurrency * here // partitions if limits.concurrency is not None else None,
    )


def moved(limits: Gate, flow: Flow | None, by: int) -> Flow | None:
    """The flow of a shard that takes the topic's limit for one that is so much larger now."""
    if limits.least is None or limits.concurrency is None:
        return flow
    flow = flow or adaptive.Flow()
    flow.limit = adaptive.limit_of(flow, limits.least, limits.concurrency) + by
    return flow


def of_groups(views: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The views of topic groups by their names, without those of gates."""
    return [
        {**each, "name": each["name"].removeprefix(GROUP)}
        for each in views
        if each["name"].startswith(GROUP)
    ]


def permits(limits: Gate, tat: int, now_us: int, owes: int = 0) -> float:
    """
    The permits of a shard, which may be a fraction, or less than 0 after a high cost. A shut one
    has none.
    """
    if limits.rate is None or limits.concurrency == 0:
        return 0.0
    now, tat = now_us * fairness.TICKS, rebase(limits, tat, now_us, owes)
    left = now + fairness.depth(limits.rate, limits.effective_burst) - max(tat, now)
    return left / fairness.interval(limits.rate)


def with_permits(limits: Gate, permits: float, now_us: int) -> tuple[int, int]:
    """The TAT of a shard with so many permits, at most its burst, and what it owes then."""
    if limits.rate is None:
        return 0, 0
    burst, step = limits.effective_burst, fairness.interval(limits.rate)
    most = fairness.depth(limits.rate, burst)
    ahead = max(0, math.ceil(most - permits * step))
    owes = math.ceil(ahead / step) if ahead > most else 0
    return min(now_us * fairness.TICKS + ahead, fairness.MOST_TAT), owes


def rescaled(granted: Gate, before: Gate, now: Gate, part: Gate) -> Gate:
    """
    A shard's grant of a topic's limits after these have changed, until grants move again: in
    proportion, so that the grants of all shards together are at most the limits.

    `part`: what it has of a limit that is new. If only that has changed, the grant is at most this.
    """
    if now == before:
        most = least(granted.concurrency, part.concurrency), granted.out_of
        if now.least is not None and _is_more(granted, part, now):
            most = part.concurrency, None
        return msgspec.structs.replace(
            granted,
            rate=least(granted.rate, part.rate),
            burst=least(granted.burst, part.burst),
            concurrency=most[0],
            out_of=most[1],
        )
    rate, burst, out_of = part.rate, part.burst, None
    concurrency = part.concurrency if now.concurrency is not None else None
    if now.rate is not None and before.rate is not None:
        share = (granted.rate or 0.0) / before.rate
        rate, burst = (now.rate * share, now.effective_burst * share) if share else (None, None)
    whole = granted.out_of or before.concurrency
    is_new = now.rate is not None and before.rate is None
    if granted.concurrency == 0 or (is_new and part.concurrency == 0):
        concurrency = 0
    elif now.concurrency is not None and granted.concurrency and whole:
        concurrency = granted.concurrency * now.concurrency // whole
        if now.least is not None:
            concurrency, out_of = granted.concurrency, whole
    return msgspec.structs.replace(
        granted, rate=rate, burst=burst, concurrency=concurrency, out_of=out_of
    )


def _is_more(granted: Gate, part: Gate, limits: Gate) -> bool:
    """Whether a grant is a larger part of a limit that adapts than the other one."""
    out_of, most = granted.out_of or limits.concurrency or 1, limits.concurrency or 1
    return (granted.concurrency or 0) * most > (part.concurrency or 0) * out_of


def adapted(limits: Gate, here: Gate, flow: Flow | None) -> Gate:
    """What a shard with this part of a topic's limits admits, if the concurrency adapts."""
    if limits.least is None or limits.concurrency is None or here.concurrency is None:
        return here
    limit = adaptive.limit_of(flow, limits.least, limits.concurrency)
    part = adaptive.part_of(limit, here.concurrency, limits.concurrency, here.out_of)
    return msgspec.structs.replace(here, concurrency=part, out_of=None)


def share_of(limits: Gate, here: Gate, flow: Flow | None, leased: int) -> adaptive.Share | None:
    """The same shard's share of a limit that adapts; None: the concurrency does not."""
    if limits.least is None or limits.concurrency is None:
        return None
    limit = adaptive.limit_of(flow, limits.least, limits.concurrency)
    part = (here.concurrency or 0) / (here.out_of or limits.concurrency)
    return adaptive.Share(limit, part, leased, flow)


def least(one: T | None, other: T | None) -> T | None:
    """The smaller limit; None: no limit."""
    return other if one is None else one if other is None else min(one, other)


def view(
    name: str, limits: Gate, *, tat: int, leased: int, waiting: int, now_us: int, owes: int = 0
) -> dict[str, Any]:
    """The gate as `Admin.gate_list` answers it; `waiting`: the lanes that wait at it."""
    return {
        "name": name,
        **({"weight": limits.weight or 1.0} if name.startswith(GROUP) else {}),
        "rate": limits.rate,
        "burst": limits.effective_burst if limits.rate is not None else None,
        "concurrency": limits.concurrency,
        "max_cost": limits.largest_cost if limits.rate is not None or limits.max_cost else None,
        "leased": leased,
        "next_permit_us": next_permit_us(limits, tat, now_us, 1, owes),
        "waiting": waiting,
    }


def is_served_later(tiers: Tiers, tier: str, strict: str) -> bool:
    """
    Whether lanes of `tier` may get nothing while those of another tier of their pool, a strict one,
    have work. Then they are not before them at a gate, whatever their turns are.
    """
    order = [name for name, each in tiers.items() if each.share == "strict"]
    return strict in order and tier not in order[: order.index(strict) + 1]

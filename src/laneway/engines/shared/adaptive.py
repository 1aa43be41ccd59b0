"""
The arithmetic of `concurrency="auto"`: how many messages of a topic run concurrently, by
what its destination can handle.

Additive increase, multiplicative decrease, as in TCP (Chiu and Jain 1989), with a gate on latency:
a destination gives few samples, so there is no gradient, and no window in which it is measured
alone.

- A *window* is as many successes as the limit. At its end the limit grows by one if at least half
  of them took at most `SLOW` times the best median, and if the limit was used up meanwhile.
- After `SLOW_WINDOWS` slower windows in a row the limit shrinks by one.
- A timeout, an overload answer or an unavailable destination shrinks it to 7/10: once for all
  leases from before the shrinking. Then it grows up to one below the limit that was too much (the
  *wall*) and stays there for `HOLD_WINDOWS` windows before it tries again.
- An unavailable destination that does not say for how long (`DestinationUnavailable` without
  `retry_after`) makes the topic back off only at the least limit; above it, its message waits.
- The best median only falls, until shrinking to 7/10 does not lower the latency: then the
  destination has become slower and is not overloaded, and its present median is the best one. (A
  best median that is forgotten by time would follow the queue that the limit itself causes.)

Handlers take 100 ms. The limit grows from 2 to 10; then ten handlers time out. The limit is 7,
whether one of them or all report it, and 9 for 20 windows before it is 10 again:

>>> def window(flow):
...     for _ in range(flow.limit):
...         delivered(flow, flow.limit, flow.limit)
...         succeeded(flow, 100_000, 1, 64, flow.limit, 0)
...     return flow.limit
>>> flow = Flow()
>>> [window(flow) for _ in range(8)]
[3, 4, 5, 6, 7, 8, 9, 10]
>>> for fence in range(91, 101):
...     overloaded(flow, TIMEOUT, fence, 100, 1, 64, 0)
>>> flow.limit, flow.wall
(7, 10)
>>> [window(flow) for _ in range(23)] == [8, *[9] * 21, 10]
True

Why this is correct. A limit grows by at most one for each window, so as many answers as it admits
have proven it. Only leases from after a shrinking count, so ten timeouts of one moment are one
report. Reading a limit brings it into the policy's bounds, so a changed policy holds immediately.

The partitions of a topic have one limit. On several shards each has a flow of its own, which takes
what it sees for a sample of the topic: its limit is that of the whole topic, of which the shard may
use its part (`part_of`), and its window is as large as this part. So the limits of all shards
together move as fast as one lane's. About once a second clients divide the topic's limit again, by
demand, and tell each shard what it is (`limit_of_all`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from laneway.message import Action, Overload

FIRST_LIMIT = 2
SLOW = 2
SLOW_WINDOWS = 3
SHRINK_TO, SHRINK_OF = 7, 10
"""What is left of the limit after an overload: 7/10."""

HOLD_WINDOWS = 20

FOLLOWS, FOLLOWS_OF = 17, 20
"""At 7/10 of the limit, a median above 17/20 of the one before has not followed the limit."""

STEP_SHIFT = 4
"""The median moves by a sixteenth of itself towards each latency (frugal streaming)."""

KEPT_US = 600_000_000
"""How long a lane without messages keeps its limit: 10 min."""

FIRST, GREW, SLOWER, TIMEOUT, ANSWER, UNAVAILABLE = range(6)
"""Why a limit is what it is."""

REASONS = (
    "it grows while the destination answers quickly",
    "raised {ago} ago, since the destination answers quickly",
    "lowered {ago} ago, since the destination has become slower",
    "lowered {ago} ago after a timeout",
    "lowered {ago} ago, since the destination answered that it is overloaded",
    "lowered {ago} ago, since the destination was unavailable",
)

OVERLOADS = {"timeout": TIMEOUT, "answer": ANSWER}
"""The reasons of `Settlement.overload`."""


def reason_of(action: Action, overload: Overload | None) -> int | None:
    """Why a lease that ended in this way shrinks the limit; None: it does not."""
    if action == "back_off":
        return UNAVAILABLE
    return None if overload is None else OVERLOADS[overload]


class Flow(msgspec.Struct, array_like=True, gc=False):
    """
    What a lane, or a topic with partitions on a shard, knows of its destination. Times and
    latencies are microseconds.

    - `limit`: how many leases the lane or the whole topic may have now.
    - `is_used`: 1: the limit was used up in this window.
    - `count`, `quick`: successes in this window, and those of them that were not slow.
    - `median`, `best`: of the latencies; 0: none is known yet.
    - `slow`: slow windows in a row.
    - `slow_limit`, `slow_median`: what they were when the destination became slow; 0: it is not.
    - `wall`: the limit at the last overload, until it is reached again; 0: none. `held`: for how
      many windows the limit has stayed below it.
    - `fence`: overloads that leases up to this one report do not count.
    - `reason`, `changed`: why and when the limit last changed.
    """

    limit: int = FIRST_LIMIT
    is_used: int = 0
    count: int = 0
    quick: int = 0
    median: int = 0
    best: int = 0
    slow: int = 0
    slow_limit: int = 0
    slow_median: int = 0
    wall: int = 0
    held: int = 0
    fence: int = 0
    reason: int = FIRST
    changed: int = 0


def limit_of(flow: Flow | None, least: int, most: int) -> int:
    """How many leases a lane or topic may have; `flow`: None: it has had none."""
    return max(least, min(flow.limit if flow is not None else FIRST_LIMIT, most))


def part_of(limit: int, part: int, most: int, out_of: int | None) -> int:
    """
    A shard's part of a topic's limit: in proportion to `part` of `out_of`, what the limit was when
    it was divided. So a shard with a single slot that reports an overload has none until then.

    While nothing was divided (None), its part of `most` in proportion, rounded up: an idle topic's
    first messages do not wait.
    """
    return -(-part * limit // most) if out_of is None else part * limit // out_of


def delivered(flow: Flow, leased: int, here: int) -> None:
    """There are so many leases after a delivery, of `here` that the limit admits on this shard."""
    if leased >= here:
        flow.is_used = 1


def succeeded(flow: Flow, latency_us: int, least: int, most: int, here: int, now_us: int) -> None:
    """
    A message was acked; its handler ran that long (0: nobody has measured it). `here`: what the
    limit admits on this shard.
    """
    if latency_us > 0:
        if flow.median == 0:
            flow.median = latency_us
        elif latency_us > flow.median:
            flow.median += (flow.median >> STEP_SHIFT) + 1
        elif latency_us < flow.median:
            flow.median -= flow.median >> STEP_SHIFT
    flow.count += 1
    if flow.best == 0 or latency_us <= SLOW * flow.best:
        flow.quick += 1
    if flow.count >= here:
        flow.limit = limit_of(flow, least, most)
        _end_window(flow, least, most, now_us)


def overloaded(
    flow: Flow, reason: int, fence: int, last_fence: int, least: int, most: int, now_us: int
) -> None:
    """
    The lease `fence` ended with a timeout, an overload answer, or with an unavailable destination;
    `last_fence`: the shard's last one.
    """
    if fence <= flow.fence:
        return
    limit = limit_of(flow, least, most)
    flow.limit = max(least, limit * SHRINK_TO // SHRINK_OF)
    flow.wall = limit
    flow.is_used = flow.count = flow.quick = flow.slow = flow.slow_limit = flow.slow_median = 0
    flow.held = 0
    flow.fence, flow.reason, flow.changed = last_fence, reason, now_us


def bears(flow: Flow, fence: int, least: int, most: int) -> bool:
    """
    Whether a smaller limit is enough of an answer to an unavailable destination, which the lease
    `fence` reports; ask before `overloaded`.
    """
    return fence <= flow.fence or limit_of(flow, least, most) > least


class Share(NamedTuple):
    """
    What a shard has of a topic's limit. `limit`: what it takes for that of the whole topic; `part`:
    0 to 1; `leased`: the leases there; `flow`: None: it knows nothing yet.
    """

    limit: int
    part: float
    leased: int
    flow: Flow | None


def limit_of_all(shares: Sequence[Share], luck: float = 0.5) -> int:
    """
    A topic's limit: the mean of what its shards take it for, by their parts.

    Rounded up if its fraction is above `luck` (0 to 1): with a random number for each division,
    what one shard has learned is not lost on average, however small its part is.
    """
    known = [share for share in shares if share.flow is not None and share.part]
    if not known:
        return min(share.limit for share in shares)
    mean = sum(share.part * share.limit for share in known) / sum(share.part for share in known)
    return max(1, int(mean) + (mean - int(mean) > luck))


def latest(shares: Sequence[Share]) -> Flow:
    """The flow of the shard that has changed its limit last."""
    flows = [share.flow for share in shares if share.flow is not None]
    return max(flows, key=lambda flow: flow.changed, default=Flow())


def _end_window(flow: Flow, least: int, most: int, now_us: int) -> None:
    is_slow, is_used = 2 * flow.quick < flow.count, flow.is_used
    flow.is_used = flow.count = flow.quick = 0
    if flow.median and (flow.best == 0 or flow.median < flow.best):
        flow.best = flow.median
    if is_slow:
        _end_slow_window(flow, least, now_us)
        return
    flow.slow = flow.slow_limit = flow.slow_median = 0
    if not is_used or flow.limit >= most:
        return
    if flow.limit == flow.wall - 1 and flow.held < HOLD_WINDOWS:
        flow.held += 1
        return
    flow.limit += 1
    flow.reason, flow.changed = GREW, now_us
    if flow.limit >= flow.wall:
        flow.wall = flow.held = 0


def _end_slow_window(flow: Flow, least: int, now_us: int) -> None:
    if not flow.slow_limit:
        flow.slow_limit, flow.slow_median = flow.limit, flow.median
    flow.slow += 1
    if flow.slow < SLOW_WINDOWS:
        return
    flow.slow = 0
    if flow.limit > least:
        flow.limit -= 1
        flow.reason, flow.changed = SLOWER, now_us
    if flow.limit > least and flow.limit * SHRINK_OF > flow.slow_limit * SHRINK_TO:
        return
    if flow.median * FOLLOWS_OF > flow.slow_median * FOLLOWS:
        flow.best = flow.median
        flow.slow_limit = flow.slow_median = 0
    else:
        flow.slow_limit, flow.slow_median = flow.limit, flow.median

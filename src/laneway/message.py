"""Plain data: what is published, what is delivered, and how leases end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from laneway.units import Duration

RAW = "application/octet-stream"
"""
The `content-type` header of a body that was published as bytes. A body without it is JSON.
"""

Outcome = Literal[
    "accepted", "merged", "duplicate", "refused", "unrouted", "buffered", "spooled", "dropped"
]
"""
The outcomes of a publish.

`"accepted"`: stored. `"merged"`: it joined a waiting message. `"duplicate"`: its id is already
known, nothing was stored. `"refused"`: a backlog limit is reached, nothing was stored.
`"unrouted"`: its topic has no backlog of its own and no subscription takes it, nothing was stored.

With a buffer or spool, the store decides later: `"buffered"`: in the producer's memory.
`"spooled"`: in the producer's spool. `"dropped"`: the buffer or spool was full.
"""

Overload = Literal["timeout", "answer"]
"""
How a lease's end shows that the destination is overloaded: it did not answer in time, or its answer
reported the overload (HTTP 429 or 503).
"""

Action = Literal["ack", "retry", "dead", "release", "back_off", "unhandled"]
"""
How a settlement ends a lease.

- `"ack"`: the message is finished.
- `"retry"`: counts an attempt; the message is delivered again after `delay_us`, or after the
  policy's backoff. It becomes a dead letter when the policy's retries are used up.
- `"dead"`: counts an attempt; the message becomes a dead letter immediately, with `reason`.
- `"release"`: returns the message without counting an attempt; `begun=False` returns its rate
  permit too.
- `"back_off"`: releases the message, and the topic delivers nothing for `delay_us`. The default is
  1 s, doubled by each failing probe up to 5 min.
- `"unhandled"`: releases the message with a delay of 5 s, doubled each time up to 5 min. It becomes
  a dead letter after the policy's `on_unhandled`.
"""

SettlementAnswer = Literal["acked", "retried", "died", "released", "lost", "gone"]
"""
The answers of `Queue.settle`.

`"lost"`: the lease had ended; nothing was changed. `"gone"`: the topic was deleted.
"""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    A message, as a program publishes it and as a handler receives it.

    - `topic`: any name of at most 255 bytes, usually dotted, without control characters and `*`.
    - `body`: any JSON value, or bytes, which are stored unchanged.
    - `key`: shared by messages about the same thing, for serial processing, merging and
      partitions; at most 512 bytes.
    - `priority`: an integer up to ±(2**52 - 1); a larger number is delivered first.
    - `delay`: how long to wait before delivery (seconds, `timedelta` or `"10m"`).
    - `at`: when to deliver (aware `datetime` or Unix time in seconds), instead of `delay`.
    - `ttl`: how long it may wait before it expires (as `delay`); default: the policy's.
    - `id`: an id that you choose, unique in its topic. Publishing it again while it waits or
      is leased, and later within the policy's `dedupe`, is a `"duplicate"`. Default: a generated
      id.
    - `headers`: short texts by name.
    - `at_front`: deliver it before all others of its priority.
    - `cost`: how many permits of the rates of topic, gates and group a delivery uses; a whole
      number from 1 to 1,000,000.

    Set on delivery: `attempt` (1 for the first), `deliveries` (this one included) and
    `published_at` (Unix time in seconds).
    """

    topic: str
    body: Any = None
    key: str | None = None
    priority: int = 0
    delay: Duration | None = None
    at: datetime | float | None = None
    ttl: Duration | None = None
    if TYPE_CHECKING:
        # Every message that a handler receives has an id, so reading it gives a str.
        # A message that is not yet published may have None.
        id: str = ""

        def __init__(
            self,
            topic: str,
            body: Any = None,
            key: str | None = None,
            priority: int = 0,
            delay: Duration | None = None,
            at: datetime | float | None = None,
            ttl: Duration | None = None,
            id: str | None = None,  # noqa: A002
            headers: dict[str, str] | None = None,
            at_front: bool = False,
            attempt: int = 0,
            deliveries: int = 0,
            published_at: float = 0.0,
            cost: int = 1,
        ) -> None: ...

    else:
        id: str | None = None
    headers: dict[str, str] | None = None
    at_front: bool = False
    attempt: int = 0
    deliveries: int = 0
    published_at: float = 0.0
    cost: int = 1


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """
    The answer to a publish.

    - `id`: the message's id, chosen or generated.
    - `topic`: its topic; for a refused message, the topic whose backlog is full.
    - `outcome`: see `Outcome`. Only `publish_many` returns `"refused"`; `publish` raises
      BacklogFull instead.
    - `joined`: the id of the waiting message, if the outcome is `"merged"`.
    - `reason`: the limit, if the outcome is `"refused"` or `"dropped"`.
    """

    id: str
    topic: str
    outcome: Outcome = "accepted"
    joined: str | None = None
    reason: str | None = None


class Draft(msgspec.Struct, gc=False):
    """
    A message on its way into an engine, checked and encoded. Times are microseconds.

    - `delay_us`: how long to wait before delivery. `at_us`: when to deliver, in engine time;
      precedes `delay_us`.
    - `ttl_us`: how long it may wait, or None for the policy's.
    - `sticky`: its id is known for 24 h after the message ended, whatever `dedupe` is.
    - `signal`: this is not a message but a signal for the one with this topic and id. Signals are
      numbered from 1; each number counts once, even if it is sent several times. 0 ends the
      waiting. If a signal ends the waiting, its `delay_us`, `at_us` and `ttl_us` hold for the
      message; the ttl counts from the message's publish.
    - `own`: Laneway's own message, never refused, merged or expired.
    """

    topic: str
    body: bytes
    key: str | None = None
    priority: int = 0
    delay_us: int = 0
    at_us: int | None = None
    ttl_us: int | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    at_front: bool = False
    sticky: bool = False
    signal: int | None = None
    own: bool = False


class Lease(msgspec.Struct, gc=False):
    """
    A leased message, as an engine delivers it. Times are microseconds.

    - `handle`: the engine's number for the message. `fence`: the number of this lease. Both are
      needed to settle.
    - `deadline_us`: when the lease runs out.
    - `attempt`: counts from 1. `deliveries`: how often it was delivered, this one included.
    - `suspect`: an earlier lease of the message expired; record its start (`Queue.start`) before it
      runs.
    - `bodies`: all bodies, if the policy merges `"all"` or the message waited for signals.
    - `limited`: its topic has a rate, a concurrency or a gate.
    """

    handle: int
    fence: int
    id: str
    topic: str
    body: bytes
    deadline_us: int
    attempt: int = 1
    deliveries: int = 1
    key: str | None = None
    priority: int = 0
    headers: dict[str, str] | None = None
    published_us: int = 0
    suspect: bool = False
    bodies: list[bytes] | None = None
    limited: bool = False


class Batch(msgspec.Struct, gc=False):
    """
    The answer of `Queue.lease`. Times are microseconds.

    - `next_wake_us`: when the next known event makes a message deliverable, or None if that needs a
      publish or a settle.
    - `passed_over`: some lanes were passed over because `only` excludes them.
    - `goes_on`: not all lanes were searched; the next call with the same `only` continues.
    - `prefers_large_leases`: a call has a cost of its own, whatever the number of its messages,
      because of round trips or because workers of other processes wait for the store too. The
      worker should lease more per call.
    - `until`: when the engine ends these leases unless they are settled or extended (monotonic
      seconds of this machine), or None if they end at their deadlines.
    """

    leases: list[Lease]
    now_us: int
    next_wake_us: int | None = None
    passed_over: bool = False
    goes_on: bool = False
    prefers_large_leases: bool = False
    until: float | None = None


class Settlement(msgspec.Struct, gc=False):
    """
    How to end one lease. Times are microseconds.

    - `handle`, `fence`: the lease's.
    - `action`: see `Action`, which also explains what `delay_us`, `reason` and `begun` do.
    - `error`: text about the failure, for the message's history.
    - `cost_us`: how long the handler ran, for tiers that are fair by time and for
      `concurrency="auto"`.
    - `overload`: how the destination showed that it is overloaded, for topics with
      `concurrency="auto"`. `"back_off"` reports that it is unavailable.
    - `id`, `topic`: the message's; only needed with an outcome.
    - `outcome`: stored for `outcome_ttl_us`, in the same transaction, if this ends the message
      (`"acked"` or `"died"`).
    """

    handle: int
    fence: int
    action: Action = "ack"
    delay_us: int | None = None
    reason: str | None = None
    error: str | None = None
    cost_us: int = 0
    begun: bool = True
    overload: Overload | None = None
    id: str | None = None
    topic: str | None = None
    outcome: bytes | None = None
    outcome_ttl_us: int = 0


def releases(leases: Iterable[Lease], *, begun: bool = False) -> list[Settlement]:
    """The settlements that release these leases."""
    return [Settlement(each.handle, each.fence, "release", begun=begun) for each in leases]


class ProgressReport(msgspec.Struct, gc=False):
    """
    Progress of a message, to be stored for `ttl_us` microseconds.

    With `handle` and `fence` it is stored only if that lease has not ended. Without them (from
    outside the handler) it is always stored. With `before` it is stored only if the stored progress
    equals it (compare and swap); `before=None` expects no stored progress.
    """

    id: str
    topic: str
    body: bytes
    ttl_us: int
    handle: int = 0
    fence: int = 0
    before: bytes | msgspec.UnsetType | None = msgspec.UNSET


class StoredResult(msgspec.Struct, gc=False):
    """What a store keeps of a message: its outcome, and its last reported progress."""

    outcome: bytes | None = None
    progress: bytes | None = None

"""Plain data: what is published, what is handed out, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.units import Duration

RAW = "application/octet-stream"
"""
The `content-type` header of a body that was published as bytes; without that header a body is JSON.
"""


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """
    A message, as it is published and as a handler gets it.

    `topic`: any name, dotted by habit, at most 255 bytes, no control characters, no `*`. `body`:
    anything that JSON can hold, or bytes, which travel as they are. `key`: what messages about the
    same thing share (serial processing, partitions, merging). `priority`: -100 … 100, larger first.
    `delay` (a duration) or `at` (an aware datetime or Unix seconds) say when it is due. `ttl`: how
    long it may wait before it expires. `id`: your own, unique per topic; publishing it again while
    it is pending is a no-op. `headers`: short text by name. `at_front`: before all others of its
    priority.

    What is known only on delivery: `attempt` (1 for the first), `deliveries` (hand-outs so far,
    this one included), `published_at` (Unix seconds).
    """

    topic: str
    body: Any = None
    key: str | None = None
    priority: int = 0
    delay: Duration | None = None
    at: datetime | float | None = None
    ttl: Duration | None = None
    if TYPE_CHECKING:
        # A handler's message has an id, so that is what reading it gives; one that is yet to be
        # published may have None.
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
        ) -> None: ...

    else:
        id: str | None = None
    headers: dict[str, str] | None = None
    at_front: bool = False
    attempt: int = 0
    deliveries: int = 0
    published_at: float = 0.0


class Receipt(msgspec.Struct, frozen=True):
    """
    What became of a published message.

    `outcome`: `"accepted"`; `"merged"`: it joined the waiting message `joined`; `"duplicate"`: its
    id is known already; `"refused"`: the backlog limit named in `reason` is reached (only in the
    answer of `publish_many`).
    """

    id: str
    topic: str
    outcome: str = "accepted"
    joined: str | None = None
    reason: str | None = None


class Draft(msgspec.Struct, gc=False):
    """A message on its way into an engine: checked and encoded. Times are microseconds."""

    topic: str
    body: bytes
    key: str | None = None
    priority: int = 0
    delay_us: int = 0
    at_us: int | None = None  # engine time since 1970; goes before delay_us
    ttl_us: int | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    at_front: bool = False
    sticky: bool = False  # the id is kept 24 h after the finish, whatever `dedupe` says
    signal: int | None = None
    """
    Not a message of its own, but for the one of this topic and id that waits for signals: its n-th,
    from 1 on, told once however often it comes. Of the signal that ends the waiting, `delay_us`,
    `at_us` and `ttl_us` hold for that message too, its ttl from its publish. 0: wait no longer. The
    topic, the key and the id are those of the message that waits.
    """
    own: bool = False  # Laneway's: never refused, merged or expired


class Lease(msgspec.Struct, gc=False):
    """
    A delivery as an engine hands it out.

    `handle` is the engine's own name of the message, `fence` the number of this hand-out; both are
    needed to settle. `bodies` holds the collected bodies where the policy merges `"all"`. `attempt`
    counts from 1. `suspect`: an earlier lease of it ran out, so its start has to be recorded
    (`Engine.start`) before it is run. `limited`: the topic has a rate, a concurrency or a gate.
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
    """The answer of `Engine.lease`: what was handed out, and when it is worth asking again."""

    leases: list[Lease]
    now_us: int
    next_wake_us: int | None = (
        None  # engine time of the next known event, None: nothing until something is published
    )
    passed_over: bool = False  # lanes stand there that `only` excludes
    goes_on: bool = (
        False  # the lanes were not all looked at: the next call with the same `only` goes on
    )


class Settlement(msgspec.Struct, gc=False):
    """
    How one lease is to end.

    `action`: `"ack"`, `"retry"` (counts an attempt; `delay_us` or the policy's backoff), `"dead"`
    (with `reason`), `"release"` (no attempt counted; `begun=False` also gives the rate permit
    back), `"back_off"` (release, and the topic rests for `delay_us`, or 1 s doubling to 5 min),
    `"unhandled"` (release with a delay of 5 s … 5 min; dead after the policy's `on_unhandled`).
    `cost_us`: the handler's time, for tiers that are fair by time. `outcome`: what is kept of the
    message under its id for `outcome_ttl_us`, written in the same step, if this ends the
    message (acked, died).
    """

    handle: int
    fence: int
    action: str = "ack"
    delay_us: int | None = None
    reason: str | None = None
    error: str | None = None
    cost_us: int = 0
    begun: bool = True
    id: str | None = None  # the message's, where there is an outcome
    outcome: bytes | None = None
    outcome_ttl_us: int = 0


class ProgressReport(msgspec.Struct, gc=False):
    """
    Something to be kept of a message under its id for `ttl_us`, beside its outcome: how far its
    handler is.

    With `handle` and `fence` only as long as that lease is held; without them (from outside)
    whatever became of the message.
    """

    id: str
    topic: str
    body: bytes
    ttl_us: int
    handle: int = 0
    fence: int = 0


class StoredResult(msgspec.Struct, gc=False):
    """What is kept under a message's id: how it ended, and what was noted of it meanwhile."""

    outcome: bytes | None = None
    progress: bytes | None = None


SETTLED = ("acked", "retried", "died", "released", "lost", "gone")
"""
The answers of `Engine.settle`: `lost`: a stale fence, nothing was changed; `gone`: the topic was
deleted.
"""

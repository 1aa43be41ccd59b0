"""Views for administration: topics, messages, tiers, the namespace, the doctor's findings."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import msgspec

MessageState = Literal["ready", "delayed", "parked", "leased", "dead"]
"""The state of a message. `laneway.engines.shared.states` draws the transitions."""

LaneState = Literal["runnable", "asleep", "full", "at_gate", "paused", "idle"]
"""
The state of a lane, and of a topic. `laneway.engines.shared.states` draws the transitions.

`"asleep"`: until its rate has a permit or its back-off ends. `"full"`: it has as many leases as its
concurrency allows. `"at_gate"`: it waits for a gate.
"""

MAX_DELAYED_COUNTED = 20_000
"""The minimum number of a lane's delayed messages that `Admin.delayed_counts` must count."""

HeldState = Literal["ready", "delayed", "parked", "leased"]
"""The states of messages that `Admin.topic_peek` selects: all but dead letters."""

HELD_STATES: tuple[HeldState, ...] = get_args(HeldState)
"""The same, as values."""

ExplainedState = Literal[MessageState, "finished", "unknown"]
"""The states of `Explanation`; finished ids are known for the policy's `dedupe`."""

IdState = Literal["unknown", "waiting", "leased", "finished", "dead"]
"""The answers of `Admin.lookup`."""

MoveTarget = Literal["ready", "dead"]
"""The states into which `Admin.message_move` moves a message."""

MoveAnswer = Literal["moved", "waiting", "leased", "dead", "unknown"]
"""
The answers of `Admin.message_move`. All but `"moved"` mean that nothing was changed.

`"waiting"`: a message to be made ready is already ready or parked, or waits for signals.
`"leased"`, `"dead"`: the message's state. `"unknown"`: the message does not exist.
"""

BY_OPERATOR = "an operator ended it"
"""The reason of a dead letter that an operator made."""

TopicOrder = Literal["name", "backlog", "age", "rate", "throttled", "in-rate", "failures", "dead"]
"""The orders of `Admin.topic_list`."""


class Counts(msgspec.Struct, kw_only=True, gc=False):
    """Messages of a topic or of the whole namespace: how many there are, and what happened."""

    waiting: int = 0
    leased: int = 0
    dead: int = 0
    bytes: int = 0
    published: int = 0
    delivered: int = 0
    done: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0


class TopicStats(Counts, gc=False):
    """
    One topic.

    - `waiting` = `ready` + `delayed` + `parked`; `bytes`: the size of the waiting bodies.
    - `oldest_us`: the `since` of the oldest waiting message, in microseconds, or None if nothing
      waits.
    - `wake_us`: when the topic can deliver again, if it is asleep.
    - `backs_off_until_us`: until when the topic backs off because its destination is unavailable.
    - `published` … `removed`: counters since the topic was last empty and deleted from the store.
      `removed` counts messages that were purged, deleted, or dropped by a full backlog.
    - `throttled_us`: for how long a rate has held back ready messages, in microseconds; the time
      until the next delivery counts only after it has passed.
    - `rate_now`: recent deliveries per second.
    - `in_rate`: recently published messages per second, and `failure_rate`: failed attempts per
      second in the last minutes; None if not read. Only `Admin.topic_list` by `"in-rate"` or
      `"failures"` reads them.
    - `worker_time`: how many handlers the topic keeps busy, as reported by workers; None if not
      read. Only the list by `"worker-time"` has it, see `laneway.admin.top_topics`.
    - `group`: the group in which the topic competes with others, or None.
    - `limit`: how many leases `concurrency="auto"` admits now, for all its lanes together, or None
      if its concurrency does not adapt or no limit is stored.
    - `cursors`: (scan cursor, done cursor) by priority; only from `Admin.topic_stats`. A priority
      that is absent is finished: none of its messages waits or is leased.
    """

    topic: str
    ready: int = 0
    delayed: int = 0
    parked: int = 0
    oldest_us: int | None = None
    state: LaneState = "idle"
    wake_us: int | None = None
    backs_off_until_us: int | None = None
    pool: str = "default"
    tier: str = "mid"
    throttled_us: int = 0
    rate_now: float = 0.0
    in_rate: float | None = None
    failure_rate: float | None = None
    worker_time: float | None = None
    group: str | None = None
    limit: int | None = None
    cursors: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)


class MessageView(msgspec.Struct, gc=False, kw_only=True):
    """
    The administration's view of a message. Times are microseconds.

    - `seq`: its sequence number. `since_us`: the time by which equal priorities are ordered.
    - `handle`, `fence`, `leased_us`, `deadline_us`, `holder`: its lease, if it is leased.
    - `bodies`: all bodies, if several were merged.
    - `reason`, `error`, `died_us`: only for a dead letter.
    - `history`: its last 20 failures, each `{"at_us", "what", "error"}`.
    """

    id: str
    topic: str
    state: MessageState
    body: bytes
    key: str | None = None
    priority: int = 0
    headers: dict[str, str] | None = None
    seq: int = 0
    published_us: int = 0
    since_us: int = 0
    expires_us: int | None = None
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    handle: int | None = None
    fence: int | None = None
    leased_us: int | None = None
    deadline_us: int | None = None
    holder: str | None = None
    bodies: list[bytes] | None = None
    reason: str | None = None
    error: str | None = None
    died_us: int | None = None
    history: list[dict[str, Any]] = msgspec.field(default_factory=list)


Cause = Literal[
    "paused",
    "back_off",
    "probe",
    "rate",
    "full",
    "gate",
    "group",
    "key",
    "key_full",
    "key_rate",
    "due",
    "jobs",
    "unhandled",
    "unserved",
    "clock",
    "worker",
    "ahead",
    "turn",
    "no_group",
    "leased",
    "dead",
    "finished",
    "unknown",
    "sent",
    "events",
    "endpoint",
]
"""
The kinds of reasons. `unserved`: no worker serves it; `unhandled`: the workers that serve it have
no handler; `worker`: only a free worker is missing; `full`: its concurrency. For a message that has
ended, `sent`: the last request to its endpoint; `events`: its endpoint takes only some types.
`endpoint`: the endpoint's answer that made its topic back off.
"""


class Explanation(msgspec.Struct, kw_only=True):
    """
    What a message waits for. Times are microseconds.

    - `reasons`: one sentence each, the decisive one first. `causes`: the kind of each.
    - `busy_with`: the id of the message that occupies its serial key.
    - `starts_us`: when it will probably start, or None if that cannot be predicted.
    - `now_us`: the store's clock.
    - `ahead`: the number of messages ahead of it in its lane.
    - `message`: the message, unless it is finished or unknown.
    """

    id: str
    topic: str | None
    state: ExplainedState
    reasons: list[str] = []
    causes: list[Cause] = []
    starts_us: int | None = None
    now_us: int | None = None
    ahead: int | None = None
    message: MessageView | None = None
    busy_with: str | None = None

    def add(self, cause: Cause, reason: str, at: int | None = None) -> None:
        """Add a reason at the end, or at a position."""
        at = len(self.reasons) if at is None else at
        self.reasons.insert(at, reason)
        self.causes.insert(at, cause)

    def drop(self, cause: Cause) -> None:
        """Remove the reasons of this kind."""
        kept = [n for n, each in enumerate(self.causes) if each != cause]
        self.reasons = [self.reasons[n] for n in kept]
        self.causes = [self.causes[n] for n in kept]


class TierStats(msgspec.Struct, gc=False):
    """
    One tier of one pool.

    - `share`: its part of the deliveries, or `"strict"`.
    - `delivered`: its deliveries so far.
    - `runnable`: its lanes that can deliver now; at most 1,000 are counted.
    """

    pool: str
    tier: str
    share: float | str
    delivered: int = 0
    runnable: int = 0


class DoctorStep(msgspec.Struct, frozen=True):
    """
    The progress of the doctor's check: `done` of `total` parts of any size.

    `checks`: the findings, with the last step.
    """

    done: int
    total: int
    checks: list[Check] = []


class LaneRate(NamedTuple):
    """A lane that can deliver: its tier, and its deliveries per second over about 10 s."""

    tier: str
    rate: float


class Overview(Counts, kw_only=True):
    """
    The whole namespace. Reading it costs the same for any number of topics.

    - `topics`: those with waiting or leased messages, or with a limit that has not yet recovered.
    - `published` … `removed`: counters since the namespace was created.
    - `last_number`: the last sequence number; with several shards, the largest.
    """

    now_us: int
    topics: int
    last_number: int = 0
    tiers: list[TierStats] = []


class StorePart(msgspec.Struct, frozen=True, kw_only=True):
    """
    A file or server that keeps the namespace, or a part of it.

    - `name`: for display. `what`: its product and version, or the file's purpose.
    - `shards`: how many shards of the namespace it holds; 0 for a file without shards, such as a
      delivery log.
    - `used`: bytes of the file, or of the server's memory, for all its namespaces.
    - `free`: bytes by which it may still grow, on the disk or below the server's `maxmemory`, or
      None if unknown or unlimited.
    - `log`: bytes of its write-ahead log or append-only file, or None without one.
    - `per_second`: commands that a server ran recently, or None if it does not count them.
    - `seconds`: how long this answer took.
    """

    name: str
    what: str
    shards: int
    used: int
    free: int | None = None
    log: int | None = None
    per_second: int | None = None
    seconds: float = 0.0


class Check(msgspec.Struct, frozen=True):
    """
    One finding of the doctor.

    - `ok`: False if something is wrong; `advice` explains what to do.
    - `available`: False if nothing is wrong, but this cannot be checked or used here.
    """

    name: str
    ok: bool
    detail: str
    advice: str = ""
    available: bool = True

"""
What requests and answers consist of: the one source of validation, OpenAPI and documentation.

Durations in requests are seconds or texts like `"10m"`; times are RFC 3339, in requests also Unix
seconds. Fields that a request may not have are errors.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec

from laneway.admin.top_topics import ListOrder
from laneway.admin.topic_reasons import TopicReason
from laneway.admin.workers import WorkerInfo
from laneway.codec import MAX_PRIORITY, MIN_PRIORITY
from laneway.engines.base import Check, HeldState, TierStats
from laneway.engines.base.views import Counts
from laneway.history.figures import HistoryRow, WaitingTimes
from laneway.message import Outcome, SettlementAnswer
from laneway.policy import PolicyOptions
from laneway.schedules.store import Planned

Span = float | str
"""A duration: seconds, or a text like `"10m"`."""

Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time in an answer."""

MAX_BATCH = 10_000
"""Most messages, settlements or ids of one request."""

MAX_LEASE = 500
"""Most messages of one lease request."""

MAX_WAIT = 60.0
"""Most seconds that a lease request waits."""

MAX_NUMBER = 2**63 - 1
"""The largest number of a dead letter or of a change."""

NULL = msgspec.Raw(b"null")


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of a request."""


# Publish


class MessageBody(_Body):
    """
    A message. `body` is any JSON; bytes go as `body_base64`.

    Of `delay` and `at` give one. `id` is your own, unique in its topic: publishing it again is a
    `duplicate`.
    """

    body: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    body_base64: str | None = None
    key: str | None = None
    priority: int = 0
    delay: Span | None = None
    at: float | datetime | None = None
    ttl: Span | None = None
    id: str | None = None
    headers: dict[str, str] | None = None
    at_front: bool = False
    cost: int = 1


class TopicMessageBody(MessageBody, kw_only=True):
    """A message and its topic."""

    topic: str


Messages = Annotated[list[TopicMessageBody], msgspec.Meta(max_length=MAX_BATCH)]


class ReceiptAnswer(msgspec.Struct, omit_defaults=True):
    """What became of a message."""

    id: str
    outcome: Outcome
    joined: str | None = None
    reason: str | None = None


class LineAnswer(msgspec.Struct, omit_defaults=True):
    """
    What became of a line, counted from 1: `id` and `outcome`, or `problem`, the text of the error.
    """

    line: int
    id: str | None = None
    outcome: str | None = None
    joined: str | None = None
    reason: str | None = None
    problem: str | None = None


# Lease and settle


class LeaseBody(_Body):
    """Which messages to lease."""

    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEASE)] = 1
    wait: Span = 0.0
    pool: str = "default"
    topics: Annotated[list[str], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    lease: Span | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None


class StreamQuery(_Body):
    """Which messages a stream delivers."""

    credit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    pool: str = "default"
    topics: str | None = None
    lease: Span | None = None
    priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None
    max_priority: Annotated[int, msgspec.Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)] | None = None


class ConsumerQuery(_Body):
    """How many messages a consumer takes."""

    credit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100


class HeldEvent(msgspec.Struct):
    """
    The subscription is held. `fence`: larger than that of every consumer before; let a store of
    your own refuse smaller ones.
    """

    fence: int


class LostEvent(msgspec.Struct):
    """The subscription is no longer held: why."""

    detail: str


class DeliveryAnswer(msgspec.Struct, omit_defaults=True, kw_only=True, gc=False):
    """
    A leased message. Settle it by its `receipt` before `deadline`.

    `body` is JSON; it is null if the message was published as bytes, which are `body_base64`.
    """

    receipt: str
    id: str
    topic: str
    body: msgspec.Raw
    body_base64: str | None = None
    key: str | None = None
    priority: int = 0
    cost: int = 1
    headers: dict[str, str] | None = None
    attempt: int
    deliveries: int
    deadline: Time
    published_at: Time


class LeaseAnswer(msgspec.Struct):
    """The leased messages; none if the time was over first."""

    deliveries: list[DeliveryAnswer]
    next_wake: Time | None = None


SettleAction = Literal["ack", "retry", "dead", "release", "back_off", "extend"]


class SettleBody(_Body):
    """
    What to do with a leased message.

    - `ack`: it is finished; `publish` are messages to publish in the same transaction.
    - `retry`: again after `delay`, or after the policy's backoff. `error`: kept in its history.
    - `dead`: a dead letter, with `reason`.
    - `release`: back without counting an attempt.
    - `back_off`: release it, and let the whole topic back off for `delay`.
    - `extend`: extend the lease to `delay` from now.
    """

    receipt: str
    action: SettleAction = "ack"
    delay: Span | None = None
    reason: str | None = None
    error: str | None = None
    publish: list[TopicMessageBody] = []


Settlements = Annotated[list[SettleBody], msgspec.Meta(max_length=MAX_BATCH)]

SettleOutcome = Literal[SettlementAnswer, "extended", "refused"]


class SettleAnswer(msgspec.Struct, omit_defaults=True):
    """What became of a lease."""

    receipt: str
    outcome: SettleOutcome
    reason: str | None = None


# Topics and messages


class FieldAnswer(msgspec.Struct):
    """The value of a policy field, and the layer and pattern that set it."""

    value: Any
    layer: str
    pattern: str


class TopicAnswer(msgspec.Struct, omit_defaults=False, kw_only=True):
    """A topic's state, and counters since it was last empty."""

    topic: str
    state: str
    waiting: int
    ready: int
    delayed: int
    parked: int
    leased: int
    dead: int
    bytes: int
    oldest_age: float | None
    wakes_at: Time | None
    backs_off_until: Time | None
    pool: str
    tier: str
    rate: float
    in_rate: float | None
    failure_rate: float | None
    worker_time: float | None
    throttled: float
    published: int
    delivered: int
    done: int
    retried: int
    died: int
    merged: int
    expired: int
    removed: int


class CursorAnswer(msgspec.Struct):
    """The cursors of one priority, see the glossary; a priority that is absent is finished."""

    priority: int
    scan: int
    done: int


class TopicDetails(TopicAnswer, kw_only=True):
    """A topic with its policy, field by field, and its cursors."""

    policy: dict[str, FieldAnswer]
    cursors: list[CursorAnswer]


class TopicsAnswer(msgspec.Struct):
    """A page of topics."""

    topics: list[TopicAnswer]
    next: str | None = None
    truncated: bool = False


class EventAnswer(msgspec.Struct):
    """A failure in a message's history."""

    at: Time
    what: str
    error: str | None = None


class MessageAnswer(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A message that waits, is leased or is dead."""

    id: str
    topic: str
    state: str
    body: msgspec.Raw
    body_base64: str | None = None
    body_hidden: bool = False
    key: str | None = None
    priority: int = 0
    cost: int = 1
    headers: dict[str, str] | None = None
    sequence: int = 0
    published_at: Time
    since: Time
    expires_at: Time | None = None
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    deadline: Time | None = None
    holder: str | None = None
    reason: str | None = None
    error: str | None = None
    died_at: Time | None = None
    history: list[EventAnswer] = []


class MessagesAnswer(msgspec.Struct):
    """The next messages of a topic, in the order of delivery, then the delayed ones."""

    messages: list[MessageAnswer]
    truncated: bool


class MessageActionAnswer(msgspec.Struct):
    """
    What was done to a message: it is `ready` (it was delayed), `redriven` (it was dead), `dead`,
    `dropped`, `cancelled`, `aborted` (its lease ended, and its worker is notified), or `released`
    (its lease ended, and it waits again).
    """

    id: str
    done: Literal["ready", "redriven", "dead", "dropped", "cancelled", "aborted", "released"]


class BackOffBody(_Body):
    """For how long nothing is delivered; 0 ends a back-off."""

    delay: Span


class ExplainAnswer(msgspec.Struct, kw_only=True):
    """What a message waits for: sentences, the first one decides; and when it probably starts."""

    id: str
    topic: str | None
    state: str
    reasons: list[str]
    starts_at: Time | None
    ahead: int | None
    message: MessageAnswer | None


class ReasonAnswer(TopicReason, frozen=True):
    """A reason why a topic is blocked: its kind, a sentence, and what to do ("": only wait)."""


class ExplainTopicAnswer(msgspec.Struct, kw_only=True):
    """Why a topic delivers nothing, or not enough; the first reason decides."""

    topic: str
    state: str
    waiting: int
    leased: int
    dead: int
    message: str | None
    reasons: list[ReasonAnswer]


class LookupBody(_Body):
    """Ids of a topic."""

    topic: str
    ids: Annotated[list[str], msgspec.Meta(max_length=MAX_BATCH)]


class LookupAnswer(msgspec.Struct):
    """The state of each id."""

    states: dict[str, Literal["unknown", "waiting", "leased", "finished", "dead"]]


class ConfirmBody(_Body):
    """The confirmation of a removal."""

    confirm: str
    dry_run: bool = False


class CountAnswer(msgspec.Struct, omit_defaults=True):
    """How many messages were changed, or would be."""

    count: int
    dry_run: bool = False
    operation: str | None = None


# Policies, gates, tiers

PolicyBody = msgspec.defstruct(
    "PolicyBody",
    [
        (name, Span | None if timedelta in get_args(hint) else hint, None)
        for name, hint in get_type_hints(PolicyOptions).items()
    ],
    kw_only=True,
    forbid_unknown_fields=True,
    namespace={"__doc__": "Fields of a policy; null removes one."},
)
"""For the API's description only: `policy.FIELDS` has the checks."""


class PolicyAnswer(msgspec.Struct, omit_defaults=True):
    """The fields that one layer sets for a pattern."""

    pattern: str
    layer: str
    fields: dict[str, Any]
    program: str | None = None


class PoliciesAnswer(msgspec.Struct):
    """A page of policies."""

    policies: list[PolicyAnswer]
    next: str | None
    truncated: bool


class PolicyDetails(msgspec.Struct):
    """What is set for exactly this pattern by each layer, and what holds for it."""

    pattern: str
    layers: dict[str, dict[str, Any]]
    effective: dict[str, FieldAnswer]


class DryRunAnswer(msgspec.Struct):
    """What a change of a policy would do."""

    waiting_topics: int
    truncated: bool
    before: dict[str, FieldAnswer]
    after: dict[str, FieldAnswer]


class PolicyChange(msgspec.Struct, omit_defaults=True):
    """The operator's fields of the pattern after the change."""

    pattern: str
    fields: dict[str, Any]
    undo: dict[str, Any]
    dry_run: bool = False
    effects: DryRunAnswer | None = None


class GateBody(_Body):
    """The limits of a gate: a rate, a concurrency, or both."""

    rate: float | str | None = None
    burst: int | None = None
    concurrency: int | None = None
    max_cost: int | None = None


class GateAnswer(msgspec.Struct, kw_only=True):
    """A gate: its limits, what is leased through it, and how many lanes wait (up to 1,000)."""

    name: str
    rate: float | None
    burst: float | None
    concurrency: int | None
    max_cost: int | None
    leased: int
    waiting: int
    next_permit: Time | None


class GatesAnswer(msgspec.Struct):
    """Gates by name."""

    gates: list[GateAnswer]
    next: str | None = None
    truncated: bool = False


class TopicGroupBody(_Body):
    """The operator's settings of a topic group; a setting that is left out is the code's."""

    weight: float | None = None
    rate: float | str | None = None
    burst: int | None = None
    concurrency: int | None = None


class TopicGroupAnswer(GateAnswer, kw_only=True):
    """A topic group: its weight, and its limits as those of a gate."""

    weight: float


class TopicGroupsAnswer(msgspec.Struct):
    """The topic groups that have settings, by name."""

    groups: list[TopicGroupAnswer]
    next: str | None = None
    truncated: bool = False


class TierAnswer(TierStats):
    """A tier of a pool: its share, its deliveries so far, and its lanes that can deliver now."""


class TierSettingAnswer(msgspec.Struct):
    """A tier's settings: `layer` names who set them."""

    name: str
    share: float | str
    fair_by: str
    reserve: float
    layer: str
    is_default: bool


class TiersAnswer(msgspec.Struct):
    """The tiers of the namespace."""

    tiers: list[TierSettingAnswer]
    truncated: bool = False


class TierBody(_Body):
    """
    A tier's share, a number above 0 or `"strict"`; what its topics share equally (None: as it is,
    or messages); and the part of each worker's slots that only its messages may take, from 0 to 0.9
    (None: as it is, or 0).
    """

    share: float | str
    fair_by: Literal["messages", "time"] | None = None
    reserve: float | None = None


# Dead letters


class DeadLetterAnswer(MessageAnswer, kw_only=True):
    """A dead letter."""

    fingerprint: str


class DeadLettersAnswer(msgspec.Struct):
    """Dead letters, oldest first."""

    dead_letters: list[DeadLetterAnswer]
    next: str | None = None
    truncated: bool = False
    scanned: int = 0


class DeadGroupAnswer(msgspec.Struct, kw_only=True):
    """Dead letters with the same fingerprint."""

    fingerprint: str
    title: str
    count: int
    first: Time
    last: Time
    topics: dict[str, int]
    example: DeadLetterAnswer


class DeadGroupsAnswer(msgspec.Struct):
    """Dead letters by what failed, in descending order of frequency."""

    groups: list[DeadGroupAnswer]
    scanned: int
    truncated: bool


class DeadBody(_Body):
    """Which dead letters."""

    topic: str | None = None
    ids: Annotated[list[str], msgspec.Meta(max_length=MAX_BATCH)] | None = None
    fingerprint: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)] | None = None
    dry_run: bool = False
    background: bool = False


class RedriveBody(DeadBody, kw_only=True):
    """Which dead letters, and how fast."""

    rate: float | str | None = None


# The namespace


class OverviewAnswer(Counts, kw_only=True):
    """The whole namespace; the counters count since it was created."""

    now: Time
    topics: int
    tiers: list[TierAnswer]


class HistoryRowAnswer(HistoryRow, kw_only=True):
    """What happened in the `seconds` from `start`."""

    start: Time  # type: ignore[assignment]  # Python has Unix seconds


class HistoryPartAnswer(HistoryRowAnswer, kw_only=True):
    """What happened in the topics of a tier and pattern, in the whole time."""

    tier: str
    pattern: str


class WaitingTimesAnswer(WaitingTimes):
    """
    How many messages had waited how long when they were delivered: `bounds` are the upper bounds of
    the classes, in seconds; the last class has none.
    """


class HistoryAnswer(msgspec.Struct, kw_only=True):
    """
    The history: rows, the oldest first; the parts, the largest backlog first; waiting times of
    the noisiest 1 % of the topics and of the others.
    """

    now: Time
    step: float
    rows: list[HistoryRowAnswer]
    parts: list[HistoryPartAnswer]
    noisy: WaitingTimesAnswer
    others: WaitingTimesAnswer
    waiting: int
    oldest: float | None
    inflow: float
    outflow: float
    drain_seconds: float | None
    max_backlog: int | None
    full_topic: str | None
    full_seconds: float | None


class CheckAnswer(Check, frozen=True):
    """A finding of the doctor."""


class OperationAnswer(msgspec.Struct, kw_only=True):
    """An operation on many messages, or a check of the store."""

    id: str
    kind: Literal["redrive", "drop", "replay", "doctor"]
    state: Literal["running", "stopping", "done", "stopped", "failed", "lost"]
    topic: str | None
    fingerprint: str | None
    done: int
    total: int | None
    detail: str | None
    who: str
    started: Time
    ended: Time | None
    checks: list[CheckAnswer] | None = None


class OperationBegun(msgspec.Struct):
    """What was begun in the background."""

    operation: str


class OperationsAnswer(msgspec.Struct):
    """Operations, the newest first."""

    operations: list[OperationAnswer]
    truncated: bool


class ChangeEvent(msgspec.Struct, kw_only=True):
    """A change through the API, as the audit log keeps it, without what was sent."""

    number: int
    at: Time
    who: str
    method: str
    path: str


class EndpointEvent(msgspec.Struct, kw_only=True):
    """
    What happened to an endpoint: its breaker has `opened`, it has `recovered`, it is
    `disabled`, `misconfigured`, or will soon be disabled (`warning`).
    """

    number: int
    at: Time
    kind: str
    topic: str
    detail: str


class WorkerAnswer(WorkerInfo, kw_only=True):
    """A worker, as of its last heartbeat."""

    oldest_since: Time | None  # type: ignore[assignment]  # Python has Unix seconds
    started: Time  # type: ignore[assignment]
    last_heartbeat: Time  # type: ignore[assignment]


class WorkersAnswer(msgspec.Struct):
    """Workers by id."""

    workers: list[WorkerAnswer]
    next: str | None = None


class WorkerCommandAnswer(msgspec.Struct):
    """What a worker answers: a sentence, or the stacks as text."""

    id: str
    answer: str


class HealthAnswer(msgspec.Struct, omit_defaults=True):
    """Whether the gateway can serve requests."""

    status: Literal["ok", "unavailable"]
    detail: str | None = None


# Jobs, schedules, subscriptions


class JobAnswer(msgspec.Struct, kw_only=True):
    """A call of a task."""

    id: str
    topic: str | None
    status: str
    result: msgspec.Raw
    info: msgspec.Raw
    error: str | None
    attempts: int
    published_at: Time | None
    finished_at: Time | None


class CancelAnswer(msgspec.Struct):
    """What became of a cancellation."""

    cancelled: bool


class ScheduleBody(_Body):
    """A schedule: what it publishes, and one of `every`, `cron` and `at`."""

    topic: str
    body: msgspec.Raw = msgspec.field(default_factory=lambda: NULL)
    key: str | None = None
    headers: dict[str, str] | None = None
    every: Span | None = None
    cron: str | None = None
    at: datetime | None = None
    timezone: str | None = None
    missed: Literal["one", "all", "skip"] | None = None


class ScheduleAnswer(Planned, frozen=True):
    """A schedule: its rule in words, and its next firing."""


class SchedulesAnswer(msgspec.Struct):
    """Schedules by name."""

    schedules: list[ScheduleAnswer]
    next: str | None = None


class StoredAnswer(msgspec.Struct):
    """What became of a change."""

    is_new: bool


class RemovedAnswer(msgspec.Struct):
    """What became of a removal."""

    removed: bool


class SubscriptionBody(_Body):
    """A subscription."""

    kind: Literal["shared", "exclusive", "failover"] = "shared"
    where: dict[str, Any] | None = None
    expires: Span | None = None


class SubscriptionAnswer(msgspec.Struct, kw_only=True):
    """A subscription of a topic: the topic of its copies, who declares it, and what it holds."""

    name: str
    topic: str
    kind: str
    where: dict[str, Any]
    pattern: str
    layer: str
    waiting: int
    leased: int
    dead: int


class SubscriptionsAnswer(msgspec.Struct):
    """The subscriptions of a topic."""

    subscriptions: list[SubscriptionAnswer]


class JobQuery(_Body):
    """Which job."""

    topic: str | None = None


class JobWaitQuery(JobQuery):
    """Which job, and how long to wait for it."""

    timeout: Span = 30.0


class MetricsQuery(_Body):
    """Which topics have series."""

    top: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0


# Tokens and the audit log


class TokenBody(_Body):
    """A new token."""

    name: str
    scopes: Annotated[
        list[Literal["publish", "consume", "read", "bodies", "operate", "endpoints", "admin"]],
        msgspec.Meta(min_length=1),
    ]
    topics: Annotated[list[str], msgspec.Meta(min_length=1, max_length=100)] | None = None
    expires: Span | None = None
    rate: float | str | None = None


class TokenAnswer(msgspec.Struct, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[str]
    topics: list[str] | None
    rate: float | None
    created: Time
    expires: Time | None
    last_used: Time | None


class CreatedTokenAnswer(TokenAnswer, kw_only=True):
    """A new token with its text, `token`, which is not shown again."""

    token: str


class TokensAnswer(msgspec.Struct):
    """Tokens by id."""

    tokens: list[TokenAnswer]
    next: str | None = None


class LoginBody(_Body):
    """The text of a token."""

    token: str


class LoginAnswer(msgspec.Struct, kw_only=True):
    """A browser's session: the token's name, scopes and topics (None: all)."""

    name: str
    scopes: list[str]
    topics: list[str] | None
    expires: Time
    csrf: str


class LogoutAnswer(msgspec.Struct):
    """Nothing: the session has ended."""


class ChangeAnswer(ChangeEvent, kw_only=True):
    """A change: who made it, with which token, from where, and the JSON that was sent."""

    token: str | None
    address: str
    request: msgspec.Raw
    undo: dict[str, Any] | None


class AuditAnswer(msgspec.Struct):
    """Changes, the newest first."""

    changes: list[ChangeAnswer]
    next: int | None = None


# Queries


class LoginQuery(_Body):
    """Where the login leads to."""

    next: str = ""


class AuditQuery(_Body):
    """Which changes."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    before: Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)] | None = None
    since: str | None = None


class ListQuery(_Body):
    """A page of a list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    after: str | None = None


class PoliciesQuery(ListQuery):
    """Which policies."""

    pattern: str = "*"


class NoQuery(_Body):
    """The route has no parameters."""


class PublishQuery(_Body):
    """How to read the body of the request."""

    raw: bool = False


class ListTopicsQuery(_Body):
    """Which topics, and in which order."""

    order: ListOrder = "name"
    pattern: str = "*"
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    after: str | None = None


class PeekQuery(_Body):
    """Which messages of a topic."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 10
    state: HeldState | None = None


class NamesQuery(_Body):
    """A page of a list by name."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000
    after: str | None = None


class OperationsQuery(_Body):
    """How many operations."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class DryRunQuery(_Body):
    """Whether to change anything."""

    dry_run: bool = False


class DeadLettersQuery(_Body):
    """Which dead letters."""

    topic: str | None = None
    fingerprint: str | None = None
    since: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    after: Annotated[int, msgspec.Meta(ge=0, le=MAX_NUMBER)] = 0


class DeadMessageQuery(_Body):
    """Why the message becomes a dead letter."""

    reason: str | None = None


class DeadGroupsQuery(_Body):
    """Which groups of dead letters."""

    topic: str | None = None
    since: str | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class HistoryQuery(_Body, rename={"from_": "from"}):
    """Which part of the history; by default an hour, until now."""

    from_: str | None = None
    to: str | None = None
    step: str | None = None
    pattern: str = "*"
    tier: str | None = None


class WorkerCommandQuery(_Body):
    """How long to wait for the worker."""

    timeout: Annotated[float, msgspec.Meta(ge=0, le=30)] = 5.0


class WorkersQuery(ListQuery):
    """Which workers."""

    pool: str | None = None

"""
What an engine is: the hot path (`Engine`) and what administration needs (`Desk`).

Engines are synchronous and thread-safe; every hot operation takes a batch and is atomic per shard.
They know nothing of the layers above. All times are integer microseconds; `now_us` in every
operation is a test hook that stands in for the engine's clock (which never goes back: a smaller
value than one already seen counts as that one). The rules are in `docs/specification.md`;
`tests/model` is the same as a program, and every engine is compared with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from laneway import headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from laneway.engines.shared.interrupt import Interrupt
    from laneway.message import Batch, Draft, ProgressReport, Receipt, Settlement, StoredResult
    from laneway.policy import Gate, Layer, Layers, PolicyBook, Resolved
    from laneway.tiers import Tier, TierLayers, Tiers

Durability = Literal["memory", "fsync", "replicated"]

RESULT_TTL_HEADER = headers.RESULT_TTL
"""
Of a message whose end is to be kept under its id: for how many seconds after an ack, and after any
other end, like "600,86400".
"""

SIGNALS_HEADER = headers.SIGNALS
"""
Of a message that waits for signals (`Draft.signal`): how many. It is delayed until then; their
bodies come behind its own.
"""

FLOW_HEADER = headers.FLOW
"""
Of a message (its body is JSON) of whose end others wait to hear: where no handler told it, a
message `ENDED` is put into its topic with it.
"""

ENDED = "laneway.ended"
"""
The task header of such a message: {"id", "outcome", "body": that of the one that ended}, or with
"followers" (see `Engine.follow`) instead of a body.
"""

TASK_HEADER = headers.TASK
"""Names the task whose call a message is."""

UNTIL_SIGNALLED_US = 7_258_118_400_000_000
"""When such a message is due by itself: in the year 2200."""

ABORT = "!"
"""
What an `Ear` expects that wants to hear of leases that were ended from outside; their messages' ids
follow it in what it hears.
"""

CHANGED = "="
"""
Before the names that `Engine.watch_topic` gives: an `Ear` that expects one is notified when that
part of the topic has changed.
"""

HOUSEKEEPING_LIMIT = 1000
"""Most due or expired messages, woken lanes and swept lanes that one call brings in, each."""

BACK_OFF_FIRST_US, BACK_OFF_MAX_US = 1_000_000, 300_000_000
"""A topic's rest without a Retry-After: one second, doubled up to five minutes."""

MAX_PASSED_OVER = 1_000
"""Lanes that a lease with `only` passes over at most."""

UNHANDLED_FIRST_US, UNHANDLED_MAX_US = 5_000_000, 300_000_000
"""
A message for which a worker has no handler: 5 s, doubled up to 5 min; dead an hour after the first
time.
"""

STICKY_US = 24 * 3_600_000_000
"""How long a sticky id is kept after the finish."""


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine claims to be able to do; asked by callers and tests instead of its name."""

    name: str
    durability: frozenset[str]
    persistent: bool
    processes: bool  # several processes may open the same store
    transactions: bool  # ack(publish=…) is one transaction
    shards: int = 1
    only: bool = False  # `lease` knows `only`
    # its work is done in the caller's process, in competition with the caller's other threads
    embedded: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """
    What an application says when it opens an engine.

    `tiers` None: the stored ones, or the usual; `default_tier`: that of topics whose policy names
    none. `max_backlog` / `max_backlog_bytes` / `on_full` limit the whole namespace. `random` feeds
    the jitter of backoffs (a test hook).
    """

    namespace: str = "default"
    durability: Durability | None = None  # None: the engine's default
    tiers: dict[str, Tier] | None = None
    default_tier: str | None = None
    max_backlog: int | None = None
    max_backlog_bytes: int | None = None
    on_full: str = "refuse"
    create: bool = True  # False: a missing store is an error
    random: Callable[[], float] | None = None


class TopicStats(msgspec.Struct, gc=False):
    """
    One topic. waiting = ready + delayed + parked; counters are since the topic was last forgotten.

    `oldest_us`: the *since* of the message that would be handed out next by age (None: nothing
    waits).
    """

    topic: str
    waiting: int = 0
    ready: int = 0
    delayed: int = 0
    parked: int = 0
    leased: int = 0
    dead: int = 0
    bytes: int = 0
    oldest_us: int | None = None
    state: str = (
        "idle"  # runnable | asleep (rate, rest) | full (concurrency) | at_gate | paused | idle
    )
    wake_us: int | None = None
    backs_off_until_us: int | None = None  # its destination was unavailable
    pool: str = "default"
    tier: str = "mid"
    published: int = 0
    delivered: int = 0
    done: int = 0
    retried: int = 0
    died: int = 0
    merged: int = 0
    expired: int = 0
    removed: int = 0  # purged, deleted, or dropped by a full backlog
    throttled_us: int = 0  # time for which a rate held ready messages back
    rate_now: float = 0.0  # deliveries a second, lately
    cursors: dict[int, tuple[int, int]] = msgspec.field(
        default_factory=dict
    )  # priority -> (scan, done); topic_stats only


class MessageView(msgspec.Struct, gc=False, kw_only=True):
    """One message as administration sees it. `state`: ready | delayed | parked | leased | dead."""

    id: str
    topic: str
    state: str
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
    fence: int | None = None
    deadline_us: int | None = None
    bodies: list[bytes] | None = None
    reason: str | None = None  # dead letters
    error: str | None = None
    died_us: int | None = None
    history: list[dict[str, Any]] = msgspec.field(
        default_factory=list
    )  # attempts: {at_us, what, error}; the last 20


class Explanation(msgspec.Struct, kw_only=True):
    """
    What a message is waiting for.

    `state`: as in `MessageView`, or finished | unknown. `reasons`: one sentence each, the binding
    one first. `starts_us`: when it will likely start, None where that cannot be told; `now_us`:
    what the store's clock says. `ahead`: messages of its lane before it.
    """

    id: str
    topic: str | None
    state: str
    reasons: list[str] = []
    starts_us: int | None = None
    now_us: int | None = None
    ahead: int | None = None
    message: MessageView | None = None


class TierStats(msgspec.Struct, gc=False):
    """
    One tier of one pool: its share, what it was given, and how many of its lanes could deliver now
    (at most 1,000 counted).
    """

    pool: str
    tier: str
    share: float | str
    delivered: int = 0
    runnable: int = 0


class Overview(msgspec.Struct, kw_only=True):
    """The namespace at a glance; costs the same at any number of topics."""

    now_us: int
    topics: int  # topics with something waiting, leased, or limits not yet recovered
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
    last_number: int = 0  # the shard's last sequence number
    tiers: list[TierStats] = []


class ExportedMessage(msgspec.Struct, kw_only=True):
    """
    A message on its way to another store, with all that it carries; `number` is the one by which
    its source knows it.

    `serial`, `merges`: whether it stands in line for its key, and joins others, as its topic's
    policy said when it was published. `death`: (at, until when it is kept, reason, error) of a dead
    letter. `history`: (at, what, error) of each trouble.
    """

    number: int
    id: str
    topic: str
    bodies: list[bytes]
    key: str | None = None
    priority: int = 0
    at_front: bool = False
    headers: dict[str, str] | None = None
    published_us: int
    since_us: int
    expires_us: int | None = None
    attempts: int = 0
    deliveries: int = 0
    suspect: bool = False
    serial: str | None = None
    merges: bool = False
    sticky: bool = False
    joined: list[str] = []
    unhandled_us: int | None = None
    unhandled_times: int = 0
    history: list[tuple[int, str, str | None]] = []
    death: tuple[int, int, str, str | None] | None = None


class Check(msgspec.Struct, frozen=True):
    """One finding of the doctor. `available` False: nothing is wrong, but this is not to be had."""

    name: str
    ok: bool
    detail: str
    advice: str = ""
    available: bool = True


class ResultListener(Protocol):
    """
    Hears when something is kept of messages. For one thread; only `expect`, `forget` and `wake` are
    for others too.
    """

    def subscribe(self, *ids: str) -> None:
        """
        From now on it is heard of these; each is heard once as soon as that is so: then is the time
        to look how it stands.
        """
        ...

    def unsubscribe(self, *ids: str) -> None:
        """No longer."""
        ...

    def poll(self, timeout: float) -> list[str] | None:
        """
        Sleep until something of them changed, at most so many seconds; which. None: something may
        have been missed, look at all.
        """
        ...

    def wake(self) -> None:
        """End a `listen`."""
        ...

    def close(self) -> None:
        """Hear nothing more."""
        ...


class ArrivalListener(Protocol):
    """
    Hears of messages that come to a pool, for somebody who is busy. For one thread; only `wake` is
    for others too.
    """

    def poll(self, timeout: float) -> bool:
        """
        Sleep until a message came to a lane of which nothing could be leased before, at most so
        many seconds; True: ask now.

        One of those who listen is told, and only where nobody waits. May be told once too often,
        and in an accident not at all.
        """
        ...

    def wake(self) -> None:
        """End a `listen`."""
        ...

    def close(self) -> None:
        """Hear nothing more."""
        ...


@runtime_checkable
class Engine(Protocol):
    """The hot path: what producers and workers call."""

    capabilities: Capabilities
    durability: str

    def put(self, drafts: Sequence[Draft], *, now_us: int | None = None) -> list[Receipt]:
        """
        Accept messages; the answer is in their order. Durable as the engine's durability says once
        it returns.

        A message over a backlog limit gets outcome "refused" with its reason (for "block" too:
        waiting is the caller's business). Raises EngineUnavailable (its `applied` says whether it
        may have happened), BadMessage (over `max_body`; a delay that outlasts the ttl) before
        anything is changed.
        """
        ...

    def is_put_atomic(self, drafts: Sequence[Draft]) -> bool:
        """
        Whether one `put` of these stores all of them or none, also if this process is killed.

        False where their topics limit their backlog: a part may be refused. Their bodies are not
        looked at.
        """
        ...

    def lease(
        self,
        n: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        startable: int | None = None,
        record_start: bool = False,
        only: Sequence[str] | None = None,
        now_us: int | None = None,
    ) -> Batch:
        """
        Hand out up to `n` messages, fairly; also the housekeeping of `tick`.

        `topics` restricts it to these, strictly in the order named (names or patterns' exact
        topics), tiers aside. `startable` (default n): how many the caller can start at once: no
        more than that of limited topics are handed out. `only` (where the capabilities say so):
        lanes of topics that none of these patterns covers are passed over, at most
        `MAX_PASSED_OVER` in a call. The answer says whether some were, and whether the next call
        goes on where this one had to stop. Buckets are never passed over.
        `record_start`: the hand-out of a suspect counts as its recorded start.
        """
        ...

    def start(self, leases: Sequence[tuple[int, int]], *, now_us: int | None = None) -> list[bool]:
        """
        Record that these suspects, (handle, fence), are about to be run; False: the lease is lost,
        do not run it.
        """
        ...

    def settle(
        self,
        settlements: Sequence[Settlement],
        *,
        publish: Mapping[int, Sequence[Draft]] | None = None,
        now_us: int | None = None,
    ) -> list[str]:
        """
        End leases; answers one of `laneway.message.SETTLED` for each.

        `publish`: messages to be put together with the settlement at that position, if it is an ack
        (or "dead") that succeeds; their ids are derived from its message (`<id>:<position>`) where
        they have none, and sticky. One that cannot be published (BadMessage, BacklogFull) fails the
        whole call, and nothing is changed.
        """
        ...

    def report_progress(
        self, reports: Sequence[ProgressReport], *, now_us: int | None = None
    ) -> list[bool]:
        """
        Keep something of messages under their ids; False: the lease is lost, nothing was kept.
        """
        ...

    def results(
        self, ids: Sequence[tuple[str, str | None]], *, now_us: int | None = None
    ) -> list[StoredResult]:
        """What is kept of these (id, topic); without a topic it may take longer to find."""
        ...

    def delete_result(self, message_id: str, topic: str | None = None) -> None:
        """Keep nothing of it any longer."""
        ...

    def on_end(self, message_id: str, topic: str | None, follower: bytes) -> bytes | None:
        """
        Have something (JSON) told when a message ends whose end is kept, by a message `ENDED` in
        its topic; None: it will be.

        Its outcome where it has ended. Raises UsageError where nobody knows the message, or nothing
        is kept of it.
        """
        ...

    def cancel(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> str:
        """
        Take a message out, whatever it waits for: "cancelled". Of one that is leased the lease
        ends, and its worker is told: "aborted".

        Its outcome is then that it was cancelled. "dead" or "unknown": nothing was changed.
        """
        ...

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        """
        Notify of changes of a topic, for at most so many seconds: the names to expect with an
        `ear`, which begin with `CHANGED`.

        Each name is notified after every call that settles, moves or removes one of its messages.
        Empty: nothing waits or is leased.
        """
        ...

    def result_listener(self) -> ResultListener:
        """Something to hear with of what is kept, and of aborts."""
        ...

    def extend(
        self, leases: Sequence[tuple[int, int]], by_us: int, *, now_us: int | None = None
    ) -> list[bool]:
        """Prolong leases to at least now + `by_us`; False: the lease is lost."""
        ...

    def tick(self, *, budget: int = HOUSEKEEPING_LIMIT, now_us: int | None = None) -> int | None:
        """
        Housekeeping: bring in what is due, take back leases that ran out, expire, sweep policies.
        Returns the next wake-up time.
        """
        ...

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """
        Sleep until something could be leased in the pool, at most `timeout` seconds of real time.
        True: ask again now.

        Does not poll: whoever makes a lane runnable rings. `interrupt` ends this wait alone, which
        then answers False.
        """
        ...

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        """
        Something to hear with of what arrives while the caller leases all the time.

        To somebody who waits, `wait` says it; who has as much as he can take asks again only when
        some of it is done, and a quiet topic's message would wait for that.
        """
        ...

    def interrupt(self) -> None:
        """End all `wait`s of this engine object in this process at once (they answer False)."""
        ...

    def close(self) -> None:
        """Let go of the store. Closing twice is fine; leases stay until they run out."""
        ...


@runtime_checkable
class Admin(Protocol):
    """
    Administration: what the application object, the CLI and dashboards call. Every engine has both
    faces.
    """

    @property
    def tiers(self) -> Tiers:
        """The tiers in force, as this engine object last read them."""
        ...

    def tier_layers(self) -> TierLayers:
        """What the namespace stores of its tiers, by layer, as it is now."""
        ...

    def tier_set(
        self, layer: Layer, changes: Mapping[str, Tier | None], *, now_us: int | None = None
    ) -> None:
        """
        Add and change tiers; None removes one. Every process obeys at its next lease.

        Raises BadPolicy for a tier that is the default or that a policy names, and is to go.
        """
        ...

    def tier_reset(self, name: str | None = None, *, now_us: int | None = None) -> bool:
        """
        Remove what the operator set for a tier, or for all; False if it set nothing. Raises
        BadPolicy as `tier_set`.
        """
        ...

    def policies(self) -> PolicyBook:
        """
        The policies of the namespace's patterns as they are now, in a book of the caller's own.

        The book's `rows` have the patterns only; for a topic it looks up the topic's own policy
        too.
        """
        ...

    def policy_set(
        self, layer: Layer, pattern: str, fields: Mapping[str, Any], *, now_us: int | None = None
    ) -> dict[str, Any]:
        """
        Set fields (None: no longer set) of a pattern; returns what the pattern sets now in that
        layer.

        One topic changes in the same call, a pattern by a bounded sweep that `tick` and `lease`
        carry on. Raises BadPolicy; TopicInUse where `partitions` or `buckets` of a topic that is
        not empty would change.
        """
        ...

    def policy_set_many(
        self,
        layer: str,
        changes: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        now_us: int | None = None,
    ) -> list[dict[str, Any]]:
        """
        Set fields of many patterns or topics; returns what each sets now in that layer.

        `layer`: "operator", "code", or `program:NAME` for what a program declares; another
        program's field is an error that names it. Patterns are checked as they are after all of
        them; those that set what they set already cost nothing.

        What a policy of one exact topic costs does not depend on how many there are; no other
        process reloads anything for it. A call is one batch, to be kept at some 1,000; one that
        fails for a bad field or an undefined gate has changed nothing.
        """
        ...

    def programs(self) -> dict[str, bytes]:
        """
        The programs that have declared policies, by name; what is kept of each is written by
        `laneway.programs`.
        """
        ...

    def program_swap(self, name: str, before: bytes | None, after: bytes | None) -> bool:
        """
        Keep something (JSON; None: nothing) of a program, if it is what the caller has read; False:
        it is something else by now.
        """
        ...

    def policy_own(self, topic: str) -> Layers:
        """What is set for exactly this topic, by layer."""
        ...

    def policy_own_list(
        self, after: str = "", limit: int = 1000
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        """
        Topics with a policy of their own, about `limit` of them, and where the next page begins
        (None: this was the last).

        Each topic comes once; in which order is the engine's business. One that is set meanwhile
        may come or not.
        """
        ...

    def policy_reset(self, layer: str, pattern: str, *, now_us: int | None = None) -> bool:
        """Remove all that the layer sets for the pattern; False if it sets nothing."""
        ...

    def policy_of(self, topic: str) -> Resolved:
        """What holds for a topic."""
        ...

    def gate_set(
        self, name: str, gate: Gate, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        """Define or change a gate. An operator's gate stands above the code's."""
        ...

    def gate_list(self) -> list[dict[str, Any]]:
        """
        Each gate: name, rate, burst, concurrency, leased, next_permit_us, waiting (lanes at it, at
        most 1,000 counted).
        """
        ...

    def topic_stats(self, topic: str, *, now_us: int | None = None) -> TopicStats:
        """One topic, also an idle one (all zero)."""
        ...

    def topic_list(
        self,
        *,
        order: str = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
        now_us: int | None = None,
    ) -> list[TopicStats]:
        """
        Topics by "name" (paged by `after`), or the top by "backlog", "age", "rate" or "throttled".

        The top-N come from indexes by size class (about 10 % apart), so that the cost does not grow
        with the number of topics. Up to 1,000 lanes, all are compared; among more, the first 250 of
        that order (five times `limit`, if that is more); with a pattern, those of the first 1,000
        that it covers. Of topics in buckets, the first 250 by name.
        """
        ...

    def topic_peek(
        self, topic: str, *, limit: int = 10, now_us: int | None = None
    ) -> list[MessageView]:
        """
        The messages that would be handed out next, in order, then the delayed by due time; nothing
        is changed.
        """
        ...

    def topic_purge(self, topic: str, *, now_us: int | None = None) -> int:
        """Remove what waits, also parked and delayed; leases stay whole. Returns how many."""
        ...

    def topic_delete(self, topic: str, *, now_us: int | None = None) -> int:
        """
        Remove everything of a topic: waiting, leased (their settle answers "gone"), dead letters,
        known ids, counters.
        """
        ...

    def cursors(self, topic: str) -> dict[int, tuple[int, int]]:
        """
        Per priority (scan cursor, done cursor): all numbers up to it have been handed out once /
        are finished. Key `0` is always there. Where nothing is outstanding a cursor is the shard's
        last number.
        """
        ...

    def lookup(
        self, topic: str, ids: Sequence[str], *, now_us: int | None = None
    ) -> dict[str, str]:
        """unknown, waiting, leased, finished or dead for each id."""
        ...

    def find(self, message_id: str, topic: str | None = None) -> MessageView | None:
        """
        A message that is waiting, leased or dead; ids that Laneway made are found without their
        topic.
        """
        ...

    def explain(
        self, message_id: str, topic: str | None = None, *, now_us: int | None = None
    ) -> Explanation:
        """What the message waits for, and when it will likely start."""
        ...

    def dead_list(
        self, topic: str | None = None, *, limit: int = 50, after: int = 0
    ) -> list[tuple[int, MessageView]]:
        """Dead letters with their number, oldest first; `after` a number pages on."""
        ...

    def dead_redrive(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        first_us: int = 0,
        spacing_us: int = 0,
        now_us: int | None = None,
    ) -> int:
        """
        Put dead letters back (oldest first, at most `limit`), with a new number and attempts from
        the start; returns how many.

        The first of this call is due `first_us` from now, the n-th after it n times `spacing_us`
        later: many are put back at a rate by several calls, each a transaction of its own.
        """
        ...

    def dead_drop(
        self,
        topic: str | None = None,
        ids: Sequence[str] | None = None,
        *,
        limit: int = 1000,
        now_us: int | None = None,
    ) -> int:
        """Forget dead letters (oldest first, at most `limit`); returns how many."""
        ...

    def time_us(self, topic: str | None = None, *, now_us: int | None = None) -> int:
        """
        The store's time: its own clock's, which never goes back. With a topic, that of the shard
        where its messages are.
        """
        ...

    def overview(self, *, now_us: int | None = None) -> Overview:
        """The namespace at a glance."""
        ...

    def doctor(self, *, repair: bool = False) -> list[Check]:
        """Check the store's health and that its parts agree; with `repair` mend what does not."""
        ...

    # Moving to another store

    def export(self, limit: int) -> list[ExportedMessage]:
        """
        Take messages out, in the order of their lanes, dead letters last; leased ones stay. What
        was sent and not `sent` is told first.

        They are nobody's until `sent`, and kept: a move that was broken off goes on where it was.
        """
        ...

    def confirm_export(self, exported_messages: Sequence[ExportedMessage]) -> None:
        """Forget what has arrived elsewhere."""
        ...

    def import_(self, exported_messages: Sequence[ExportedMessage]) -> list[str]:
        """
        Take in what another store sent: accepted, or duplicate where the id is known here. Doing it
        twice is no harm.
        """
        ...

    def finished_ids(self) -> Iterator[tuple[str, str, int | None]]:
        """(topic, id, until when it is known or None: for ever) of finished messages."""
        ...

    def import_finished(self, ids: Sequence[tuple[str, str, int | None]]) -> None:
        """Know these ids as finished."""
        ...

    def gate_layers(self) -> list[tuple[str, Layer, Gate]]:
        """Each gate as the code and as the operator set it."""
        ...

    def snapshot(self, *, now_us: int | None = None) -> dict[str, Any]:
        """
        Everything, for tests and `doctor --dump`: {"now_us", "totals": {...}, "topics": {name:
        TopicStats as dict}, "messages": [MessageView as dict, sorted by seq], "gates": [...],
        "policies": rows}. Cost grows with the content.
        """
        ...


class FullEngine(Engine, Admin, Protocol):
    """What `open_engine` returns."""


class OpenEngine(Protocol):
    """
    What an entry point of the group `laneway.engines` names (the entry's name is the URL's scheme).

    The opener of an engine with a server may have a method `check_server(url) -> list[Check]`: it
    checks whether the server can hold a namespace, and creates nothing there. `laneway doctor`
    calls it before it opens the engine.
    """

    def __call__(self, url: str, settings: Settings) -> FullEngine:
        """Open or create the store that the URL names."""
        ...

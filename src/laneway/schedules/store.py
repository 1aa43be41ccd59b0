"""
The schedules of an application: declared in code or at run time, and kept in the store.

A schedule is one message in its own topic, due when it fires next. The worker that handles it
publishes the call and the next such message. The ids of both consist of the schedule's name and the
intended time, and the store knows them for a day: if two workers handle the message, or one handles
it again after a crash, it fires once. No worker is special, and only the store's clock counts. The
next message is published in the transaction that ends the lease of the one before. Pausing a
schedule pauses its topic; removing or changing it deletes the topic with its lease, which ends the
chain.
"""

from __future__ import annotations

import builtins
import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypedDict, Unpack

import msgspec

from laneway import arguments, codec, config, headers as control, units
from laneway.awaitable import async_variant
from laneway.engines.base import (
    FullEngine,
    HeldState,
    IdState,  # msgspec reads it
)
from laneway.errors import BadMessage, Reject, UsageError
from laneway.message import Draft, Lease, Message, Receipt, Settlement
from laneway.runtime.runtime import Noun, Runtime
from laneway.schedules import times
from laneway.tasks.task import Task
from laneway.units import Duration
from laneway.working.handler import Handler, Handlers

log = logging.getLogger("laneway.schedule")

PREFIX = "laneway.schedule."
LATE = timedelta(seconds=60)
"""A firing that is late by more than this, or later than the next one, counts as missed."""

MOST_MISSED = 10_000
"""
The maximum number of missed firings that "all" publishes together; earlier ones are only logged.
"""

RETRIES, BACKOFF_SECONDS = 1_000_000, 60.0
"""
A firing that cannot be published now (its topic is full) is retried forever: a dead letter would
end its schedule.
"""

TRIES = 10
"""How often a firing schedule is read before it counts as nonexistent."""

Missed = Literal["skip", "one", "all"]
MISSED = ("skip", "one", "all")


class Call(msgspec.Struct, frozen=True):
    """The message that a firing publishes. `body` is encoded."""

    topic: str
    body: bytes
    headers: dict[str, str] | None = None
    key: str | None = None
    priority: int = 0
    ttl_us: int | None = None


class Schedule(msgspec.Struct, frozen=True):
    """
    A call and the times at which it is published. `spread_us`: its maximum delay in microseconds;
    each schedule has its own part of it.
    """

    name: str
    when: times.When
    call: Call
    missed: Missed = "one"
    spread_us: int = 0

    @property
    def topic(self) -> str:
        """Its own topic."""
        return PREFIX + self.name

    @property
    def fingerprint(self) -> str:
        """A checksum that changes with any part of the schedule."""
        return f"{zlib.crc32(msgspec.json.encode(self)):08x}"

    @property
    def shift_us(self) -> int:
        """Its part of the spread, which is constant because it depends only on the name."""
        return zlib.crc32(self.name.encode()) * self.spread_us >> 32

    def entry(self, nominal: datetime) -> Draft:
        """The message that is due at a firing."""
        body = msgspec.json.encode(Entry(self, nominal))
        return Draft(
            self.topic,
            body,
            at_us=_us(nominal),
            id=f"{self.name}@{nominal.isoformat()}#{self.fingerprint}",
            sticky=True,
        )

    def firing(self, nominal: datetime) -> Draft:
        """The call of a firing."""
        call = self.call
        return Draft(
            call.topic,
            call.body,
            key=call.key,
            priority=call.priority,
            at_us=_us(nominal) + self.shift_us,
            ttl_us=call.ttl_us,
            id=f"{self.name}@{nominal.isoformat()}",
            headers={**(call.headers or {}), control.SCHEDULE: self.name},
            sticky=True,
        )


class Entry(msgspec.Struct, frozen=True):
    """The body of a schedule's message."""

    schedule: Schedule
    nominal: datetime


class Options(TypedDict, total=False):
    """The options of a schedule; docs/schedules.md explains them."""

    every: Duration | None
    cron: str | None
    sun: tuple[str, float, float] | None
    at: datetime | None
    timezone: str
    start: datetime | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    missed: str
    spread: Duration


KNOWN = frozenset(Options.__annotations__)


class Planned(msgspec.Struct, frozen=True):
    """A schedule in the store."""

    name: str
    when: str
    next_at: Annotated[datetime, msgspec.Meta(tz=True)]
    topic: str
    missed: str
    is_paused: bool


class Firing(msgspec.Struct, frozen=True):
    """
    A time at which a schedule should have fired, and the state of its call. `"unknown"`: no
    call exists, because it was missed, paused, or not stored yet.
    """

    at: datetime
    state: IdState


REMEMBERED = timedelta(days=1)
"""How long the store knows the ids of calls that have ended."""

MOST_FIRINGS = 100
MOST_STEPS = 1_000
"""
The maximum number of a rule's times that are examined: it may fire often for a while, and rarely
otherwise.
"""


def new_schedule(
    name: str,
    when: times.When,
    message: Message,
    *,
    missed: str = "one",
    spread_us: int = 0,
) -> Schedule:
    """Check a schedule. Raises UsageError, BadMessage."""
    if (
        not isinstance(name, str)
        or not name
        or not name.isprintable()
        or len(name) > 150
        or "@" in name
        or "*" in name
    ):
        raise UsageError(
            'schedule: expected a name without "@" and "*", of 150 characters at most, got'
            f" {name!r:.80}"
        )
    arguments.choice(f"schedule {name}", "missed", missed, MISSED)
    if (
        message.at is not None
        or message.delay is not None
        or message.id is not None
        or message.at_front
    ):
        raise BadMessage(
            f"schedule {name}: the schedule sets the time, the id and at_front; leave them"
            " out of the call"
        )
    draft = codec.draft(message)
    return Schedule(
        name,
        when,
        Call(draft.topic, draft.body, draft.headers, draft.key, draft.priority, draft.ttl_us),
        missed,
        spread_us,
    )


def declared(where: str, name: str, call: object, options: Options) -> Schedule:
    """
    The schedule that `where` (a call of the application, for error messages) declares.

    `call`: a Message, or a task, whose arguments are among the options. Raises UsageError,
    BadMessage.
    """
    config.refuse_unknown(where, options.keys() - KNOWN, KNOWN)
    args, kwargs = tuple(options.get("args", ())), dict(options.get("kwargs") or {})
    if isinstance(call, Task):
        message = call.message(args, kwargs, {})
    elif not isinstance(call, Message):
        raise UsageError(f"schedule {name}: expected a Message or a task, got {call!r:.80}")
    elif args or kwargs:
        raise UsageError(f"schedule {name}: args and kwargs are a task's; a message has a body")
    else:
        message = call
    when = times.chosen(
        name,
        options.get("every"),
        options.get("cron"),
        options.get("sun"),
        options.get("at"),
        options.get("timezone", "UTC"),
        options.get("start"),
    )
    spread = arguments.seconds(f"schedule {name}", "spread", options.get("spread", 0))
    return new_schedule(
        name,
        when,
        message,
        missed=options.get("missed", "one"),
        spread_us=units.microseconds(spread),
    )


# In the store


def put(engine: FullEngine, schedule: Schedule) -> bool:
    """
    Store a schedule, replacing an earlier one with its name. Returns False if the store already has
    exactly this schedule, or if it never fires again.
    """
    standing = _standing(engine, schedule.topic)
    if any(entry.schedule.fingerprint == schedule.fingerprint for entry in standing):
        return False
    nominal = schedule.when.next_after(_now(engine, schedule.topic))
    if nominal is None:
        return False
    if standing:
        remove(engine, schedule.name)
    engine.put([schedule.entry(nominal)])
    return True


def remove(engine: FullEngine, name: str) -> bool:
    """Remove a schedule. Returns False if it did not exist."""
    topic, removed = PREFIX + name, 0
    while True:  # a concurrent firing may have passed a step of the deletion
        removed += engine.topic_delete(topic)
        if not _is_held(engine, topic):
            return removed > 0


def set_paused(engine: FullEngine, name: str, *, paused: bool | None) -> None:
    """Pause a schedule, or (None) resume it."""
    engine.policy_set("operator", PREFIX + name, {"paused": paused})


def planned(engine: FullEngine, limit: int, after: str | None = None) -> list[Planned]:
    """The schedules of the store by name, after the name `after`."""
    topics = engine.topic_list(
        pattern=PREFIX + "*", limit=limit, after=PREFIX + after if after is not None else None
    )
    return [
        _planned(entry, is_paused=topic.state == "paused")
        for topic in topics
        for entry in _standing(engine, topic.topic)
    ]


def paused_for(engine: FullEngine, topic: str, limit: int) -> list[str]:
    """The names of paused schedules that publish to a topic, among the first `limit` ones."""
    topics = engine.topic_list(pattern=PREFIX + "*", limit=limit)
    return [
        entry.schedule.name
        for each in topics
        if each.state == "paused"
        for entry in _standing(engine, each.topic)
        if entry.schedule.call.topic == topic
    ]


def run_now(engine: FullEngine, name: str) -> Receipt | None:
    """
    Publish the call of a schedule once, now; its next firing does not change. A paused schedule
    runs too. Returns None if the schedule does not exist.
    """
    standing = _standing(engine, PREFIX + name)
    if not standing:
        return None
    call = standing[0].schedule.call
    headers = {**(call.headers or {}), control.SCHEDULE: name}
    draft = Draft(
        call.topic,
        call.body,
        key=call.key,
        priority=call.priority,
        ttl_us=call.ttl_us,
        headers=headers,
    )
    return engine.put([draft])[0]


def last_firings(engine: FullEngine, name: str, most: int = 10) -> list[Firing]:
    """
    The last firings of a schedule within a day, the oldest first: the store knows the ids of their
    calls for a day.
    """
    standing = _standing(engine, PREFIX + name)
    if not standing:
        return []
    schedule, now = standing[0].schedule, _now(engine, PREFIX + name)
    times = _last_times(schedule.when, now, min(most, MOST_FIRINGS))
    ids = {schedule.firing(nominal).id or "": nominal for nominal in times}
    states = engine.lookup(schedule.call.topic, list(ids)) if ids else {}
    return [Firing(nominal, states.get(each, "unknown")) for each, nominal in ids.items()]


def _last_times(when: times.When, now: datetime, most: int) -> list[datetime]:
    """The last times of a rule within a day before now."""
    following = when.next_after(now)
    second = when.next_after(following) if following is not None else None
    gap = second - following if following is not None and second is not None else REMEMBERED
    found: list[datetime] = []
    span = gap * (most + 1)
    while True:
        moments = _times_between(when, max(now - REMEMBERED, now - span), now)
        if len(moments) >= MOST_STEPS:  # fires too often: later times were not reached
            return found[-most:]
        found = moments
        if len(found) >= most or span >= REMEMBERED:
            return found[-most:]
        span *= 4


def _times_between(when: times.When, start: datetime, end: datetime) -> list[datetime]:
    """The first `MOST_STEPS` times of a rule after a moment, up to another one."""
    found: list[datetime] = []
    at = when.next_after(start)
    while at is not None and at <= end and len(found) < MOST_STEPS:
        found.append(at)
        at = when.next_after(at)
    return found


def find(engine: FullEngine, name: str) -> Planned | None:
    """One schedule of the store."""
    standing = _standing(engine, PREFIX + name)
    return (
        _planned(standing[0], is_paused=engine.policy_of(PREFIX + name).paused)
        if standing
        else None
    )


def _planned(entry: Entry, *, is_paused: bool) -> Planned:
    plan = entry.schedule
    return Planned(
        plan.name, plan.when.text(), entry.nominal, plan.call.topic, plan.missed, is_paused
    )


def _standing(engine: FullEngine, topic: str) -> list[Entry]:
    """
    The waiting entry, else the one that is firing now. Reads again if it moved between the two.
    """
    for _ in range(TRIES):
        found = _held(engine, topic) or _held(engine, topic, "leased")
        if found or not _is_held(engine, topic):
            return found
    return []


def _is_held(engine: FullEngine, topic: str) -> bool:
    """Whether a message waits or is leased, by a single read of the store."""
    stats = engine.topic_stats(topic)
    return bool(stats.waiting or stats.leased)


def _held(engine: FullEngine, topic: str, state: HeldState | None = None) -> list[Entry]:
    return [
        entry
        for view in engine.topic_peek(topic, limit=10, state=state)
        if (entry := _read(view.body)) is not None
    ]


def _read(body: bytes) -> Entry | None:
    try:
        return msgspec.json.decode(body, type=Entry)
    except (msgspec.ValidationError, msgspec.DecodeError):
        return None


# Firing


def install(
    handlers: Handlers, engine: Callable[[], FullEngine], schedules: Iterable[Schedule]
) -> None:
    """Make a worker serve schedules: store the code's schedules, and handle all in the store."""
    if not handlers.has_pattern(PREFIX + "*"):
        handlers.add(_Firing(engine))
    if engine().policy_of(PREFIX + "*").retries != RETRIES:
        engine().policy_set(
            "code", PREFIX + "*", {"retries": RETRIES, "backoff": {"cap": BACKOFF_SECONDS}}
        )
    for schedule in schedules:
        put(engine(), schedule)


class _Firing(Handler):
    """Handles the messages of schedules that are due."""

    def __init__(self, engine: Callable[[], FullEngine]) -> None:
        super().__init__(self._fire, PREFIX + "*", name="laneway.schedule")
        self._engine = engine

    def concluded(
        self, lease: Lease, returned: Any, error: BaseException | None, settlement: Settlement
    ) -> Sequence[Draft]:
        """The next entry is stored only if this one's lease is still valid."""
        del lease, error, settlement
        return returned or ()

    def _fire(self, message: Message) -> list[Draft]:
        """Publish the calls. Returns the next entry, if any."""
        try:
            entry = msgspec.convert(message.body, Entry)
        except msgspec.ValidationError as error:
            raise Reject(f"the body is not a schedule: {error}") from error
        engine, schedule = self._engine(), entry.schedule
        if any(
            other.schedule.fingerprint != schedule.fingerprint
            for other in _held(engine, schedule.topic)
        ):
            log.info(
                "schedule %s was changed: the changed schedule decides about the firing at %s",
                schedule.name,
                entry.nominal,
            )
            return []
        due, following = _due(schedule, entry.nominal, _now(engine, schedule.topic))
        _publish(engine, schedule, [schedule.firing(nominal) for nominal in due])
        # Only after the calls: otherwise each period would leave one more waiting entry.
        return [] if following is None else [schedule.entry(following)]


def _publish(engine: FullEngine, schedule: Schedule, drafts: list[Draft]) -> None:
    for receipt in engine.put(drafts):
        if receipt.outcome == "refused":
            raise BadMessage(
                f"schedule {schedule.name}: {receipt.topic} is full ({receipt.reason}); it is"
                " retried"
            )


def _due(
    schedule: Schedule, nominal: datetime, now: datetime
) -> tuple[list[datetime], datetime | None]:
    """The firings to publish now, and the next one after them."""
    firings, following = [nominal], schedule.when.next_after(nominal)
    while following is not None and following <= now:
        firings.append(following)
        if len(firings) > MOST_MISSED:
            del firings[0]
        following = schedule.when.next_after(following)
    if len(firings) == 1 and now - nominal <= LATE:
        return firings, following
    if len(firings) > 1:
        log.warning(
            "schedule %s: %d firings were missed from %s on; its setting is %r",
            schedule.name,
            len(firings),
            nominal,
            schedule.missed,
        )
    if schedule.missed == "all":
        return firings, following
    if schedule.missed == "skip" and now - firings[-1] > LATE:
        return [], following
    return firings[-1:], following


def _now(engine: FullEngine, topic: str) -> datetime:
    return datetime.fromtimestamp(engine.time_us(topic) / units.SECOND, UTC)


def _us(moment: datetime) -> int:
    return units.moment(moment)


# The public interface


class Schedules(Noun):
    """
    The schedules in the store: `app.schedules`. `Laneway.schedule` declares a program's schedules.
    """

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._declared: dict[str, Schedule] = {}

    def declare(self, name: str, call: object, options: Options) -> None:
        """See `Laneway.schedule`."""
        schedule = declared("schedule", name, call, options)
        holder = self._runtime.holder
        with holder.lock:
            self._declared[name] = schedule
            if holder.opened is not None:
                put(holder.opened, schedule)

    def install(self) -> None:
        """
        Store the code's schedules and handle those that are due; a worker calls this when it
        starts.
        """
        handlers = self._runtime.handlers
        if len(handlers) or self._declared:
            install(handlers, lambda: self._runtime.engine, self._declared.values())

    def add(self, name: str, call: Message | Task[..., Any], **options: Unpack[Options]) -> bool:
        """
        Store a schedule now. The arguments are those of `Laneway.schedule`. Returns False if the
        store already has exactly this schedule, or if it never fires again.
        """
        return put(self._runtime.engine, declared("schedules.add", name, call, options))

    def list(self, *, limit: int = 1000, after: str | None = None) -> builtins.list[Planned]:
        """
        List the schedules of the store by name, at most `limit`, after the name `after`: rule, next
        firing, and whether paused.
        """
        after = None if after is None else arguments.name("schedules.list", "after", after)
        return planned(
            self._runtime.engine, arguments.whole("schedules.list", "limit", limit), after
        )

    def remove(self, name: str) -> bool:
        """
        Remove a schedule from the store. Returns False if it did not exist. If the code declares
        the schedule, the next worker stores it again: remove it from the code too.
        """
        return remove(self._runtime.engine, arguments.name("schedules.remove", "the name", name))

    def pause(self, name: str) -> None:
        """
        Pause a schedule. When it is resumed, `missed` decides what happens to the firings in
        between.
        """
        set_paused(
            self._runtime.engine, arguments.name("schedules.pause", "the name", name), paused=True
        )

    def resume(self, name: str) -> None:
        """Resume a paused schedule."""
        set_paused(
            self._runtime.engine, arguments.name("schedules.resume", "the name", name), paused=None
        )

    aadd = async_variant(add)
    alist = async_variant(list)
    aremove = async_variant(remove)
    apause = async_variant(pause)
    aresume = async_variant(resume)
